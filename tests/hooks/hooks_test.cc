// The built-in hooks and wrappers, with all ranks in one loop and the coordinator's own reduction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "gradwire/hooks/hook.h"
#include "gradwire/hooks/registry.h"
#include "hooks/reduce.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

using Bytes = std::vector<std::byte>;
using testing::HasSubstr;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

// Ranges of `numel` elements of a segment, in the order of use.
using Split = std::function<std::vector<ElementRange>(std::size_t segment, std::size_t numel)>;

std::vector<ElementRange> WholeSegment(std::size_t segment, std::size_t numel) {
  return {{segment, 0, numel}};
}

// Backwards, in ranges of 1, 2, 3, ... elements.
std::vector<ElementRange> GrowingFromTheEnd(std::size_t segment, std::size_t numel) {
  std::vector<ElementRange> ranges;
  std::size_t end = numel;
  for (std::size_t length = 1; end > 0; ++length) {
    const std::size_t begin = end - std::min(length, end);
    ranges.push_back({segment, begin, end});
    end = begin;
  }
  return ranges;
}

std::vector<ParameterSpec> OneParameter(DType dtype, std::size_t numel) {
  return {{"weight", {static_cast<std::int64_t>(numel)}, dtype}};
}

std::unique_ptr<Hook> MakeHook(const HookSpec& spec) {
  absl::StatusOr<std::unique_ptr<Hook>> hook = HookRegistry::Global().Make(spec);
  EXPECT_TRUE(hook.ok()) << hook.status();
  return *std::move(hook);
}

GradBucket MakeBucket(DType dtype, Bytes& data) {
  const std::size_t numel = data.size() / ByteSize(dtype);
  absl::StatusOr<GradBucket> bucket =
      GradBucket::Make(0, {dtype, data.data(), numel}, OneParameter(dtype, numel));
  EXPECT_TRUE(bucket.ok()) << bucket.status();
  return *std::move(bucket);
}

Bytes EncodeSegment(HookRun& run, std::size_t index, const Segment& segment, const Split& split) {
  Bytes wire(segment.bytes());
  const std::size_t width = ByteSize(segment.dtype);
  for (const ElementRange& range : split(index, segment.numel)) {
    const absl::Status status =
        run.Encode(range, std::span(wire).subspan(range.begin * width, range.numel() * width));
    EXPECT_TRUE(status.ok()) << status;
  }
  return wire;
}

void DecodeSegment(HookRun& run, std::size_t index, const Segment& segment, const Split& split,
                   const Bytes& result) {
  const std::size_t width = ByteSize(segment.dtype);
  for (const ElementRange& range : split(index, segment.numel)) {
    const absl::Status status =
        run.Decode(range, std::span(result).subspan(range.begin * width, range.numel() * width));
    EXPECT_TRUE(status.ok()) << status;
  }
}

