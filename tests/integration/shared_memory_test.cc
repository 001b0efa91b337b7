// Shared memory gives the bits that the stream gives, whoever has it, and a member that lies about
// it is named.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "proto/wire/memory_offer.h"
#include "tests/testing/fault_relay.h"
#include "tests/testing/gradients.h"
#include "tests/testing/memory_offers.h"
#include "tests/testing/ranks.h"
#include "tests/testing/raw_member.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ConnectTo;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::FaultRelay;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::OfferMemory;
using ::gradwire::testing::RawMember;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::SealedFd;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Above what travels in frames, so that chunks lie in shared memory.
constexpr std::size_t kChunkBytes = 16 << 10;
constexpr std::size_t kElements = 50'001;  // several chunks, the last one odd

server::ServerOptions SmallChunks() {
  return {.chunk_bytes = kChunkBytes, .window_chunks = 2, .open_buckets = 2};
}

ClientOptions Options(const std::string& address, const std::string& session, int world_size,
                      const std::string& spec = "no", DType dtype = DType::kFloat32) {
  return {.address = address,
          .session = session,
          .rank = 0,
          .world_size = world_size,
          .parameters = {MakeParameter("w", kElements, dtype), MakeParameter("v", 10, dtype)},
          .hook = *HookSpec::Parse(spec),
          .join_timeout = absl::Seconds(20)};
}

// kOwnShared: gradients that the test has allocated, and shares where they lie.
enum class Where { kShared, kStream, kGradientsShared, kOwnShared };

// Between whole pages, as most of malloc's memory.
constexpr std::size_t kIntoPage = 64;

// Shares the memory if it is of the size and for a hook that are shared.
absl::Status ShareOwn(Client& client, const TensorView& view, const HookSpec& hook,
                      std::vector<std::shared_ptr<void>>& held) {
  auto shared = client.ShareGradients(view);
  if (shared.ok() != (view.bytes() > 1000 && hook.TakesResults(view.dtype))) {
    return absl::InternalError("shared or not, against the rules");
  }
  if (shared.ok()) held.push_back(*std::move(shared));
  return absl::OkStatus();
}

// Two steps of both parameters, compared with what the hook gives in one loop.
absl::Status Train(Client& client, int rank, const ClientOptions& options, Where where) {
  if (client.metrics().shared_memory != (where != Where::kStream)) {
    return absl::InternalError("shared memory is not what the test asked for");
  }
  for (std::int64_t step = 0; step < 2; ++step) {
    std::vector<std::shared_ptr<std::byte>> memory;
    std::vector<std::shared_ptr<void>> shared;  // dropped before the memory
    for (const ParameterSpec& parameter : options.parameters) {
      Gradients gradients({parameter});
      gradients.Fill(rank, step);
      const std::vector<std::byte> filled = gradients.bytes();
      GradBucket bucket = gradients.Bucket();
      if (where == Where::kGradientsShared) {
        memory.push_back(client.AllocateGradients(filled.size()));
        std::copy(filled.begin(), filled.end(), memory.back().get());
        TensorView view = bucket.buffer();
        view.data = memory.back().get();
        if (absl::Status set = bucket.set_buffer(view); !set.ok()) return set;
      }
      if (where == Where::kOwnShared) {
        auto* own = new std::byte[filled.size() + kIntoPage];
        memory.emplace_back(own, std::default_delete<std::byte[]>());
        std::copy(filled.begin(), filled.end(), own + kIntoPage);
        TensorView view = bucket.buffer();
        view.data = own + kIntoPage;
        if (absl::Status set = bucket.set_buffer(view); !set.ok()) return set;
        if (absl::Status may = ShareOwn(client, view, options.hook, shared); !may.ok()) return may;
      }
      if (absl::Status done = client.AllReduce(bucket).Wait(); !done.ok()) return done;
      const bool in_place =
          where == Where::kOwnShared && shared.size() == 1 && parameter.name == "w";
      EXPECT_TRUE(!in_place || client.Report().front().in_place);
      const auto want =
          ExpectedReduction(options.hook, {parameter}, client.world_size(), step, rank);
      if (!want.ok()) return want.status();
      const auto* got = static_cast<const std::byte*>(bucket.buffer().data);
      EXPECT_TRUE(std::equal(want->begin(), want->end(), got))
          << "rank " << rank << " step " << step << " parameter " << parameter.name;
    }
    const auto verdict = client.EndStep();
    if (!verdict.ok()) return verdict.status();
    EXPECT_EQ(*verdict, Verdict::kApply);
  }
  return client.Leave();
}

