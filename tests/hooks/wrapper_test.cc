// A user's hook that keeps state, under a casting wrapper: every call must reach it.
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/hooks/hook.h"
#include "gtest/gtest.h"
#include "hooks/cpu/host_device.h"
#include "hooks/reduce.h"
#include "hooks/simple_hooks.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// Error feedback as a user would write it: sends the gradient plus what earlier rounding lost,
// rounded to a multiple of a grain. Everything that a session can tell a hook changes the grain or
// the residuals, so a call that does not arrive shows in the numbers.
class GrainHook : public HookBase {
 public:
  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t /*step*/) const override {
    std::size_t numel = 0;
    for (const ParameterSpec& parameter : parameters) numel += parameter.numel();
    return std::vector<RoundPlan>{{{Segment{parameters.front().dtype, numel, ReduceOp::kMean}}}};
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override;

  void EndStep(Verdict verdict) override {
    if (verdict == Verdict::kApply) ++iteration_;
  }

  HookState State() const override {
    HookState state{.metadata = {{"scale", absl::StrCat(scale_)}}, .tensors = {}};
    for (const auto& [name, residual] : residuals_) {
      StateTensor tensor{.name = name,
                         .dtype = dtype_,
                         .shape = {static_cast<std::int64_t>(residual.size())},
                         .data = {}};
      std::vector<std::uint64_t> patterns;
      for (const double value : residual) patterns.push_back(reference::Encode(dtype_, value));
      tensor.data = reference::Pack(dtype_, patterns);
      state.tensors.push_back(std::move(tensor));
    }
    return state;
  }

  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec> manifest) override {
    for (const StateTensor& tensor : state.tensors) {
      if (tensor.dtype == manifest.front().dtype) continue;
      return absl::InvalidArgumentError(absl::StrCat("state: tensor \"", tensor.name, "\" is ",
                                                     Name(tensor.dtype),
                                                     "; allowed: ", Name(manifest.front().dtype)));
    }
    if (!absl::SimpleAtod(state.metadata.at("scale"), &scale_)) {
      return absl::InvalidArgumentError("state: scale is not a number");
    }
    residuals_.clear();
    for (const StateTensor& tensor : state.tensors) {
      const auto numel = static_cast<std::size_t>(tensor.shape.front());
      for (const auto pattern : reference::Unpack(tensor.dtype, tensor.data.data(), numel)) {
        const auto value = static_cast<double>(reference::Decode(tensor.dtype, pattern));
        residuals_[tensor.name].push_back(value);
      }
    }
    return absl::OkStatus();
  }

  void Reset(std::int64_t iteration) override { iteration_ = iteration; }

  void SetLossScale(double scale) override {
    for (auto& [name, residual] : residuals_) {
      for (double& value : residual) value *= scale / scale_;
    }
    scale_ = scale;
  }

 private:
  class Run;

  std::int64_t iteration_ = 0;
  double scale_ = 1;
  DType dtype_ = DType::kFloat32;
  std::map<std::string, std::vector<double>> residuals_;
};

class GrainHook::Run : public HookRunBase {
 public:
  Run(GrainHook& hook, GradBucket& bucket) : hook_(hook), bucket_(bucket) {
    const TensorView buffer = bucket.buffer();
    const double grain = 0.125 * hook.scale_ * static_cast<double>(hook.iteration_ + 1);
    hook.dtype_ = buffer.dtype;
    const auto patterns =
        reference::Unpack(buffer.dtype, static_cast<const std::byte*>(buffer.data), buffer.numel);
    std::size_t at = 0;
    for (const ParameterSpec& parameter : bucket.parameters()) {
      const auto kept = hook.residuals_.find(parameter.name);
      for (std::size_t i = 0; i < parameter.numel(); ++i, ++at) {
        auto value = static_cast<double>(reference::Decode(buffer.dtype, patterns[at]));
        if (kept != hook.residuals_.end()) value += kept->second[i];
        const double sent = std::nearbyint(value / grain) * grain;
        sent_.push_back(reference::Encode(buffer.dtype, sent));
        value -= static_cast<double>(reference::Decode(buffer.dtype, sent_.back()));
        const auto rounded = reference::Encode(buffer.dtype, value);
        next_[parameter.name].push_back(
            static_cast<double>(reference::Decode(buffer.dtype, rounded)));
      }
    }
  }

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& /*context*/) override {
    if (rounds_++ > 0) return std::optional<RoundPlan>();
    const TensorView buffer = bucket_.buffer();
    return std::optional(RoundPlan{{Segment{buffer.dtype, buffer.numel, ReduceOp::kMean}}});
  }
  absl::Status Encode(ElementRange /*range*/, std::span<std::byte> out) override {
    const Bytes bytes = reference::Pack(bucket_.buffer().dtype, sent_);
    std::memcpy(out.data(), bytes.data(), out.size());
    return absl::OkStatus();
  }
  absl::Status Decode(ElementRange /*range*/, std::span<const std::byte> in) override {
    std::memcpy(bucket_.buffer().data, in.data(), in.size());
    return absl::OkStatus();
  }
  std::size_t shared_bytes() const override { return 3; }
  absl::Status Import(std::span<const std::byte> shared) override {
    return absl::AlreadyExistsError(absl::StrCat(shared.size(), " bytes reached the hook"));
  }
  void Measure() override { measures_ = true; }
  std::optional<BucketNorms> norms() const override {
    return measures_ ? std::optional(BucketNorms{.gradient = 1, .residual = 2}) : std::nullopt;
  }
  void Commit() override {
    for (auto& [name, residual] : next_) hook_.residuals_[name] = std::move(residual);
  }
  void Abort() override {}

 private:
  GrainHook& hook_;
  GradBucket& bucket_;
  std::vector<std::uint64_t> sent_;
  std::map<std::string, std::vector<double>> next_;
  int rounds_ = 0;
  bool measures_ = false;
};

