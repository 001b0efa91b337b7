// Each message that leaves Gradwire ends in exactly one code, and the common ones in their own.
#include <sys/wait.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/certificates.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::Process;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::TestDaemon;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void ExpectCode(const std::string& code, const std::string& message) {
  static const std::regex kTag(" \\[GW[1-9][0-9]{2}\\]");
  const auto tags = std::distance(std::sregex_iterator(message.begin(), message.end(), kTag),
                                  std::sregex_iterator());
  EXPECT_EQ(tags, 1) << message;
  EXPECT_THAT(message, ::testing::EndsWith(" [" + code + "]"));
}

void ExpectCode(const std::string& code, const absl::Status& status) {
  EXPECT_FALSE(status.ok()) << code;
  ExpectCode(code, std::string(status.message()));
}

ClientOptions Options(const TestDaemon& daemon, int world_size = 1) {
  return {.address = daemon.address(),
          .session = "codes",
          .rank = 0,
          .world_size = world_size,
          .parameters = {MakeParameter("a", 12), MakeParameter("b", 20)},
          .on_wait = [](const std::string&) {}};
}

absl::Status Refusal(const ClientOptions& options) { return Client::Join(options).status(); }

TEST(JoinCodes, WhatDiffersFromTheSession) {
  TestDaemon daemon({.join_timeout = absl::Seconds(30)});
  // Two of three, so that the last rank's place is not the one that everybody waits for.
  const auto first = Client::Join(Options(daemon));
  ASSERT_TRUE(first.ok()) << first.status();
  ClientOptions options = Options(daemon);
  ExpectCode("GW204", Refusal(options));
  options.hook.comm_hook = "fp16";
  ExpectCode("GW201", Refusal(options));
  options = Options(daemon);
  options.parameters[1].shape = {4, 5};
  ExpectCode("GW202", Refusal(options));
  options.parameters.pop_back();
  ExpectCode("GW202", Refusal(options));
  ExpectCode("GW203", Refusal(Options(daemon, 2)));
}

// Who waits for the one that was refused learns why, with the same code.
TEST(JoinCodes, TheOthersGetTheCodeOfTheWrongJoin) {
  TestDaemon daemon;
  absl::Status other;
  std::thread waits([&] { other = Refusal(Options(daemon, 2)); });
  ClientOptions options = Options(daemon, 2);
  options.rank = 1;
  options.hook.comm_hook = "fp16";
  absl::Status refused;
  // Until the other has joined, this one is the session's first.
  ASSERT_TRUE(testing::Eventually([&] { return daemon.server().sessions() == 1; }));
  refused = Refusal(options);
  waits.join();
  ExpectCode("GW201", refused);
  ExpectCode("GW201", other);
}

TEST(JoinCodes, WhatTheDaemonHasNoRoomFor) {
  TestDaemon full({.max_sessions = 1});
  const auto first = Client::Join(Options(full));
  ASSERT_TRUE(first.ok()) << first.status();
  ClientOptions second = Options(full);
  second.session = "second";
  ExpectCode("GW206", Refusal(second));

  TestDaemon small({.memory_limit = "64MiB", .chunk_bytes = 16 << 20, .window_chunks = 16});
  ClientOptions large = Options(small);
  large.parameters = {MakeParameter("large", 100'000'000)};
  ExpectCode("GW207", Refusal(large));
}

TEST(JoinCodes, WhoDoesNotAnswer) {
  TestDaemon daemon;
  daemon.server().BeginDrain();
  ClientOptions options = Options(daemon);
  options.connect_timeout = absl::Milliseconds(300);
  ExpectCode("GW109", Refusal(options));
  options.address = "unix:/nonexistent/daemon.sock";
  std::string waits;
  options.connect_timeout = absl::Milliseconds(1500);
  options.on_wait = [&](const std::string& line) { waits = line; };
  ExpectCode("GW101", Refusal(options));
  ExpectCode("GW101", waits);
}

TEST(JoinCodes, WhatTheClientChecksItself) {
  TestDaemon daemon;
  ClientOptions options = Options(daemon);
  options.address = "";
  ExpectCode("GW403", Refusal(options));
  options = Options(daemon);
  options.rank = 7;
  ExpectCode("GW400", Refusal(options));
  options = Options(daemon);
  options.world_size = 0;
  ExpectCode("GW203", Refusal(options));
  options = Options(daemon);
  options.parameters.push_back(options.parameters[0]);
  ExpectCode("GW404", Refusal(options));
  options = Options(daemon);
  options.hook.comm_hook = "fp17";
  ExpectCode("GW401", Refusal(options));
  options.hook = {.comm_hook = "power_sgd",
                  .comm_state_option = {{"matrix_approximation_rank", std::int64_t{0}}}};
  ExpectCode("GW402", Refusal(options));
  options = Options(daemon);
  options.token_file = daemon.Path("nothing");
  ExpectCode("GW110", Refusal(options));
}

