#include "client/addresses.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string ErrorOf(const std::string& text) {
  const auto addresses = AddressesOf(text);
  if (addresses.ok()) return "none";
  EXPECT_EQ(addresses.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(addresses.status().message());
}

TEST(Addresses, OneIsOneDaemon) {
  EXPECT_THAT(*AddressesOf("host:29610"), ElementsAre("host:29610"));
  EXPECT_THAT(*AddressesOf(" unix:/run/gradwire.sock "), ElementsAre("unix:/run/gradwire.sock"));
  EXPECT_THAT(*AddressesOf("[::1]:29610"), ElementsAre("[::1]:29610"));
}

TEST(Addresses, AListKeepsItsOrder) {
  EXPECT_THAT(*AddressesOf("b:1, a:2,c:3"), ElementsAre("b:1", "a:2", "c:3"));
}

TEST(Addresses, RangesCountUp) {
  EXPECT_THAT(*AddressesOf("host-{0..3}:29610"),
              ElementsAre("host-0:29610", "host-1:29610", "host-2:29610", "host-3:29610"));
  EXPECT_THAT(*AddressesOf("h:{8..10},x:1"), ElementsAre("h:8", "h:9", "h:10", "x:1"));
  EXPECT_THAT(*AddressesOf("h{7..7}"), ElementsAre("h7"));
  EXPECT_THAT(*AddressesOf("h{0..63}:1"), SizeIs(64));
}

TEST(Addresses, NamesWhatIsWrong) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty address"));
  EXPECT_THAT(ErrorOf("a:1,,b:2"), HasSubstr("\"a:1,,b:2\": names an empty address"));
  EXPECT_THAT(ErrorOf("a:1,"), HasSubstr("empty address"));
  EXPECT_THAT(ErrorOf("a:1,b:1,a:1"), HasSubstr("names a:1 twice"));
  EXPECT_THAT(ErrorOf("h{0..2},h1"), HasSubstr("names h1 twice"));
  EXPECT_THAT(ErrorOf("h{0..64}"), HasSubstr("at most 64 numbers"));
  EXPECT_THAT(ErrorOf("h{0..40},g{0..40}"), HasSubstr("more than 64 daemons"));
  for (const char* braces :
       {"h{", "h}", "h}0..1{", "h{}", "h{..}", "h{1}", "h{1..}", "h{..1}", "h{3..1}", "h{a..b}",
        "h{-1..1}", "h{0..1x}", "h{0...2}", "h{0..99999999999999999999}", "h{0..4294967295}"}) {
    EXPECT_THAT(ErrorOf(braces), HasSubstr("allowed: a range such as {0..3}")) << braces;
  }
}

// What a name has, lookup after lookup; the last answer stays.
struct FakeDns {
  using Answer = absl::StatusOr<std::vector<std::string>>;
  std::vector<Answer> answers;
  std::size_t pauses = 0;  // before it gives up
  std::vector<std::string> hosts{};
  std::vector<std::string> problems{};

  Dns Get() {
    return {.lookup =
                [this](const std::string& host) {
                  hosts.push_back(host);
                  return answers[std::min(hosts.size(), answers.size()) - 1];
                },
            .pause =
                [this](const std::string& problem) {
                  problems.push_back(problem);
                  return problems.size() <= pauses;
                }};
  }
};

using Answer = FakeDns::Answer;

std::vector<std::string> Found(const std::string& text, const Answer& answer) {
  FakeDns dns{.answers = {answer}};
  const auto daemons = Resolve(text, dns.Get());
  EXPECT_TRUE(daemons.ok()) << daemons.status();
  return daemons.ok() ? daemons->addresses : std::vector<std::string>();
}

