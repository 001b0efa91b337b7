#include "hooks/power_sgd/coordinator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/hook.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/torch_random.h"
#include "hooks/simple_hooks.h"

namespace gradwire {
namespace {

constexpr const char* kFormat = "gradwire.session_state.1";
constexpr std::uint32_t kSpread = 0x9E3779B9U;  // 2^32 / golden ratio

// fp32 factors for all gradients but fp64 ones. Kept as fp64, which holds both exactly.
struct Factors {
  std::vector<double> q;
  std::vector<double> p;  // with one round per step only
  std::int64_t version = 0;
  std::uint64_t epoch = 0;
  std::vector<std::string> parameters;  // batched: the bucket
};

DType StateDType(DType gradient) {
  return gradient == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

void Append(const std::vector<double>& values, DType dtype, std::vector<std::byte>& out) {
  const std::size_t offset = out.size();
  out.resize(offset + values.size() * ByteSize(dtype));
  cpu::Convert(DType::kFloat64, reinterpret_cast<const std::byte*>(values.data()), dtype,
               out.data() + offset, values.size());
}

std::vector<std::string> Names(std::span<const ParameterSpec> parameters) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : parameters) names.push_back(parameter.name);
  return names;
}

std::string LayoutText(std::span<const ParameterSpec> manifest) {
  std::string text;
  for (const ParameterSpec& p : manifest) {
    absl::StrAppend(&text, p.name, " ", Name(p.dtype), "[", absl::StrJoin(p.shape, ","), "]\n");
  }
  return text;
}

// The first line in which two layouts differ.
std::string FirstDifferentLine(const std::string& here, const std::string& there) {
  const std::vector<std::string> ours = absl::StrSplit(here, '\n');
  const std::vector<std::string> theirs = absl::StrSplit(there, '\n');
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const std::string a = i < ours.size() ? ours[i] : "";
    const std::string b = i < theirs.size() ? theirs[i] : "";
    if (a != b) {
      return absl::StrCat("parameter ", i, " is \"", a, "\" in the session and \"",
                          b.substr(0, 200), "\" in the state");
    }
  }
  return "";
}

std::string OptionsText(const PowerSgdOptions& o) {
  return absl::StrCat(
      "batched=", o.batched, " matrix_approximation_rank=", o.matrix_approximation_rank,
      " start_powerSGD_iter=", o.start_powerSGD_iter,
      " min_compression_rate=", absl::StrFormat("%.17g", o.min_compression_rate),
      " warm_start=", o.warm_start,
      " orthogonalization_epsilon=", absl::StrFormat("%.17g", o.orthogonalization_epsilon),
      " random_seed=", o.random_seed,
      " batch_tensors_with_same_shape=", o.batch_tensors_with_same_shape,
      " error_feedback=", static_cast<int>(o.error_feedback), " rounds=", o.rounds);
}

class PowerSgdCoordinator : public CoordinatorHook {
 public:
  PowerSgdCoordinator(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest)
      : options_(options),
        manifest_(manifest.begin(), manifest.end()),
        plain_(MakeCastingHook(options.wire)),
        generator_(options.random_seed) {
    for (std::size_t i = 0; i < manifest_.size(); ++i) position_[manifest_[i].name] = i;
  }

  absl::StatusOr<std::vector<RoundPlan>> Plan(
      std::span<const ParameterSpec> bucket) const override {
    absl::StatusOr<std::vector<RoundPlan>> plain = plain_->Plan(bucket, 0);
    if (!plain.ok() || IsPlain()) return plain;
    return PlanRounds(options_, MakeLayout(options_, bucket),
                      options_.wire.value_or(bucket.front().dtype), SideAt(options_, iteration_));
  }

  std::int64_t log_interval() const override {
    return IsPlain() ? 0 : options_.compression_stats_logging_frequency;
  }

