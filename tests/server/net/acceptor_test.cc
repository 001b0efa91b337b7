#include "server/net/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/sync.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::OpenDescriptors;

constexpr int kWaitMs = 5000;

// Keeps what the acceptor hands over, as gRPC would.
class Keeper {
 public:
  Acceptor::Handler handler() {
    return [this](int, std::optional<std::size_t> slot, UniqueFd connection) {
      MutexLock lock(mutex_);
      slot_ = slot;
      held_.push_back(std::move(connection));
    };
  }
  // What the last one's slot is.
  std::optional<std::size_t> slot() {
    MutexLock lock(mutex_);
    return slot_;
  }
  // What can still be read from the first one.
  std::string Rest() {
    MutexLock lock(mutex_);
    std::string bytes(1000, 0);
    const ssize_t got = recv(held_.front().get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  }
  std::size_t count() {
    MutexLock lock(mutex_);
    return held_.size();
  }
  void CloseAll() {
    MutexLock lock(mutex_);
    for (const UniqueFd& fd : held_) shutdown(fd.get(), SHUT_RDWR);
    held_.clear();
  }

 private:
  Mutex mutex_;
  std::vector<UniqueFd> held_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<std::size_t> slot_ GRADWIRE_GUARDED_BY(mutex_);
};

struct Fixture {
  explicit Fixture(int max_connections) {
    auto listeners = Listener::Open("127.0.0.1:0");
    EXPECT_TRUE(listeners.ok());
    const std::string address = listeners->front().address();
    port = static_cast<std::uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str()));
    auto made = Acceptor::Make(*std::move(listeners), {.max_connections = max_connections},
                               keeper.handler(), nullptr);
    EXPECT_TRUE(made.ok()) << made.status();
    acceptor = *std::move(made);
    acceptor->Serve();
  }

  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.Reset();
    return fd;
  }

  std::uint16_t port = 0;
  Keeper keeper;
  std::unique_ptr<Acceptor> acceptor;
};

bool WasReset(const UniqueFd& fd) {
  pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
  if (poll(&wait, 1, kWaitMs) != 1) return false;
  char byte = 0;
  return recv(fd.get(), &byte, 1, 0) < 0 && errno == ECONNRESET;
}

TEST(AcceptorTest, HandsOverAndCounts) {
  Fixture fixture(8);
  const UniqueFd client = fixture.Connect();
  ASSERT_TRUE(client.valid());
  EXPECT_TRUE(Eventually([&] { return fixture.keeper.count() == 1; }));
  EXPECT_EQ(fixture.acceptor->connections(), 1);
  EXPECT_EQ(fixture.acceptor->refused(), 0u);
}

TEST(AcceptorTest, ResetsWhatIsAboveTheCapAndServesAgainBelowIt) {
  Fixture fixture(3);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(fixture.Connect());
  ASSERT_TRUE(Eventually([&] { return fixture.keeper.count() == 3; }));
  EXPECT_TRUE(WasReset(fixture.Connect()));
  EXPECT_EQ(fixture.acceptor->refused(), 1u);

  clients.clear();  // the peers close first; the daemon's side notices when it closes, too
  fixture.keeper.CloseAll();
  ASSERT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 0; }));
  const UniqueFd client = fixture.Connect();
  EXPECT_TRUE(Eventually([&] { return fixture.keeper.count() == 1; }));
  EXPECT_EQ(fixture.acceptor->connections(), 1);
}

TEST(AcceptorTest, CountsAConnectionUntilItsOwnerClosesIt) {
  Fixture fixture(3);
  UniqueFd client = fixture.Connect();
  ASSERT_TRUE(Eventually([&] { return fixture.keeper.count() == 1; }));
  shutdown(client.get(), SHUT_WR);
  // Half closed is still open: the owner has not let go.
  const UniqueFd other = fixture.Connect();
  ASSERT_TRUE(Eventually([&] { return fixture.keeper.count() == 2; }));
  EXPECT_EQ(fixture.acceptor->connections(), 2);
  fixture.keeper.CloseAll();
  EXPECT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 0; }));
}

TEST(AcceptorTest, DescriptorsComeBack) {
  Fixture fixture(64);
  const std::size_t before = OpenDescriptors(getpid());
  for (int round = 0; round < 20; ++round) {
    std::vector<UniqueFd> clients;
    for (int i = 0; i < 16; ++i) clients.push_back(fixture.Connect());
    ASSERT_TRUE(Eventually([&] { return fixture.keeper.count() == 16; }));
    fixture.keeper.CloseAll();
    clients.clear();
    ASSERT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 0; }));
  }
  EXPECT_EQ(OpenDescriptors(getpid()), before);
}

TEST(AcceptorTest, SurvivesAProcessWithoutDescriptors) {
  rlimit original{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &original), 0);
  Fixture fixture(1000);
  const UniqueFd client = fixture.Connect();
  ASSERT_TRUE(Eventually([&] { return fixture.keeper.count() == 1; }));

  // The client's socket exists before the descriptors run out.
  UniqueFd late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::vector<UniqueFd> fill;
  const rlimit low{.rlim_cur = OpenDescriptors(getpid()) + 8, .rlim_max = original.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  while (true) {
    UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) break;
    fill.push_back(std::move(fd));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(fixture.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(late.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(WasReset(late));

  fill.clear();
  EXPECT_TRUE(Eventually([&] {
    const UniqueFd again = fixture.Connect();
    return Eventually([&] { return fixture.keeper.count() >= 2; }, absl::Milliseconds(200));
  }));
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &original), 0);
}