// Runs one step of one bucket over all ranks; `buffers` are per rank, and hold the results after.
void RunStep(const HookSpec& spec, DType dtype, std::vector<Bytes>& buffers,
             const Split& split = WholeSegment) {
  std::vector<std::unique_ptr<Hook>> hooks;
  std::vector<GradBucket> buckets;
  std::vector<std::unique_ptr<HookRun>> runs;
  const auto world_size = static_cast<int>(buffers.size());
  for (Bytes& buffer : buffers) {
    hooks.push_back(MakeHook(spec));
    buckets.push_back(MakeBucket(dtype, buffer));
  }
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    runs.push_back(*hooks[rank]->Start(buckets[rank], 0));
  }
  const absl::StatusOr<std::vector<RoundPlan>> planned =
      hooks.front()->Plan(buckets.front().parameters(), 0);
  ASSERT_TRUE(planned.ok()) << planned.status();
  for (std::size_t round = 0; round <= planned->size(); ++round) {
    std::optional<RoundPlan> plan;
    for (int rank = 0; rank < world_size; ++rank) {
      absl::StatusOr<std::optional<RoundPlan>> next =
          runs[static_cast<std::size_t>(rank)]->Next({world_size, rank, 0});
      ASSERT_TRUE(next.ok()) << next.status();
      plan = *next;
      ASSERT_EQ(plan.has_value(), round < planned->size());
      if (plan.has_value()) {
        ASSERT_EQ(*plan, (*planned)[round]);
      }
    }
    if (!plan.has_value()) break;
    for (std::size_t index = 0; index < plan->segments.size(); ++index) {
      const Segment& segment = plan->segments[index];
      std::vector<Bytes> wires;
      for (const auto& run : runs) wires.push_back(EncodeSegment(*run, index, segment, split));
      std::vector<std::vector<std::span<const std::byte>>> pieces;
      for (const Bytes& wire : wires) pieces.push_back({wire});
      const std::vector<Pieces> contributions(pieces.begin(), pieces.end());
      Bytes result(segment.bytes());
      Reduce(segment.dtype, segment.op, segment.numel, contributions, result);
      for (const auto& run : runs) DecodeSegment(*run, index, segment, split, result);
    }
  }
  for (const auto& run : runs) run->Commit();
}

std::vector<Bytes> RankBuffers(DType dtype, std::size_t world_size, std::size_t numel) {
  std::vector<Bytes> buffers;
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    buffers.push_back(reference::Pack(dtype, reference::ModeratePatterns(dtype, numel, 40 + rank)));
  }
  return buffers;
}

// torch's casting hook, from its definition: cast, divide in the wire dtype, sum, cast back.
Bytes ExpectedResult(DType dtype, DType wire, const std::vector<Bytes>& buffers) {
  const std::size_t numel = buffers.front().size() / ByteSize(dtype);
  const auto world_size = static_cast<double>(buffers.size());
  std::vector<std::uint64_t> results(numel);
  std::vector<double> wide(numel);
  std::vector<float> narrow(numel);
  for (const Bytes& buffer : buffers) {
    const std::vector<std::uint64_t> patterns = reference::Unpack(dtype, buffer.data(), numel);
    for (std::size_t i = 0; i < numel; ++i) {
      const long double cast =
          reference::Decode(wire, reference::Convert(dtype, patterns[i], wire));
      const long double quotient = wire == DType::kFloat64
                                       ? static_cast<double>(cast) / world_size
                                       : cast / static_cast<long double>(world_size);
      const long double sent = reference::Decode(wire, reference::Encode(wire, quotient));
      wide[i] += static_cast<double>(sent);
      narrow[i] += static_cast<float>(sent);
    }
  }
  for (std::size_t i = 0; i < numel; ++i) {
    const std::uint64_t sum = reference::Encode(wire, ByteSize(wire) == 2 ? narrow[i] : wide[i]);
    results[i] = reference::Convert(wire, sum, dtype);
  }
  return reference::Pack(dtype, results);
}

DType WireOf(const std::string& hook, DType dtype) {
  return hook == "fp16" ? DType::kFloat16 : hook == "bf16" ? DType::kBFloat16 : dtype;
}

TEST(CastingHooks, GiveTorchsArithmetic) {
  for (const std::string hook : {"no", "fp16", "bf16"}) {
    for (const DType dtype : kDTypes) {
      for (std::size_t world_size = 1; world_size <= 5; ++world_size) {
        std::vector<Bytes> buffers = RankBuffers(dtype, world_size, 2500);
        const Bytes expected = ExpectedResult(dtype, WireOf(hook, dtype), buffers);
        RunStep(HookSpec{hook, "no", {}}, dtype, buffers);
        for (const Bytes& buffer : buffers) {
          ASSERT_EQ(buffer, expected) << hook << " " << Name(dtype) << " w=" << world_size;
        }
      }
    }
  }
}