  std::uint64_t SharedEpoch(std::span<const ParameterSpec> bucket) override {
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
      replaced_[name] = found == factors_.end() ? Factors{} : std::move(found->second);
      // Buckets come in no fixed order, so each has a seed of its own; the model's first one
      // torch's.
      Draw(bucket, *seed_ + kSpread * static_cast<std::uint32_t>(position_.at(name)));
      factors_[name].epoch = ++epoch_;
    }
    return factors_[name].epoch;
  }

  std::vector<std::byte> SharedState(std::span<const ParameterSpec> bucket) override {
    std::vector<std::byte> out;
    const DType dtype = StateDType(bucket.front().dtype);
    for (const LowRankMatrix& matrix : MakeLayout(options_, bucket).matrices) {
      const Factors& factors = factors_[bucket[matrix.parameter].name];
      Append(factors.q, dtype, out);
      if (options_.rounds == 1) Append(factors.p, dtype, out);
    }
    return out;
  }

  bool Observes(std::uint32_t round, const Segment& segment) const override {
    if (IsPlain() || segment.op != ReduceOp::kMean) return false;
    return round == 1 || options_.rounds == 1;
  }

  void Observe(std::span<const ParameterSpec> bucket, std::uint32_t /*round*/,
               const ElementRange& range, std::span<const std::byte> bytes) override {
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

  void EndStep(Verdict verdict) override {
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

  std::int64_t iteration() const override { return iteration_; }

  std::size_t StateBytes() const override {
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

  std::vector<ParameterReport> Report() const override;
  absl::StatusOr<HookState> Export() const override;
  absl::Status Import(const HookState& state) override;

 private:
  struct Observed {
    std::vector<ParameterSpec> parameters;
    std::vector<double> values;  // the P or Q block
  };

  bool IsPlain() const { return iteration_ < options_.start_powerSGD_iter; }
  bool SendsP() const { return options_.rounds == 1 && SideAt(options_, iteration_) == Side::kP; }

  // As if the step had not been: the next one draws the same.
  void UndoDraws() {
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

  // torch's draw for one bucket: matrix by matrix, or same shapes at once.
  void Draw(std::span<const ParameterSpec> bucket, std::uint32_t seed) {
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

  // What members compute with has the precision of their factors.
  void Keep(const Observed& observed) {
    for (const LowRankMatrix& matrix : MakeLayout(options_, observed.parameters).matrices) {
      Factors& factors = factors_[observed.parameters[matrix.parameter].name];
      const bool is_p = options_.rounds == 1 && SideAt(options_, iteration_ - 1) == Side::kP;
      const double* from = observed.values.data() + (is_p ? matrix.p_offset : matrix.q_offset);
      const std::size_t numel = is_p ? matrix.p_numel() : matrix.q_numel();
      (is_p ? factors.p : factors.q).assign(from, from + numel);
      factors.version = iteration_;
    }
  }

  absl::Status CheckImport(const HookState& state) const;
  absl::Status ImportBucket(const std::string& name, const std::string& text, Factors& own) const;
  absl::Status ImportTensor(const StateTensor& tensor,
                            std::unordered_map<std::string, Factors>& factors) const;

  const PowerSgdOptions options_;
  const std::vector<ParameterSpec> manifest_;
  const std::unique_ptr<Hook> plain_;
  std::unordered_map<std::string, std::size_t> position_;
  NumpyRandomState generator_;
  std::optional<std::uint32_t> seed_;  // of the factors drawn; none: nothing drawn
  std::uint64_t epoch_ = 0;
  std::int64_t iteration_ = 0;
  std::unordered_map<std::string, Factors> factors_;    // batched: by the bucket's first parameter
  std::unordered_map<std::string, Observed> observed_;  // in this step, likewise

  // What this step's draws took the place of: the generator, if they began with a seed, and a
  // bucket's factors (no parameters: there were none).
  std::optional<NumpyRandomState> generator_before_;
  std::unordered_map<std::string, Factors> replaced_;
};

std::vector<ParameterReport> PowerSgdCoordinator::Report() const {
  std::vector<ParameterReport> report;
  if (IsPlain()) return report;
  const auto add = [&](const std::string& name, const LowRankMatrix& matrix, std::size_t numel) {
    const auto sent =
        static_cast<double>(options_.rounds == 1 ? std::max(matrix.p_numel(), matrix.q_numel())
                                                 : matrix.p_numel() + matrix.q_numel());
    const auto found = factors_.find(name);
    report.push_back({.name = name,
                      .rank = static_cast<std::int64_t>(matrix.rank),
                      .ratio = static_cast<double>(numel) / sent,
                      .version = found == factors_.end() ? 0 : found->second.version});
  };
  if (options_.batched) {
    for (const auto& [name, factors] : factors_) {
      std::vector<ParameterSpec> bucket;
      for (const std::string& p : factors.parameters) bucket.push_back(manifest_[position_.at(p)]);
      const BucketLayout layout = MakeLayout(options_, bucket);
      add(name, layout.matrices.front(), layout.numel);
    }
    return report;
  }
  const BucketLayout layout = MakeLayout(options_, manifest_);
  std::map<std::size_t, const LowRankMatrix*> matrices;
  for (const LowRankMatrix& matrix : layout.matrices) matrices[matrix.parameter] = &matrix;
  for (std::size_t i = 0; i < manifest_.size(); ++i) {
    const auto found = matrices.find(i);
    if (found == matrices.end()) {
      report.push_back({.name = manifest_[i].name});
    } else {
      add(manifest_[i].name, *found->second, manifest_[i].numel());
    }
  }
  return report;
}

// In the middle of a step, what it has drawn is left out: it will be drawn again.
absl::StatusOr<HookState> PowerSgdCoordinator::Export() const {
  HookState state{.metadata = {{"format", kFormat},
                               {"options", OptionsText(options_)},
                               {"layout", LayoutText(manifest_)},
                               {"iteration", absl::StrCat(iteration_)},
                               {"generator", generator_before_.value_or(generator_).ToString()},
                               {"seed", seed_ && !generator_before_ ? absl::StrCat(*seed_) : ""}},
                  .tensors = {}};
  for (const auto& [name, current] : factors_) {
    const auto replaced = replaced_.find(name);
    const Factors& factors = replaced == replaced_.end() ? current : replaced->second;
    if (generator_before_ || factors.q.empty()) continue;
    const DType dtype = StateDType(manifest_[position_.at(name)].dtype);
    for (const auto& [prefix, values] :
         {std::pair("q/", &factors.q), std::pair("p/", &factors.p)}) {
      if (values->empty()) continue;
      StateTensor tensor{.name = prefix + name,
                         .dtype = dtype,
                         .shape = {static_cast<std::int64_t>(values->size())},
                         .data = {}};
      Append(*values, dtype, tensor.data);
      state.tensors.push_back(std::move(tensor));
    }
    state.metadata["version/" + name] = absl::StrCat(factors.version);
    if (options_.batched) {
      std::vector<std::string> positions;
      for (const std::string& p : factors.parameters) {
        positions.push_back(absl::StrCat(position_.at(p)));
      }
      state.metadata["bucket/" + name] = absl::StrJoin(positions, " ");
    }
  }
  return state;
}

absl::Status PowerSgdCoordinator::CheckImport(const HookState& state) const {
  const auto text = [&](const char* key) {
    const auto found = state.metadata.find(key);
    return found == state.metadata.end() ? std::string() : found->second;
  };
  if (text("format") != kFormat) {
    return absl::InvalidArgumentError(absl::StrCat("state: format \"", text("format").substr(0, 80),
                                                   "\" is not known; allowed: \"", kFormat, "\""));
  }
  if (text("options") != OptionsText(options_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("state: its options are \"", text("options").substr(0, 600),
                     "\", the session's are \"", OptionsText(options_), "\""));
  }
  for (const char* key : {"iteration", "generator", "seed"}) {
    if (!state.metadata.contains(key)) {
      return absl::InvalidArgumentError(absl::StrCat("state: \"", key, "\" is missing"));
    }
  }
  if (text("layout") != LayoutText(manifest_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state: of another layout: ", FirstDifferentLine(LayoutText(manifest_), text("layout"))));
  }
  return absl::OkStatus();
}

absl::Status PowerSgdCoordinator::ImportTensor(
    const StateTensor& tensor, std::unordered_map<std::string, Factors>& factors) const {
  const bool is_p = tensor.name.starts_with("p/");
  const auto position =
      tensor.name.size() < 2 ? position_.end() : position_.find(tensor.name.substr(2));
  if ((!is_p && !tensor.name.starts_with("q/")) || position == position_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("state: tensor \"", tensor.name.substr(0, 600),
                                                   "\" is no factor of this session"));
  }
  Factors& own = factors[position->first];
  std::vector<ParameterSpec> bucket{manifest_[position->second]};
  if (options_.batched) {
    bucket.clear();
    for (const std::string& p : own.parameters) bucket.push_back(manifest_[position_.at(p)]);
  }
  const BucketLayout layout = MakeLayout(options_, bucket);
  const std::size_t numel = is_p ? layout.p_numel : layout.q_numel;
  const DType dtype = StateDType(bucket.empty() ? DType::kFloat32 : bucket.front().dtype);
  if (numel == 0 || (is_p && options_.rounds != 1) || tensor.dtype != dtype ||
      tensor.data.size() != numel * ByteSize(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state: tensor \"", tensor.name, "\" has ", tensor.data.size(), " bytes of ",
        Name(tensor.dtype), "; allowed: ", numel * ByteSize(dtype), " of ", Name(dtype)));
  }
  std::vector<double>& values = is_p ? own.p : own.q;
  values.resize(numel);
  cpu::Convert(dtype, tensor.data.data(), DType::kFloat64,
               reinterpret_cast<std::byte*>(values.data()), numel);
  if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("state: tensor \"", tensor.name, "\" has values that are not finite"));
  }
  return absl::OkStatus();
}

absl::Status PowerSgdCoordinator::ImportBucket(const std::string& name, const std::string& text,
                                               Factors& own) const {
  std::unordered_set<std::size_t> positions;
  for (const auto part : absl::StrSplit(text, ' ')) {
    std::size_t position = 0;
    if (!absl::SimpleAtoi(part, &position) || position >= manifest_.size() ||
        !positions.insert(position).second) {
      return absl::InvalidArgumentError(absl::StrCat("state: \"bucket/", name, "\" is no bucket"));
    }
    own.parameters.push_back(manifest_[position].name);
  }
  if (options_.batched && own.parameters.front() == name) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("state: \"bucket/", name, "\" is not the bucket of that parameter"));
}