struct Case {
  const char* spec;
  int world_size;
  DType dtype;
};

class SharedMemoryBits : public ::testing::TestWithParam<Case> {};

// Each member has its own way to the daemon; all get the bits of one loop.
TEST_P(SharedMemoryBits, AreThoseOfTheStream) {
  TestDaemon daemon(SmallChunks());
  const auto [spec, world_size, dtype] = GetParam();
  const Where ways[] = {Where::kShared, Where::kOwnShared, Where::kGradientsShared, Where::kStream};
  for (std::size_t first = 0; first < 4; ++first) {
    const ClientOptions common =
        Options(daemon.address(), "bits" + std::to_string(first), world_size, spec, dtype);
    const auto where_of = [&](int rank) {
      return ways[(first + static_cast<std::size_t>(rank)) % 4];
    };
    ExpectAllOk(RunRanks(
        common,
        [&](Client& client, int rank) { return Train(client, rank, common, where_of(rank)); },
        [&](ClientOptions& options, int rank) {
          options.shared_memory = where_of(rank) != Where::kStream;
        }));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, SharedMemoryBits,
    ::testing::Values(Case{"no", 1, DType::kFloat32}, Case{"no", 2, DType::kFloat32},
                      Case{"no", 3, DType::kFloat32}, Case{"no", 3, DType::kFloat64},
                      Case{"no", 3, DType::kBFloat16}, Case{"fp16", 2, DType::kFloat32},
                      Case{"fp16", 3, DType::kFloat32}, Case{"bf16", 3, DType::kFloat32},
                      Case{"fp16", 3, DType::kFloat64},
                      Case{"no,comm_wrapper=fp16", 3, DType::kFloat32}),
    [](const auto& test) {
      std::string name = std::string(test.param.spec) + "_" +
                         std::to_string(test.param.world_size) + "_" + Name(test.param.dtype);
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST(SharedMemory, IsNotHadWhereDescriptorsDoNotPass) {
  TestDaemon daemon(SmallChunks());
  auto relay = FaultRelay::Start(daemon.Path("relay.sock"), daemon.socket());
  ASSERT_TRUE(relay.ok());
  const ClientOptions options = Options((*relay)->address(), "relayed", 2);
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) {
    return Train(client, rank, options, Where::kStream);
  }));
}

class SharedMemoryResume : public ::testing::TestWithParam<Where> {};

