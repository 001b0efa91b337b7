// The member's side of the protocol, with a coordinator that is played by hand.
#include "client/core/member.h"

#include <cstring>
#include <deque>

#include "gmock/gmock.h"
#include "gradwire/hooks/registry.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Parameters w: 1 chunk of 64 bytes, b: 3 chunks, e: none. The second of two members.
MemberOptions SmallOptions() {
  return {
      .rank = 1,
      .world_size = 2,
      .generation = 7,
      .chunk_bytes = 64,
      .window_chunks = 2,
      .manifest = {
          {"w", {16}, DType::kFloat32}, {"b", {40}, DType::kFloat32}, {"e", {0}, DType::kFloat32}}};
}

// A hook of one round that remembers what it was told; its wire bytes are the gradient's.
class RecordingHook final : public Hook {
 public:
  explicit RecordingHook(bool empty_round_first = false) : empty_first_(empty_round_first) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t) const override {
    std::size_t numel = 0;
    for (const ParameterSpec& parameter : parameters) numel += parameter.numel();
    std::vector<RoundPlan> plans;
    if (empty_first_) plans.push_back({{Segment{DType::kFloat32, 0, ReduceOp::kSum}}});
    plans.push_back({{Segment{DType::kFloat32, numel, ReduceOp::kSum}}});
    return plans;
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override;

  int commits = 0;
  int aborts = 0;
  std::vector<std::size_t> decoded;  // beginnings of ranges
  absl::Status decode_status;

 private:
  bool empty_first_;
};

class RecordingRun final : public HookRun {
 public:
  RecordingRun(RecordingHook& hook, std::vector<RoundPlan> plans, TensorView buffer)
      : hook_(hook), plans_(std::move(plans)), buffer_(buffer) {}
  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext&) override {
    if (next_ == plans_.size()) return std::optional<RoundPlan>();
    return std::optional<RoundPlan>(plans_[next_++]);
  }
  absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
    std::memcpy(out.data(), static_cast<float*>(buffer_.data) + range.begin, out.size());
    return absl::OkStatus();
  }
  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
    hook_.decoded.push_back(range.begin);
    std::memcpy(static_cast<float*>(buffer_.data) + range.begin, in.data(), in.size());
    return hook_.decode_status;
  }
  void Commit() override { ++hook_.commits; }
  void Abort() override { ++hook_.aborts; }

 private:
  RecordingHook& hook_;
  const std::vector<RoundPlan> plans_;
  const TensorView buffer_;
  std::size_t next_ = 0;
};

absl::StatusOr<std::unique_ptr<HookRun>> RecordingHook::Start(GradBucket& bucket,
                                                              std::int64_t step) {
  return std::make_unique<RecordingRun>(*this, *Plan(bucket.parameters(), step), bucket.buffer());
}

wire::PayloadRef Bytes(std::size_t count) {
  return wire::OwnedPayload::Make(std::vector<std::byte>(count));
}

