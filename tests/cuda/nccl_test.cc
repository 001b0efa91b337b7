// NCCL between members of a node, against a stand-in between processes that have emulated GPUs.
#include "client/group/nccl.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/cpu/host_device.h"
#include "tests/cuda/emulated_device.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/nccl/members.h"
#include "tests/cuda/nccl/stand_in.h"

namespace gradwire {
namespace {

using client::NodeCommunicator;
using client::OpenNccl;
using client::PeerBytes;
using ::testing::AllOf;
using testing::Await;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Member;
using testing::RunMembers;

// ---- One process

// Faults of the stand-in for as long as it lives.
class Faults {
 public:
  explicit Faults(const std::string& faults) { setenv(stand_in::kFaults, faults.c_str(), 1); }
  ~Faults() { unsetenv(stand_in::kFaults); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
};

std::string Refusal(const std::string& library) {
  emulation::Reset();
  const auto opened = OpenNccl(library, testing::MakeEmulatedDevice());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
  return std::string(opened.status().message());
}

TEST(Nccl, SaysThatThereIsNone) {
  EXPECT_THAT(Refusal("/nowhere/libnccl.so.2"),
              AllOf(HasSubstr("NCCL cannot be used: /nowhere/libnccl.so.2"),
                    HasSubstr("install PyPI's nvidia-nccl-cu13 or the system's libnccl2"),
                    HasSubstr("GRADWIRE_NCCL_LIBRARY")));
}

TEST(Nccl, NamesAFunctionThatTheLibraryLacks) {
  EXPECT_THAT(Refusal(PARTIAL),
              HasSubstr(std::string(PARTIAL) + " has no function ncclGetUniqueId;"));
}

TEST(Nccl, RefusesAnOldLibrary) {
  const Faults old("version=21304");
  EXPECT_THAT(Refusal(STAND_IN), HasSubstr(" is NCCL 2.13.4; needed is NCCL 2.14.0 or later; "));
  const Faults older("version=2708");
  EXPECT_THAT(Refusal(STAND_IN), HasSubstr(" is NCCL 2.7.8; "));
}

TEST(Nccl, RefusesTheHostsDevice) {
  EXPECT_EQ(OpenNccl(STAND_IN, MakeHostDevice()).status(),
            absl::FailedPreconditionError("NCCL is for GPUs; the device is cpu [GW904]"));
}

// A communicator of one member: it has nobody to wait for.
class AloneWithNccl : public ::testing::Test {
 protected:
  AloneWithNccl() {
    auto opened = OpenNccl(STAND_IN, device_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    communicators_ = *std::move(opened);
  }
  void TearDown() override { EXPECT_THAT(emulation::violations(), IsEmpty()); }

  absl::StatusOr<std::unique_ptr<NodeCommunicator>> Connect() {
    return communicators_->Connect(communicators_->NewId().value(), 1, 0);
  }
  static absl::Status AwaitOrder(NodeCommunicator& group) {
    absl::StatusOr<bool> ordered = false;
    EXPECT_TRUE(Await([&] {
      ordered = group.Poll();
      return !ordered.ok() || *ordered;
    }));
    return ordered.status();
  }
  std::unique_ptr<NodeCommunicator> Connected() {
    auto group = Connect();
    EXPECT_TRUE(group.ok()) << group.status();
    EXPECT_EQ(AwaitOrder(**group), absl::OkStatus());
    return *std::move(group);
  }
  void Gather(NodeCommunicator& group) {
    const PeerBytes piece{0, memory_, 8};
    group.Gather({&piece, 1});
  }

  emulation::NewGpu new_gpu_;
  std::shared_ptr<Device> device_ = testing::MakeEmulatedDevice();
  std::byte* memory_ = device_->Allocate(8);
  std::unique_ptr<client::NodeCommunicators> communicators_;
};

TEST_F(AloneWithNccl, NamesTheVersion) {
  EXPECT_EQ(communicators_->name(), "NCCL 2.30.4");
  // PyTorch has loaded NCCL from a place of its own.
  const auto own = OpenNccl("", device_);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ((*own)->name(), "NCCL 2.30.4");
}

TEST_F(AloneWithNccl, GivesEachCommunicatorANameOfItsOwn) {
  const std::string id = communicators_->NewId().value();
  EXPECT_EQ(id.size(), 128U);
  EXPECT_NE(id, communicators_->NewId().value());
}

TEST_F(AloneWithNccl, RefusesAnIdThatIsNone) {
  EXPECT_EQ(communicators_->Connect("short", 2, 0).status(),
            absl::InvalidArgumentError("the id of a communicator has 5 bytes; NCCL's has 128"));
  const std::string id = communicators_->NewId().value();
  EXPECT_EQ(communicators_->Connect(id, 2, 2).status(),
            absl::InvalidArgumentError("the member's index is 2; allowed are 0 to 1"));
  EXPECT_EQ(communicators_->Connect(id, 2, -1).status().code(), absl::StatusCode::kInvalidArgument);
  // Only NCCL can tell.
  auto group = communicators_->Connect(std::string(128, 'x'), 2, 1);
  ASSERT_TRUE(group.ok()) << group.status();
  const absl::Status status = AwaitOrder(**group);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("NCCL 2.30.4: the connecting of member 1 of 2 failed: unhandled "),
                    HasSubstr("(no rank listens where the id says); NCCL_DEBUG=WARN")));
  EXPECT_EQ((*group)->Poll().status(), status) << "errors are final";
}

TEST_F(AloneWithNccl, SaysThatConnectingFailsAtOnce) {
  const Faults faults("refuse");
  const absl::Status status = Connect().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("the connecting of member 0 of 1"),
                                                   HasSubstr("(Call to bind failed)")));
}

