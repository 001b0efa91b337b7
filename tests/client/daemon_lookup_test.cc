// Where a member looks for a daemon that may have come back with another address.
#include "client/daemon_lookup.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/transport/address_watch.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using Addresses = std::vector<std::string>;

class DaemonLookupTest : public ::testing::Test {
 protected:
  std::shared_ptr<DaemonLookup> Make(Addresses addresses) {
    return std::make_shared<DaemonLookup>(std::move(addresses), [this] { return answer_; });
  }
  // Where all shards are, by the answer.
  Addresses All(Addresses known, Addresses answer) {
    answer_ = std::move(answer);
    const std::size_t shards = known.size();
    const auto daemons = Make(std::move(known));
    Addresses all;
    for (std::uint32_t i = 0; i < shards; ++i) all.push_back(daemons->Next(i));
    return all;
  }

  absl::StatusOr<Addresses> answer_ = Addresses();
};

TEST_F(DaemonLookupTest, TheOnlyDaemonIsTriedAtAllAddressesInTurn) {
  const auto daemons = Make({"b"});
  answer_ = Addresses{"a", "b", "c"};
  EXPECT_EQ(daemons->Next(0), "b");
  EXPECT_EQ(daemons->Next(0), "c");
  EXPECT_EQ(daemons->Next(0), "a");
  EXPECT_EQ(daemons->Next(0), "b");
  daemons->Took(0, "c");
  EXPECT_EQ(daemons->Next(0), "c");
  daemons->Took(0, "c");
  answer_ = Addresses{"d"};
  EXPECT_EQ(daemons->Next(0), "d");
}

TEST_F(DaemonLookupTest, WithoutAnAnswerItIsTriedWhereItWas) {
  const auto daemons = Make({"a"});
  EXPECT_EQ(daemons->Next(0), "a");
  EXPECT_FALSE(daemons->HasMoved(0));
  answer_ = absl::UnavailableError("no such name");
  EXPECT_EQ(daemons->Next(0), "a");
  EXPECT_FALSE(daemons->HasMoved(0));
}

TEST_F(DaemonLookupTest, TheOnlyDaemonHasMovedWhenItsAddressIsGone) {
  const auto daemons = Make({"a"});
  answer_ = Addresses{"a", "b"};
  EXPECT_FALSE(daemons->HasMoved(0));
  answer_ = Addresses{"b"};
  EXPECT_TRUE(daemons->HasMoved(0));
  daemons->Took(0, "b");
  EXPECT_FALSE(daemons->HasMoved(0));
}

TEST_F(DaemonLookupTest, OneOfSeveralIsWhereAnotherOneIsGone) {
  EXPECT_EQ(All({"b", "c", "d"}, {"a", "b", "d"}), Addresses({"b", "a", "d"}));
  EXPECT_EQ(All({"b", "c", "d"}, {"b", "c", "d"}), Addresses({"b", "c", "d"}));
  EXPECT_EQ(All({"c", "a", "b"}, {"d", "e", "a"}), Addresses({"d", "a", "e"}));
  EXPECT_EQ(All({"a", "b"}, {"c", "d"}), Addresses({"c", "d"}));
}

TEST_F(DaemonLookupTest, WhileSomeOfSeveralAreMissingAllAreWhereTheyWere) {
  EXPECT_EQ(All({"a", "b", "c"}, {"a", "d"}), Addresses({"a", "b", "c"}));
  EXPECT_EQ(All({"a", "b", "c"}, {"a", "b", "c", "d"}), Addresses({"a", "b", "c"}));
  EXPECT_EQ(All({"a", "b", "c"}, {}), Addresses({"a", "b", "c"}));
}

// Shard by shard, as members come back.
TEST_F(DaemonLookupTest, WhatOneOfSeveralTookIsNoOthers) {
  const auto daemons = Make({"a", "b", "c"});
  answer_ = Addresses{"d", "e", "f"};
  EXPECT_TRUE(daemons->HasMoved(2));
  for (const auto& [shard, address] : {std::pair(0U, "d"), {1U, "e"}, {2U, "f"}}) {
    EXPECT_EQ(daemons->Next(shard), address);
    daemons->Took(shard, address);
    EXPECT_FALSE(daemons->HasMoved(shard));
  }
}

TEST_F(DaemonLookupTest, AWatchSaysOnceThatADaemonHasMoved) {
  answer_ = Addresses{"b"};
  std::promise<void> moved;  // throws if it is set twice
  const AddressWatch watch(Make({"a"}), 0, [&] { moved.set_value(); });
  EXPECT_EQ(moved.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST_F(DaemonLookupTest, AWatchThatIsStoppedSaysNothing) {
  answer_ = Addresses{"a"};
  AddressWatch watch(Make({"a"}), 0, [] { ADD_FAILURE(); });
  watch.Stop();
}

}  // namespace
}  // namespace gradwire::client
