// A session over several daemons, some of which are on the members' host: gradients in memory that
// these have mapped give the bits that copied ones give. Members are threads.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/fault_relay.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::FaultRelay;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::HasSubstr;

constexpr std::size_t kElements = 50'001;  // several chunks for each daemon, the last one odd
constexpr std::size_t kIntoPage = 64;      // most of malloc's memory begins inside a page
constexpr int kSteps = 3;

enum class Way { kStaged, kOwnShared, kAllocated, kStream };

// Daemons in a row. "remote" ones are behind a relay that drops descriptors, as a network does.
class Daemons {
 public:
  explicit Daemons(const std::vector<bool>& remote) {
    const server::ServerOptions small = {.network_chunk_bytes = std::size_t{16} << 10,
                                         .network_window_chunks = 2,
                                         .open_buckets = 2};
    for (const bool one : remote) {
      daemons_.push_back(std::make_unique<TestDaemon>(small));
      auto relay = FaultRelay::Start(daemons_.back()->Path("relay"), daemons_.back()->socket());
      EXPECT_TRUE(relay.ok()) << relay.status();
      (*relay)->PassDescriptors(!one);
      relays_.push_back(*std::move(relay));
    }
  }

  ClientOptions Options(const std::string& session, int world_size, const std::string& spec = "no",
                        DType dtype = DType::kFloat32) const {
    return {.address = absl::StrJoin(relays_, ",",
                                     [](std::string* out, const auto& relay) {
                                       absl::StrAppend(out, relay->address());
                                     }),
            .session = session,
            .rank = 0,
            .world_size = world_size,
            .parameters = {MakeParameter("w", kElements, dtype), MakeParameter("v", 10, dtype)},
            .hook = *HookSpec::Parse(spec),
            .join_timeout = absl::Seconds(20)};
  }

  FaultRelay& relay(std::size_t daemon) { return *relays_[daemon]; }
  void Kill(std::size_t daemon) {
    relays_[daemon]->Refuse(true);
    relays_[daemon]->CutNow();
    daemons_[daemon].reset();
  }

 private:
  std::vector<std::unique_ptr<TestDaemon>> daemons_;
  std::vector<std::unique_ptr<FaultRelay>> relays_;
};

// Memory for the gradients of "w", as the member has it.
class Memory {
 public:
  Memory(Client& client, Way way, DType dtype) : way_(way), dtype_(dtype) {
    const std::size_t bytes = kElements * ByteSize(dtype);
    if (way == Way::kAllocated) {
      own_ = client.AllocateGradients(bytes);
      begin_ = own_.get();
      return;
    }
    // With a neighbour on each side, in the pages at the ends.
    own_.reset(new std::byte[bytes + 2 * kIntoPage], std::default_delete<std::byte[]>());
    std::fill_n(own_.get(), bytes + 2 * kIntoPage, kNeighbour);
    begin_ = own_.get() + kIntoPage;
  }

  absl::Status Share(Client& client) {
    if (way_ != Way::kOwnShared) return absl::OkStatus();
    auto shared = client.ShareGradients(View(), own_);
    if (!shared.ok()) return shared.status();
    held_ = *std::move(shared);
    return absl::OkStatus();
  }
  void Release() { held_.reset(); }

  TensorView View() const { return {dtype_, begin_, kElements}; }
  std::span<std::byte> bytes() const { return {begin_, kElements * ByteSize(dtype_)}; }
  bool NeighboursAreWhole() const {
    const auto is_whole = [](std::byte* at) {
      return std::all_of(at, at + kIntoPage, [](std::byte b) { return b == kNeighbour; });
    };
    return way_ == Way::kAllocated || (is_whole(own_.get()) && is_whole(begin_ + bytes().size()));
  }

 private:
  static constexpr std::byte kNeighbour{0x5a};
  const Way way_;
  const DType dtype_;
  std::shared_ptr<std::byte> own_;
  std::byte* begin_ = nullptr;
  std::shared_ptr<void> held_;
};