TEST_F(AloneWithNccl, SaysWhatTwoMembersOnOneGpuNeed) {
  const Faults faults("duplicate");
  auto group = Connect();
  ASSERT_TRUE(group.ok()) << group.status();
  const absl::Status status = AwaitOrder(**group);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("Duplicate GPU detected"),
                    HasSubstr("two members use one GPU, which needs NCCL >= 2.30 with "
                              "NCCL_MULTI_RANK_GPU_ENABLE=1, or one GPU for each member")));
}

TEST_F(AloneWithNccl, PassesOverCallsWithoutBytes) {
  const auto group = Connected();
  group->Exchange({}, {});
  group->Gather({});
  EXPECT_TRUE(group->Poll().value());
}

// The contract forbids it, and NCCL does not say what happens then.
TEST_F(AloneWithNccl, RefusesACallBeforeTheLastIsInOrder) {
  const auto group = Connected();
  Gather(*group);
  EXPECT_FALSE(group->Poll().value());
  Gather(*group);
  EXPECT_THAT(std::string(group->Poll().status().message()),
              HasSubstr("a gather of member 0 of 1 begins before a gather is in order"));
}

TEST_F(AloneWithNccl, SelectsItsGpuAndPutsTheFormerOneBack) {
  emulation::settings().devices = 2;
  device_.reset(gradwire_cuda_open(1, 1000));
  memory_ = device_->Allocate(8);
  communicators_ = OpenNccl(STAND_IN, device_).value();
  const auto group = Connected();
  Gather(*group);
  EXPECT_EQ(AwaitOrder(*group), absl::OkStatus());
  int selected = -1;
  cudaGetDevice(&selected);
  EXPECT_EQ(selected, 0);
}

TEST_F(AloneWithNccl, FreesTheDeviceFromACallThatHangs) {
  const Faults faults("hang=2");
  auto group = Connected();
  Gather(*group);
  EXPECT_EQ(AwaitOrder(*group), absl::OkStatus());
  const DeviceMark fine = device_->Record();
  EXPECT_TRUE(Await([&] { return device_->IsComplete(fine); }));
  Gather(*group);
  EXPECT_EQ(AwaitOrder(*group), absl::OkStatus());
  const DeviceMark hung = device_->Record();
  EXPECT_FALSE(Await([&] { return device_->IsComplete(hung); }, std::chrono::milliseconds(50)));
  EXPECT_TRUE(group->Poll().value()) << "NCCL does not notice";
  group.reset();
  EXPECT_TRUE(Await([&] { return device_->IsComplete(hung); }, std::chrono::seconds(1)));
}

TEST_F(AloneWithNccl, ReportsAnErrorThatComesLater) {
  const Faults faults("error=1");
  const auto group = Connected();
  Gather(*group);
  EXPECT_EQ(AwaitOrder(*group), absl::OkStatus());
  const DeviceMark mark = device_->Record();
  absl::Status status;
  EXPECT_TRUE(Await([&] {
    EXPECT_FALSE(device_->IsComplete(mark));
    status = group->Poll().status();
    return !status.ok();
  }));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("NCCL 2.30.4: a gather of member 0 of 1 failed: remote process"),
                    HasSubstr("(rank 0 closed its connection)")));
  Gather(*group);  // does nothing
  group->Abort();
  EXPECT_TRUE(Await([&] { return device_->IsComplete(mark); }, std::chrono::seconds(1)));
  EXPECT_EQ(group->Poll().status(), status);
}

