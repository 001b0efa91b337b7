#include "server/ctl/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gradwire::ctl {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::SessionStatus Running() {
  v1::SessionStatus session;
  session.set_name("digits");
  session.set_state("running");
  session.set_step(41);
  session.set_world_size(2);
  session.set_waiting_for("step 41 waits for rank 1");
  session.mutable_hook()->set_comm_hook("fp16");
  session.set_contribution_bytes_total(3 << 20);
  session.add_members()->set_state("connected");
  session.add_members()->set_state("lost");
  return session;
}

TEST(ReportTest, StatusBeginsWithWhatIsWaitedFor) {
  v1::ListSessionsResponse sessions;
  *sessions.add_sessions() = Running();
  const std::string text = StatusTable({}, sessions);
  EXPECT_THAT(text, StartsWith("digits: step 41 waits for rank 1\n"));
  EXPECT_THAT(text, HasSubstr("1/2"));
  EXPECT_THAT(text, HasSubstr("fp16"));
  EXPECT_THAT(text, HasSubstr("3.0 MiB"));
}

TEST(ReportTest, SaysWhoIsSlow) {
  v1::ListSessionsResponse sessions;
  *sessions.add_sessions() = Running();
  sessions.mutable_sessions(0)->set_slow("rank 1 caused 98% of the waiting");
  EXPECT_EQ(Why(sessions),
            "digits: step 41 waits for rank 1\ndigits: rank 1 caused 98% of the waiting\n");
  EXPECT_THAT(StatusTable({}, sessions), StartsWith(Why(sessions)));
}

TEST(ReportTest, AnOperatorsPauseIsAState) {
  v1::SessionStatus session = Running();
  EXPECT_EQ(StateWord(session), "running");
  EXPECT_EQ(Doing(session), "is running: step 41 waits for rank 1");
  session.mutable_pause()->mutable_left()->set_seconds(9);
  EXPECT_EQ(StateWord(session), "pausing");
  EXPECT_EQ(Doing(session), "is pausing by an operator; the open step ends first; 9.0 s left");
  session.mutable_pause()->set_holding(true);
  session.mutable_pause()->set_reason("new\x1b switch");
  EXPECT_EQ(StateWord(session), "paused");
  EXPECT_EQ(Doing(session), "is paused by an operator: new\\u001b switch; 9.0 s left");
  v1::ListSessionsResponse sessions;
  *sessions.add_sessions() = session;
  EXPECT_THAT(SessionsTable(sessions), ContainsRegex("\ndigits +paused "));
}

TEST(ReportTest, ShowsWhatEachMemberCaused) {
  v1::SessionStatus session = Running();
  session.mutable_members(1)->mutable_compute_wait_total()->set_seconds(3);
  session.mutable_members(0)->mutable_link_wait_total()->set_seconds(1);
  v1::StepStatus& step = *session.add_recent_steps();
  step.set_step(40);
  step.mutable_duration()->set_nanos(250'000'000);
  step.mutable_straggler_gap()->set_nanos(200'000'000);
  step.add_members();
  step.add_members()->mutable_compute_wait()->set_nanos(200'000'000);
  const std::string text = SessionTable(session);
  EXPECT_THAT(text, ContainsRegex("0 +connected +- +- +0 B +0.0 s +1.0 s +25%"));
  EXPECT_THAT(text, ContainsRegex("0 +lost +- +- +0 B +3.0 s +0.0 s +75%"));
  EXPECT_THAT(text, ContainsRegex("40 +250.00 ms +200.00 ms +rank 1 +200.00 ms +0.00 ms"));
}

TEST(ReportTest, ShowsWhoseGradientsWereLate) {
  v1::SessionStatus session = Running();
  EXPECT_THAT(SessionTable(session), Not(HasSubstr("missed steps")));
  session.mutable_members(1)->set_rank(1);
  session.mutable_members(1)->set_missed_steps_total(7);
  EXPECT_THAT(SessionTable(session), ContainsRegex("missed steps +rank 1 7\n"));
}

