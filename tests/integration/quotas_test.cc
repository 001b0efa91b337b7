// Quotas of two teams, over TCP with tokens, and the audit log of what they do.
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "server/daemon/server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/gradients.h"
#include "tests/testing/http_get.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::HttpGet;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TemporaryFolder;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const ParameterSpec kParameter = {.name = "a", .shape = {40, 25}};

class QuotasTest : public ::testing::Test {
 protected:
  void Start(const std::string& quota_of_a) {
    for (const char* team : {"a", "b"}) {
      ReplaceFile(folder_ / team, absl::StrCat("a-token-of-team-", team, "-only\n"));
    }
    ReplaceFile(folder_ / "root", "a-token-of-an-operator\n");
    ReplaceFile(folder_ / "tokens",
                absl::StrCat("team-a member a-* a-token-of-team-a-only ", quota_of_a,
                             "\nteam-b member b-* a-token-of-team-b-only\n",
                             "root operator * a-token-of-an-operator\n"));
    auto server = server::Server::Start({.listen = {"127.0.0.1:0"},
                                         .tokens = folder_ / "tokens",
                                         .http_listen = "127.0.0.1:0",
                                         .audit_log = folder_ / "audit"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  ClientOptions Options(const std::string& session, const std::string& team,
                        int members = 1) const {
    return {.address = server_->addresses()[0],
            .session = session,
            .world_size = members,
            .token_file = folder_ / team,
            .parameters = {kParameter},
            .join_timeout = absl::Seconds(20),
            .on_wait = [](const std::string&) {}};
  }

  static std::vector<absl::Status> Train(const ClientOptions& options, int steps = 3) {
    return RunRanks(options, [&](Client& client, int rank) -> absl::Status {
      Gradients a({kParameter});
      for (int step = 0; step < steps; ++step) {
        a.Fill(rank, step);
        GradBucket bucket = a.Bucket();
        if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
        if (const auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
      }
      return client.Leave();
    });
  }

  // Of the daemon's metrics; -1: it has none of this name and label.
  double Metric(const std::string& name) const {
    const std::string text =
        HttpGet(server_->http_addresses()[0], "/metrics", "a-token-of-an-operator");
    const std::vector<std::string> lines = absl::StrSplit(text, '\n');
    for (const std::string& line : lines) {
      if (line.rfind(name + " ", 0) == 0) return std::stod(line.substr(name.size() + 1));
    }
    return -1;
  }

  // The lines of the audit log, once the daemon has stopped.
  std::vector<Json> Audit() {
    server_.reset();
    std::vector<Json> lines;
    std::ifstream file(folder_ / "audit");
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  static std::vector<std::string> Events(const std::vector<Json>& lines) {
    std::vector<std::string> events;
    for (const Json& line : lines) {
      events.push_back(absl::StrCat(line.at("event").get<std::string>(), " ",
                                    line.value("outcome", ""), " ", line.value("session", "")));
    }
    return events;
  }

  TemporaryFolder folder_;
  std::unique_ptr<server::Server> server_;
};

TEST_F(QuotasTest, AJoinAboveAQuotaIsRefusedAndRunningSessionsGoOn) {
  Start("sessions=1,members=2");
  const auto running = Client::Join(Options("a-1", "a"));
  ASSERT_TRUE(running.ok()) << running.status();
  const absl::Status second = Client::Join(Options("a-2", "a")).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.message()),
              HasSubstr("team-a has 1 of 1 sessions; end one, or raise sessions= in its line of "
                        "the tokens file"));
  EXPECT_EQ(Metric("gradwire_quota_refusals_total{quota=\"sessions\"}"), 1);
  EXPECT_EQ(Metric("gradwire_quota_refusals_total{quota=\"joins\"}"), 0);
  EXPECT_EQ(Metric("gradwire_refused_joins_total{reason=\"resource_exhausted\"}"), 1);
  EXPECT_EQ(server_->sessions(), 1);
  // Another team has no quota, and the one that runs can go on.
  ExpectAllOk(Train(Options("b-1", "b", 3)));
  Gradients gradients({kParameter});
  gradients.Fill(0, 0);
  GradBucket bucket = gradients.Bucket();
  ExpectAllOk(
      {(*running)->AllReduce(bucket).Wait(), (*running)->EndStep().status(), (*running)->Leave()});
  // What it used is there again.
  ExpectAllOk(Train(Options("a-2", "a", 2)));
}

// Members of a session with a place for each one's stream, but not for bulk lanes.
TEST_F(QuotasTest, WhereStreamsAreFewMembersDoWithoutABulkLane) {
  Start("streams=2");
  ExpectAllOk(Train(Options("a-1", "a", 2)));
  EXPECT_EQ(Metric("gradwire_quota_refusals_total{quota=\"streams\"}"), 0);
}

TEST_F(QuotasTest, AFloodOfOneTeamsJoinsKeepsNobodyElseOut) {
  Start("joins=1");
  constexpr int kFlood = 150;
  std::vector<std::thread> flood;
  for (int t = 0; t < 2; ++t) {
    flood.emplace_back([&] {
      for (int i = 0; i < kFlood; ++i) Client::Join(Options("a-1", "a")).status().IgnoreError();
    });
  }
  for (int i = 0; i < 5; ++i) ExpectAllOk(Train(Options(absl::StrCat("b-", i), "b", 2)));
  for (std::thread& thread : flood) thread.join();
  // How many are admitted depends on how long it takes; it cannot be all.
  const double refused = Metric("gradwire_quota_refusals_total{quota=\"joins\"}");
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 2 * kFlood);
  const std::vector<Json> lines = Audit();
  // A flood does not fill the disk: the lines' rate is bounded, and the rest is a number.
  double left_out = 0;
  for (const Json& line : lines) {
    if (line.at("event") == "refusals_left_out") left_out += line.at("count").get<double>();
  }
  EXPECT_GT(left_out, 0);
}

TEST_F(QuotasTest, ANewQuotaCountsForTheNextJoin) {
  Start("");
  const auto first = Client::Join(Options("b-1", "b"));
  ASSERT_TRUE(first.ok()) << first.status();
  server::QuotaLimits limits;
  limits.values[static_cast<std::size_t>(server::QuotaKind::kMembers)] = 1;
  server_->SetQuotas(limits, {});
  EXPECT_THAT(std::string(Client::Join(Options("b-2", "b")).status().message()),
              HasSubstr("team-b has 1 of 1 members; wait until a member leaves, or raise members= "
                        "in identity_quota"));
  server_->SetQuotas({}, {});
  ExpectAllOk({Client::Join(Options("b-2", "b")).status(), (*first)->Leave()});
}

TEST_F(QuotasTest, TheAuditLogTellsWhoDidWhat) {
  Start("sessions=1");
  ExpectAllOk(Train(Options("a-1", "a", 2)));
  EXPECT_FALSE(Client::Join(Options("a-2", "b")).ok());
  ReplaceFile(folder_ / "wrong", "a-token-that-nobody-has\n");
  EXPECT_FALSE(Client::Join(Options("a-2", "wrong")).ok());
  EXPECT_EQ(Metric("gradwire_refused_calls_total{reason=\"permission_denied\"}"), 1);
  EXPECT_EQ(Metric("gradwire_refused_calls_total{reason=\"unauthenticated\"}"), 1);
  EXPECT_EQ(Metric("gradwire_audit_dropped_total"), 0);
  struct stat file = {};
  ASSERT_EQ(stat((folder_ / "audit").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600);
  server_->OnReload(absl::OkStatus(), "max_sessions: 256 -> 5");

  const std::vector<Json> lines = Audit();
  const std::vector<std::string> events = Events(lines);
  for (const char* event :
       {"daemon_started ok ", "session_began ok a-1", "join ok a-1", "leave ok a-1",
        "session_ended ok a-1", "join refused a-2", "call_refused refused ",
        "configuration_reloaded ok ", "drain_begun ok ", "daemon_stopped ok "}) {
    EXPECT_THAT(events, Contains(std::string(event)));
  }
  EXPECT_EQ(events.front(), "daemon_started ok ");
  EXPECT_EQ(events.back(), "daemon_stopped ok ");
  for (const Json& line : lines) {
    EXPECT_THAT(line.dump(), Not(HasSubstr("a-token-")));
    EXPECT_THAT(line.at("time").get<std::string>(),
                ::testing::MatchesRegex("20..-..-..T..:..:..\\....Z"));
    if (line.at("event") != "join") continue;
    const bool ok = line.at("outcome") == "ok";
    EXPECT_EQ(line.at("identity"), ok ? "token team-a" : "token team-b");
    EXPECT_EQ(line.at("role"), "member");
    EXPECT_THAT(line.at("peer").get<std::string>(), HasSubstr("127.0.0.1:"));
    EXPECT_EQ(line.contains("rank"), ok);
    EXPECT_EQ(line.contains("reason"), !ok);
  }
}

}  // namespace
}  // namespace gradwire