// With gradients in shared memory, the daemon may have written a result over them that the member
// has not heard of when the stream breaks.
TEST_P(SharedMemoryResume, ABrokenStreamResumesWithFreshMemory) {
  TestDaemon daemon(SmallChunks());
  auto relay = FaultRelay::Start(daemon.Path("relay.sock"), daemon.socket());
  ASSERT_TRUE(relay.ok());
  (*relay)->PassDescriptors(true);
  const ClientOptions options = Options((*relay)->address(), "resumed", 2);
  std::int64_t resumes = 0;
  int shared = 0;  // steps with it after a resume
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    std::vector<Completion> pending;
    Gradients gradients({options.parameters[0]});
    const std::size_t bytes = gradients.bytes().size();
    std::shared_ptr<std::byte> memory = client.AllocateGradients(bytes);
    std::shared_ptr<void> held;
    if (GetParam() == Where::kOwnShared) {
      memory.reset(new std::byte[bytes], std::default_delete<std::byte[]>());
      auto own = client.ShareGradients({DType::kFloat32, memory.get(), kElements}, memory);
      if (!own.ok()) return own.status();
      held = *std::move(own);
    }
    for (std::int64_t step = 0; step < 60; ++step) {
      gradients.Fill(rank, step);
      GradBucket bucket = gradients.Bucket();
      if (GetParam() != Where::kShared) {
        std::copy(gradients.bytes().begin(), gradients.bytes().end(), memory.get());
        TensorView view = bucket.buffer();
        view.data = memory.get();
        if (absl::Status set = bucket.set_buffer(view); !set.ok()) return set;
      }
      Completion done = client.AllReduce(bucket);
      if (rank == 0 && step % 4 == 1) (*relay)->CutNow();
      if (absl::Status status = done.Wait(); !status.ok()) return status;
      const auto want = ExpectedReduction(options.hook, {options.parameters[0]}, 2, step, rank);
      if (!want.ok()) return want.status();
      EXPECT_TRUE(std::equal(want->begin(), want->end(),
                             static_cast<const std::byte*>(bucket.buffer().data)))
          << "rank " << rank << " step " << step;
      if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
      if (rank == 0 && client.metrics().resumes > 0) shared += client.metrics().shared_memory;
    }
    if (rank == 0) resumes = client.metrics().resumes;
    return client.Leave();
  }));
  EXPECT_GE(resumes, 5);
  EXPECT_GT(shared, 0);  // not always: a busy host may not answer in time, and the stream serves
}

INSTANTIATE_TEST_SUITE_P(GradientsShared, SharedMemoryResume,
                         ::testing::Values(Where::kShared, Where::kGradientsShared,
                                           Where::kOwnShared));

TEST(SharedMemory, OwnGradientsAreNotSharedOnAStream) {
  TestDaemon daemon(SmallChunks());
  ClientOptions options = Options(daemon.address(), "stream", 1);
  options.shared_memory = false;
  const auto client = Client::Join(options);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> gradients(kElements);
  const auto shared = (*client)->ShareGradients({DType::kFloat32, gradients.data(), kElements});
  EXPECT_EQ(shared.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shared.status().message()), HasSubstr("do not travel in shared memory"));
}

// A member that goes in the middle of a step keeps its gradients' memory, as private memory.
TEST(SharedMemory, OwnGradientsOutliveTheClient) {
  TestDaemon daemon(SmallChunks());
  ClientOptions options = Options(daemon.address(), "gone", 1);
  std::vector<float> gradients(kElements, 2.0F);
  std::shared_ptr<void> held;
  {
    const auto client = Client::Join(options);
    ASSERT_TRUE(client.ok()) << client.status();
    auto shared = (*client)->ShareGradients({DType::kFloat32, gradients.data(), kElements});
    ASSERT_TRUE(shared.ok()) << shared.status();
    held = *std::move(shared);
    auto bucket = GradBucket::Make(0, {DType::kFloat32, gradients.data(), kElements},
                                   {options.parameters[0]});
    ASSERT_TRUE((*client)->AllReduce(*bucket).Wait().ok());
  }
  EXPECT_EQ(gradients, std::vector<float>(kElements, 2.0F));
  held.reset();
  gradients.back() = 3.0F;
  EXPECT_EQ(gradients.front(), 2.0F);
}

