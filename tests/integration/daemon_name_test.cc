// Sessions whose daemons are all the addresses of one DNS name. Names are a fake resolver's, but
// for localhost. Members are threads.
#include <signal.h>
#include <sys/wait.h>

#include <barrier>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/sync.h"
#include "client/addresses.h"
#include "client/runtime/join.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "server/daemon/server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/gradients.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Authority;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::Process;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::WriteFiles;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int kMembers = 2;
constexpr char kHost[] = "gradwired.example";

// A name that has these addresses, at every lookup.
client::Dns Has(std::vector<std::string> addresses) {
  return {.lookup = [addresses = std::move(addresses)](
                        const std::string& host) -> absl::StatusOr<std::vector<std::string>> {
            EXPECT_EQ(host, kHost);
            return addresses;
          },
          .pause = [](const std::string&) { return false; }};
}

// A name whose addresses change.
class Names {
 public:
  explicit Names(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {}
  void Set(const std::vector<std::string>& addresses) {
    MutexLock lock(mutex_);
    addresses_ = addresses;
  }
  client::Dns Get() {
    return {.lookup = [this](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
              MutexLock lock(mutex_);
              return addresses_;
            },
            .pause = [](const std::string&) { return false; }};
  }

 private:
  Mutex mutex_;
  std::vector<std::string> addresses_ GRADWIRE_GUARDED_BY(mutex_);
};

class DaemonNameTest : public ::testing::Test {
 protected:
  // On 127.0.0.1, 127.0.0.2 and so on, at one port.
  void Start(std::size_t daemons, const tls::Files& files = {}) {
    for (std::size_t i = 0; i < daemons; ++i) {
      auto server = server::Server::Start(
          {.listen = {absl::StrCat("127.0.0.", i + 1, ":", i == 0 ? "0" : port_)}, .tls = files});
      ASSERT_TRUE(server.ok()) << server.status();
      servers_.push_back(*std::move(server));
      const std::string address = servers_.back()->addresses().front();
      port_ = address.substr(address.rfind(':') + 1);
    }
  }