TEST(ReportTest, AnEndedSessionWaitsForNothing) {
  v1::ListSessionsResponse sessions;
  *sessions.add_sessions() = Running();
  sessions.mutable_sessions(0)->set_state("closed");
  EXPECT_THAT(StatusTable({}, sessions), StartsWith("No session is running."));
}

TEST(ReportTest, AFailedSessionSaysWhy) {
  v1::ListSessionsResponse sessions;
  *sessions.add_sessions() = Running();
  sessions.mutable_sessions(0)->set_state("failed");
  sessions.mutable_sessions(0)->set_waiting_for("session \"digits\" failed: rank 1 is lost\x1b[2J");
  EXPECT_THAT(StatusTable({}, sessions), StartsWith("No session is running.\n"
                                                    "digits failed: rank 1 is lost\\u001b[2J\n"));
  *sessions.add_sessions() = Running();
  sessions.mutable_sessions(1)->set_name("letters");
  EXPECT_THAT(StatusTable({}, sessions), StartsWith("letters: step 41 waits for rank 1\n"
                                                    "digits failed: rank 1 is lost"));
}

TEST(ReportTest, WhyASessionFailedIsOldNewsOnceThereIsALaterOne) {
  v1::ListSessionsResponse sessions;
  *sessions.add_sessions() = Running();
  sessions.mutable_sessions(0)->set_state("failed");
  sessions.mutable_sessions(0)->set_waiting_for("rank 1 is lost");
  *sessions.add_sessions() = Running();
  sessions.mutable_sessions(1)->set_generation(1);
  EXPECT_THAT(StatusTable({}, sessions), Not(HasSubstr("rank 1 is lost")));
}

TEST(ReportTest, OneIsNotMany) {
  v1::GetServerResponse server;
  server.set_sessions(1);
  EXPECT_THAT(StatusTable(server, {}), HasSubstr(" 1 session, 0 connections, "));
}

TEST(ReportTest, NothingThatAMemberSaidActsOnTheTerminal) {
  v1::SessionStatus session = Running();
  session.set_waiting_for("\x1b[2Jgone");
  EXPECT_THAT(SessionTable(session), Not(HasSubstr("\x1b")));
  EXPECT_THAT(SessionJson(session), Not(HasSubstr("\x1b")));
}

TEST(ReportTest, JsonHasEveryField) {
  EXPECT_THAT(SessionJson(Running()), HasSubstr("\"duplicate_chunks_total\":\"0\""));
  EXPECT_THAT(StatusJson({}, {}), HasSubstr("\"sessions\":[]"));
}

TEST(ReportTest, WhenAMemberWasLastHeard) {
  v1::SessionStatus session = Running();
  session.mutable_members(0)->mutable_last_heard()->set_seconds(3);
  session.mutable_members(0)->set_transport("shared memory");
  session.add_members()->set_state("absent");
  const std::string text = SessionTable(session);
  EXPECT_THAT(text, HasSubstr("connected  shared memory  3.0 s ago"));
  EXPECT_THAT(text, ContainsRegex("lost +- +- "));
  EXPECT_THAT(text, ContainsRegex("absent +- +never"));
}

TEST(ReportTest, CompressionHasALineForEachParameter) {
  v1::SessionStatus session = Running();
  EXPECT_THAT(SessionTable(session), Not(HasSubstr("PARAMETER")));
  const auto add = [&session](const char* name, std::int64_t rank, double ratio,
                              std::int64_t version) {
    v1::ParameterStatus& line = *session.add_compression();
    line.set_name(name);
    line.set_rank(rank);
    line.set_ratio(ratio);
    line.set_version(version);
  };
  add("bias", 0, 1, 0);
  EXPECT_THAT(SessionTable(session), Not(HasSubstr("PARAMETER")));
  add("weight", 2, 8.571, 31);
  add("new\x1b[2J", 4, 3, 0);
  EXPECT_THAT(SessionTable(session), HasSubstr("\n"
                                               "PARAMETER     MATRIX RANK  RATIO  Q AFTER STEPS\n"
                                               "bias          -            1.0    -\n"
                                               "weight        2            8.6    31\n"
                                               "new\\u001b[2J  4            3.0    drawn\n"));
}

}  // namespace
}  // namespace gradwire::ctl