TEST(DaemonNames, HaveAPartForEachSetting) {
  const auto name = ParseDaemonName("dns-all:///gradwired.gradwire:29610?n=4&ip=6");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->host, "gradwired.gradwire");
  EXPECT_EQ(name->port, 29610);
  EXPECT_EQ(name->count, 4U);
  EXPECT_EQ(name->ip, 6);
  EXPECT_EQ(ParseDaemonName("dns-all:///a:1")->count, 0U);
  EXPECT_EQ(ParseDaemonName("dns-all:///a:1?ip=4")->ip, 4);
}

// gRPC's names are single daemons.
TEST(DaemonNames, AreNotGrpcsNames) {
  EXPECT_FALSE(IsDaemonName("dns:///a:1"));
  EXPECT_FALSE(IsDaemonName("a:1"));
  EXPECT_THAT(*AddressesOf("dns:///a:1"), ElementsAre("dns:///a:1"));
  EXPECT_THAT(*AddressesOf(" dns-all:///a:1?n=2 "), ElementsAre("dns-all:///a:1?n=2"));
}

TEST(DaemonNames, NamesWhatIsWrong) {
  for (const char* text : {"dns-all:",
                           "dns-all:a:1",
                           "dns-all://a:1",
                           "dns-all:///",
                           "dns-all:///a",
                           "dns-all:///:1",
                           "dns-all:///a:",
                           "dns-all:///a:0",
                           "dns-all:///a:65536",
                           "dns-all:///a:1x",
                           "dns-all:///a b:1",
                           "dns-all:///[::1]:1",
                           "dns-all:///.a:1",
                           "dns-all:///a/b:1",
                           "dns-all:///a-{0..1}:1",
                           "dns-all:///a:1?",
                           "dns-all:///a:1?n=",
                           "dns-all:///a:1?n=0",
                           "dns-all:///a:1?n=65",
                           "dns-all:///a:1?n=-1",
                           "dns-all:///a:1?n=2&n=2",
                           "dns-all:///a:1?ip=5",
                           "dns-all:///a:1?ip=4&ip=4",
                           "dns-all:///a:1?n=2&",
                           "dns-all:///a:1?m=2"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("allowed: ///NAME:PORT, then ?n=N")) << text;
  }
  EXPECT_THAT(ErrorOf("dns-all:///" + std::string(254, 'a') + ":1"), HasSubstr("allowed"));
  for (const char* text : {"dns-all:///a:1,b:1", "b:1,dns-all:///a:1", ",dns-all:///a:1"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("dns-all:///a:1 names all daemons; allowed: alone"));
  }
}

TEST(DaemonNames, OthersAreNotLookedUp) {
  FakeDns dns;
  const auto daemons = Resolve("b:1,a:{1..2}", dns.Get());
  ASSERT_TRUE(daemons.ok()) << daemons.status();
  EXPECT_THAT(daemons->addresses, ElementsAre("b:1", "a:1", "a:2"));
  EXPECT_EQ(daemons->host, "");
  EXPECT_EQ(NameOf(*daemons, 2), "a:2");
}

// By number, not as text; one spelling of each.
TEST(DaemonNames, AllMembersHaveOneOrder) {
  const Answer one = {{"10.0.0.10", "fd00::b", "10.0.0.9", "fd00::1:0", "9.255.0.1"}};
  const Answer other = {
      {"fd00:0:0::1:0", "9.255.0.1", "10.0.0.9", "10.0.0.10", "10.0.0.9", "FD00::000b"}};
  const std::vector<std::string> want = {"9.255.0.1:7", "10.0.0.9:7", "10.0.0.10:7", "[fd00::b]:7",
                                         "[fd00::1:0]:7"};
  EXPECT_EQ(Found("dns-all:///a:7", one), want);
  EXPECT_EQ(Found("dns-all:///a:7", other), want);
  EXPECT_THAT(Found("dns-all:///a:7?ip=4&n=3", one),
              ElementsAre("9.255.0.1:7", "10.0.0.9:7", "10.0.0.10:7"));
  EXPECT_THAT(Found("dns-all:///a:7?ip=6", one), ElementsAre("[fd00::b]:7", "[fd00::1:0]:7"));
  EXPECT_THAT(Found("dns-all:///a:7", {{"10.0.0.9"}}), ElementsAre("10.0.0.9:7"));
}