TEST_F(AloneWithNccl, AbortsWhileItConnects) {
  const auto group = communicators_->Connect(communicators_->NewId().value(), 2, 1);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_FALSE((*group)->Poll().value());
  (*group)->Abort();
  EXPECT_EQ((*group)->Poll().status().code(), absl::StatusCode::kCancelled);
  (*group)->Abort();
}

// ---- Several processes

class NcclMembers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Of, NcclMembers, ::testing::Values(2, 4),
                         ::testing::PrintToStringParamName());

// Bytes that tell who sends them to whom, and which piece they are.
std::string Bytes(int from, int to, int piece, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>(static_cast<std::size_t>(from * 89 + to * 31 + piece * 7) + i * 13);
  }
  return text;
}

constexpr std::size_t kSizes[] = {1, 4099, 0x100003, 7};
// No two pairs have the same.
std::size_t SizeOf(int from, int to, int piece) {
  return kSizes[piece] + static_cast<std::size_t>(10 * from + to);
}

TEST_P(NcclMembers, ExchangeOddSizesInOrder) {
  RunMembers(GetParam(), [](Member& member) {
    std::vector<PeerBytes> sends;
    std::vector<PeerBytes> receives;
    for (int piece = 0; piece < 4; ++piece) {
      for (int peer = 0; peer < member.size(); ++peer) {
        if (peer == member.index()) continue;
        const std::size_t out = SizeOf(member.index(), peer, piece);
        const std::size_t in = SizeOf(peer, member.index(), piece);
        sends.push_back({peer, member.Upload(Bytes(member.index(), peer, piece, out)), out});
        receives.push_back({peer, member.Allocate(in), in});
      }
    }
    member.group().Exchange(sends, receives);
    member.AwaitOrder();
    member.AwaitDevice();
    std::size_t at = 0;
    for (int piece = 0; piece < 4; ++piece) {
      for (int peer = 0; peer < member.size(); ++peer) {
        if (peer == member.index()) continue;
        const PeerBytes& got = receives[at++];
        EXPECT_TRUE(member.Download(got.memory, got.bytes) ==
                    Bytes(peer, member.index(), piece, got.bytes))
            << "piece " << piece << " from " << peer;
      }
    }
  });
}

TEST_P(NcclMembers, GatherFromSeveralRoots) {
  RunMembers(GetParam(), [](Member& member) {
    std::vector<PeerBytes> pieces;
    for (int piece = 0; piece < 3; ++piece) {
      for (int root = member.size() - 1; root >= 0; --root) {
        const std::size_t bytes = SizeOf(root, 0, piece);
        pieces.push_back({root, member.Upload(Bytes(member.index(), 0, piece, bytes)), bytes});
      }
    }
    member.group().Gather(pieces);
    member.AwaitOrder();
    member.AwaitDevice();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const PeerBytes& got = pieces[i];
      const int piece = static_cast<int>(i) / member.size();
      EXPECT_TRUE(member.Download(got.memory, got.bytes) == Bytes(got.peer, 0, piece, got.bytes))
          << "piece " << piece << " of " << got.peer;
    }
  });
}

// Each sum is of what was received before it, and is what is sent next; nobody waits for the GPU.
TEST_P(NcclMembers, DoManyCallsBetweenWorkOfTheDevice) {
  RunMembers(GetParam(), [](Member& member) {
    constexpr std::size_t kNumel = 1001;
    constexpr int kRounds = 60;
    const std::vector<float> start(kNumel, static_cast<float>(member.index() + 1));
    std::byte* own = member.Allocate(sizeof(float) * kNumel);
    std::byte* other = member.Allocate(sizeof(float) * kNumel);
    member.device().Upload(own, start.data(), sizeof(float) * kNumel);
    std::byte* finite = member.Allocate(4);
    const int size = member.size();
    const PeerBytes send{(member.index() + 1) % size, own, sizeof(float) * kNumel};
    const PeerBytes receive{(member.index() + size - 1) % size, other, sizeof(float) * kNumel};
    for (int round = 0; round < kRounds; ++round) {
      member.group().Exchange({&send, 1}, {&receive, 1});
      member.AwaitOrder();
      const void* sources[] = {own, other};
      member.device().Sum(DType::kFloat32, sources, 2, own, kNumel,
                          reinterpret_cast<std::uint32_t*>(finite));
      if (round % 10 != 9) continue;
      const PeerBytes piece{round % size, other, 4};
      member.group().Gather({&piece, 1});
      member.AwaitOrder();
    }
    member.AwaitDevice();
    std::vector<float> expected(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<float>(i + 1);
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<float> before = expected;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] = (before[i] + before[(i + before.size() - 1) % before.size()]) / 2;
      }
    }
    std::vector<float> sums(kNumel);
    EXPECT_TRUE(member.device().Download(sums.data(), own, sizeof(float) * kNumel));
    EXPECT_THAT(sums, Each(expected[static_cast<std::size_t>(member.index())]));
  });
}

