// Broadcasts where some members are behind leaf daemons: from each kind of root, with chunks of
// equal and of unequal size, over connections that break, and what goes wrong.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/integration/leaves_fixture.h"
#include "tests/testing/fault_relay.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::FaultRelay;
using ::gradwire::testing::LeavesTest;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::Training;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::uint8_t> Content(int root, std::size_t bytes) {
  std::vector<std::uint8_t> content(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    content[i] = static_cast<std::uint8_t>(i * 31 + i / 251 + static_cast<std::size_t>(root) + 1);
  }
  return content;
}

// The member has the root's bytes afterwards.
absl::Status Broadcast(Client& client, int root, std::size_t bytes) {
  const std::vector<std::uint8_t> expected = Content(root, bytes);
  std::vector<std::uint8_t> data =
      client.rank() == root ? expected : std::vector<std::uint8_t>(bytes);
  absl::Status status = client.Broadcast(root, data.data(), bytes);
  if (status.ok()) {
    EXPECT_TRUE(data == expected) << bytes << " bytes from rank " << root << " at rank "
                                  << client.rank();
  }
  return status;
}

// Two nodes of two members, and rank 4 at the root.
constexpr int kRanks = 5;

struct Sizes {
  std::size_t root_chunk, leaf_chunk;
  std::uint32_t root_window, leaf_window;
  std::size_t roots = 1;
};

class LeafBroadcast : public LeavesTest, public ::testing::WithParamInterface<Sizes> {
 protected:
  void Start() {
    const Sizes& sizes = GetParam();
    StartLeaves(2, sizes.roots,
                {.chunk_bytes = sizes.root_chunk, .window_chunks = sizes.root_window},
                {.chunk_bytes = sizes.leaf_chunk, .window_chunks = sizes.leaf_window});
  }
};