  std::string Name(const std::string& host, const std::string& query = "") const {
    return absl::StrCat("dns-all:///", host, ":", port_, query);
  }
  ClientOptions Options(const std::string& query = "") const {
    return {.address = Name(kHost, query),
            .session = "named",
            .world_size = kMembers,
            .parameters = {MakeParameter("w", 30'000)},
            .connect_timeout = absl::Seconds(10),
            .join_timeout = absl::Seconds(20),
            .on_wait = [](const std::string&) {}};
  }

  // One step of each rank, with a resolver of its own.
  static std::vector<absl::Status> Train(const ClientOptions& common,
                                         const std::vector<client::Dns>& dns) {
    std::vector<absl::Status> ended(kMembers);
    std::vector<std::thread> members;
    for (std::size_t rank = 0; rank < kMembers; ++rank) {
      members.emplace_back([&, rank] {
        ClientOptions options = common;
        options.rank = static_cast<int>(rank);
        const auto client = client::JoinThrough(options, dns[rank]);
        ended[rank] = client.ok() ? Step(**client, options) : client.status();
      });
    }
    for (std::thread& member : members) member.join();
    return ended;
  }

  static absl::Status Step(Client& client, const ClientOptions& options) {
    Gradients gradients(options.parameters);
    gradients.Fill(client.rank(), 0);
    GradBucket bucket = gradients.Bucket();
    if (absl::Status done = client.AllReduce(bucket).Wait(); !done.ok()) return done;
    EXPECT_EQ(gradients.bytes(), *ExpectedReduction({}, options.parameters, kMembers, 0));
    if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
    return client.Leave();
  }

  // In a process of its own, which can be killed.
  std::unique_ptr<Process> StartProcess(const std::string& ip) {
    const std::string log = folder_ / absl::StrCat("daemon-", ++processes_);
    auto daemon =
        Process::Start({GRADWIRE_DAEMON, "--listen",
                        absl::StrCat(ip, ":", port_.empty() ? "0" : port_), "--http-listen", "off"},
                       log);
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    constexpr char kAt[] = "  grpc  ";
    EXPECT_TRUE(testing::Eventually([&] { return (*daemon)->Log().find(kAt) != std::string::npos; },
                                    absl::Seconds(30)))
        << (*daemon)->Log();
    const std::string text = (*daemon)->Log();
    const std::size_t begin = text.find(kAt);
    const std::string address = text.substr(begin, text.find('\n', begin) - begin);
    port_ = address.substr(address.rfind(':') + 1);
    return *std::move(daemon);
  }

  // Members do a step with daemons at these addresses. The last one is killed and comes back at
  // another one, and they do another step.
  void KillTheLastOf(const std::vector<std::string>& before, const std::string& ip,
                     const std::vector<std::string>& after) {
    std::vector<std::unique_ptr<Process>> daemons;
    daemons.reserve(before.size());
    for (const std::string& one : before) daemons.push_back(StartProcess(one));
    Names names(before);
    std::barrier<> all(kMembers + 1);
    std::vector<absl::Status> ended(kMembers);
    std::vector<std::thread> members;
    for (std::size_t rank = 0; rank < kMembers; ++rank) {
      members.emplace_back([&, rank] {
        ClientOptions options = Options();
        options.rank = static_cast<int>(rank);
        const auto client = client::JoinThrough(options, names.Get());
        ended[rank] = client.ok() ? Reduce(**client, options) : client.status();
        all.arrive_and_wait();
        all.arrive_and_wait();
        if (ended[rank].ok()) ended[rank] = Reduce(**client, options);
        if (!client.ok()) return;
        EXPECT_GE((*client)->metrics().rejoins, 1U);
        EXPECT_EQ((*client)->Leave(), absl::OkStatus());
      });
    }
    all.arrive_and_wait();
    daemons.back()->Signal(SIGKILL);
    daemons.back()->Wait(absl::Seconds(10));
    names.Set(after);
    daemons.back() = StartProcess(ip);
    all.arrive_and_wait();
    for (std::thread& member : members) member.join();
    testing::ExpectAllOk(ended);
  }

  static absl::Status Reduce(Client& client, const ClientOptions& options) {
    Gradients gradients(options.parameters);
    GradBucket bucket = gradients.Bucket();
    if (absl::Status done = client.AllReduce(bucket).Wait(); !done.ok()) return done;
    return client.EndStep().status();
  }

  std::string Refusal(const ClientOptions& options, const client::Dns& dns) const {
    return std::string(client::JoinThrough(options, dns).status().message());
  }

  TemporaryFolder folder_;
  const Authority authority_{"the authority"};
  std::vector<std::unique_ptr<server::Server>> servers_;
  int processes_ = 0;
  std::string port_;
};

TEST_F(DaemonNameTest, AllItsAddressesAreTheSessionsDaemonsInOneOrder) {
  Start(3);
  testing::ExpectAllOk(Train(Options(), {Has({"127.0.0.3", "127.0.0.1", "127.0.0.2"}),
                                         Has({"127.0.0.2", "127.0.0.3", "127.0.0.1"})}));
}

TEST_F(DaemonNameTest, OneAddressIsOneDaemon) {
  Start(1);
  testing::ExpectAllOk(Train(Options("?n=1"), {Has({"127.0.0.1"}), Has({"127.0.0.1"})}));
}

TEST_F(DaemonNameTest, AMemberThatFindsFewerIsToldWhereItsListIsFrom) {
  Start(3);
  for (const bool one : {true, false}) {
    ClientOptions options = Options();
    options.session = one ? "one" : "two";
    const auto told = Train(options, {Has({"127.0.0.1", "127.0.0.2", "127.0.0.3"}),
                                      one ? Has({"127.0.0.1"}) : Has({"127.0.0.1", "127.0.0.2"})});
    EXPECT_FALSE(told[0].ok());
    const std::string words = absl::StrCat(told[0].message(), told[1].message());
    EXPECT_THAT(words, AllOf(HasSubstr("number of shards"),
                             HasSubstr(absl::StrCat(port_, ", resolved from gradwired.example")),
                             EndsWith("[GW215]")));
  }
}

TEST_F(DaemonNameTest, ANameWithoutAddressesIsNamed) {
  port_ = "1";
  EXPECT_THAT(Refusal(Options(), Has({})),
              AllOf(HasSubstr("could not join through dns-all:///gradwired.example:1 within 10s: "
                              "gradwired.example has no address"),
                    EndsWith("[GW101]")));
  ClientOptions options = Options("?n=2");
  options.node_group = "a-node";
  options.device = {DeviceKind::kCuda, 0};
  EXPECT_THAT(Refusal(options, Has({})), HasSubstr("with several daemons"));
}

// What is resolved is not what a certificate is for.
TEST_F(DaemonNameTest, CertificatesAreCheckedAgainstTheName) {
  const auto files = WriteFiles(
      folder_ / "daemon", authority_.Issue("d", {}, "DNS:gradwired.example"), authority_.cert());
  Start(2, {.cert = files.cert, .key = files.key});
  ClientOptions options = Options();
  options.tls.ca = files.ca;
  const client::Dns dns = Has({"127.0.0.1", "127.0.0.2"});
  testing::ExpectAllOk(Train(options, {dns, dns}));

  options.connect_timeout = absl::Seconds(1);
  ClientOptions by_address = options;
  by_address.address = absl::StrCat("127.0.0.1:", port_, ",127.0.0.2:", port_);
  EXPECT_THAT(Refusal(by_address, dns), HasSubstr("[GW102]"));
  options.world_size = 1;
  testing::ExpectAllOk({client::JoinThrough(options, Has({"127.0.0.1"})).status()});
}

// The address is in the certificate, and the name is not: whoever can forge DNS answers must not
// get the gradients.
TEST_F(DaemonNameTest, ACertificateForTheAddressIsNotEnough) {
  const auto files = WriteFiles(folder_ / "daemon",
                                authority_.Issue("d", {}, "IP:127.0.0.1,IP:127.0.0.2,DNS:other"),
                                authority_.cert());
  Start(2, {.cert = files.cert, .key = files.key});
  ClientOptions options = Options();
  options.tls.ca = files.ca;
  options.connect_timeout = absl::Seconds(1);
  for (const auto& dns : {Has({"127.0.0.1", "127.0.0.2"}), Has({"127.0.0.1"})}) {
    EXPECT_THAT(Refusal(options, dns),
                AllOf(HasSubstr("is for another host than the one in"), EndsWith("[GW102]")));
  }
}

// Killed, and not ended: nobody answers at the address where it was.
TEST_F(DaemonNameTest, ADaemonThatComesBackAtAnotherAddressIsFound) {
  const std::vector<std::string> before = {"127.0.0.1"};
  KillTheLastOf(before, "127.0.0.3", {"127.0.0.3"});
}

// The others are at their places, although the new address sorts before theirs.
TEST_F(DaemonNameTest, OneOfSeveralThatComesBackAtAnotherAddressIsFound) {
  const std::vector<std::string> before = {"127.0.0.2", "127.0.0.3"};
  KillTheLastOf(before, "127.0.0.1", {"127.0.0.1", "127.0.0.2"});
}

// The system's resolver, which every host has for this name.
TEST_F(DaemonNameTest, TheToolAndMembersLookNamesUp) {
  const auto files =
      WriteFiles(folder_ / "daemon", authority_.Issue("d", {}, "DNS:localhost"), authority_.cert());
  Start(1, {.cert = files.cert, .key = files.key});
  ClientOptions options = Options();
  options.address = Name("localhost", "?n=1&ip=4");
  options.tls.ca = files.ca;
  options.world_size = 1;
  const auto client = Client::Join(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto ask = [&](const std::string& address) {
    const auto tool = testing::Process::Start(
        {GRADWIRE_CTL, "--address", address, "--tls-ca", files.ca, "--timeout", "2", "status"},
        folder_ / "ctl.log");
    EXPECT_TRUE(tool.ok()) << tool.status();
    const int code = (*tool)->Wait(absl::Seconds(60)).value_or(-1);
    return std::make_pair(code, (*tool)->Log());
  };
  const auto [good, shown] = ask(Name("localhost", "?n=1&ip=4"));
  EXPECT_EQ(good, 0) << shown;
  EXPECT_THAT(shown, HasSubstr("named"));
  EXPECT_NE(ask(absl::StrCat("127.0.0.1:", port_)).first, 0);
  const auto [absent, why] = ask(Name("localhost", "?n=2&ip=4"));
  EXPECT_EQ(WEXITSTATUS(absent), 69);
  EXPECT_THAT(why, HasSubstr("localhost has 1 IPv4 address (127.0.0.1); n is 2"));

  options.address = Name("localhost", "?n=2&ip=4");
  options.connect_timeout = absl::Milliseconds(300);
  EXPECT_THAT(std::string(Client::Join(options).status().message()),
              AllOf(HasSubstr("localhost has 1 IPv4 address"), HasSubstr("within 300ms")));
}

}  // namespace
}  // namespace gradwire