absl::StatusOr<std::unique_ptr<HookRun>> GrainHook::Start(GradBucket& bucket,
                                                          std::int64_t /*step*/) {
  return std::make_unique<Run>(*this, bucket);
}

constexpr std::size_t kNumel = 6 + 5;

std::vector<ParameterSpec> Parameters(DType dtype) {
  return {{.name = "weight", .shape = {2, 3}, .dtype = dtype},
          {.name = "bias", .shape = {5}, .dtype = dtype}};
}

// Two members in one loop. Their gradients have `dtype`; their hooks may be wrapped.
class Members {
 public:
  Members(DType dtype, bool wrapped) : dtype_(dtype) {
    for (auto& hook : hooks_) {
      hook = std::make_unique<GrainHook>();
      if (wrapped) hook = MakeWrapper(DType::kFloat16, std::move(hook), MakeHostDevice());
    }
  }

  Hook& operator[](std::size_t rank) { return *hooks_[rank]; }

  // `gradients` by rank, as float32 patterns; returns rank 0's result, as float32 patterns.
  std::vector<std::uint64_t> RunStep(const std::vector<std::vector<std::uint64_t>>& gradients,
                                     Verdict verdict) {
    std::vector<Bytes> buffers;
    std::vector<GradBucket> buckets;
    std::vector<std::unique_ptr<HookRun>> runs;
    for (const auto& patterns : gradients) {
      std::vector<std::uint64_t> cast;
      for (const auto one : patterns) {
        cast.push_back(reference::Convert(DType::kFloat32, one, dtype_));
      }
      buffers.push_back(reference::Pack(dtype_, cast));
    }
    for (Bytes& buffer : buffers) {
      buckets.push_back(*GradBucket::Make(0, {dtype_, buffer.data(), kNumel}, Parameters(dtype_)));
    }
    for (std::size_t r = 0; r < hooks_.size(); ++r) {
      runs.push_back(*hooks_[r]->Start(buckets[r], 0));
    }
    Round(runs);
    for (std::size_t r = 0; r < hooks_.size(); ++r) {
      verdict == Verdict::kApply ? runs[r]->Commit() : runs[r]->Abort();
      hooks_[r]->EndStep(verdict);
    }
    std::vector<std::uint64_t> result = reference::Unpack(dtype_, buffers[0].data(), kNumel);
    for (auto& one : result) one = reference::Convert(dtype_, one, DType::kFloat32);
    return result;
  }

 private:
  static void Round(std::vector<std::unique_ptr<HookRun>>& runs) {
    std::vector<Bytes> sent;
    Segment segment;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const auto plan = runs[r]->Next({.world_size = 2, .rank = static_cast<int>(r)});
      ASSERT_TRUE(plan.ok() && plan->has_value());
      segment = (*plan)->segments.front();
      ASSERT_EQ(segment.dtype, DType::kFloat16);
      sent.emplace_back(segment.bytes());
      ASSERT_TRUE(runs[r]->Encode({0, 0, kNumel}, sent.back()).ok());
    }
    const std::vector<std::span<const std::byte>> pieces(sent.begin(), sent.end());
    std::vector<Pieces> inputs;
    for (const auto& piece : pieces) inputs.emplace_back(&piece, 1);
    Bytes result(segment.bytes());
    Reduce(segment.dtype, segment.op, segment.numel, inputs, result);
    for (auto& run : runs) {
      ASSERT_TRUE(run->Decode({0, 0, kNumel}, result).ok());
      ASSERT_EQ(*run->Next({.world_size = 2}), std::nullopt);
    }
  }

  const DType dtype_;
  std::array<std::unique_ptr<Hook>, 2> hooks_;
};