class MemberTest : public testing::Test {
 protected:
  explicit MemberTest(std::size_t eager_bytes = 0) : options_(SmallOptions()) {
    options_.eager_bytes = eager_bytes;
    member_.emplace(options_, &hook_);
  }
  absl::Status Start(const std::vector<std::size_t>& parameters) {
    std::vector<ParameterSpec> specs;
    std::size_t numel = 0;
    for (std::size_t p : parameters) {
      specs.push_back(options_.manifest[p]);
      numel += specs.back().numel();
    }
    return StartSpecs(specs, numel);
  }
  absl::Status StartSpecs(const std::vector<ParameterSpec>& specs, std::size_t numel) {
    buffers_.emplace_back(numel, 1.0F);
    buckets_.push_back(
        *GradBucket::Make(0, {DType::kFloat32, buffers_.back().data(), numel}, specs));
    Effects effects;
    absl::Status status = member_->StartBucket(++ticket_, buckets_.back(), effects);
    Take(std::move(effects));
    return status;
  }
  void Receive(wire::Header header, wire::PayloadRef payload = nullptr) {
    Effects effects;
    member_->Receive({std::move(header), std::move(payload)}, effects);
    Take(std::move(effects));
  }
  void Grant(std::uint32_t bucket) { Receive(wire::Grant{{.bucket = bucket}}); }
  void Result(std::uint32_t bucket, std::uint32_t chunk, std::size_t bytes = 64) {
    Receive(wire::Result{.id = {.bucket = bucket}, .chunk = chunk}, Bytes(bytes));
  }
  void Resumed() {
    Effects effects;
    member_->Resumed(effects);
    Take(std::move(effects));
  }
  void Take(Effects effects) {
    while (takes_chunks_ && member_->has_chunks()) member_->SendNext(effects);
    for (Effect& effect : effects) {
      if (auto* chunk = std::get_if<SendChunkEffect>(&effect)) {
        std::vector<std::byte> out(chunk->bytes);
        EXPECT_TRUE(chunk->run->Encode(chunk->range, out).ok());
      }
      effects_.push_back(std::move(effect));
    }
  }
  // The effects of one kind since the last call.
  template <class T>
  std::vector<T> Drain() {
    std::vector<T> found;
    for (const Effect& effect : effects_) {
      if (const T* one = std::get_if<T>(&effect)) found.push_back(*one);
    }
    effects_.clear();
    return found;
  }
  template <class T>
  std::vector<T> DrainSent() {
    std::vector<T> found;
    for (const SendEffect& effect : Drain<SendEffect>()) {
      if (const T* header = std::get_if<T>(&effect.header)) found.push_back(*header);
    }
    return found;
  }
  std::string Message() const { return std::string(member_->failure().message()); }

  MemberOptions options_;
  RecordingHook hook_;
  std::optional<Member> member_;
  std::deque<std::vector<float>> buffers_;
  std::deque<GradBucket> buckets_;
  std::vector<Effect> effects_;
  Ticket ticket_ = 0;
  bool takes_chunks_ = true;  // as soon as there are any
};

TEST_F(MemberTest, IsWelcomedOnceEvenIfTheFirstWelcomeWasLost) {
  Receive(wire::Welcome{.resumed = true});
  EXPECT_THAT(Drain<WelcomeEffect>(), SizeIs(1));
  Receive(wire::Welcome{});
  EXPECT_THAT(Drain<WelcomeEffect>(), IsEmpty());
}

TEST_F(MemberTest, SendsNothingBeforeItsGrantAndThenTheWindow) {
  ASSERT_TRUE(Start({1}).ok());
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].parameters, std::vector<std::uint32_t>{1});
  EXPECT_EQ(announced[0].generation, 7U);
  Grant(1);
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_EQ(chunks[1].header.chunk, 1U);
  EXPECT_EQ(chunks[1].header.rank, 1);
  EXPECT_EQ(chunks[1].bytes, 64U);
  Result(1, 0);
  const auto more = Drain<SendChunkEffect>();
  ASSERT_THAT(more, SizeIs(1));
  EXPECT_EQ(more[0].header.chunk, 2U);
  EXPECT_EQ(more[0].header.received, 1U);
  EXPECT_EQ(more[0].bytes, 32U);
  Grant(1);  // once is enough
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
}

// Chunks of 64 bytes are large here.
class LargeChunkTest : public MemberTest {
 protected:
  LargeChunkTest() {
    options_.large_chunk_bytes = 64;
    member_.emplace(options_, &hook_);
    takes_chunks_ = false;
  }
  std::vector<std::uint32_t> Next() {
    Effects effects;
    member_->SendNext(effects);
    Take(std::move(effects));
    std::vector<std::uint32_t> chunks;
    for (const auto& chunk : Drain<SendChunkEffect>()) chunks.push_back(chunk.header.chunk);
    return chunks;
  }
};

