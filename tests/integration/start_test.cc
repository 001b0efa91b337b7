// What a daemon says about the files that its configuration names, and about its addresses.
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http_get.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Authority;
using ::gradwire::testing::Eventually;
using ::gradwire::testing::HttpGet;
using ::gradwire::testing::Process;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::WriteFiles;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Answer {
  int exit_code = -1;
  std::string text;
};

class StartTest : public ::testing::Test {
 protected:
  StartTest() {
    files_ = WriteFiles(folder_.path(), authority_.Issue("daemon"), authority_.cert());
    WriteTokens("ops operator * correct-horse-battery-staple\n");
  }

  void WriteTokens(const std::string& text) const { ReplaceFile(tokens_, text); }
  // With all files.
  void WriteConfiguration() const {
    ReplaceFile(path_, absl::StrCat("listen: ", address_, "\nhttp: {listen: 'off'}\ntls: {cert: ",
                                    files_.cert, ", key: ", files_.key, ", client_ca: ", files_.ca,
                                    "}\ntokens: ", tokens_, "\naudit: {log: ", audit_, "}\n"));
  }

  Answer Run(std::vector<std::string> words) const {
    words.insert(words.begin(), GRADWIRE_DAEMON);
    const auto process = Process::Start(words, folder_ / "answer");
    if (!process.ok()) return {.text = process.status().ToString()};
    const std::optional<int> status = (*process)->Wait(absl::Seconds(30));
    if (!status || !WIFEXITED(*status)) return {.text = "did not exit"};
    return {.exit_code = WEXITSTATUS(*status), .text = (*process)->Log()};
  }
  // `gradwired config check`, and a start: they agree.
  void ExpectBoth(int exit_code, const std::string& text) const {
    for (const Answer& answer :
         {Run({"config", "check", path_}), Run({"serve", "--config", path_})}) {
      EXPECT_EQ(answer.exit_code, exit_code) << answer.text;
      EXPECT_THAT(answer.text, HasSubstr(text));
    }
  }
  std::unique_ptr<Process> Serve(std::vector<std::string> words) {
    words.insert(words.begin(), {GRADWIRE_DAEMON, "--config="});
    auto process = *Process::Start(words, folder_ / absl::StrCat("log", ++served_));
    EXPECT_TRUE(Logged(*process, "  grpc  ")) << process->Log();
    return process;
  }
  static bool Logged(const Process& process, const std::string& text) {
    return Eventually([&] { return process.Log().find(text) != std::string::npos; });
  }

  const TemporaryFolder folder_;
  const Authority authority_{"the authority"};
  tls::Files files_;
  int served_ = 0;  // daemons, each with a log of its own
  const std::string path_ = folder_ / "gradwired.yaml";
  const std::string tokens_ = folder_ / "tokens.txt";
  const std::string audit_ = folder_ / "audit.log";
  const std::string address_ = absl::StrCat("unix:", folder_ / "socket");
};

TEST_F(StartTest, TheCheckChangesNothing) {
  WriteConfiguration();
  const Answer good = Run({"config", "check", path_});
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(good.text, path_ + ": ok\n");
  EXPECT_FALSE(std::filesystem::exists(audit_));
}

// systemd does not restart a daemon that exits with 78.
TEST_F(StartTest, FilesWithMistakesAreErrorsOfTheConfiguration) {
  WriteConfiguration();
  WriteTokens("ops operator *\n");
  ExpectBoth(78, absl::StrCat("gradwired: tokens \"", tokens_, "\": line 1 has 3 words; "));
  WriteTokens("ops operator * correct-horse-battery-staple\n");

  ReplaceFile(files_.ca, "no certificate\n");
  ExpectBoth(78, absl::StrCat("gradwired: tls_client_ca \"", files_.ca, "\" has no certificate"));
  ReplaceFile(files_.ca, authority_.cert());

  ReplaceFile(files_.key, authority_.Issue("another").key);
  ExpectBoth(78, absl::StrCat("gradwired: tls_key \"", files_.key, "\" is not the key of "));
}

TEST_F(StartTest, TheCheckNamesTheMistakesOfAllFiles) {
  WriteConfiguration();
  WriteTokens("ops operator *\n");
  ReplaceFile(files_.ca, "no certificate\n");
  std::filesystem::remove(files_.key);
  const Answer answer = Run({"config", "check", path_});
  EXPECT_EQ(answer.exit_code, 78);
  EXPECT_THAT(answer.text, AllOf(HasSubstr("tokens \""), HasSubstr("tls_client_ca \""),
                                 HasSubstr("tls_key \""), Not(HasSubstr("ok\n"))));
}

