#include "hooks/simple_hooks.h"

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/device_status.h"
#include "hooks/device_vector.h"

namespace gradwire {
namespace {

absl::Status CheckContext(const RoundContext& context) {
  if (context.world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size: ", context.world_size, " is not allowed; allowed: 1 and up"));
  }
  if (context.rank < 0 || context.rank >= context.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank: ", context.rank, " is not allowed; allowed: 0 to ", context.world_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(const Segment& segment, const ElementRange& range, std::size_t bytes) {
  if (range.segment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment: ", range.segment, " is not in the round; allowed: 0"));
  }
  if (range.begin > range.end || range.end > segment.numel) {
    return absl::InvalidArgumentError(absl::StrCat("range: [", range.begin, ", ", range.end,
                                                   ") is not in the segment's ", segment.numel,
                                                   " elements"));
  }
  if (bytes != range.numel() * ByteSize(segment.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("bytes: ", bytes, " given; ", range.numel(),
                                                   " elements of ", Name(segment.dtype), " take ",
                                                   range.numel() * ByteSize(segment.dtype)));
  }
  return absl::OkStatus();
}

// Results for a buffer from this size on are stored past the caches: by the time that anybody reads
// them they would be gone from there.
constexpr std::size_t kStreamedBytes = std::size_t{4} << 20;

std::byte* At(const TensorView& view, std::size_t element) {
  return static_cast<std::byte*>(view.data) + element * ByteSize(view.dtype);
}

// ---- Casting

RoundPlan PlanOf(DType dtype, std::size_t numel) {
  return RoundPlan{{Segment{dtype, numel, ReduceOp::kSum}}};
}

class CastingRun : public HookRunBase {
 public:
  CastingRun(TensorView buffer, DType wire, Device& device)
      : device_(device), buffer_(buffer), segment_(PlanOf(wire, buffer.numel).segments.front()) {}

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override {
    if (absl::Status status = CheckContext(context); !status.ok()) return status;
    if (stage_ == Stage::kEnded) return absl::FailedPreconditionError("the run has ended");
    if (stage_ == Stage::kFresh) {
      world_size_ = context.world_size;
      const auto [begin, end] = context.slice.Of(segment_.numel);
      expected_ = end - begin;
      stage_ = Stage::kOpen;
      return std::optional<RoundPlan>(PlanOf(segment_.dtype, segment_.numel));
    }
    if (decoded_ < expected_) {
      return absl::FailedPreconditionError(absl::StrCat("the round is not over: ", decoded_, " of ",
                                                        expected_, " elements are decoded"));
    }
    // One round is the whole plan; nullopt tells the core that the bucket is complete.
    stage_ = Stage::kDone;
    return std::optional<RoundPlan>();
  }

  absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
    if (stage_ != Stage::kOpen) return absl::FailedPreconditionError("no round is open");
    if (absl::Status status = CheckRange(segment_, range, out.size()); !status.ok()) return status;
    // A pure function of the untouched bucket, so a retry sends the same bytes.
    device_.ConvertAndDivide(buffer_.dtype, At(buffer_, range.begin), segment_.dtype, out.data(),
                             range.numel(), world_size_);
    return StatusOf(device_);
  }

  // The gradients themselves, for a daemon that shares this memory: it casts and divides while it
  // sums.
  std::span<const std::byte> Raw(ElementRange range) const override {
    if (device_.id().kind != DeviceKind::kCpu) return {};
    const std::size_t bytes = range.numel() * ByteSize(buffer_.dtype);
    return {At(buffer_, range.begin), bytes};
  }

  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
    if (absl::Status status = CheckRange(segment_, range, in.size()); !status.ok()) return status;
    if (absl::Status status = CheckDecode(range); !status.ok()) return status;
    const auto convert =
        buffer_.bytes() < kStreamedBytes ? &Device::Convert : &Device::ConvertStreaming;
    (device_.*convert)(segment_.dtype, in.data(), buffer_.dtype, At(buffer_, range.begin),
                       range.numel());
    decoded_ += range.numel();
    return StatusOf(device_);
  }

  absl::Status DecodeInPlace(ElementRange range) override {
    if (absl::Status status = CheckDecode(range); !status.ok()) return status;
    decoded_ += range.numel();
    return absl::OkStatus();
  }

  void Commit() override { stage_ = Stage::kEnded; }
  void Abort() override { stage_ = Stage::kEnded; }

 private:
  enum class Stage { kFresh, kOpen, kDone, kEnded };

  absl::Status CheckDecode(ElementRange range) const {
    if (stage_ != Stage::kOpen) return absl::FailedPreconditionError("no round is open");
    const std::size_t bytes = range.numel() * ByteSize(segment_.dtype);
    if (absl::Status status = CheckRange(segment_, range, bytes); !status.ok()) return status;
    // Counts elements only. The transport delivers each chunk once; this catches a duplicate.
    if (range.numel() > expected_ - decoded_) {
      return absl::FailedPreconditionError(
          absl::StrCat("range: [", range.begin, ", ", range.end, ") is decoded twice"));
    }
    return absl::OkStatus();
  }

