// One bucket's rounds and chunks, without any protocol.
#include "client/core/bucket_run.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bytes in pieces that end anywhere, as gRPC's slices do.
class Sliced final : public wire::Payload {
 public:
  Sliced(std::vector<std::byte> bytes, const std::vector<std::size_t>& lengths)
      : bytes_(std::move(bytes)) {
    std::size_t at = 0;
    for (const std::size_t length : lengths) {
      pieces_.push_back(std::span(bytes_).subspan(at, length));
      at += length;
    }
    pieces_.push_back(std::span(bytes_).subspan(at));
  }
  std::span<const std::span<const std::byte>> pieces() const override { return pieces_; }
  std::size_t bytes() const override { return bytes_.size(); }

 private:
  const std::vector<std::byte> bytes_;
  std::vector<std::span<const std::byte>> pieces_;
};

// A run that takes shared state, and plans other rounds than it goes through.
class OddHook final : public HookBase {
 public:
  explicit OddHook(std::size_t planned, std::size_t rounds) : planned_(planned), rounds_(rounds) {}
  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec>,
                                              std::int64_t) const override {
    return std::vector<RoundPlan>(planned_, kRound);
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket&, std::int64_t) override {
    return std::make_unique<Run>(*this);
  }
  std::vector<std::vector<std::byte>> imported;

 private:
  static inline const RoundPlan kRound{{Segment{DType::kFloat32, 16, ReduceOp::kSum}}};
  class Run final : public HookRunBase {
   public:
    explicit Run(OddHook& hook) : hook_(hook) {}
    absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext&) override {
      return next_++ < hook_.rounds_ ? std::optional(kRound) : std::nullopt;
    }
    absl::Status Encode(ElementRange, std::span<std::byte>) override { return absl::OkStatus(); }
    absl::Status Decode(ElementRange, std::span<const std::byte>) override {
      return absl::OkStatus();
    }
    std::size_t shared_bytes() const override { return 10; }
    absl::Status Import(std::span<const std::byte> shared) override {
      hook_.imported.emplace_back(shared.begin(), shared.end());
      return absl::OkStatus();
    }
    void Commit() override {}
    void Abort() override {}

   private:
    OddHook& hook_;
    std::size_t next_ = 0;
  };
  const std::size_t planned_;
  const std::size_t rounds_;
};

class BucketRunTest : public EffectsTest {
 protected:
  static constexpr RoundContext kContext{.world_size = 2, .rank = 1};

  absl::StatusOr<std::unique_ptr<BucketRun>> Start(Hook& hook, std::uint32_t parameter) {
    return BucketRun::Start(hook, Bucket({parameter}),
                            {.parameters = {parameter}, .chunk_bytes = 64}, kContext);
  }
};

TEST_F(BucketRunTest, HandsOutChunksInOrderAndAgainWhatHasNoResult) {
  const auto run = *Start(hook_, 1);  // chunks of 64, 64 and 32 bytes
  EXPECT_EQ(run->HandOut().bytes, 64U);
  const BucketRun::Chunk second = run->HandOut();
  EXPECT_EQ(second.number, 1U);
  EXPECT_EQ(second.range.begin, 16U);
  ASSERT_TRUE(run->TakeResult(*Bytes(64)).ok());
  run->Rewind();
  EXPECT_EQ(run->HandOut().number, 1U) << "chunk 0 has been decoded";
  EXPECT_EQ(run->HandOut().bytes, 32U);
  EXPECT_FALSE(run->has_unsent());
}

TEST_F(BucketRunTest, AResultThatOvertakesItsChunkMakesSendingItNeedless) {
  const auto run = *Start(hook_, 1);
  ASSERT_TRUE(run->TakeResult(*Bytes(64)).ok());
  EXPECT_EQ(run->HandOut().number, 1U);
}

TEST_F(BucketRunTest, HoldsItsResultWhenTheHookHasNoMoreRounds) {
  const auto run = *Start(hook_, 0);
  EXPECT_FALSE(run->is_round_complete());
  ASSERT_TRUE(run->TakeResult(*Bytes(64)).ok());
  ASSERT_TRUE(run->is_round_complete());
  EXPECT_FALSE(run->holds_result());
  ASSERT_TRUE(run->NextRound(kContext).ok());
  EXPECT_TRUE(run->holds_result());
  EXPECT_EQ(hook_.commits, 0);
  run->Commit();
  EXPECT_EQ(hook_.commits, 1);
}

TEST_F(BucketRunTest, ElementsThatLieInSeveralPiecesArePutTogether) {
  std::vector<float> expected(16);
  std::iota(expected.begin(), expected.end(), 1.5F);
  std::vector<std::byte> bytes(64);
  std::memcpy(bytes.data(), expected.data(), bytes.size());
  const std::vector<std::vector<std::size_t>> cuts = {
      {}, {4}, {1}, {3, 1}, {1, 1, 1, 1}, {2, 0, 1, 6, 5, 33}, {63}, {5, 58}};
  for (const std::vector<std::size_t>& lengths : cuts) {
    const auto run = *Start(hook_, 0);
    ASSERT_TRUE(run->TakeResult(Sliced(bytes, lengths)).ok());
    EXPECT_EQ(buffers_.back(), expected) << lengths.size() << " cuts";
  }
}

TEST_F(BucketRunTest, AnErrorOfTheHookIsPassedOn) {
  hook_.decode_status = absl::DataLossError("broken");
  const auto run = *Start(hook_, 0);
  EXPECT_EQ(run->TakeResult(*Bytes(64)), hook_.decode_status);
  EXPECT_EQ(run->received(), 0U);
}

TEST_F(BucketRunTest, TheHookMustGoThroughThePlannedRounds) {
  for (const std::size_t planned : {0U, 1U}) {
    OddHook hook(planned, 1 - planned);
    EXPECT_THAT(Start(hook, 0).status().message(),
                HasSubstr("round 0 of the hook is not the one that it planned"));
  }
  for (const std::size_t planned : {1U, 2U}) {
    OddHook hook(planned, 3 - planned);
    const auto run = *Start(hook, 0);
    ASSERT_TRUE(run->TakeResult(*Bytes(64)).ok());
    EXPECT_THAT(run->NextRound(kContext).message(),
                HasSubstr("round 1 of the hook is not the one that it planned"));
  }
}

TEST_F(BucketRunTest, SharedStateReachesTheHookOnceAndWhole) {
  OddHook hook(1, 1);
  const auto run = *Start(hook, 0);
  ASSERT_TRUE(run->wants_shared());
  ASSERT_TRUE(run->TakeShared(Bytes(4).get()).ok());
  EXPECT_EQ(run->shared_received(), 4U);
  run->ForgetShared();  // a new stream repeats it from the start
  ASSERT_TRUE(run->TakeShared(Bytes(6).get()).ok());
  EXPECT_TRUE(hook.imported.empty());
  ASSERT_TRUE(run->TakeShared(Bytes(4).get()).ok());
  EXPECT_THAT(hook.imported, ElementsAre(std::vector<std::byte>(10)));
  EXPECT_FALSE(run->wants_shared());
}

}  // namespace
}  // namespace gradwire::client
