#include "hooks/power_sgd/coordinator.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "hooks/cpu/kernels.h"
#include "hooks/simple_hooks.h"

namespace gradwire {
namespace {

constexpr std::uint32_t kSpread = 0x9E3779B9U;  // 2^32 / golden ratio

std::vector<std::string> Names(std::span<const ParameterSpec> parameters) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : parameters) names.push_back(parameter.name);
  return names;
}

}  // namespace

DType PowerSgdCoordinator::StateDType(DType gradient) {
  return gradient == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

void PowerSgdCoordinator::Append(const std::vector<double>& values, DType dtype,
                                 std::vector<std::byte>& out) {
  const std::size_t offset = out.size();
  out.resize(offset + values.size() * ByteSize(dtype));
  cpu::Convert(DType::kFloat64, reinterpret_cast<const std::byte*>(values.data()), dtype,
               out.data() + offset, values.size());
}

PowerSgdCoordinator::PowerSgdCoordinator(const PowerSgdOptions& options,
                                         std::span<const ParameterSpec> manifest)
    : options_(options),
      manifest_(manifest.begin(), manifest.end()),
      plain_(MakeCastingHook(options.wire)),
      generator_(options.random_seed) {
  for (std::size_t i = 0; i < manifest_.size(); ++i) position_[manifest_[i].name] = i;
}

absl::StatusOr<std::vector<RoundPlan>> PowerSgdCoordinator::Plan(
    std::span<const ParameterSpec> bucket) const {
  absl::StatusOr<std::vector<RoundPlan>> plain = plain_->Plan(bucket, 0);
  if (!plain.ok() || IsPlain()) return plain;
  return PlanRounds(options_, MakeLayout(options_, bucket),
                    options_.wire.value_or(bucket.front().dtype), SideAt(options_, iteration_));
}

std::uint64_t PowerSgdCoordinator::SharedEpoch(std::span<const ParameterSpec> bucket) {
  if (IsPlain()) return 0;
  const BucketLayout layout = MakeLayout(options_, bucket);
  if (layout.matrices.empty()) return 0;
  if (!seed_) {
    generator_before_ = generator_;
    seed_ = generator_.NextSeed();
    ++epoch_;
    factors_.clear();
    if (!options_.batched) Draw(manifest_, *seed_);
  }
  if (!options_.batched) return epoch_;
  const std::string& name = bucket.front().name;
  const auto found = factors_.find(name);
  if (found == factors_.end() || found->second.parameters != Names(bucket)) {
    ForgetOverlapping(bucket);
    // Buckets come in no fixed order, so each has a seed of its own; the model's first one
    // torch's.
    Draw(bucket, *seed_ + kSpread * static_cast<std::uint32_t>(position_.at(name)));
    factors_[name].epoch = ++epoch_;
  }
  return factors_[name].epoch;
}

std::vector<std::byte> PowerSgdCoordinator::SharedState(std::span<const ParameterSpec> bucket) {
  std::vector<std::byte> out;
  const DType dtype = StateDType(bucket.front().dtype);
  for (const LowRankMatrix& matrix : MakeLayout(options_, bucket).matrices) {
    const Factors& factors = factors_[bucket[matrix.parameter].name];
    Append(factors.q, dtype, out);
    if (options_.rounds == 1) Append(factors.p, dtype, out);
  }
  return out;
}

bool PowerSgdCoordinator::Observes(std::uint32_t round, const Segment& segment) const {
  if (IsPlain() || segment.op != ReduceOp::kMean) return false;
  return round == 1 || options_.rounds == 1;
}

void PowerSgdCoordinator::Observe(std::span<const ParameterSpec> bucket, std::uint32_t /*round*/,
                                  const ElementRange& range, std::span<const std::byte> bytes) {
  const BucketLayout layout = MakeLayout(options_, bucket);
  // With one round the dense tensors come first.
  if (options_.rounds == 1 && layout.dense_numel > 0 && range.segment == 0) return;
  Observed& observed = observed_[bucket.front().name];
  if (observed.parameters.empty()) {
    observed.parameters.assign(bucket.begin(), bucket.end());
    observed.values.resize(SendsP() ? layout.p_numel : layout.q_numel);
  }
  if (range.end > observed.values.size()) return;
  const DType wire = options_.wire.value_or(bucket.front().dtype);
  cpu::Convert(wire, bytes.data(), DType::kFloat64,
               reinterpret_cast<std::byte*>(observed.values.data() + range.begin), range.numel());
}

void PowerSgdCoordinator::EndStep(Verdict verdict) {
  if (verdict == Verdict::kApply) {
    ++iteration_;
    for (const auto& [name, observed] : observed_) Keep(observed);
    // The next step draws anew.
    if (!options_.warm_start && !IsPlain()) {
      seed_.reset();
      factors_.clear();
    }
  } else {
    UndoDraws();
  }
  generator_before_.reset();
  replaced_.clear();
  observed_.clear();
}

std::size_t PowerSgdCoordinator::StateBytes() const {
  std::size_t numel = 0;
  if (options_.batched) {  // at most one bucket for each parameter
    for (const ParameterSpec& parameter : manifest_) {
      const BucketLayout layout = MakeLayout(options_, std::span(&parameter, 1));
      numel += layout.p_numel + layout.q_numel;
    }
  } else {
    const BucketLayout layout = MakeLayout(options_, manifest_);
    numel = layout.p_numel + layout.q_numel;
  }
  return 3 * numel * sizeof(double);  // kept, observed, on its way to members
}

void PowerSgdCoordinator::ForgetOverlapping(std::span<const ParameterSpec> bucket) {
  const std::vector<std::string> names = Names(bucket);
  const std::unordered_set<std::string> here(names.begin(), names.end());
  replaced_.try_emplace(names.front());  // there was none, unless the loop finds it
  std::erase_if(factors_, [&](auto& entry) {
    const std::vector<std::string>& others = entry.second.parameters;
    if (std::none_of(others.begin(), others.end(),
                     [&](const std::string& p) { return here.contains(p); })) {
      return false;
    }
    replaced_[entry.first] = std::move(entry.second);
    return true;
  });
}

void PowerSgdCoordinator::UndoDraws() {
  for (auto& [name, before] : replaced_) {
    if (before.parameters.empty()) {
      factors_.erase(name);
    } else {
      before.epoch = ++epoch_;  // members have the others
      factors_[name] = std::move(before);
    }
  }
  if (!generator_before_) return;
  generator_ = *generator_before_;
  seed_.reset();
  factors_.clear();
}

void PowerSgdCoordinator::Draw(std::span<const ParameterSpec> bucket, std::uint32_t seed) {
  TorchGenerator normals(seed);
  const BucketLayout layout = MakeLayout(options_, bucket);
  const bool stacked = options_.batch_tensors_with_same_shape && !options_.batched;
  std::vector<float> drawn;
  for (std::size_t i = 0; i < layout.matrices.size();) {
    std::size_t end = i + 1;
    while (stacked && end < layout.matrices.size() &&
           layout.matrices[end].shape == layout.matrices[i].shape) {
      ++end;
    }
    const std::size_t numel = layout.matrices[i].q_numel();
    drawn.resize(numel * (end - i));
    normals.Normal(drawn);
    for (auto from = drawn.begin(); i < end; ++i) {
      Factors& factors = factors_[bucket[layout.matrices[i].parameter].name];
      factors = Factors{};
      factors.q.assign(from, from + static_cast<std::ptrdiff_t>(numel));
      from += static_cast<std::ptrdiff_t>(numel);
      if (options_.batched) factors.parameters = Names(bucket);
    }
  }
  if (options_.rounds != 1) return;
  for (const LowRankMatrix& matrix : layout.matrices) {
    drawn.resize(matrix.p_numel());
    normals.Normal(drawn);
    factors_[bucket[matrix.parameter].name].p.assign(drawn.begin(), drawn.end());
  }
}

void PowerSgdCoordinator::Keep(const Observed& observed) {
  for (const LowRankMatrix& matrix : MakeLayout(options_, observed.parameters).matrices) {
    Factors& factors = factors_[observed.parameters[matrix.parameter].name];
    const bool is_p = options_.rounds == 1 && SideAt(options_, iteration_ - 1) == Side::kP;
    const double* from = observed.values.data() + (is_p ? matrix.p_offset : matrix.q_offset);
    const std::size_t numel = is_p ? matrix.p_numel() : matrix.q_numel();
    (is_p ? factors.p : factors.q).assign(from, from + numel);
    factors.version = iteration_;
  }
}

}  // namespace gradwire