// ---- Lies

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class LyingMember : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kStartId = 77;

  // A session of one good member and this one, rank 1, whose Hello names its memory.
  void Begin(UniqueFd segment) {
    options_ = Options(daemon_.address(), "lies", 2);
    good_ = std::thread([this] {
      const auto client = Client::Join(options_);
      if (!client.ok()) {
        seen_ = client.status();
        return;
      }
      Gradients gradients({options_.parameters[0]});
      GradBucket bucket = gradients.Bucket();
      seen_ = (*client)->AllReduce(bucket).Wait();
    });
    ClientOptions own = options_;
    own.rank = 1;
    v1::JoinRequest request = RawMember::MakeJoin(own);
    request.set_start_id(kStartId);
    auto joined = member_.Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    joined_ = *joined;
    const auto reply = OfferMemory(daemon_.socket(), joined_.token(), kStartId, std::move(segment));
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    EXPECT_TRUE(reply.results.valid());
    attachment_ = reply.attachment;
    member_.OpenStream();
    v1::Frame hello;
    hello.mutable_header()->mutable_hello()->set_token(joined_.token());
    hello.mutable_header()->mutable_hello()->set_start_id(kStartId);
    hello.mutable_header()->mutable_hello()->set_memory(attachment_);
    ASSERT_TRUE(member_.Send(hello));
    ASSERT_TRUE(member_.ReadUntil(v1::Header::kWelcome).has_value());
    const auto id = member_.Announce(joined_, {0}, kElements);
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
  }
  v1::Frame Contribution() const {
    v1::Frame frame;
    v1::Contribution& contribution = *frame.mutable_header()->mutable_contribution();
    *contribution.mutable_id() = id_;
    contribution.set_generation(joined_.generation());
    contribution.set_rank(1);
    contribution.mutable_shared()->set_bytes(kChunkBytes);
    return frame;
  }
  void ExpectBlamed(const v1::Frame& frame, const ::testing::Matcher<std::string>& why) {
    member_.Send(frame);
    EXPECT_THAT(Message(member_.AwaitFailure()), AllOf(HasSubstr("rank 1"), why));
    good_.join();
    EXPECT_THAT(Message(seen_), AllOf(HasSubstr("rank 1"), why));
    // Others are served on, in shared memory.
    const ClientOptions options = Options(daemon_.address(), "afterwards", 2);
    ExpectAllOk(RunRanks(options, [&](Client& client, int rank) {
      return Train(client, rank, options, Where::kShared);
    }));
  }
  void TearDown() override {
    if (good_.joinable()) good_.join();
  }

  TestDaemon daemon_{SmallChunks()};
  RawMember member_{daemon_.address()};
  ClientOptions options_;
  v1::JoinResponse joined_;
  v1::RoundId id_;
  std::uint64_t attachment_ = 0;
  std::thread good_;
  absl::Status seen_;
};

TEST_F(LyingMember, AnOffsetOutsideOfItsSegment) {
  Begin(SealedFd(2 * kChunkBytes));
  v1::Frame frame = Contribution();
  frame.mutable_header()->mutable_contribution()->mutable_shared()->set_offset(kChunkBytes + 1);
  ExpectBlamed(frame, HasSubstr("shared: bytes 16385 and the 16384 that follow; the segment has"));
}

TEST_F(LyingMember, AnOffsetThatOverflows) {
  Begin(SealedFd(2 * kChunkBytes));
  v1::Frame frame = Contribution();
  frame.mutable_header()->mutable_contribution()->mutable_shared()->set_offset(~std::uint64_t{0});
  ExpectBlamed(frame, HasSubstr("the segment has 32768"));
}

TEST_F(LyingMember, ASegmentThatItDidNotGive) {
  Begin(SealedFd(2 * kChunkBytes));
  v1::Frame frame = Contribution();
  frame.mutable_header()->mutable_contribution()->mutable_shared()->set_segment(1);
  ExpectBlamed(frame, HasSubstr("shared.segment is 1; the member gave 1 segments"));
}

TEST_F(LyingMember, AChunkOfAnotherSize) {
  Begin(SealedFd(2 * kChunkBytes));
  v1::Frame frame = Contribution();
  frame.mutable_header()->mutable_contribution()->mutable_shared()->set_bytes(kChunkBytes - 4);
  ExpectBlamed(frame, HasSubstr("sent 16380 bytes as chunk 0"));
}