// Measured on torch 1.13.1 with all ranks equal.
TEST(CastingHooks, Float16RoundsAndOverflowsAsTorchDoes) {
  struct Fact {
    float value;
    std::size_t world_size;
    float result;
  };
  const Fact facts[] = {
      {65504.0F, 2, 65504.0F},     {65504.0F, 3, INFINITY},   {65519.0F, 2, 65504.0F},
      {65520.0F, 2, INFINITY},     {-65504.0F, 3, -INFINITY}, {6e-8F, 2, 0.0F},
      {1e-4F, 2, 1678 * 0x1p-24F},  // 1.00017e-4
      {1e-4F, 3, 1677 * 0x1p-24F},  // 0.99957e-4
      {INFINITY, 2, INFINITY},     {-INFINITY, 3, -INFINITY},
  };
  for (const Fact& fact : facts) {
    std::vector<Bytes> buffers(fact.world_size, Bytes(4));
    for (Bytes& buffer : buffers) std::memcpy(buffer.data(), &fact.value, 4);
    RunStep(HookSpec{"fp16", "no", {}}, DType::kFloat32, buffers);
    float result;
    std::memcpy(&result, buffers.front().data(), 4);
    EXPECT_EQ(result, fact.result) << fact.value << " w=" << fact.world_size;
  }
  std::vector<Bytes> buffers(2, Bytes(4));
  for (Bytes& buffer : buffers) std::memcpy(buffer.data(), &facts[0].value, 4);
  const float nan = NAN;
  std::memcpy(buffers[1].data(), &nan, 4);
  RunStep(HookSpec{"fp16", "no", {}}, DType::kFloat32, buffers);
  float result;
  std::memcpy(&result, buffers.front().data(), 4);
  EXPECT_TRUE(std::isnan(result));
}

TEST(CastingHooks, AnySplitGivesTheSameBytes) {
  for (const std::string wrapper : {"no", "fp16"}) {
    for (const std::string hook : {"no", "fp16", "bf16"}) {
      std::vector<Bytes> whole = RankBuffers(DType::kFloat32, 3, 777);
      std::vector<Bytes> split = whole;
      RunStep(HookSpec{hook, wrapper, {}}, DType::kFloat32, whole);
      RunStep(HookSpec{hook, wrapper, {}}, DType::kFloat32, split, GrowingFromTheEnd);
      EXPECT_EQ(whole, split) << hook << " in " << wrapper;
    }
  }
}

TEST(CastingHooks, BucketsWithoutElementsPass) {
  for (const std::string wrapper : {"no", "bf16"}) {
    for (const std::string hook : {"no", "fp16", "bf16", "noop"}) {
      std::vector<Bytes> buffers(2);
      RunStep(HookSpec{hook, wrapper, {}}, DType::kFloat32, buffers);
    }
  }
}

class RunTest : public testing::Test {
 protected:
  void Begin(const HookSpec& spec, int world_size = 2) {
    data_ = RankBuffers(DType::kFloat32, 1, 10).front();
    hook_ = MakeHook(spec);
    bucket_.emplace(MakeBucket(DType::kFloat32, data_));
    run_ = *hook_->Start(*bucket_, 0);
    context_.world_size = world_size;
  }

  Bytes data_;
  std::unique_ptr<Hook> hook_;
  std::optional<GradBucket> bucket_;
  std::unique_ptr<HookRun> run_;
  RoundContext context_;
};

TEST_F(RunTest, ReEncodingGivesEqualBytesAndLeavesTheBucketAlone) {
  for (const HookSpec& spec :
       {HookSpec{"no", "no", {}}, HookSpec{"fp16", "no", {}}, HookSpec{"bf16", "fp16", {}}}) {
    Begin(spec);
    const Bytes before = data_;
    const Segment segment = (*run_->Next(context_))->segments.front();
    const Bytes first = EncodeSegment(*run_, 0, segment, WholeSegment);
    EXPECT_EQ(EncodeSegment(*run_, 0, segment, GrowingFromTheEnd), first);
    EXPECT_EQ(data_, before);
    run_->Abort();
    EXPECT_EQ(data_, before);
    run_ = *hook_->Start(*bucket_, 1);
    ASSERT_TRUE(run_->Next(context_).ok());
    EXPECT_EQ(EncodeSegment(*run_, 0, segment, WholeSegment), first);
  }
}