TEST_F(LargeChunkTest, AreHandedOutOneAtATimeUpToTheWindow) {
  ASSERT_TRUE(Start({1}).ok());  // chunks of 64, 64 and 32 bytes
  EXPECT_FALSE(member_->has_chunks());
  Grant(1);
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  ASSERT_TRUE(member_->has_chunks());
  EXPECT_THAT(Next(), testing::ElementsAre(0));
  ASSERT_TRUE(member_->has_chunks());
  EXPECT_THAT(Next(), testing::ElementsAre(1));
  EXPECT_FALSE(member_->has_chunks());
  Result(1, 0);  // what it makes room for is small
  const auto last = Drain<SendChunkEffect>();
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0].header.chunk, 2U);
  EXPECT_EQ(last[0].header.received, 1U);
}

TEST_F(LargeChunkTest, SayWhatHasArrivedWhenTheyAreHandedOut) {
  ASSERT_TRUE(Start({0}).ok());
  ASSERT_TRUE(Start({1}).ok());
  Grant(0);
  Grant(1);
  Drain<SendChunkEffect>();
  EXPECT_THAT(Next(), testing::ElementsAre(0));  // bucket 0's only one
  EXPECT_THAT(Next(), testing::ElementsAre(0));  // bucket 1's first
  Result(1, 0);
  Effects effects;
  member_->SendNext(effects);
  ASSERT_THAT(effects, SizeIs(2));
  EXPECT_EQ(std::get<SendChunkEffect>(effects[0]).header.received, 1U);
  EXPECT_EQ(std::get<SendChunkEffect>(effects[1]).header.chunk, 2U);
}

TEST_F(LargeChunkTest, AreForgottenWithTheirStreamAndTheirStep) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  ASSERT_TRUE(member_->has_chunks());
  Resumed();
  EXPECT_FALSE(member_->has_chunks());
  Receive(wire::Restart{.open = {wire::RoundId{.bucket = 1}}});
  ASSERT_TRUE(member_->has_chunks());
  // Results that were computed before: the chunks that were to go are not asked for any more.
  for (const std::uint32_t chunk : {0U, 1U}) Result(1, chunk);
  Result(1, 2, 32);
  Drain<SendChunkEffect>();
  EXPECT_THAT(Next(), IsEmpty());
  Effects effects;
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  member_->Fail(absl::InternalError("over"), effects);
  EXPECT_FALSE(member_->has_chunks());
}

TEST_F(MemberTest, ABucketIsDoneWithItsLastResultAndCommittedWithTheStep) {
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Drain<SendEffect>();
  Result(0, 0);
  const std::vector<Effect> effects = effects_;
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  effects_ = effects;
  const auto acks = DrainSent<wire::Ack>();
  ASSERT_THAT(acks, SizeIs(1));
  EXPECT_EQ(acks[0].received, 1U);
  EXPECT_EQ(hook_.commits, 0);
  Receive(wire::StepDone{.step = 0});
  EXPECT_EQ(hook_.commits, 1);
  EXPECT_EQ(member_->step(), 1);
  ASSERT_THAT(Drain<StepDoneEffect>(), SizeIs(1));
}

TEST_F(MemberTest, ASkippedStepLeavesTheStateAlone) {
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Result(0, 0);
  Receive(wire::StepDone{.step = 0, .verdict = Verdict::kSkip});
  EXPECT_EQ(hook_.commits, 0);
  EXPECT_EQ(hook_.aborts, 1);
  EXPECT_EQ(Drain<StepDoneEffect>().at(0).verdict, Verdict::kSkip);
}

TEST_F(MemberTest, RefusesBucketsThatDoNotFit) {
  EXPECT_THAT(StartSpecs({{"x", {4}, DType::kFloat32}}, 4).message(),
              HasSubstr("parameter x is not among the session's 3 parameters"));
  EXPECT_THAT(StartSpecs({{"w", {4, 4}, DType::kFloat32}}, 16).message(),
              HasSubstr("parameter w has another shape or dtype than it had at Join"));
  EXPECT_THAT(Start({0, 0}).message(), HasSubstr("parameter w is in step 0 already"));
  ASSERT_TRUE(Start({0}).ok());
  EXPECT_THAT(Start({1, 0}).message(), HasSubstr("parameter w is in step 0 already"));
  ASSERT_TRUE(Start({1}).ok());
  EXPECT_FALSE(member_->failed());
}

