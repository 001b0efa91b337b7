#include "server/net/local_users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace gradwire::server {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uid_t kOwn = 700;
const LocalUsers::Clock::time_point kStart{std::chrono::hours(1)};

class LocalUsersTest : public ::testing::Test {
 protected:
  std::optional<std::size_t> Enter(uid_t user, seconds at = seconds(0)) {
    return users_.Enter(user, kStart + at);
  }
  void Leave(uid_t user, seconds at = seconds(0)) { users_.Leave(user, kStart + at); }
  // Whose calls the slot's are.
  uid_t UserOf(std::size_t slot) const { return users_.SlotUsers()[slot]->load(); }

  std::vector<std::string> log_;
  LocalUsers users_{{.slots = 2, .connections = 3, .slot_rest = seconds(10)},
                    {0, kOwn, kOwn},
                    [this](const std::string& sentence) { log_.push_back(sentence); }};
};

TEST_F(LocalUsersTest, EachUserHasASlot) {
  EXPECT_EQ(users_.SlotUsers().size(), 4U);
  const auto root = Enter(0);
  const auto own = Enter(kOwn);
  const auto first = Enter(1000);
  const auto second = Enter(1001);
  ASSERT_TRUE(root && own && first && second);
  EXPECT_EQ(UserOf(*root), 0U);
  EXPECT_EQ(UserOf(*own), kOwn);
  EXPECT_EQ(UserOf(*first), 1000U);
  EXPECT_EQ(UserOf(*second), 1001U);
  EXPECT_EQ(Enter(1000), first);
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(LocalUsersTest, AUserWithoutASlotIsRefused) {
  Enter(1000);
  Enter(1001);
  EXPECT_EQ(Enter(1002), std::nullopt);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("refused a connection of uid 1002: 2 other users")));
  EXPECT_TRUE(Enter(1001));
  EXPECT_TRUE(Enter(kOwn));
}

// Until its user's last connection has ended, and the rest is over.
TEST_F(LocalUsersTest, ASlotRestsBeforeAnotherUserHasIt) {
  const auto slot = Enter(1000);
  Enter(1000);
  Enter(1001);
  Leave(1000, seconds(1));
  EXPECT_EQ(Enter(1002, seconds(100)), std::nullopt);
  Leave(1000, seconds(101));
  EXPECT_EQ(Enter(1002, seconds(110)), std::nullopt);
  EXPECT_EQ(UserOf(*slot), 1000U);
  EXPECT_EQ(Enter(1002, seconds(111)), slot);
  EXPECT_EQ(UserOf(*slot), 1002U);
  EXPECT_EQ(Enter(1000, seconds(111)), std::nullopt);
}

TEST_F(LocalUsersTest, AUserWhoComesBackHasItsSlot) {
  const auto slot = Enter(1000);
  Leave(1000);
  EXPECT_EQ(Enter(1000, seconds(1)), slot);
  // The rest begins again with the next end.
  Enter(1001, seconds(1));
  Leave(1000, seconds(20));
  EXPECT_EQ(Enter(1002, seconds(21)), std::nullopt);
}

TEST_F(LocalUsersTest, AUserHasALimitAndOwnUsersHaveNone) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Enter(1000));
  EXPECT_EQ(Enter(1000), std::nullopt);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("uid 1000: it has 3; allowed for one user are 3")));
  Leave(1000);
  EXPECT_TRUE(Enter(1000));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Enter(kOwn));
}

TEST_F(LocalUsersTest, OwnUsersKeepTheirSlots) {
  EXPECT_TRUE(users_.KeepsSlot(0));
  EXPECT_TRUE(users_.KeepsSlot(kOwn));
  Enter(1000);
  EXPECT_FALSE(users_.KeepsSlot(1000));
  EXPECT_FALSE(users_.KeepsSlot(1001));
}

TEST(PeerUserTest, TheKernelSaysWhoConnected) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd one(ends[0]);
  const UniqueFd other(ends[1]);
  EXPECT_EQ(PeerUser(one.get()), geteuid());
  const UniqueFd tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(PeerUser(tcp.get()), std::nullopt);
  EXPECT_EQ(PeerUser(-1), std::nullopt);
}

}  // namespace
}  // namespace gradwire::server