// What a later start may find mended without a change of the configuration.
TEST_F(StartTest, WhatMayPassByItselfIsUnavailable) {
  WriteConfiguration();
  std::filesystem::remove(tokens_);
  ExpectBoth(69, absl::StrCat("tokens \"", tokens_, "\" cannot be read: No such file"));
  WriteTokens("ops operator * correct-horse-battery-staple\n");

  const auto expired = authority_.Issue(
      "daemon", {.begin = absl::Now() - absl::Hours(2), .end = absl::Now() - absl::Hours(1)});
  WriteFiles(folder_.path(), expired, authority_.cert());
  ExpectBoth(69, absl::StrCat("tls_cert \"", files_.cert, "\" has expired on "));
  WriteFiles(folder_.path(), authority_.Issue("daemon"), authority_.cert());

  std::filesystem::remove(audit_);  // the starts above made it
  std::filesystem::create_directory(audit_);
  ExpectBoth(69, "cannot be opened for writing: Is a directory");
}

TEST_F(StartTest, TheLogSaysWhatProtectsEachAddress) {
  const std::string local = absl::StrCat("info listening on ", address_, " (tokens)\n");
  const std::vector<std::string> words = {
      "--tokens", tokens_,          "--http-listen=off", "--listen",  "127.0.0.1:0",
      "--listen", address_,         "--tls-cert",        files_.cert, "--tls-key",
      files_.key, "--admin-listen", "127.0.0.1:0"};
  EXPECT_THAT(
      Serve(words)->Log(),
      AllOf(ContainsRegex("info listening on 127.0.0.1:[0-9]+ \\(TLS, tokens\\)\n"),
            ContainsRegex("info listening on 127.0.0.1:[0-9]+ for admin calls \\(TLS, tokens\\)\n"),
            HasSubstr(local)));
  std::vector<std::string> mutual = words;
  mutual.insert(mutual.end(), {"--tls-client-ca", files_.ca});
  EXPECT_THAT(Serve(mutual)->Log(),
              AllOf(ContainsRegex("listening on 127.0.0.1:[0-9]+ \\(TLS, client certificates "
                                  "required, tokens\\)\n"),
                    HasSubstr(local)));
  EXPECT_THAT(Serve({"--http-listen=off", "--listen", "127.0.0.1:0"})->Log(),
              ContainsRegex("listening on 127.0.0.1:[0-9]+ \\(no TLS, no tokens\\)\n"));
}

TEST_F(StartTest, TheLogNamesThePeerOfARefusal) {
  const auto daemon =
      Serve({"--tokens", tokens_, "--http-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"});
  const auto address = [&](const std::string& before) {
    const std::string log = daemon->Log();
    const std::size_t at = log.find(before) + before.size();
    return log.substr(at, log.find_first_of("/\n", at) - at);
  };
  const absl::Status refused = Client::Join({.address = address("  grpc  "),
                                             .session = "s",
                                             .world_size = 1,
                                             .parameters = {{.name = "w", .shape = {4}}},
                                             .local_socket = false,
                                             .connect_timeout = absl::Seconds(5)})
                                   .status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the daemon asks for a token"));
  EXPECT_EQ(HttpGet(address("  http  http://"), "/api/v1/status"), "");
  EXPECT_THAT(
      daemon->Log(),
      AllOf(ContainsRegex("refused a call of /gradwire.v1.AggregationService/Join[A-Za-z]* from "
                          "127.0.0.1:[0-9]+: the daemon asks for a token"),
            ContainsRegex("refused an HTTP request from 127.0.0.1:[0-9]+: the daemon asks for a "
                          "token: send it in the header")));
}

TEST_F(StartTest, TheLogSaysThatAFileIsRepaired) {
  const auto daemon = Serve(
      {"--tokens", tokens_, "--http-listen=off", "--listen", address_, "--audit-log", audit_});
  WriteTokens("ops operator *\n");
  ASSERT_TRUE(
      Logged(*daemon, absl::StrCat("error the list of tokens in ", tokens_, " stays as it was: ")))
      << daemon->Log();
  WriteTokens("ops operator * correct-horse-battery-staple\n");
  ASSERT_TRUE(Logged(*daemon, absl::StrCat("info the list of tokens in ", tokens_,
                                           " can be read again, and is as it was\n")))
      << daemon->Log();
  daemon->Signal(SIGTERM);
  ASSERT_TRUE(daemon->Wait(absl::Seconds(30)).has_value());
  std::vector<std::string> outcomes;
  std::ifstream file(audit_);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.at("event") == "tokens_reloaded") outcomes.push_back(json.at("outcome"));
  }
  EXPECT_THAT(outcomes, ::testing::ElementsAre("refused", "ok"));
}

}  // namespace
}  // namespace gradwire