TEST_F(MemberTest, EndStepEndsIt) {
  Effects effects;
  ASSERT_TRUE(member_->EndStep(effects).ok());
  EXPECT_THAT(member_->EndStep(effects).message(), HasSubstr("step 0 was ended before"));
  EXPECT_THAT(Start({0}).message(), HasSubstr("step 0 was ended by this member"));
  Receive(wire::StepDone{.step = 0});
  EXPECT_TRUE(Start({0}).ok());
}

TEST_F(MemberTest, RoundsWithoutElementsArePassedOverAtOnce) {
  RecordingHook hook(true);
  Member member(options_, &hook);
  std::vector<float> buffer(16);
  GradBucket bucket =
      *GradBucket::Make(0, {DType::kFloat32, buffer.data(), 16}, {options_.manifest[0]});
  Effects effects;
  ASSERT_TRUE(member.StartBucket(1, bucket, effects).ok());
  effects.clear();
  member.Receive({wire::Grant{{.bucket = 0, .round = 1}}}, effects);
  ASSERT_THAT(effects, SizeIs(1));
  EXPECT_EQ(std::get<SendChunkEffect>(effects[0]).header.id.round, 1U);
}

TEST_F(MemberTest, ABucketWithoutElementsNeedsNoGrant) {
  ASSERT_TRUE(Start({2}).ok());
  EXPECT_THAT(Drain<BucketDoneEffect>(), SizeIs(1));
  Grant(2);
  Receive(wire::StepDone{.step = 0});
  EXPECT_EQ(hook_.commits, 1);
  EXPECT_FALSE(member_->failed());
}

TEST_F(MemberTest, AnotherAttemptIsSentFromTheStart) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  Drain<SendChunkEffect>();
  Receive(wire::Restart{.step = 0, .attempt = 1, .open = {{.attempt = 1, .bucket = 1}}});
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(2));
  EXPECT_EQ(chunks[0].header.chunk, 0U);
  EXPECT_EQ(chunks[0].header.id.attempt, 1U);
}

// In-place results: what was decoded must never be encoded again.
TEST_F(MemberTest, AfterAResumeNothingIsSentWhoseResultIsHere) {
  ASSERT_TRUE(Start({1}).ok());
  Grant(1);
  Result(1, 0);
  Drain<SendEffect>();
  Resumed();
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1));
  Result(1, 0);  // the daemon does not know that it is here
  EXPECT_EQ(DrainSent<wire::Ack>().at(0).received, 1U);
  Result(1, 1);
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  Receive(wire::Restart{.step = 0, .attempt = 1, .open = {{.bucket = 1}}});
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_EQ(chunks[0].header.chunk, 2U);
  EXPECT_EQ(chunks[0].header.received, 2U);
  EXPECT_EQ(hook_.decoded, (std::vector<std::size_t>{0, 16}));
}

// The coordinator cannot know that it arrived until it hears of the step's first bucket.
TEST_F(MemberTest, ANewStateMayBeRepeatedButNotComeInTheMiddle) {
  Receive(wire::StateReset{.iteration = 3});
  ASSERT_TRUE(Start({0}).ok());
  Receive(wire::StateReset{.iteration = 3});
  EXPECT_FALSE(member_->failed()) << Message();
  Receive(wire::StateReset{.iteration = 4});
  EXPECT_THAT(Message(), HasSubstr("a new state in the middle"));
}

TEST_F(MemberTest, AcknowledgesWhatIsRepeatedFromTheStepBefore) {
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Result(0, 0);
  Receive(wire::StepDone{.step = 0});
  Drain<SendEffect>();
  Result(0, 0);
  EXPECT_EQ(DrainSent<wire::Ack>().at(0).received, 1U);
  Receive(wire::StepDone{.step = 0});
  Grant(0);
  EXPECT_EQ(member_->step(), 1);
  EXPECT_FALSE(member_->failed());
}