TEST(DaemonNames, CertificatesAreForTheName) {
  FakeDns dns{.answers = {{{"10.0.0.2", "10.0.0.1"}}}};
  const auto daemons = Resolve("dns-all:///gradwired.example.:29610", dns.Get());
  ASSERT_TRUE(daemons.ok()) << daemons.status();
  EXPECT_EQ(daemons->host, "gradwired.example");
  EXPECT_THAT(dns.hosts, ElementsAre("gradwired.example."));
  EXPECT_EQ(NameOf(*daemons, 1), "10.0.0.2:29610, resolved from gradwired.example");
}

TEST(DaemonNames, ThoseThatStartAreWaitedFor) {
  FakeDns dns{.answers = {absl::UnavailableError("no such name"),
                          {std::vector<std::string>()},
                          {{"10.0.0.2"}},
                          {{"10.0.0.2", "10.0.0.1", "10.0.0.3"}},
                          {{"10.0.0.3", "10.0.0.2"}}},
              .pauses = 100};
  const auto daemons = Resolve("dns-all:///a:1?n=2", dns.Get());
  ASSERT_TRUE(daemons.ok()) << daemons.status();
  EXPECT_THAT(daemons->addresses, ElementsAre("10.0.0.2:1", "10.0.0.3:1"));
  EXPECT_THAT(dns.problems,
              ElementsAre("looking up a: no such name", "a has no address",
                          "a has 1 address (10.0.0.2); n is 2",
                          "a has 3 addresses (10.0.0.1, 10.0.0.2, 10.0.0.3); n is 2"));
}

TEST(DaemonNames, WhoGivesUpNamesTheName) {
  const auto told = [](const std::string& text, const Answer& answer) {
    FakeDns dns{.answers = {answer}, .pauses = 2};
    const absl::Status status = Resolve(text, dns.Get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(dns.hosts.size(), 3U);
    return std::string(status.message());
  };
  EXPECT_EQ(told("dns-all:///a:1", {std::vector<std::string>()}),
            "a has no address; are the daemons running? [GW101]");
  EXPECT_EQ(told("dns-all:///a:1?ip=6", {{"10.0.0.1"}}),
            "a has no IPv6 address; are the daemons running? [GW101]");
  EXPECT_EQ(told("dns-all:///a:1?n=2&ip=4", {{"10.0.0.1", "::1"}}),
            "a has 1 IPv4 address (10.0.0.1); n is 2; are the daemons running? [GW101]");
  EXPECT_EQ(told("dns-all:///a:1", absl::UnavailableError("no such name")),
            "looking up a: no such name; are the daemons running? [GW101]");
}

TEST(DaemonNames, TooManyAreRefused) {
  std::vector<std::string> many;
  for (int i = 0; i < 65; ++i) many.push_back("10.0.0." + std::to_string(i));
  FakeDns dns{.answers = {many}, .pauses = 2};
  EXPECT_THAT(std::string(Resolve("dns-all:///a:1", dns.Get()).status().message()),
              HasSubstr("\"dns-all:///a:1\": the name has 65 addresses; allowed: up to 64"));
  many.pop_back();
  EXPECT_THAT(Found("dns-all:///a:1", many), SizeIs(64));
}

TEST(IsAddress, IsOfOneDaemon) {
  for (const char* good : {"a:1", "127.0.0.1:29610", "[::1]:65535", "unix:/x", "dns:///a:1"}) {
    EXPECT_TRUE(IsAddress(good)) << good;
  }
  for (const char* bad :
       {"", "nonsense", "a:", ":1", "a:0", "a:65536", "a:x", "http://a:1", "::1:2"}) {
    EXPECT_FALSE(IsAddress(bad)) << bad;
  }
}

}  // namespace
}  // namespace gradwire::client