std::vector<std::vector<std::uint64_t>> Gradients(unsigned step) {
  std::mt19937 random(step);
  std::normal_distribution<double> normal;
  std::vector<std::vector<std::uint64_t>> all(2);
  for (auto& member : all) {
    for (std::size_t i = 0; i < kNumel; ++i) {
      member.push_back(reference::Encode(DType::kFloat32, normal(random)));
    }
  }
  return all;
}

bool Same(const HookState& a, const HookState& b) {
  if (a.metadata != b.metadata || a.tensors.size() != b.tensors.size()) return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const StateTensor& x = a.tensors[i];
    const StateTensor& y = b.tensors[i];
    if (x.name != y.name || x.dtype != y.dtype || x.data != y.data) return false;
  }
  return true;
}

// The wrapped hook on float32 gradients is the hook on their float16 casts, through everything that
// a session tells its hooks.
TEST(WrappedHook, GivesTheUnwrappedArithmeticBetweenTheCasts) {
  Members plain(DType::kFloat16, /*wrapped=*/false);
  auto wrapped = std::make_unique<Members>(DType::kFloat32, /*wrapped=*/true);
  for (unsigned step = 0; step < 12; ++step) {
    if (step == 5) {
      for (std::size_t r = 0; r < 2; ++r) {
        plain[r].SetLossScale(4);
        (*wrapped)[r].SetLossScale(4);
      }
    }
    if (step == 7) {  // the wrapped members are replaced by others, from their states
      auto resumed = std::make_unique<Members>(DType::kFloat32, /*wrapped=*/true);
      for (std::size_t r = 0; r < 2; ++r) {
        const HookState state = (*wrapped)[r].State();
        ASSERT_EQ(state.tensors.size(), 2U) << "the wrapped hook's residuals are not in its state";
        const absl::Status loaded = (*resumed)[r].LoadState(state, Parameters(DType::kFloat32));
        ASSERT_TRUE(loaded.ok()) << loaded;
        (*resumed)[r].Reset(9);
        plain[r].Reset(9);
      }
      wrapped = std::move(resumed);
    }
    const Verdict verdict = step == 3 ? Verdict::kSkip : Verdict::kApply;
    const auto gradients = Gradients(step);
    ASSERT_EQ(wrapped->RunStep(gradients, verdict), plain.RunStep(gradients, verdict))
        << "step " << step;
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_TRUE(Same((*wrapped)[r].State(), plain[r].State())) << "step " << step;
    }
  }
}

TEST(WrappedHook, IsShownTheStatesOfItsOwnDType) {
  Members narrow(DType::kFloat16, /*wrapped=*/false);
  GrainHook wide;
  Bytes data(kNumel * 4);
  auto bucket =
      *GradBucket::Make(0, {DType::kFloat32, data.data(), kNumel}, Parameters(DType::kFloat32));
  (*wide.Start(bucket, 0))->Commit();
  Members wrapped(DType::kFloat32, /*wrapped=*/true);
  const absl::Status status = wrapped[0].LoadState(wide.State(), Parameters(DType::kFloat32));
  EXPECT_THAT(std::string(status.message()), HasSubstr("is float32; allowed: float16"));
}

TEST(WrappedHook, RunsForwardWhatTheyAreTold) {
  Members wrapped(DType::kFloat32, /*wrapped=*/true);
  Bytes data(kNumel * 4);
  auto bucket =
      *GradBucket::Make(0, {DType::kFloat32, data.data(), kNumel}, Parameters(DType::kFloat32));
  const auto run = *wrapped[0].Start(bucket, 0);
  EXPECT_EQ(run->shared_bytes(), 3U);
  EXPECT_EQ(run->Import(data).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(run->norms(), std::nullopt);
  run->Measure();
  ASSERT_TRUE(run->norms().has_value());
  EXPECT_EQ(run->norms()->residual, 2);
  // What is encoded is the scratch that the bucket was cast into, never the bucket itself.
  EXPECT_TRUE(run->Raw({0, 0, kNumel}).empty());
  EXPECT_FALSE(run->DecodeInPlace({0, 0, kNumel}).ok());
}

}  // namespace
}  // namespace gradwire
