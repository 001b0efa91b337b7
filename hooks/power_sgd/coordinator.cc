#include "hooks/power_sgd/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/cpu/kernels.h"
#include "hooks/simple_hooks.h"

namespace gradwire {
namespace {

constexpr std::uint32_t kSpread = 0x9E3779B9U;  // 2^32 / golden ratio

// Serializes the factors of one bucket in the order that PowerSgdRun::Import reads: for each matrix
// Q and, with one round, P. The table is immutable, so no lock is needed.
class FactorsWork final : public SharedStateWork {
 public:
  FactorsWork(FactorTableRef from, std::shared_ptr<const FactorLayout> layout, bool with_p,
              DType dtype)
      : from_(std::move(from)), layout_(std::move(layout)), with_p_(with_p), dtype_(dtype) {}

  void Run() override {
    const std::size_t numel = layout_->q_numel() + (with_p_ ? layout_->p_numel() : 0);
    bytes_.resize(numel * ByteSize(dtype_));
    std::byte* out = bytes_.data();
    for (const LowRankMatrix& matrix : layout_->matrices()) {
      const auto parameter = static_cast<std::uint32_t>(matrix.parameter);
      const FactorBlock& block = *from_->SlotOf(parameter)->block;
      CopyFactor(block, parameter, Side::kQ, dtype_, out);
      out += matrix.q_numel() * ByteSize(dtype_);
      if (!with_p_) continue;
      CopyFactor(block, parameter, Side::kP, dtype_, out);
      out += matrix.p_numel() * ByteSize(dtype_);
    }
    from_.reset();
  }

  std::vector<std::byte> TakeBytes() override { return std::move(bytes_); }

 private:
  FactorTableRef from_;
  const std::shared_ptr<const FactorLayout> layout_;
  const bool with_p_;
  const DType dtype_;
  std::vector<std::byte> bytes_;
};

// Kept, observed, replaced, and on their way to members; and as much again as is kept, since blocks
// may be owned by half.
constexpr std::size_t kTimesFactors = 5;

// The factors are float32 or float64.
std::size_t StateBytesOf(const PowerSgdOptions& options, const std::vector<ParameterSpec>& all) {
  std::size_t bytes = 0;
  for (const ParameterSpec& parameter : all) {  // batched: at most one bucket for each
    const std::span<const ParameterSpec> alone(&parameter, 1);
    const BucketLayout layout = MakeLayout(options, alone);
    bytes += (layout.p_numel + layout.q_numel) * ByteSize(FactorDType(parameter.dtype));
  }
  return kTimesFactors * bytes;
}

}  // namespace

// Computes deferred arrays and frees memory on a work thread. Get on a pending array releases the
// block that it copies from; until then the old block's memory stays.
class PowerSgdCoordinator::Chore final : public HookChore {
 public:
  void Run() override {
    if (plan != nullptr) plan->Get();
    plan.reset();
    for (const auto& array : pending) array->Get();
    pending.clear();
    retired.clear();
  }

  bool empty() const { return plan == nullptr && pending.empty() && retired.empty(); }