// One step of both parameters, "v" in ordinary memory, compared with what one loop gives.
absl::Status Step(
    Client& client, const ClientOptions& options, int rank, std::int64_t step, const Memory& memory,
    const std::function<void()>& under_way = [] {}, const std::function<void()>& reduced = [] {}) {
  Gradients w({options.parameters[0]});
  Gradients v({options.parameters[1]});
  w.Fill(rank, step);
  v.Fill(rank, step);
  std::copy(w.bytes().begin(), w.bytes().end(), memory.bytes().begin());
  auto large = GradBucket::Make(0, memory.View(), {options.parameters[0]});
  if (!large.ok()) return large.status();
  GradBucket small = v.Bucket(1);
  const Completion first = client.AllReduce(*large);
  const Completion second = client.AllReduce(small);
  under_way();
  if (absl::Status done = first.Wait(); !done.ok()) return done;
  if (absl::Status done = second.Wait(); !done.ok()) return done;
  const auto want =
      ExpectedReduction(options.hook, {options.parameters[0]}, options.world_size, step, rank);
  if (!want.ok()) return want.status();
  EXPECT_TRUE(std::equal(want->begin(), want->end(), memory.bytes().begin()))
      << "rank " << rank << " step " << step;
  EXPECT_TRUE(memory.NeighboursAreWhole());
  EXPECT_EQ(v.bytes(), *ExpectedReduction(options.hook, {options.parameters[1]}, options.world_size,
                                          step, rank));
  reduced();
  return client.EndStep().status();
}

absl::Status Train(Client& client, const ClientOptions& options, int rank, Way way) {
  Memory memory(client, way, options.parameters[0].dtype);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    // Released in the middle, while the session goes on, and shared again.
    if (absl::Status may = memory.Share(client); step != 1 && !may.ok()) return may;
    if (step == 1) memory.Release();
    if (absl::Status done = Step(client, options, rank, step, memory); !done.ok()) return done;
    const bool in_place = way == Way::kAllocated || (way == Way::kOwnShared && step != 1);
    EXPECT_EQ(client.Report().front().in_place, in_place) << "rank " << rank << " step " << step;
  }
  return client.Leave();
}

struct Case {
  const char* name;
  std::vector<bool> remote;
  const char* spec;
  DType dtype;
};

class ShardMemoryBits : public ::testing::TestWithParam<Case> {};

// Four members, each with another way; all get the bits of one loop.
TEST_P(ShardMemoryBits, AreThoseOfTheCopiedPath) {
  Daemons daemons(GetParam().remote);
  constexpr Way kWays[] = {Way::kStaged, Way::kOwnShared, Way::kAllocated, Way::kStream};
  constexpr int kMembers = 4;
  for (std::size_t turn = 0; turn < 2; ++turn) {
    const ClientOptions common =
        daemons.Options(absl::StrCat("bits", turn), kMembers, GetParam().spec, GetParam().dtype);
    const auto way_of = [&](int rank) {
      return kWays[(turn * 2 + static_cast<std::size_t>(rank)) % 4];
    };
    ExpectAllOk(RunRanks(
        common, [&](Client& client, int rank) { return Train(client, common, rank, way_of(rank)); },
        [&](ClientOptions& options, int rank) {
          options.shared_memory = way_of(rank) != Way::kStream;
        }));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ShardMemoryBits,
    ::testing::Values(Case{"all_here", {false, false, false}, "no", DType::kFloat32},
                      Case{"all_here_fp16", {false, false, false}, "fp16", DType::kFloat32},
                      Case{"first_here", {false, true, true}, "no", DType::kFloat64},
                      Case{"first_here_bf16", {false, true}, "bf16", DType::kFloat32},
                      Case{"last_here", {true, true, false}, "no", DType::kFloat32},
                      Case{"middle_here_fp16", {true, false, true}, "fp16", DType::kFloat32},
                      Case{"two_here_half", {false, true, false}, "no", DType::kBFloat16}),
    [](const auto& test) { return test.param.name; });

// With gradients in shared memory, one daemon may have written its results over them while another
// one's are sent again.
TEST(ShardMemory, ABrokenStreamResumesWithFreshMemory) {
  Daemons daemons({false, false});
  const ClientOptions options = daemons.Options("resumed", 2);
  std::int64_t resumes = 0;
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    Memory memory(client, rank == 0 ? Way::kOwnShared : Way::kAllocated, DType::kFloat32);
    if (absl::Status shared = memory.Share(client); !shared.ok()) return shared;
    for (std::int64_t step = 0; step < 40; ++step) {
      const auto cut = [&] {
        if (rank == 0 && step % 4 == 1)
          daemons.relay(static_cast<std::size_t>(step / 4) % 2).CutNow();
      };
      if (absl::Status done = Step(client, options, rank, step, memory, cut); !done.ok())
        return done;
    }
    if (rank == 0) resumes = client.metrics().resumes;
    return client.Leave();
  }));
  EXPECT_GE(resumes, 5);
}