// One after another, so that roots follow each other at once.
TEST_P(LeafBroadcast, AllHaveTheBytesOfAnyRoot) {
  Start();
  ExpectAllOk(Run(Options(kRanks), [](Client& client, int rank) -> absl::Status {
    const std::size_t chunk = GetParam().root_chunk;
    for (const std::size_t bytes : {std::size_t{1}, chunk, std::size_t{0}, 5 * chunk + 3,
                                    GetParam().leaf_chunk + 1, std::size_t{300'001}}) {
      for (int root = 0; root < kRanks; ++root) {
        if (absl::Status status = Broadcast(client, root, bytes); !status.ok()) return status;
      }
    }
    if (absl::Status status = client.Barrier(); !status.ok()) return status;
    if (absl::Status status = Broadcast(client, 3, 1000); !status.ok()) return status;
    Training training(client);
    if (absl::Status status = training.Step(rank, 0); !status.ok()) return status;
    if (absl::Status status = Broadcast(client, 1, 70'000); !status.ok()) return status;
    return client.Leave();
  }));
}

INSTANTIATE_TEST_SUITE_P(Sizes, LeafBroadcast,
                         ::testing::Values(Sizes{1 << 16, 1 << 16, 4, 4},
                                           Sizes{1 << 16, 1 << 16, 4, 4, 2},
                                           // A window there is less than a chunk here.
                                           Sizes{4096, 1 << 16, 1, 1}, Sizes{1 << 16, 4096, 1, 1},
                                           Sizes{4096, 1000, 2, 3}));

class LeafBroadcasts : public LeavesTest {};

TEST_F(LeafBroadcasts, MembersMayLeaveWithTheirBytes) {
  StartLeaves(2);
  for (int root = 0; root < kRanks; ++root) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{5'000'000}}) {
      ClientOptions options = Options(kRanks);
      // Leaves leave the root's session later than their members theirs.
      options.session = absl::StrCat("leave-", root, "-", bytes);
      ExpectAllOk(Run(options, [&](Client& client, int) -> absl::Status {
        if (absl::Status status = Broadcast(client, root, bytes); !status.ok()) return status;
        return client.Leave();
      }));
    }
  }
}

TEST_F(LeafBroadcasts, GoOnBesideAStep) {
  StartLeaves(2);
  ExpectAllOk(Run(Options(kRanks), [](Client& client, int rank) -> absl::Status {
    testing::Gradients gradients(testing::Model());
    gradients.Fill(rank, 0);
    GradBucket bucket = gradients.Bucket();
    const Completion reduced = client.AllReduce(bucket);
    for (int root = 0; root < kRanks; ++root) {
      if (absl::Status status = Broadcast(client, root, 100'000); !status.ok()) return status;
    }
    if (absl::Status status = reduced.Wait(); !status.ok()) return status;
    if (absl::Status status = client.EndStep().status(); !status.ok()) return status;
    return client.Leave();
  }));
}

// ---- Connections that break

// After so many bytes: of a member's connection to its leaf, or of a leaf's to the root.
class BrokenLeafBroadcast : public LeavesTest,
                            public ::testing::WithParamInterface<std::int64_t> {};

absl::Status Broadcasts(Client& client, FaultRelay& relay, std::int64_t cut_after) {
  for (int root = 0; root < kRanks; ++root) {
    if (client.rank() == 0) relay.CutAfter(cut_after);
    if (absl::Status status = Broadcast(client, root, 700'000); !status.ok()) return status;
  }
  return client.Leave();
}

TEST_P(BrokenLeafBroadcast, AMemberResumesAtItsLeaf) {
  StartLeaves(2);
  auto relay = FaultRelay::Start(leaves_[0]->Path("relay.sock"), leaves_[0]->socket());
  ASSERT_TRUE(relay.ok()) << relay.status();
  ExpectAllOk(RunRanks(
      Options(kRanks), [&](Client& client, int) { return Broadcasts(client, **relay, GetParam()); },
      [&](ClientOptions& own, int rank) {
        Place(own, rank);
        if (rank == 0) own.address = (*relay)->address();
      }));
  EXPECT_GE((*relay)->cuts(), 2);
}

TEST_P(BrokenLeafBroadcast, ALeafResumesAtTheRoot) {
  roots_.push_back(std::make_unique<testing::TestDaemon>());
  auto relay = FaultRelay::Start(roots_[0]->Path("relay.sock"), roots_[0]->socket());
  ASSERT_TRUE(relay.ok()) << relay.status();
  for (const std::string& upstream : {(*relay)->address(), RootAddress()}) {
    leaves_.push_back(std::make_unique<testing::TestDaemon>(testing::LeafOf(upstream)));
  }
  ExpectAllOk(Run(Options(kRanks),
                  [&](Client& client, int) { return Broadcasts(client, **relay, GetParam()); }));
  EXPECT_GE((*relay)->cuts(), 2);
  leaves_.clear();  // they leave through the relay
}

INSTANTIATE_TEST_SUITE_P(Cuts, BrokenLeafBroadcast,
                         ::testing::Values(1, 900, 70'000, 333'333, 600'000));

// ---- Failures

TEST_F(LeafBroadcasts, OneThatOthersDoNotEnterIsRefusedEverywhere) {
  StartLeaves(2);
  const std::vector<absl::Status> statuses =
      Run(Options(kRanks), [](Client& client, int rank) -> absl::Status {
        std::vector<char> data(16);
        return client.Broadcast(0, data.data(), rank < 2 ? 8 : 9);
      });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), AllOf(HasSubstr("bytes from rank 0"), HasSubstr("[GW314]")));
  }
}

TEST_F(LeafBroadcasts, ALostMemberIsBlamedOnAllNodes) {
  StartLeaves(2);
  std::atomic<int> entered = 0;
  const std::vector<absl::Status> statuses =
      Run(Options(kRanks), [&](Client& client, int rank) -> absl::Status {
        if (rank == 3) {  // its destructor ends the session in the middle of a step
          EXPECT_TRUE(testing::Eventually([&] { return entered == kRanks - 1; }));
          testing::Gradients gradients(testing::Model());
          GradBucket bucket = gradients.Bucket();
          client.AllReduce(bucket);
          return absl::OkStatus();
        }
        ++entered;
        return Broadcast(client, 0, 1'000'000);
      });
  for (const int rank : {0, 1, 2, 4}) {
    EXPECT_THAT(statuses[static_cast<std::size_t>(rank)].message(), HasSubstr("rank 3"))
        << "rank " << rank;
  }
}

TEST_F(LeafBroadcasts, ALostLeafEndsABroadcastEverywhere) {
  StartLeaves(2);
  std::atomic<int> begun = 0;
  const std::vector<absl::Status> statuses =
      Run(Options(kRanks), [&](Client& client, int rank) -> absl::Status {
        if (absl::Status status = Broadcast(client, 0, 1000); !status.ok()) return status;
        ++begun;
        if (rank == 4) {
          EXPECT_TRUE(testing::Eventually([&] { return begun == kRanks; }));
          leaves_[1]->server().Shutdown(absl::ZeroDuration());
        }
        while (true) {
          if (absl::Status status = Broadcast(client, 2, 3'000'000); !status.ok()) return status;
        }
      });
  for (const int rank : {0, 1, 4}) {
    EXPECT_THAT(statuses[static_cast<std::size_t>(rank)].message(), HasSubstr("with ranks 2 to 3"));
  }
}

}  // namespace
}  // namespace gradwire
