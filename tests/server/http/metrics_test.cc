#include "server/http/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/http/process_figures.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

v1::SessionStatus Session(const std::string& name, int members) {
  v1::SessionStatus session;
  session.set_name(name);
  session.set_state("running");
  session.set_step(41);
  session.set_steps_applied_total(40);
  session.set_steps_skipped_total(1);
  session.mutable_last_step_ago()->set_seconds(2);
  session.set_contribution_bytes_total(1 << 20);
  for (const double bound : {0.1, 1.0}) session.mutable_step_duration()->add_bounds(bound);
  for (const std::uint64_t count : {3U, 4U, 5U}) session.mutable_step_duration()->add_counts(count);
  session.mutable_step_duration()->set_sum(30.5);
  for (int rank = 0; rank < members; ++rank) {
    v1::MemberStatus& member = *session.add_members();
    member.set_rank(rank);
    member.set_state(rank == 1 ? "lost" : "connected");
    member.mutable_compute_wait_total()->set_seconds(rank);
    member.set_missed_steps_total(static_cast<std::uint64_t>(rank) * 3);
  }
  return session;
}

// Another implementation reads it: Prometheus' own parser.
void ExpectIsWellFormed(const std::string& text) {
  const testing::TemporaryFolder folder;
  const std::string file = folder / "metrics.txt";
  std::ofstream(file) << text;
  const std::string command =
      absl::StrCat("/usr/bin/python3 ", GRADWIRE_CHECK_METRICS, " < ", file);
  EXPECT_EQ(std::system(command.c_str()), 0) << text;
}

TEST(MetricsTest, SayHowLongASessionStaysPaused) {
  Figures figures;
  figures.sessions = {Session("held", 1), Session("free", 1)};
  figures.sessions[0].mutable_pause()->mutable_left()->set_seconds(492);
  const std::string text = MetricsText(figures, kNow);
  EXPECT_THAT(text, HasSubstr("\ngradwire_session_paused_seconds{session=\"held\"} 492\n"));
  EXPECT_THAT(text, HasSubstr("\ngradwire_session_paused_seconds{session=\"free\"} 0\n"));
}

TEST(MetricsTest, AnIdleDaemonHasItsOwn) {
  const std::string text = MetricsText({}, kNow);
  ExpectIsWellFormed(text);
  for (const char* line : {"gradwire_sessions{state=\"running\"} 0",
                           "gradwire_sessions_ended_total{reason=\"failed\"} 0",
                           "gradwire_refused_calls_total{reason=\"unauthenticated\"} 0",
                           "gradwire_connections_without_call_total 0",
                           "gradwire_cut_connections_total{reason=\"too_much\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, HasSubstr("gradwire_audit_dropped_total 0"));
  EXPECT_THAT(text, HasSubstr("gradwire_record_left_out_total 0"));
  EXPECT_THAT(text, Not(HasSubstr("certificate")));
}

TEST(MetricsTest, RefusalsAreCountedByReason) {
  Figures figures;
  figures.refused_joins = {{.reason = "unavailable", .count = 3}};
  figures.quota_refusals = {{.reason = "sessions", .count = 2}, {.reason = "joins", .count = 5}};
  figures.audit_dropped = 7;
  figures.record_left_out = 9;
  const std::string text = MetricsText(figures, kNow);
  ExpectIsWellFormed(text);
  for (const char* line : {"gradwire_refused_joins_total{reason=\"unavailable\"} 3",
                           "gradwire_quota_refusals_total{quota=\"sessions\"} 2",
                           "gradwire_quota_refusals_total{quota=\"joins\"} 5",
                           "gradwire_audit_dropped_total 7", "gradwire_record_left_out_total 9"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MetricsTest, ASessionHasItsFigures) {
  Figures figures;
  figures.sessions.push_back(Session("digits", 3));
  figures.ports.certificate_expiry = kNow + absl::Hours(24);
  const std::string text = MetricsText(figures, kNow);
  ExpectIsWellFormed(text);
  for (const char* line :
       {"gradwire_sessions{state=\"running\"} 1",
        "gradwire_members{session=\"digits\",state=\"connected\"} 2",
        "gradwire_members{session=\"digits\",state=\"lost\"} 1",
        "gradwire_steps_total{session=\"digits\",outcome=\"applied\"} 40",
        "gradwire_step_duration_seconds_bucket{session=\"digits\",le=\"0.1\"} 3",
        "gradwire_step_duration_seconds_bucket{session=\"digits\",le=\"1\"} 7",
        "gradwire_step_duration_seconds_bucket{session=\"digits\",le=\"+Inf\"} 12",
        "gradwire_step_duration_seconds_sum{session=\"digits\"} 30.5",
        "gradwire_last_step_timestamp_seconds{session=\"digits\"} 1799999998",
        "gradwire_member_wait_seconds_total{session=\"digits\",rank=\"2\",cause=\"compute\"} 2",
        "gradwire_member_missed_steps_total{session=\"digits\",rank=\"2\"} 6",
        "gradwire_tls_certificate_expiry_timestamp_seconds 1800086400"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// Names come from members.
TEST(MetricsTest, ANameCannotForgeALine) {
  Figures figures;
  figures.sessions.push_back(Session("x\"} 1\ngradwire_forged 1\n\x1b[2J\\", 1));
  const std::string text = MetricsText(figures, kNow);
  ExpectIsWellFormed(text);
  EXPECT_THAT(text, Not(HasSubstr("\ngradwire_forged")));
}

TEST(MetricsTest, SeriesAreBounded) {
  Figures figures;
  for (int i = 0; i < 20; ++i) figures.sessions.push_back(Session(absl::StrCat("s", i), 200));
  const std::string text = MetricsText(figures, kNow);
  ExpectIsWellFormed(text);
  EXPECT_THAT(text, HasSubstr("session=\"s4\",rank=\"199\""));
  EXPECT_THAT(text, Not(HasSubstr("session=\"s5\",rank=")));
  EXPECT_THAT(text, HasSubstr("gradwire_steps_total{session=\"s19\",outcome=\"applied\"} 40"));
}

// A later session of the same name counts; those that have ended have no series any more.
TEST(MetricsTest, EndedSessionsAreGone) {
  Figures figures;
  figures.sessions = {Session("a", 1), Session("a", 2), Session("b", 1)};
  figures.sessions[2].set_state("failed");
  const std::string text = MetricsText(figures, kNow);
  ExpectIsWellFormed(text);
  EXPECT_THAT(text, Not(HasSubstr("session=\"b\"")));
}

TEST(ProcessFiguresTest, AreThoseOfThisProcess) {
  const ProcessFigures figures = ReadProcessFigures();
  EXPECT_GT(figures.resident_bytes, std::uint64_t{1} << 20);
  EXPECT_LT(figures.resident_bytes, std::uint64_t{1} << 34);
  EXPECT_GE(figures.open_descriptors, 3U);
  EXPECT_GE(figures.max_descriptors, figures.open_descriptors);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_LE(figures.start_time_seconds, now + 2);
  EXPECT_GT(figures.start_time_seconds, now - 3600);
}

}  // namespace
}  // namespace gradwire::server