// The daemons conclude the step later, and streams may be resumed before.
TEST(ShardMemory, MemoryMayGoBeforeTheStepEnds) {
  Daemons daemons({false, false, true});
  const ClientOptions options = daemons.Options("gone", 2);
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    constexpr std::int64_t kLast = 12;
    for (std::int64_t step = 0; step <= kLast; ++step) {
      auto memory = std::make_unique<Memory>(client, Way::kOwnShared, DType::kFloat32);
      if (absl::Status shared = memory->Share(client); !shared.ok()) return shared;
      const auto give_back = [&] {
        memory->Release();
        // Not before a Leave, which is a call of its own and is not repeated.
        if (rank == 0 && step < kLast) daemons.relay(static_cast<std::size_t>(step) % 3).CutNow();
      };
      const absl::Status done = Step(
          client, options, rank, step, *memory, [] {}, give_back);
      if (!done.ok()) return done;
    }
    return client.Leave();
  }));
}

// The other daemon may go on writing, into pages that are no longer the member's.
TEST(ShardMemory, GradientsAreTheMembersOwnAfterADaemonDied) {
  Daemons daemons({false, false});
  const ClientOptions options = daemons.Options("died", 2);
  const auto told = RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    Memory memory(client, Way::kOwnShared, DType::kFloat32);
    if (absl::Status shared = memory.Share(client); !shared.ok()) return shared;
    if (absl::Status done = Step(client, options, rank, 0, memory); !done.ok()) return done;
    if (absl::Status together = client.Barrier(); !together.ok()) return together;
    const auto kill = [&] {
      if (rank == 0) daemons.Kill(1);
    };
    absl::Status lost = Step(client, options, rank, 1, memory, kill);
    if (lost.ok()) lost = Step(client, options, rank, 2, memory);
    memory.Release();
    std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{7});
    EXPECT_EQ(memory.bytes().back(), std::byte{7});
    EXPECT_TRUE(memory.NeighboursAreWhole());
    EXPECT_EQ(client.ShareGradients(memory.View()).status().ok(), true)
        << "the memory is not private again";
    return lost;
  });
  for (const absl::Status& status : told) EXPECT_FALSE(status.ok());
}

TEST(ShardMemory, NothingIsSharedWithDaemonsElsewhere) {
  Daemons daemons({true, true});
  ClientOptions options = daemons.Options("elsewhere", 1);
  const auto client = Client::Join(options);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> gradients(kElements);
  const auto shared = (*client)->ShareGradients({DType::kFloat32, gradients.data(), kElements});
  EXPECT_EQ(shared.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shared.status().message()), HasSubstr("do not travel in shared memory"));
}

TEST(ShardMemory, HooksThatComputeAreToldSo) {
  Daemons daemons({false, false});
  const ClientOptions options = daemons.Options("computes", 1, "no,comm_wrapper=fp16");
  const auto client = Client::Join(options);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> gradients(kElements);
  const auto shared = (*client)->ShareGradients({DType::kFloat32, gradients.data(), kElements});
  EXPECT_THAT(std::string(shared.status().message()), HasSubstr("computes with gradients"));
}

}  // namespace
}  // namespace gradwire