  Device& device_;
  const TensorView buffer_;
  const Segment segment_;
  Stage stage_ = Stage::kFresh;
  int world_size_ = 1;
  std::size_t expected_ = 0;  // elements of the round's slice
  std::size_t decoded_ = 0;
};

class CastingHook : public HookBase {
 public:
  CastingHook(std::optional<DType> wire, std::shared_ptr<Device> device)
      : wire_(wire), device_(std::move(device)) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t /*step*/) const override {
    return PlanCast(wire_, parameters);
  }

  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override {
    if (!bucket.is_flat()) {
      if (flat_ == nullptr) {
        flat_ = MakeWrapper(std::nullopt, MakeCastingHook(wire_, device_), device_);
      }
      return flat_->Start(bucket, step);
    }
    const TensorView buffer = bucket.buffer();
    return std::make_unique<CastingRun>(buffer, wire_.value_or(buffer.dtype), *device_);
  }

 private:
  const std::optional<DType> wire_;
  const std::shared_ptr<Device> device_;
  std::unique_ptr<Hook> flat_;  // works on flat copies of scattered buckets; null: there were none
};

// ---- Noop

class NoopRun : public HookRunBase {
 public:
  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override {
    if (absl::Status status = CheckContext(context); !status.ok()) return status;
    if (ended_) return absl::FailedPreconditionError("the run has ended");
    return std::optional<RoundPlan>();
  }
  absl::Status Encode(ElementRange /*range*/, std::span<std::byte> /*out*/) override {
    return absl::FailedPreconditionError("no round is open");
  }
  absl::Status Decode(ElementRange /*range*/, std::span<const std::byte> /*in*/) override {
    return absl::FailedPreconditionError("no round is open");
  }
  void Commit() override { ended_ = true; }
  void Abort() override { ended_ = true; }

 private:
  bool ended_ = false;
};

class NoopHook : public HookBase {
 public:
  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> /*parameters*/,
                                              std::int64_t /*step*/) const override {
    return std::vector<RoundPlan>();
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& /*bucket*/,
                                                 std::int64_t /*step*/) override {
    return std::make_unique<NoopRun>();
  }
};

// ---- Wrapper

// Memory for cast buckets, handed from step to step.
class ScratchPool {
 public:
  explicit ScratchPool(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  Device& device() { return *device_; }

  DeviceVector<std::byte> Take(std::size_t bytes) {
    DeviceVector<std::byte> scratch(*device_);
    if (!free_.empty()) {
      scratch = std::move(free_.back());
      free_.pop_back();
    }
    scratch.Resize(bytes);
    return scratch;
  }
  void Give(DeviceVector<std::byte> scratch) { free_.push_back(std::move(scratch)); }

 private:
  const std::shared_ptr<Device> device_;
  std::vector<DeviceVector<std::byte>> free_;
};

// Derives from HookRun, not HookRunBase, so that it cannot leave out a call.
class WrapperRun final : public HookRun {
 public:
  // Casts the bucket; Begin must follow.
  WrapperRun(ScratchPool& pool, DType wire, const GradBucket& bucket)
      : pool_(pool),
        scratch_(pool.Take(bucket.buffer().numel * ByteSize(wire))),
        original_(bucket.runs()),
        cast_{wire, scratch_.data(), bucket.buffer().numel},
        bucket_(bucket) {
    std::size_t at = 0;
    for (const TensorView& run : original_) {
      pool_.device().Convert(run.dtype, run.data, cast_.dtype, At(cast_, at), run.numel);
      at += run.numel;
    }
  }

  // The inner run may still refer to the scratch memory, so it goes first.
  ~WrapperRun() override {
    inner_.reset();
    pool_.Give(std::move(scratch_));
  }

