#include "server/daemon/audit_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::TemporaryFolder;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class AuditLogTest : public ::testing::Test {
 protected:
  void Open(const AuditLog::Options& options = {}) {
    auto log = AuditLog::Open(path_, options);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }
  // Of a file whose lines are all whole.
  static std::vector<Json> Lines(const std::string& path) {
    std::vector<Json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (!line.empty()) lines.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
    }
    return lines;
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_ / "audit.log";
  std::shared_ptr<AuditLog> log_;
};

TEST_F(AuditLogTest, WritesAnObjectALineWithWhatIsKnown) {
  Open();
  log_->Record({.event = "join",
                .identity = "token team-a",
                .role = "member",
                .certificate = "cn",
                .peer = "10.0.0.1:4711",
                .session = "digits",
                .rank = 3});
  log_->Record({.event = "call_refused", .outcome = AuditEvent::Outcome::kRefused, .reason = "no"});
  log_->Stop();
  const std::vector<Json> lines = Lines(path_);
  ASSERT_EQ(lines.size(), 2);
  Json first = lines[0];
  EXPECT_EQ(first["time"].get<std::string>().size(),
            std::string("2026-11-24T22:00:00.000Z").size());
  first.erase("time");
  EXPECT_EQ(first, Json::parse(R"({"event":"join","outcome":"ok","identity":"token team-a",
      "role":"member","certificate":"cn","peer":"10.0.0.1:4711","session":"digits","rank":3})"));
  EXPECT_EQ(lines[1]["outcome"], "refused");
  EXPECT_EQ(lines[1]["reason"], "no");
  EXPECT_EQ(lines[1].size(), 4);
  struct stat file = {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600);
}

TEST_F(AuditLogTest, NamesFromPeersCannotLeaveTheirField) {
  Open();
  const std::string names[] = {"a\",\"event\":\"x", "line\nbreak", "\x1b[31m", "\xff\xfe",
                               "\xc2\x9b"};
  for (const std::string& name : names) log_->Record({.event = "join", .session = name});
  log_->Record({.event = "join", .session = std::string(100'000, 'x')});
  log_->Stop();
  const std::vector<Json> lines = Lines(path_);
  ASSERT_EQ(lines.size(), std::size(names) + 1);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    ASSERT_TRUE(lines[i].is_object()) << i;
    EXPECT_EQ(lines[i]["event"], "join");
    EXPECT_LE(lines[i].dump().size(), 2000);
  }
  EXPECT_EQ(lines[0]["session"], names[0]);
  EXPECT_EQ(lines[1]["session"], names[1]);
  // Control characters of any kind are escaped in the file itself.
  std::ifstream file(path_);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
}

TEST_F(AuditLogTest, AppendsAndGoesOnInANewFileAfterReopen) {
  std::ofstream(path_) << "{\"event\":\"before\"}\n";
  Open();
  log_->Record({.event = "one"});
  ASSERT_TRUE(Eventually([&] { return Lines(path_).size() == 2; }));
  std::filesystem::rename(path_, path_ + ".1");
  log_->Record({.event = "two"});
  log_->Reopen();
  // The old file has what was recorded before the new one is opened.
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path_); }));
  log_->Record({.event = "three"});
  log_->Stop();
  EXPECT_EQ(Lines(path_ + ".1").size(), 3);
  ASSERT_EQ(Lines(path_).size(), 1);
  EXPECT_EQ(Lines(path_)[0]["event"], "three");
  log_->Record({.event = "after the end"});
  EXPECT_EQ(Lines(path_).size(), 1);
}

TEST_F(AuditLogTest, APathThatCannotBeOpenedIsAnError) {
  const auto log = AuditLog::Open(folder_ / "no" + "/folder");
  EXPECT_EQ(log.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("cannot be opened for writing"));
}

TEST_F(AuditLogTest, RefusalsAreBoundedAndTheRestIsANumber) {
  Open({.refusals_per_second = 5});
  constexpr int kRefusals = 5000;
  for (int i = 0; i < kRefusals; ++i) {
    log_->Record({.event = "join", .outcome = AuditEvent::Outcome::kRefused});
  }
  log_->Record({.event = "join"});
  log_->Stop();
  int written = 0;
  int left_out = 0;
  int joined = 0;
  for (const Json& line : Lines(path_)) {
    if (line["event"] == "refusals_left_out") {
      left_out += line["count"].get<int>();
    } else {
      ++(line["outcome"] == "refused" ? written : joined);
    }
  }
  EXPECT_EQ(written + left_out, kRefusals);
  EXPECT_GE(written, 5);
  EXPECT_GT(left_out, written);
  EXPECT_EQ(joined, 1);
  EXPECT_EQ(log_->dropped(), 0);
}

// Without another event, too.
TEST_F(AuditLogTest, TheNumberComesWhenTheSecondIsOver) {
  Open({.refusals_per_second = 1});
  for (int i = 0; i < 3; ++i) {
    log_->Record({.event = "join", .outcome = AuditEvent::Outcome::kRefused});
  }
  EXPECT_TRUE(Eventually([&] {
    const std::vector<Json> lines = Lines(path_);
    return !lines.empty() && lines.back().value("event", "") == "refusals_left_out";
  }));
}

// A file size limit is a full disk that a test can make: write fails, and later it does not.
TEST_F(AuditLogTest, AFullDiskIsCountedAndLaterTold) {
  std::signal(SIGXFSZ, SIG_IGN);
  Open();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  constexpr int kEvents = 100;
  for (int i = 0; i < kEvents; ++i) log_->Record({.event = "join", .session = "digits"});
  const bool dropped = Eventually([&] { return log_->dropped() > kEvents / 2; });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(dropped);
  log_->Record({.event = "join", .session = "again"});
  log_->Stop();
  std::uint64_t whole = 0;
  std::uint64_t told = 0;
  for (const Json& line : Lines(path_)) {
    if (line.is_discarded()) continue;  // the one that the limit cut
    if (line["event"] == "events_dropped") {
      told += line["count"].get<std::uint64_t>();
    } else {
      ++whole;
    }
  }
  EXPECT_EQ(told, log_->dropped());
  EXPECT_EQ(whole + told, kEvents + 1);
}

// A pipe that nobody empties: the writer never waits for it, nor does the one who records.
TEST_F(AuditLogTest, AReaderThatDoesNotReadDelaysNobody) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  Open({.queue = 16});
  for (int i = 0; i < 20'000; ++i)
    log_->Record({.event = "join", .session = std::string(128, 'x')});
  log_->Stop();
  EXPECT_GT(log_->dropped(), 0);
  close(reader);
}

}  // namespace
}  // namespace gradwire::server