TEST_F(MemberTest, AFailureEndsEverythingWithTheSameStatus) {
  ASSERT_TRUE(Start({0}).ok());
  ASSERT_TRUE(Start({1}).ok());
  Receive(wire::Failure{.code = 10, .message = "rank 0 was lost", .blamed_rank = 0});
  EXPECT_EQ(member_->failure(), absl::AbortedError("rank 0 was lost"));
  EXPECT_EQ(hook_.aborts, 2);
  const std::vector<Effect> effects = effects_;
  for (const BucketDoneEffect& done : Drain<BucketDoneEffect>()) {
    EXPECT_EQ(done.status, member_->failure());
  }
  effects_ = effects;
  EXPECT_THAT(Drain<FailedEffect>(), SizeIs(1));
  EXPECT_EQ(Start({2}), member_->failure());
  Grant(0);
  EXPECT_THAT(effects_, IsEmpty());
}

TEST_F(MemberTest, AnUnknownCodeIsUnknown) {
  Receive(wire::Failure{.code = 99, .message = "?", .blamed_rank = -1});
  EXPECT_EQ(member_->failure().code(), absl::StatusCode::kUnknown);
}

TEST_F(MemberTest, ADecodeErrorFailsTheMember) {
  hook_.decode_status = absl::DataLossError("broken");
  ASSERT_TRUE(Start({0}).ok());
  Grant(0);
  Result(0, 0);
  EXPECT_EQ(Message(), "broken");
}

TEST_F(MemberTest, NamesWhatACoordinatorMayNotSend) {
  const std::vector<std::pair<wire::Frame, std::string>> cases = {
      {{wire::Grant{{.bucket = 5}}}, "a grant for unknown bucket 5 in step 0"},
      {{wire::Grant{{.step = 1, .bucket = 1}}}, "a grant for unknown bucket 1"},
      {{wire::Result{.id = {.bucket = 5}}}, "a result for unknown bucket 5"},
      {{wire::Result{.id = {.bucket = 1}, .chunk = 1}, Bytes(64)},
       "result 1 of bucket 1 round 0 out"},
      {{wire::Result{.id = {.bucket = 1, .round = 1}}, Bytes(64)},
       "result 0 of bucket 1 round 1 out"},
      {{wire::Result{.id = {.bucket = 1}}, Bytes(60)}, "result 0 of bucket 1 with 60 bytes"},
      {{wire::Result{.id = {.bucket = 1}}}, "result 0 of bucket 1 with 0 bytes"},
      {{wire::StepDone{.step = 0}}, "the end of step 0 before its last result"},
      {{wire::StepDone{.step = 1}}, "the end of step 1 before its last result"},
      {{wire::Restart{.step = 1}}, "a restart of step 1"},
      {{wire::Restart{.open = {{.bucket = 1, .round = 2}}}}, "a restart of round 2 of bucket 1"},
      {{wire::Announce{}}, "a frame that only a member may send"},
  };
  for (const auto& [frame, message] : cases) {
    Member member(options_, &hook_);
    std::vector<float> buffer(40);
    GradBucket bucket =
        *GradBucket::Make(0, {DType::kFloat32, buffer.data(), 40}, {options_.manifest[1]});
    Effects effects;
    ASSERT_TRUE(member.StartBucket(1, bucket, effects).ok());
    member.Receive({wire::Grant{{.bucket = 1}}}, effects);
    member.Receive(frame, effects);
    EXPECT_EQ(member.failure().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(member.failure().message(), HasSubstr("the coordinator sent " + message));
  }
}

TEST_F(MemberTest, SendsABroadcastInTheWindow) {
  Effects effects;
  ASSERT_EQ(*member_->Enter(wire::CollectiveKind::kBroadcast, 1, 160, effects), 0U);
  EXPECT_FALSE(member_->Enter(wire::CollectiveKind::kBarrier, 0, 0, effects).ok());
  Receive(wire::Begin{0});
  EXPECT_THAT(Drain<SendCollectiveEffect>(), SizeIs(2));
  Receive(wire::CollectiveAck{0, 1});
  const auto last = Drain<SendCollectiveEffect>();
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0].offset, 128U);
  EXPECT_EQ(last[0].bytes, 32U);
  Receive(wire::CollectiveAck{0, 3});
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
}