TEST_F(LyingMember, APayloadBesides) {
  Begin(SealedFd(2 * kChunkBytes));
  v1::Frame frame = Contribution();
  frame.set_payload(std::string(kChunkBytes, '\0'));
  ExpectBlamed(frame, HasSubstr("both in shared memory and as a payload"));
}

TEST_F(LyingMember, WhatIsOfferedMustBeASealedSegmentOfTheOfferedSize) {
  Begin(SealedFd(2 * kChunkBytes));
  const auto refused = [&](UniqueFd segment, std::uint64_t attachment) {
    return Message(
        OfferMemory(daemon_.socket(), joined_.token(), kStartId, std::move(segment), attachment)
            .status);
  };
  const auto too_large = static_cast<std::size_t>(joined_.memory_bytes()) + 4096;
  EXPECT_THAT(refused(SealedFd(too_large), 0), HasSubstr("allowed: 1 to"));
  UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fallocate(unsealed.get(), 0, 0, kChunkBytes), 0);
  EXPECT_THAT(refused(std::move(unsealed), 0), HasSubstr("size is not sealed"));
  // Further segments: for an attachment that is its own, up to twice the gradients.
  EXPECT_EQ(refused(SealedFd(kChunkBytes), attachment_), "");
  EXPECT_THAT(refused(SealedFd(kChunkBytes), attachment_ + 1), HasSubstr("no such attachment"));
  const std::size_t gradients = 2 * 4 * (kElements + 10) + (std::size_t{1} << 20);
  EXPECT_THAT(refused(SealedFd(gradients - kChunkBytes + 1), attachment_),
              HasSubstr("; allowed: 1 to " + std::to_string(gradients - kChunkBytes)));
  EXPECT_THAT(Message(OfferMemory(daemon_.socket(), "no token", kStartId, SealedFd(4096)).status),
              HasSubstr("unknown token"));
  EXPECT_THAT(
      Message(OfferMemory(daemon_.socket(), joined_.token(), kStartId + 1, SealedFd(4096)).status),
      HasSubstr("another start id"));
  // Bytes that are no offer, and none at all: the connection ends, nothing else.
  const UniqueFd garbage = ConnectTo(daemon_.socket());
  ASSERT_EQ(send(garbage.get(), "GARBAGE", 7, 0), 7);
  const auto answer = wire::ReceiveMemoryReply(
      garbage.get(), std::chrono::steady_clock::now() + std::chrono::seconds(10));
  ASSERT_TRUE(answer.ok());
  EXPECT_THAT(Message(answer->status), HasSubstr("do not begin as one"));
  member_.Cancel();
}

TEST_F(LyingMember, AMemberThatNamesNoMemoryHasNone) {
  RawMember other(daemon_.address());
  ClientOptions own = Options(daemon_.address(), "none", 1);
  const auto joined = other.Begin(own);
  ASSERT_TRUE(joined.ok());
  const auto id = other.Announce(*joined, {0}, kElements);
  ASSERT_TRUE(id.ok());
  v1::Frame frame;
  v1::Contribution& contribution = *frame.mutable_header()->mutable_contribution();
  *contribution.mutable_id() = *id;
  contribution.set_generation(joined->generation());
  contribution.mutable_shared()->set_bytes(kChunkBytes);
  other.Send(frame);
  EXPECT_THAT(Message(other.AwaitFailure()), HasSubstr("its Hello named no attachment"));
}

TEST_F(LyingMember, AnAttachmentServesOneStreamOfItsMember) {
  Begin(SealedFd(2 * kChunkBytes));
  RawMember thief(daemon_.address());
  thief.OpenStream();
  v1::Frame hello;
  hello.mutable_header()->mutable_hello()->set_token(joined_.token());
  hello.mutable_header()->mutable_hello()->set_start_id(kStartId);
  hello.mutable_header()->mutable_hello()->set_memory(attachment_);
  thief.Send(hello);
  EXPECT_THAT(Message(thief.AwaitFailure()), HasSubstr("no attachment of this member waits"));
  member_.Cancel();
}

}  // namespace
}  // namespace gradwire