TEST(TrainingCodes, MistakesOfTheCaller) {
  TestDaemon daemon;
  const auto joined = Client::Join(Options(daemon));
  ASSERT_TRUE(joined.ok()) << joined.status();
  Client& client = **joined;
  const auto reduce = [&](std::vector<ParameterSpec> parameters) {
    Gradients gradients(std::move(parameters));
    gradients.Fill(0, 0);
    GradBucket bucket = gradients.Bucket();
    return client.AllReduce(bucket).Wait();
  };
  ExpectCode("GW310", reduce({MakeParameter("c", 12)}));
  ExpectCode("GW311", reduce({MakeParameter("a", 13)}));
  ASSERT_EQ(reduce({MakeParameter("a", 12)}), absl::OkStatus());
  ExpectCode("GW312", reduce({MakeParameter("a", 12)}));
  ExpectCode("GW315", client.ExportState().status());
  ExpectCode("GW315", client.SetLossScale(2));
  ASSERT_EQ(reduce({MakeParameter("b", 20)}), absl::OkStatus());
  ASSERT_TRUE(client.EndStep().ok());
  ExpectCode("GW400", client.SetLossScale(0));
  ExpectCode("GW317", client.Broadcast(0, nullptr, 8));
  char byte = 0;
  ExpectCode("GW314", client.Broadcast(5, &byte, 1));
  ExpectCode("GW501", client.ExportState().status());
  ExpectCode("GW502", client.LoadStateDict("no state"));
  ASSERT_EQ(client.Leave(), absl::OkStatus());
  ExpectCode("GW316", client.Barrier());
  ExpectCode("GW316", client.EndStep().status());
}

TEST(TrainingCodes, MembersThatDoNotFit) {
  TestDaemon daemon;
  const auto collectives =
      RunRanks(Options(daemon, 2), [](Client& client, int rank) -> absl::Status {
        char byte = 0;
        return rank == 0 ? client.Barrier() : client.Broadcast(0, &byte, 1);
      });
  for (const absl::Status& status : collectives) ExpectCode("GW314", status);
  const auto buckets = RunRanks(Options(daemon, 2), [](Client& client, int rank) -> absl::Status {
    std::vector<ParameterSpec> both = {MakeParameter("a", 12), MakeParameter("b", 20)};
    if (rank == 0) both.pop_back();
    Gradients gradients(both);
    gradients.Fill(rank, 0);
    GradBucket bucket = gradients.Bucket();
    return client.AllReduce(bucket).Wait();
  });
  for (const absl::Status& status : buckets) ExpectCode("GW318", status);
}

TEST(TrainingCodes, WhatEndsASession) {
  TestDaemon daemon;
  // One leaves while the other begins a step.
  const auto left = RunRanks(Options(daemon, 2), [](Client& client, int rank) -> absl::Status {
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    return rank == 1 ? client.Leave() : client.Barrier();
  });
  ExpectCode("GW305", left[0]);
  const auto member = Client::Join(Options(daemon));
  ASSERT_TRUE(member.ok()) << member.status();
  daemon.server().Shutdown(absl::Seconds(2));
  ExpectCode("GW307", (*member)->Barrier());
  ExpectCode("GW307", (*member)->EndStep().status());
}

// The text and exit code of a program that ends by itself.
struct Answer {
  int exit_code = -1;
  std::string text = {};
  std::string first = {};  // line, without its end
};

Answer Run(const std::vector<std::string>& words) {
  const TemporaryFolder folder;
  const auto process = Process::Start(words, folder / "log");
  if (!process.ok()) return {.text = process.status().ToString()};
  const std::optional<int> status = (*process)->Wait(absl::Seconds(30));
  if (!status || !WIFEXITED(*status)) return {.text = "did not exit"};
  const std::string text = (*process)->Log();
  return {
      .exit_code = WEXITSTATUS(*status), .text = text, .first = text.substr(0, text.find('\n'))};
}

Answer Daemon(std::vector<std::string> words) {
  words.insert(words.begin(), {GRADWIRE_DAEMON, "--http-listen=off"});
  return Run(words);
}

Answer Ctl(std::vector<std::string> words) {
  words.insert(words.begin(), GRADWIRE_CTL);
  return Run(words);
}

