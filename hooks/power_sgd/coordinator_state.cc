// The coordinator's state as it is shown, saved and restored.
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/coordinator.h"
#include "hooks/power_sgd/layout.h"

namespace gradwire {
namespace {

constexpr const char* kFormat = "gradwire.session_state.1";

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

}  // namespace

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
  std::map<std::string, const Factors*> kept;
  for (const auto& [name, factors] : factors_) kept[name] = &factors;
  for (const auto& [name, factors] : replaced_) kept[name] = &factors;
  for (const auto& [name, entry] : kept) {
    const Factors& factors = *entry;
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

}  // namespace gradwire