TEST(AcceptorTest, StopClosesTheListeners) {
  Fixture fixture(4);
  fixture.acceptor->Stop();
  EXPECT_FALSE(fixture.Connect().valid());
}

// ---- On a unix socket the first byte decides

struct UnixFixture {
  explicit UnixFixture(std::chrono::milliseconds first_byte_timeout, LocalUsers* users = nullptr) {
    auto listeners = Listener::Open("unix:" + path);
    EXPECT_TRUE(listeners.ok());
    auto made = Acceptor::Make(
        *std::move(listeners),
        {.max_connections = 4, .first_byte_timeout = first_byte_timeout, .users = users},
        keeper.handler(),
        [this](UniqueFd connection) { offers.handler()(-1, std::nullopt, std::move(connection)); });
    EXPECT_TRUE(made.ok()) << made.status();
    acceptor = *std::move(made);
    acceptor->Serve();
  }

  UniqueFd Connect(const std::string& bytes) const {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    std::memcpy(where.sun_path, path.c_str(), path.size() + 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&where), sizeof where), 0);
    if (!bytes.empty()) {
      EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
    }
    return fd;
  }

  gradwire::testing::TemporaryFolder folder;
  const std::string path = folder / "daemon.sock";
  Keeper keeper;
  Keeper offers;
  std::unique_ptr<Acceptor> acceptor;
};

TEST(AcceptorTest, TellsOffersOfMemoryFromConnections) {
  UnixFixture fixture(std::chrono::seconds(60));
  const UniqueFd connection = fixture.Connect("P");
  const UniqueFd offer = fixture.Connect("G");
  EXPECT_TRUE(Eventually([&] { return fixture.keeper.count() == 1; }));
  EXPECT_TRUE(Eventually([&] { return fixture.offers.count() == 1; }));
  EXPECT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 1; }));
}

TEST(AcceptorTest, ClosesWhatSaysNothing) {
  UnixFixture fixture(std::chrono::milliseconds(50));
  const UniqueFd silent = fixture.Connect("");
  pollfd wait{.fd = silent.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&wait, 1, kWaitMs), 1);
  char byte = 0;
  EXPECT_EQ(recv(silent.get(), &byte, 1, 0), 0);
  EXPECT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 0; }));
  EXPECT_EQ(fixture.keeper.count() + fixture.offers.count(), 0U);
}

// ---- Whose connection it is

TEST(AcceptorTest, GivesAUsersConnectionsItsSlotUpToItsLimit) {
  std::vector<std::string> log;
  LocalUsers users({.slots = 1, .connections = 2}, {geteuid() + 1},
                   [&](const std::string& sentence) { log.push_back(sentence); });
  UnixFixture fixture(std::chrono::seconds(60), &users);
  const UniqueFd connection = fixture.Connect("P");
  ASSERT_TRUE(Eventually([&] { return fixture.keeper.count() == 1; }));
  EXPECT_EQ(fixture.keeper.slot(), 1U);
  // One that says nothing counts too, and one that has ended does not.
  UniqueFd silent = fixture.Connect("");
  ASSERT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 2; }));
  const UniqueFd late = fixture.Connect("");
  ASSERT_TRUE(Eventually([&] { return fixture.acceptor->refused() == 1; }));
  silent.Reset();
  ASSERT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 1; }));
  const UniqueFd offer = fixture.Connect("G");
  ASSERT_TRUE(Eventually([&] { return fixture.offers.count() == 1; }));
  const UniqueFd other = fixture.Connect("P");
  EXPECT_TRUE(Eventually([&] { return fixture.keeper.count() == 2; }));
  fixture.acceptor->Stop();
  ASSERT_EQ(log.size(), 1U);
  EXPECT_NE(log[0].find("allowed for one user are 2"), std::string::npos) << log[0];
}

// gRPC may not have read it yet, and another user may get the slot.
TEST(AcceptorTest, NothingIsLeftOfAUsersConnectionThatEnded) {
  for (const bool own : {false, true}) {
    LocalUsers users({.slots = 1, .connections = 2}, {geteuid() + (own ? 0 : 1)},
                     [](const std::string&) {});
    UnixFixture fixture(std::chrono::seconds(60), &users);
    UniqueFd connection = fixture.Connect("PRI and a call");
    ASSERT_TRUE(Eventually([&] { return fixture.keeper.count() == 1; }));
    connection.Reset();
    ASSERT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 0; }));
    EXPECT_EQ(fixture.keeper.Rest(), own ? "PRI and a call" : "");
  }
}

TEST(AcceptorTest, ConnectionsThatSayNothingCountForTheCap) {
  UnixFixture fixture(std::chrono::seconds(60));
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(fixture.Connect(""));
  ASSERT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 4; }));
  const UniqueFd late = fixture.Connect("");
  EXPECT_TRUE(Eventually([&] { return fixture.acceptor->refused() == 1; }));
  silent.clear();
  EXPECT_TRUE(Eventually([&] { return fixture.acceptor->connections() == 0; }));
}

}  // namespace
}  // namespace gradwire::server