TEST(DaemonCodes, WhatItRefusesAtTheStart) {
  const TemporaryFolder folder;
  const std::string file = folder / "file";
  ExpectCode("GW601", Daemon({"--prot", "7"}).first);
  ExpectCode("GW601", Daemon({"--config=", "config", "check"}).first);
  ExpectCode("GW602", Daemon({"--config=", "--max-sessions", "0"}).first);
  ExpectCode("GW602", Daemon({"--config=", "--memory-limit", "much"}).first);
  ExpectCode("GW603", Daemon({"--config", folder / "none"}).first);
  ReplaceFile(file, "max_session: 3\n");
  ExpectCode("GW604", Daemon({"--config", file}).first);
  ReplaceFile(file, "a: [\n");
  ExpectCode("GW604", Daemon({"config", "check", file}).first);
  ExpectCode("GW605", Daemon({"--config=", "--listen", "29610"}).first);
  ExpectCode("GW606", Daemon({"--config=", "--listen", "unix:/nonexistent/s"}).first);
  ExpectCode("GW607", Daemon({"--config=", "--listen", "0.0.0.0:0"}).first);
  ReplaceFile(file, "me member s\n");
  ExpectCode("GW608", Daemon({"--config=", "--listen", "127.0.0.1:0", "--tokens", file}).first);
  ExpectCode("GW608",
             Daemon({"--config=", "--listen", "127.0.0.1:0", "--tokens", folder / "no"}).first);
  ExpectCode("GW111", Daemon({"--config=", "--tls-cert", file}).first);
  ExpectCode("GW111",
             Daemon({"--config=", "--listen", "127.0.0.1:0", "--tls-cert", file, "--tls-key", file})
                 .first);
  ExpectCode("GW609", Daemon({"--config=", "--listen", "127.0.0.1:0", "--reduce=cuda:0",
                              "--cuda-library", folder / "none"})
                          .first);
}

TEST(CtlCodes, WhatItCannotDo) {
  const TemporaryFolder folder;
  TestDaemon daemon;
  ExpectCode("GW701", Ctl({"statsu"}).first);
  ExpectCode("GW701", Ctl({"--timeout", "-1", "status"}).first);
  ExpectCode("GW701", Ctl({"bench", "--model", "vgg"}).first);
  ExpectCode("GW702", Ctl({"session", "import", "s", folder / "none"}).first);
  ExpectCode("GW703", Ctl({"--address", daemon.address(), "session", "get", "s"}).first);
  ExpectCode("GW703",
             Ctl({"--address", daemon.address(), "session", "export", "s", folder / "f"}).first);
  const Answer none = Ctl({"--address", "unix:" + (folder / "none"), "status"});
  EXPECT_EQ(none.exit_code, 69);
  ExpectCode("GW101", none.first);
  EXPECT_THAT(none.text, HasSubstr("\nRun gradwirectl explain GW101 for what to do.\n"));
  ExpectCode("GW110", Ctl({"--token-file", folder / "none", "status"}).first);
}

TEST(Explain, PrintsPagesAndTheList) {
  const Answer page = Ctl({"explain", "GW203"});
  EXPECT_EQ(page.exit_code, 0);
  EXPECT_EQ(page.first, "# GW203: the world size does not fit");
  EXPECT_THAT(page.text, HasSubstr("\n## What to do\n"));
  for (const char* known : {"[gw203]", "gw203", "203", "[203]"}) {
    EXPECT_EQ(Ctl({"explain", known}).text, page.text) << known;
  }
  const auto document = nlohmann::json::parse(Ctl({"-o", "json", "explain", "GW203"}).text);
  EXPECT_EQ(document.at("code"), "GW203");
  EXPECT_EQ(document.at("title"), "the world size does not fit");
  EXPECT_EQ(document.at("page"), page.text);
  const auto codes = nlohmann::json::parse(Ctl({"-o", "json", "explain"}).text);
  EXPECT_EQ(codes.at(0).at("code"), "GW100");
  EXPECT_THAT(Ctl({"-o", "yaml", "explain", "203"}).text, StartsWith("code: \"GW203\"\n"));
  const Answer list = Ctl({"explain"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_THAT(list.text, HasSubstr("\nGW203  the world size does not fit\n"));
  for (const char* unknown : {"GW999", "2030", "30", "[", "rank"}) {
    const Answer refused = Ctl({"explain", unknown});
    EXPECT_EQ(refused.exit_code, 2) << unknown;
    ExpectCode("GW701", refused.first);
  }
}

}  // namespace
}  // namespace gradwire