  absl::Status Begin(Hook& inner, std::int64_t step) {
    if (absl::Status status = bucket_.set_buffer(cast_); !status.ok()) return status;
    absl::StatusOr<std::unique_ptr<HookRun>> run = inner.Start(bucket_, step);
    if (!run.ok()) return run.status();
    if (*run == nullptr) return absl::InternalError("the wrapped hook started no run");
    inner_ = *std::move(run);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override {
    absl::StatusOr<std::optional<RoundPlan>> plan = inner_->Next(context);
    // The result is complete only when the inner run has no further round; later calls must not
    // cast again.
    if (!plan.ok() || plan->has_value() || is_cast_back_) return plan;
    // The inner hook may have left its result in a buffer of its own.
    const TensorView result = bucket_.buffer();
    std::size_t at = 0;
    for (const TensorView& run : original_) {
      pool_.device().Convert(result.dtype, At(result, at), run.dtype, run.data, run.numel);
      at += run.numel;
    }
    is_cast_back_ = true;
    if (absl::Status status = StatusOf(pool_.device()); !status.ok()) return status;
    return plan;
  }

  absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
    return inner_->Encode(range, out);
  }
  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
    return inner_->Decode(range, in);
  }
  // What the wrapped run encodes is scratch memory: nobody else can read the bucket in its place,
  // or leave the result there.
  std::span<const std::byte> Raw(ElementRange /*range*/) const override { return {}; }
  absl::Status DecodeInPlace(ElementRange /*range*/) override {
    return absl::UnimplementedError("a wrapped hook's results have no place in the bucket");
  }
  std::size_t shared_bytes() const override { return inner_->shared_bytes(); }
  absl::Status Import(std::span<const std::byte> shared) override { return inner_->Import(shared); }
  void Measure() override { inner_->Measure(); }
  std::optional<BucketNorms> norms() const override { return inner_->norms(); }
  std::vector<TensorView> residuals() const override { return inner_->residuals(); }
  void Commit() override { inner_->Commit(); }
  void Abort() override { inner_->Abort(); }

 private:
  ScratchPool& pool_;
  DeviceVector<std::byte> scratch_;
  const std::vector<TensorView> original_;
  const TensorView cast_;
  GradBucket bucket_;  // a copy whose buffer is `cast_`
  std::unique_ptr<HookRun> inner_;
  bool is_cast_back_ = false;
};

// Derives from Hook, not HookBase, so that it cannot leave out a call.
class Wrapper final : public Hook {
 public:
  Wrapper(std::optional<DType> wire, std::unique_ptr<Hook> inner, std::shared_ptr<Device> device)
      : wire_(wire), pool_(std::move(device)), inner_(std::move(inner)) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t step) const override {
    return inner_->Plan(Cast(parameters), step);
  }

  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override {
    auto run = std::make_unique<WrapperRun>(pool_, wire_.value_or(bucket.buffer().dtype), bucket);
    if (absl::Status status = run->Begin(*inner_, step); !status.ok()) return status;
    return run;
  }

  void EndStep(Verdict verdict) override { inner_->EndStep(verdict); }
  HookState State() const override { return inner_->State(); }
  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec> manifest) override {
    return inner_->LoadState(state, Cast(manifest));
  }
  HookState Copy() const override { return inner_->Copy(); }
  void Reset(std::int64_t iteration) override { inner_->Reset(iteration); }
  void Forget(std::span<const std::string> parameters) override { inner_->Forget(parameters); }
  void SetLossScale(double scale) override { inner_->SetLossScale(scale); }

 private:
  // The wrapped hook knows the parameters in the wire dtype only.
  std::vector<ParameterSpec> Cast(std::span<const ParameterSpec> parameters) const {
    std::vector<ParameterSpec> cast(parameters.begin(), parameters.end());
    for (ParameterSpec& parameter : cast) parameter.dtype = wire_.value_or(parameter.dtype);
    return cast;
  }

  const std::optional<DType> wire_;
  ScratchPool pool_;  // outlives the wrapped hook's runs
  const std::unique_ptr<Hook> inner_;
};

static_assert(!std::is_base_of_v<HookRunBase, WrapperRun> && !std::is_base_of_v<HookBase, Wrapper>);

}  // namespace

absl::StatusOr<std::vector<RoundPlan>> PlanCast(std::optional<DType> wire,
                                                const BucketParameters& bucket) {
  if (bucket.empty()) {
    return Coded(ErrorCode::kBuffer,
                 absl::InvalidArgumentError("a bucket has no parameters; allowed: 1 or more"));
  }
  const DType dtype = bucket.front().dtype;
  std::size_t numel = 0;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const ParameterSpec& parameter = bucket[i];
    if (absl::Status status = parameter.Validate(); !status.ok()) return status;
    if (parameter.dtype != dtype) {
      return Coded(
          ErrorCode::kBuffer,
          absl::InvalidArgumentError(absl::StrCat(
              "parameter \"", parameter.name, "\" is ", Name(parameter.dtype), ", parameter \"",
              bucket.front().name, "\" of the same bucket is ", Name(dtype))));
    }
    numel += parameter.numel();
  }
  return std::vector<RoundPlan>{PlanOf(wire.value_or(dtype), numel)};
}

std::unique_ptr<Hook> MakeCastingHook(std::optional<DType> wire, std::shared_ptr<Device> device) {
  return std::make_unique<CastingHook>(wire, std::move(device));
}

std::unique_ptr<Hook> MakeNoopHook() { return std::make_unique<NoopHook>(); }

std::unique_ptr<Hook> MakeWrapper(std::optional<DType> wire, std::unique_ptr<Hook> inner,
                                  std::shared_ptr<Device> device) {
  return std::make_unique<Wrapper>(wire, std::move(inner), std::move(device));
}

}  // namespace gradwire