TEST(NcclProcesses, SendWhatEarlierWorkWritesToWhatLaterWorkReads) {
  RunMembers(2, [](Member& member) {
    const std::string bytes = Bytes(member.index(), 1 - member.index(), 0, 5000);
    std::byte* source = member.Upload(bytes);
    std::byte* sent = member.Allocate(bytes.size());
    std::byte* received = member.Allocate(bytes.size());
    std::byte* copy = member.Allocate(bytes.size());
    member.device().Zero(received, bytes.size());
    member.device().Copy(sent, source, bytes.size());
    const PeerBytes send{1 - member.index(), sent, bytes.size()};
    const PeerBytes receive{1 - member.index(), received, bytes.size()};
    member.group().Exchange({&send, 1}, {&receive, 1});
    member.AwaitOrder();
    member.device().Copy(copy, received, bytes.size());
    member.device().Zero(sent, bytes.size());  // after it was sent
    member.device().Zero(received, bytes.size());
    member.AwaitDevice();
    EXPECT_TRUE(member.Download(copy, bytes.size()) ==
                Bytes(1 - member.index(), member.index(), 0, bytes.size()));
  });
}

TEST(NcclProcesses, HangWithAMemberThatIsKilledAndAbort) {
  RunMembers(4, [](Member& member) {
    std::vector<PeerBytes> sends;
    std::vector<PeerBytes> receives;
    for (int peer = 0; peer < member.size(); ++peer) {
      if (peer == member.index()) continue;
      sends.push_back({peer, member.Upload(std::string(3'000'000, 'x')), 3'000'000});
      receives.push_back({peer, member.Allocate(3'000'000), 3'000'000});
    }
    member.group().Exchange(sends, receives);
    member.AwaitOrder();
    const DeviceMark mark = member.device().Record();
    if (member.index() == 3) {
      for (int i = 0; i < 5; ++i) member.IsDone(mark);  // has sent and received a part
      raise(SIGKILL);
    }
    EXPECT_FALSE(Await([&] { return member.IsDone(mark); }, std::chrono::milliseconds(500)));
    EXPECT_TRUE(member.group().Poll().value());
    EXPECT_FALSE(member.IsDone(mark));
    member.Meet(0, 3);
    member.group().Abort();
    EXPECT_TRUE(Await([&] { return member.IsDone(mark); }, std::chrono::seconds(1)));
    EXPECT_EQ(member.device().error().text, "");
    std::byte* memory = member.Upload("later work is done");
    EXPECT_EQ(member.Download(memory, 18), "later work is done");
  });
}

TEST(NcclProcesses, OneMembersErrorIsNotTheOthers) {
  RunMembers(2, [](Member& member) {
    if (member.index() == 1) setenv(stand_in::kFaults, "error=2", 1);
    std::byte* out = member.Upload("ping");
    std::byte* in = member.Allocate(4);
    const PeerBytes send{1 - member.index(), out, 4};
    const PeerBytes receive{1 - member.index(), in, 4};
    member.group().Exchange({&send, 1}, {&receive, 1});
    member.AwaitOrder();
    member.AwaitDevice();
    member.group().Exchange({&send, 1}, {&receive, 1});
    member.AwaitOrder();
    const DeviceMark mark = member.device().Record();
    const auto failed = [&] {
      EXPECT_FALSE(member.IsDone(mark));
      return !member.group().Poll().ok();
    };
    if (member.index() == 1) {
      EXPECT_TRUE(Await(failed));
      EXPECT_THAT(std::string(member.group().Poll().status().message()),
                  HasSubstr("NCCL 2.30.4: an exchange of member 1 of 2 failed: "));
    } else {
      EXPECT_FALSE(Await(failed, std::chrono::milliseconds(300)));
    }
    member.Meet(0, 2);
    member.Disconnect();
    EXPECT_TRUE(Await([&] { return member.IsDone(mark); }, std::chrono::seconds(1)));
  });
}

}  // namespace
}  // namespace gradwire