TEST_F(MemberTest, AcknowledgesAnEndedBroadcastAgain) {
  Effects effects;
  ASSERT_TRUE(member_->Enter(wire::CollectiveKind::kBroadcast, 0, 10, effects).ok());
  Receive(wire::Begin{0});
  Receive(wire::CollectiveChunk{0, 0}, Bytes(10));
  EXPECT_THAT(Drain<CollectiveDoneEffect>(), SizeIs(1));
  Resumed();
  Receive(wire::CollectiveChunk{0, 0}, Bytes(10));
  EXPECT_EQ(DrainSent<wire::CollectiveAck>().at(0), (wire::CollectiveAck{0, 1}));
  ASSERT_TRUE(member_->Enter(wire::CollectiveKind::kBarrier, 0, 0, effects).ok());
  Receive(wire::CollectiveChunk{0, 0}, Bytes(10));
  EXPECT_EQ(DrainSent<wire::CollectiveAck>().at(0), (wire::CollectiveAck{0, 1}));
}

TEST_F(MemberTest, ProgressNamesTheOpenBucket) {
  EXPECT_EQ(member_->Progress(), "step 0: no bucket is open here");
  ASSERT_TRUE(Start({1}).ok());
  EXPECT_EQ(member_->Progress(), "step 0: bucket of b has 0 of 3 results, not granted");
  Grant(1);
  Result(1, 0);
  EXPECT_EQ(member_->Progress(), "step 0: bucket of b has 1 of 3 results, granted");
}

// ---- Eager buckets: parameter 0 is one chunk.

class EagerMemberTest : public MemberTest {
 protected:
  EagerMemberTest() : MemberTest(100) {}
};

TEST_F(EagerMemberTest, OneChunkGoesWithItsAnnouncement) {
  ASSERT_TRUE(Start({0}).ok());
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  ASSERT_TRUE(chunks[0].announce.has_value());
  EXPECT_TRUE(chunks[0].announce->eager);
  EXPECT_EQ(chunks[0].announce->parameters, std::vector<std::uint32_t>{0});
  EXPECT_THAT(DrainSent<wire::Announce>(), IsEmpty());
  // Several chunks wait for their grant.
  ASSERT_TRUE(Start({1}).ok());
  EXPECT_THAT(DrainSent<wire::Announce>(), SizeIs(1));
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
}

TEST_F(EagerMemberTest, AResultIsAcknowledgedWithTheNextAnnouncement) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  Result(0, 0);
  EXPECT_THAT(DrainSent<wire::Ack>(), IsEmpty());
  ASSERT_TRUE(Start({1}).ok());
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].acknowledged, std::vector<std::uint32_t>{0});
}

TEST_F(EagerMemberTest, AResultIsAcknowledgedAtOnceWhileAnotherBucketWaits) {
  ASSERT_TRUE(Start({1}).ok());
  ASSERT_TRUE(Start({0}).ok());
  Result(0, 0);
  EXPECT_THAT(DrainSent<wire::Ack>(), SizeIs(1));
}

TEST_F(EagerMemberTest, AfterAResumeEverythingWaitsForItsGrant) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  Resumed();
  const auto announced = DrainSent<wire::Announce>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_FALSE(announced[0].eager);
  Receive(wire::Grant{{.attempt = 1, .bucket = 0}});
  const auto chunks = Drain<SendChunkEffect>();
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_FALSE(chunks[0].announce.has_value());
  EXPECT_EQ(chunks[0].header.id.attempt, 1U);
}

TEST_F(EagerMemberTest, AGrantOfALaterAttemptSendsItAgain) {
  ASSERT_TRUE(Start({0}).ok());
  Drain<SendChunkEffect>();
  Receive(wire::Grant{{.attempt = 0, .bucket = 0}});
  EXPECT_THAT(Drain<SendChunkEffect>(), IsEmpty());
  Receive(wire::Grant{{.attempt = 1, .bucket = 0}});
  EXPECT_THAT(Drain<SendChunkEffect>(), SizeIs(1));
}

}  // namespace
}  // namespace gradwire::client