absl::Status PowerSgdCoordinator::Import(const HookState& state) {
  if (absl::Status status = CheckImport(state); !status.ok()) return status;
  std::int64_t iteration = -1;
  if (!absl::SimpleAtoi(state.metadata.at("iteration"), &iteration) || iteration < 0) {
    return absl::InvalidArgumentError("state: iteration is no number from 0");
  }
  auto generator = NumpyRandomState::Parse(state.metadata.at("generator"));
  if (!generator.ok()) return generator.status();
  std::optional<std::uint32_t> seed;
  if (std::uint32_t value = 0; absl::SimpleAtoi(state.metadata.at("seed"), &value)) seed = value;
  std::unordered_map<std::string, Factors> factors;
  for (const auto& [key, value] : state.metadata) {
    const bool is_bucket = key.starts_with("bucket/");
    if (!is_bucket && !key.starts_with("version/")) continue;
    const std::string name = key.substr(key.find('/') + 1);
    if (!position_.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("state: \"", key.substr(0, 600), "\" names no parameter of this session"));
    }
    if (!is_bucket && !absl::SimpleAtoi(value, &factors[name].version)) {
      return absl::InvalidArgumentError(absl::StrCat("state: \"", key, "\" is no number"));
    }
    if (!is_bucket) continue;
    if (absl::Status status = ImportBucket(name, value, factors[name]); !status.ok()) return status;
  }
  for (const StateTensor& tensor : state.tensors) {
    if (absl::Status status = ImportTensor(tensor, factors); !status.ok()) return status;
  }
  for (const auto& [name, own] : factors) {
    if (own.q.empty() || (options_.rounds == 1 && own.p.empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat("state: a factor of parameter \"", name, "\" is missing"));
    }
  }
  if (!options_.batched && seed &&
      factors.size() != MakeLayout(options_, manifest_).matrices.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state: has factors of ", factors.size(), " parameters; the session compresses ",
        MakeLayout(options_, manifest_).matrices.size()));
  }
  for (auto& [name, own] : factors) own.epoch = ++epoch_;
  ++epoch_;
  iteration_ = iteration;
  generator_ = *std::move(generator);
  seed_ = seed;
  factors_ = std::move(factors);
  observed_.clear();
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<CoordinatorHook> MakePowerSgdCoordinator(const PowerSgdOptions& options,
                                                         std::span<const ParameterSpec> manifest) {
  return std::make_unique<PowerSgdCoordinator>(options, manifest);
}

}  // namespace gradwire