TEST_F(RunTest, RefusesRangesOutsideTheRound) {
  Begin(HookSpec{"fp16", "no", {}});
  ASSERT_TRUE(run_->Next(context_).ok());
  Bytes wire(100);
  const auto span = [&](std::size_t bytes) { return std::span(wire).first(bytes); };
  constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
  const std::pair<ElementRange, std::size_t> bad[] = {
      {{1, 0, 1}, 2}, {{0, 0, 11}, 22}, {{0, 5, 4}, 0},       {{0, 11, 11}, 0},
      {{0, 0, 5}, 9}, {{0, 0, 5}, 11},  {{0, 0, kHuge}, 100}, {{0, kHuge, 0}, 2},
  };
  for (const auto& [range, bytes] : bad) {
    EXPECT_EQ(run_->Encode(range, span(bytes)).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(run_->Decode(range, span(bytes)).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(run_->Encode({0, 0, 11}, span(22)).message()),
              AllOf(HasSubstr("[0, 11)"), HasSubstr("10 elements")));
  EXPECT_TRUE(run_->Encode({0, 10, 10}, {}).ok());
}

TEST_F(RunTest, RefusesCallsOutOfOrder) {
  for (const std::string wrapper : {"no", "fp16"}) {
    Begin(HookSpec{"bf16", wrapper, {}});
    Bytes wire(20);
    const ElementRange all = {0, 0, 10};
    EXPECT_EQ(run_->Encode(all, wire).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(run_->Decode(all, wire).code(), absl::StatusCode::kFailedPrecondition);
    ASSERT_TRUE(run_->Next(context_).ok());
    EXPECT_EQ(run_->Next(context_).status().code(), absl::StatusCode::kFailedPrecondition);
    ASSERT_TRUE(run_->Encode(all, wire).ok());
    ASSERT_TRUE(run_->Decode(all, wire).ok());
    EXPECT_EQ(run_->Decode({0, 0, 1}, std::span(wire).first(2)).code(),
              absl::StatusCode::kFailedPrecondition);
    const auto end = run_->Next(context_);
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(*end, std::nullopt);
    EXPECT_EQ(run_->Encode(all, wire).code(), absl::StatusCode::kFailedPrecondition);
    run_->Commit();
    EXPECT_EQ(run_->Next(context_).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(RunTest, RefusesAnImpossibleContext) {
  for (const std::string hook : {"fp16", "noop"}) {
    Begin(HookSpec{hook, "no", {}});
    for (const RoundContext& bad : {RoundContext{0, 0, 0}, RoundContext{2, 2, 0},
                                    RoundContext{2, -1, 0}, RoundContext{-1, 0, 0}}) {
      EXPECT_EQ(run_->Next(bad).status().code(), absl::StatusCode::kInvalidArgument);
    }
    EXPECT_TRUE(run_->Next(context_).ok());
  }
}

TEST(Plan, IsTheSegmentThatTheRunYields) {
  const std::vector<ParameterSpec> parameters = {{"a", {2, 3}, DType::kFloat64},
                                                 {"b", {4}, DType::kFloat64}};
  const auto plan = [&](const std::string& hook, const std::string& wrapper) {
    return *MakeHook(HookSpec{hook, wrapper, {}})->Plan(parameters, 0);
  };
  const auto one = [](DType dtype) {
    return std::vector<RoundPlan>{{{Segment{dtype, 10, ReduceOp::kSum}}}};
  };
  EXPECT_EQ(plan("no", "no"), one(DType::kFloat64));
  EXPECT_EQ(plan("fp16", "no"), one(DType::kFloat16));
  EXPECT_EQ(plan("no", "bf16"), one(DType::kBFloat16));
  EXPECT_EQ(plan("fp16", "bf16"), one(DType::kFloat16));
  EXPECT_EQ(plan("noop", "fp16"), std::vector<RoundPlan>());
  EXPECT_EQ(one(DType::kFloat16).front().bytes(), 20U);
}

TEST(Plan, RefusesWhatIsNoBucket) {
  const std::unique_ptr<Hook> hook = MakeHook(HookSpec{"fp16", "no", {}});
  EXPECT_EQ(hook->Plan({}, 0).status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<ParameterSpec> mixed = {{"a", {2}, DType::kFloat64},
                                            {"b", {4}, DType::kFloat32}};
  EXPECT_THAT(std::string(hook->Plan(mixed, 0).status().message()),
              AllOf(HasSubstr("\"b\" is float32"), HasSubstr("\"a\"")));
  const std::vector<ParameterSpec> negative = {{"a", {-2}, DType::kFloat64}};
  EXPECT_EQ(hook->Plan(negative, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Noop, LeavesTheGradientsAlone) {
  std::vector<Bytes> buffers = RankBuffers(DType::kFloat32, 2, 100);
  const std::vector<Bytes> before = buffers;
  RunStep(HookSpec{"noop", "no", {}}, DType::kFloat32, buffers);
  EXPECT_EQ(buffers, before);
}

// A hook as a user would write it: one round that sends the buffer as it is and asks for the mean
// of its first half and the sum of its second.
class HalvesHook : public HookBase {
 public:
  static std::vector<Segment> Segments(DType dtype, std::size_t numel) {
    return {{dtype, numel / 2, ReduceOp::kMean}, {dtype, numel - numel / 2, ReduceOp::kSum}};
  }

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t) const override {
    std::size_t numel = 0;
    for (const ParameterSpec& parameter : parameters) numel += parameter.numel();
    return std::vector<RoundPlan>{{Segments(parameters.front().dtype, numel)}};
  }

  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t) override {
    return std::make_unique<Run>(bucket);
  }

 private:
  class Run : public HookRunBase {
   public:
    explicit Run(GradBucket& bucket)
        : bucket_(bucket), plan_{Segments(bucket.buffer().dtype, bucket.buffer().numel)} {}
    absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext&) override {
      return rounds_++ == 0 ? std::optional(plan_) : std::nullopt;
    }
    absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
      std::memcpy(out.data(), At(range), out.size());
      return absl::OkStatus();
    }
    absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
      std::memcpy(At(range), in.data(), in.size());
      return absl::OkStatus();
    }
    void Commit() override {}
    void Abort() override {}

   private:
    std::byte* At(const ElementRange& range) const {
      const TensorView buffer = bucket_.buffer();
      const std::size_t first = range.segment == 0 ? 0 : plan_.segments[0].numel;
      return static_cast<std::byte*>(buffer.data) + (first + range.begin) * ByteSize(buffer.dtype);
    }
    GradBucket& bucket_;
    RoundPlan plan_;
    int rounds_ = 0;
  };
};

void RegisterHalves() {
  static const absl::Status status = HookRegistry::Global().Register(
      "halves", [](const HookSpec&) -> absl::StatusOr<std::unique_ptr<Hook>> {
        return std::make_unique<HalvesHook>();
      });
  ASSERT_TRUE(status.ok()) << status;
}

TEST(Wrapper, AroundNoIsTheCastingHookBitForBit) {
  for (const std::string name : {"fp16", "bf16"}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (std::size_t world_size = 1; world_size <= 5; ++world_size) {
        std::vector<Bytes> hooked = RankBuffers(dtype, world_size, 1000);
        std::vector<Bytes> wrapped = hooked;
        std::vector<Bytes> twice = hooked;
        RunStep(HookSpec{name, "no", {}}, dtype, hooked);
        RunStep(HookSpec{"no", name, {}}, dtype, wrapped);
        RunStep(HookSpec{name, name, {}}, dtype, twice);  // a wrapper that does not collapse
        EXPECT_EQ(hooked, wrapped);
        EXPECT_EQ(hooked, twice);
      }
    }
  }
}

TEST(Wrapper, CastsAroundAnyHook) {
  RegisterHalves();
  constexpr std::size_t kNumel = 501;
  const DType wire = DType::kBFloat16;
  std::vector<Bytes> buffers = RankBuffers(DType::kFloat32, 3, kNumel);
  std::vector<float> sums(kNumel);
  for (const Bytes& buffer : buffers) {
    const auto patterns = reference::Unpack(DType::kFloat32, buffer.data(), kNumel);
    for (std::size_t i = 0; i < kNumel; ++i) {
      const std::uint64_t cast = reference::Convert(DType::kFloat32, patterns[i], wire);
      sums[i] += static_cast<float>(reference::Decode(wire, cast));
    }
  }
  std::vector<long double> expected;
  for (std::size_t i = 0; i < kNumel; ++i) {
    const float reduced = i < kNumel / 2 ? sums[i] / 3 : sums[i];
    expected.push_back(reference::Decode(wire, reference::Encode(wire, reduced)));
  }
  RunStep(HookSpec{"halves", "bf16", {}}, DType::kFloat32, buffers, GrowingFromTheEnd);
  for (const Bytes& buffer : buffers) {
    EXPECT_EQ(buffer, reference::PackValues(DType::kFloat32, expected));
  }
}

TEST(Wrapper, AroundNoopRoundsTheGradients) {
  std::vector<Bytes> buffers = RankBuffers(DType::kFloat32, 2, 100);
  std::vector<Bytes> expected;
  for (const Bytes& buffer : buffers) {
    std::vector<std::uint64_t> rounded;
    for (const std::uint64_t bits : reference::Unpack(DType::kFloat32, buffer.data(), 100)) {
      rounded.push_back(reference::Convert(
          DType::kFloat16, reference::Convert(DType::kFloat32, bits, DType::kFloat16),
          DType::kFloat32));
    }
    expected.push_back(reference::Pack(DType::kFloat32, rounded));
  }
  RunStep(HookSpec{"noop", "fp16", {}}, DType::kFloat32, buffers);
  EXPECT_EQ(buffers, expected);
}

TEST(Wrapper, KeepsOpenRunsApartAndServesManySteps) {
  const std::unique_ptr<Hook> hook = MakeHook(HookSpec{"fp16", "bf16", {}});
  for (std::int64_t step = 0; step < 3; ++step) {
    std::vector<Bytes> data;
    for (const std::size_t numel : {10U, 100U, 50U}) {
      data.push_back(RankBuffers(DType::kFloat32, 1, numel).front());
    }
    std::vector<Bytes> expected = data;
    for (Bytes& one : expected) {
      std::vector<Bytes> alone = {one};
      RunStep(HookSpec{"fp16", "bf16", {}}, DType::kFloat32, alone);
      one = alone.front();
    }
    std::vector<GradBucket> buckets;
    for (Bytes& one : data) buckets.push_back(MakeBucket(DType::kFloat32, one));
    std::vector<std::unique_ptr<HookRun>> runs;
    for (GradBucket& bucket : buckets) runs.push_back(*hook->Start(bucket, step));
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Segment segment = (*runs[i]->Next(RoundContext{}))->segments.front();
      const Bytes wire = EncodeSegment(*runs[i], 0, segment, WholeSegment);
      DecodeSegment(*runs[i], 0, segment, WholeSegment, wire);
      EXPECT_EQ(*runs[i]->Next(RoundContext{}), std::nullopt);
      runs[i]->Commit();
    }
    EXPECT_EQ(data, expected);
  }
}

}  // namespace
}  // namespace gradwire