  std::shared_ptr<const DrawPlan> plan;
  std::vector<std::shared_ptr<const FactorArray>> pending;
  std::vector<std::shared_ptr<const void>> retired;
};

PowerSgdCoordinator::PowerSgdCoordinator(const PowerSgdOptions& options, SharedManifest manifest)
    : session_(std::make_shared<const PowerSgdSession>(
          PowerSgdSession{.options = options, .manifest = std::move(manifest)})),
      options_(session_->options),
      manifest_(*session_->manifest),
      state_bytes_(StateBytesOf(options_, manifest_)),
      shapes_(options_, manifest_),
      state_{.iteration = 0,
             .generator = NumpyRandomState(options.random_seed),
             .plan = DrawPlan::Default(options_, session_->manifest),
             .seeds = {},
             .factors = std::make_shared<const FactorTable>()},
      committed_(state_.factors) {
  state_.plan->Get();
}

// The members compute the same plan from the same options, bucket and iteration.
absl::StatusOr<std::vector<RoundPlan>> PowerSgdCoordinator::Plan(BucketPositions bucket) {
  if (IsPlain()) return PlanCast(options_.wire, BucketParameters(manifest_, bucket));
  const absl::StatusOr<const BucketShape*> shape = shapes_.Use(bucket);
  if (!shape.ok()) return shape.status();
  return PlanRounds(options_, (*shape)->layout, options_.wire.value_or((*shape)->gradient),
                    SideAt(options_, state_.iteration));
}

absl::Status PowerSgdCoordinator::SetDrawPlan(const DrawBuckets& buckets) {
  if (absl::Status status = CheckDrawBuckets(buckets, manifest_.size()); !status.ok()) {
    return status;
  }
  if (plan_is_fixed_) {
    return Coded(ErrorCode::kDrawPlan, absl::FailedPreconditionError(absl::StrCat(
                                           "draw plan: comes at iteration ", state_.iteration,
                                           " and after the first draw; allowed: before it")));
  }
  state_.plan = std::make_shared<const DrawPlan>(options_, session_->manifest, buckets);
  OpenChore().plan = state_.plan;
  ++own_version_;
  return absl::OkStatus();
}

void PowerSgdCoordinator::FixDrawPlan() { plan_is_fixed_ |= !IsPlain(); }

// Only a bucket with compressed parameters draws, so only such a bucket has to wait for rank 0's
// plan.
bool PowerSgdCoordinator::AwaitsDrawPlan(BucketPositions bucket) const {
  if (plan_is_fixed_ || IsPlain()) return false;
  const BucketShape* shape = shapes_.Find(bucket);
  return shape != nullptr && !shape->factors->matrices().empty();
}

std::uint64_t PowerSgdCoordinator::SharedVersion(BucketPositions bucket) {
  const BucketShape* shape = IsPlain() ? nullptr : shapes_.Find(bucket);
  if (shape == nullptr || shape->factors->matrices().empty()) return 0;
  if (state_.seeds.empty()) TakeSeeds();
  return options_.batched ? BatchedVersion(*shape) : state_version_;
}

// Takes one seed from the generator for each bucket of the plan: at the model's first draw, or with
// warm_start=false in each step. The normals themselves are computed later, on the thread that
// first calls FactorArray::Get.
void PowerSgdCoordinator::TakeSeeds() {
  generator_before_ = state_.generator;
  ++state_version_;
  plan_is_fixed_ = true;
  for (std::size_t b = 0; b < state_.plan->Get().seeds; ++b) {
    state_.seeds.push_back(state_.generator.NextSeed());
  }
  state_.factors = DrawTable(options_, *state_.plan, state_.seeds, state_version_);
}

// A bucket that is in the plan has the seed that torch would take for it. The order in which other
// buckets arrive is not deterministic, so their seeds follow from their first parameter; the golden
// ratio spreads neighbouring positions over all 32-bit seeds.
std::uint32_t PowerSgdCoordinator::SeedOf(const BucketShape& shape) const {
  if (const auto planned = state_.plan->SeedFor(shape.positions)) return state_.seeds[*planned];
  return state_.seeds.front() + kSpread * shape.positions.front();
}

// Batched factors belong to a list of parameters. A list without factors draws them here and gets a
// version of its own, so that members which know other buckets need not be sent anything.
std::uint64_t PowerSgdCoordinator::BatchedVersion(const BucketShape& shape) {
  const FactorBlock* kept = state_.factors->Matching(*shape.factors);
  if (kept != nullptr) return kept->state_version;
  FactorTableEdit edit(state_.factors, manifest_.size());
  edit.Put(DrawBlock(options_, shape.factors, SeedOf(shape), ++state_version_));
  state_.factors = edit.Finish(options_, manifest_, OpenChore().pending);
  return state_version_;
}

std::shared_ptr<SharedStateWork> PowerSgdCoordinator::SharedState(BucketPositions bucket) {
  const BucketShape* shape = shapes_.Find(bucket);
  const bool has_factors =
      shape != nullptr && !state_.seeds.empty() && !shape->factors->matrices().empty();
  if (!has_factors) return nullptr;
  return std::make_shared<FactorsWork>(state_.factors, shape->factors, options_.rounds == 1,
                                       FactorDType(shape->gradient));
}

// The coordinator keeps averaged factors only. P of a two-round step is orthonormalized, recomputed
// in each step, and therefore not part of the state.
bool PowerSgdCoordinator::Observes(std::uint32_t round, const Segment& segment) const {
  if (IsPlain() || segment.op != ReduceOp::kMean) return false;
  return round == 1 || options_.rounds == 1;
}

void PowerSgdCoordinator::Observe(BucketPositions bucket, std::uint32_t /*round*/,
                                  const ElementRange& range, std::span<const std::byte> bytes) {
  const BucketShape* shape = shapes_.Find(bucket);
  if (shape == nullptr) return;
  // With one round the dense tensors come first.
  if (options_.rounds == 1 && shape->layout.dense_numel > 0 && range.segment == 0) return;
  const std::size_t numel = SendsP() ? shape->layout.p_numel : shape->layout.q_numel;
  if (numel == 0 || range.end > numel) return;
  const DType dtype = FactorDType(shape->gradient);
  Observed& observed = observed_[bucket.front()];
  if (observed.values == nullptr) {
    observed = {.layout = shape->factors, .values = std::make_shared<FactorArray>(dtype, numel)};
  }
  // Results arrive in chunks. The count tells Keep whether all of them arrived.
  observed.numel += range.numel();
  cpu::Convert(options_.wire.value_or(shape->gradient), bytes.data(), dtype,
               observed.values->bytes_to_write().data() + range.begin * ByteSize(dtype),
               range.numel());
}

// A row of P is computed from a row of one matrix, and a column of Q from a column; what travels
// uncompressed is a gradient itself.
std::optional<std::uint32_t> PowerSgdCoordinator::ParameterAt(BucketPositions bucket,
                                                              std::uint32_t round,
                                                              std::size_t segment,
                                                              std::size_t element) const {
  const BucketShape* const shape = IsPlain() ? nullptr : shapes_.Find(bucket);
  if (shape == nullptr || options_.batched) return std::nullopt;
  const BucketLayout& layout = shape->layout;
  const auto find = [&](const auto& all, auto begin, auto numel) -> std::optional<std::uint32_t> {
    for (const auto& one : all) {
      if (element >= begin(one) && element - begin(one) < numel(one)) return bucket[one.parameter];
    }
    return std::nullopt;
  };
  if (round == 0 && segment == 0 && layout.dense_numel > 0) {
    return find(
        layout.dense, [](const DenseTensor& t) { return t.dense_offset; },
        [](const DenseTensor& t) { return t.numel; });
  }
  if (round == 1 || (options_.rounds == 1 && !SendsP())) {
    return find(
        layout.matrices, [](const LowRankMatrix& m) { return m.q_offset; },
        [](const LowRankMatrix& m) { return m.q_numel(); });
  }
  return find(
      layout.matrices, [](const LowRankMatrix& m) { return m.p_offset; },
      [](const LowRankMatrix& m) { return m.p_numel(); });
}

// A chore that nobody took runs here, because pending arrays must not accumulate from step to step.
void PowerSgdCoordinator::EndStep(Verdict verdict) {
  if (chore_ != nullptr) std::exchange(chore_, nullptr)->Run();
  if (verdict == Verdict::kApply) {
    Keep();
  } else {
    Undo();
  }
  generator_before_.reset();
  if (!observed_.empty()) {
    OpenChore().retired.push_back(
        std::make_shared<std::unordered_map<std::uint32_t, Observed>>(std::move(observed_)));
    observed_ = {};
  }
  std::vector<std::shared_ptr<const void>> unused;
  shapes_.EndStep(unused);
  if (unused.empty()) return;
  auto& retired = OpenChore().retired;
  retired.insert(retired.end(), unused.begin(), unused.end());
}

// Makes the block of factors that the step's result replaces. With one round a step averages only P
// or only Q; the other side is kept from the old block, or gathered from several old blocks if the
// bucket's list of parameters is new.
FactorBlockRef PowerSgdCoordinator::BlockFrom(const Observed& observed) const {
  const FactorBlock* before = state_.factors->Matching(*observed.layout);
  auto block = std::make_shared<FactorBlock>();
  if (before != nullptr) *block = *before;
  block->layout = observed.layout;
  block->version = state_.iteration + 1;
  FactorSide& side = SendsP() ? block->p : block->q;
  FactorSide& other = SendsP() ? block->q : block->p;
  side = {.array = observed.values, .offset = 0};
  if (options_.rounds != 1 || before != nullptr) return block;
  other.array =
      Gather([from = state_.factors](
                 std::uint32_t p) -> const FactorBlock& { return *from->SlotOf(p)->block; },
             observed.layout, SendsP() ? Side::kQ : Side::kP);
  return block;
}

// Makes the results the committed state. Readers that hold the old table keep it alive; it is freed
// by a chore.
void PowerSgdCoordinator::Keep() {
  FactorTableRef before = state_.factors;
  if (generator_before_) ++own_version_;
  if (!options_.warm_start) {  // the next step draws anew
    state_.seeds.clear();
    state_.factors = std::make_shared<const FactorTable>();
  } else if (!observed_.empty()) {
    FactorTableEdit edit(state_.factors, manifest_.size());
    std::vector<std::shared_ptr<const FactorArray>>& pending = OpenChore().pending;
    for (const auto& [first, observed] : observed_) {
      const std::size_t numel = observed.values->numel();
      if (observed.numel < numel) continue;  // no step is applied without all of its results
      FactorBlockRef block = BlockFrom(observed);
      const bool is_new = state_.factors->Matching(*observed.layout) == nullptr;
      if (options_.rounds == 1 && is_new) pending.push_back((SendsP() ? block->q : block->p).array);
      edit.Put(std::move(block));
    }
    state_.factors = edit.Finish(options_, manifest_, pending);
  }
  ++state_.iteration;
  committed_ = state_.factors;
  if (before != committed_) OpenChore().retired.push_back(std::move(before));
}

// Restores the state before the step, generator included, so that the repeated step draws the same
// factors.
void PowerSgdCoordinator::Undo() {
  FactorTableRef drawn = std::exchange(state_.factors, committed_);
  if (generator_before_) {
    state_.generator = *generator_before_;
    state_.seeds.clear();
  } else if (drawn != committed_) {
    // Batched: this step replaced these blocks by drawn ones, and members have imported the draws.
    // New versions make the coordinator send the restored factors again.
    auto again = std::make_shared<FactorTable>(*committed_);
    for (std::size_t i = 0; i < again->slots.size(); ++i) {
      FactorBlockRef& block = again->slots[i].block;
      if (block == nullptr || block == drawn->slots[i].block) continue;
      auto renamed = std::make_shared<FactorBlock>(*block);
      renamed->state_version = ++state_version_;
      block = std::move(renamed);
    }
    committed_ = state_.factors = std::move(again);
  }
  if (drawn != committed_) OpenChore().retired.push_back(std::move(drawn));
}

std::size_t PowerSgdCoordinator::ExportBytes() const { return state_bytes_ / kTimesFactors; }

PowerSgdCoordinator::Chore& PowerSgdCoordinator::OpenChore() {
  if (chore_ == nullptr) chore_ = std::make_shared<Chore>();
  return *chore_;
}

std::shared_ptr<HookChore> PowerSgdCoordinator::TakeChore() {
  if (chore_ != nullptr && chore_->empty()) chore_.reset();
  return std::exchange(chore_, nullptr);
}

std::shared_ptr<const HookSnapshot> PowerSgdCoordinator::Snapshot() const {
  PowerSgdState state = state_;
  state.factors = committed_;
  if (generator_before_) {  // what the open step has drawn is left out: it will be drawn again
    state.generator = *generator_before_;
    state.seeds.clear();
  }
  return std::make_shared<PowerSgdSnapshot>(session_, std::move(state), state_.factors);
}

HookState PowerSgdCoordinator::OwnState() const {
  PowerSgdState after = state_;
  if (!options_.warm_start) after.seeds.clear();  // Keep
  HookState own{.metadata = DrawMetadata(after), .tensors = {}};
  if (from_file_) own.metadata[kFromFileKey] = "1";
  return own;
}

std::uint64_t PowerSgdCoordinator::OwnVersion() const {
  return own_version_ + (generator_before_ ? 1 : 0);
}

absl::StatusOr<std::shared_ptr<HookImport>> PowerSgdCoordinator::ReadCopy(
    HookState copy, const OwnsParameter& owns) const {
  return ReadPowerSgdCopy(*session_, std::move(copy), owns);
}

absl::StatusOr<std::shared_ptr<HookImport>> PowerSgdCoordinator::ReadState(
    const HookState& state) const {
  return ReadPowerSgdState(*session_, state);
}

// Swaps, so that the caller frees the replaced state without the session's lock. Every version is
// new, because no member has the imported factors yet.
void PowerSgdCoordinator::Install(HookImport& import) {
  auto& read = static_cast<PowerSgdImport&>(import);
  std::swap(state_, read.state);
  ++state_version_;
  ++own_version_;
  plan_is_fixed_ = !state_.seeds.empty() || state_.iteration > options_.start_powerSGD_iter;
  from_file_ = read.from_file;
  if (options_.batched) {
    auto renamed = std::make_shared<FactorTable>(*state_.factors);
    for (FactorTable::Slot& slot : renamed->slots) {
      if (slot.block == nullptr) continue;
      auto block = std::make_shared<FactorBlock>(*slot.block);
      block->state_version = state_version_;
      slot.block = std::move(block);
    }
    state_.factors = std::move(renamed);
  }
  committed_ = state_.factors;
  generator_before_.reset();
  observed_.clear();
}

}  // namespace gradwire
