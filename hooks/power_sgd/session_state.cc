// Reports and serializes the coordinator's state.
#include "hooks/power_sgd/session_state.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "hooks/state_parts.h"

namespace gradwire {
namespace {

StateTensor TensorOf(const FactorBlock& block, std::uint32_t parameter, Side side,
                     const ParameterSpec& spec) {
  const LowRankMatrix& matrix = block.layout->MatrixOf(parameter);
  const bool is_p = side == Side::kP;
  const std::size_t numel = is_p ? matrix.p_numel() : matrix.q_numel();
  StateTensor tensor{.name = (is_p ? "p/" : "q/") + spec.name,
                     .dtype = FactorDType(spec.dtype),
                     .shape = {static_cast<std::int64_t>(numel)},
                     .data = {}};
  tensor.data.resize(numel * ByteSize(tensor.dtype));
  CopyFactor(block, parameter, side, tensor.dtype, tensor.data.data());
  return tensor;
}

}  // namespace

std::string PowerSgdSession::LayoutText() const {
  std::string text;
  for (const ParameterSpec& p : *manifest) {
    absl::StrAppend(&text, p.name, " ", Name(p.dtype), "[", absl::StrJoin(p.shape, ","), "]\n");
  }
  return text;
}

// Exact decimal text (17 significant digits), because an import compares it for equality.
std::string PowerSgdSession::OptionsText() const {
  const PowerSgdOptions& o = options;
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

std::map<std::string, std::string> DrawMetadata(const PowerSgdState& state) {
  std::map<std::string, std::string> metadata{
      {"generator", state.generator.ToString()},
      {"seed", state.seeds.empty() ? "" : absl::StrCat(state.seeds[0])}};
  if (state.plan->IsDefault()) return metadata;
  const auto bucket_text = [](std::string* out, const std::vector<std::uint32_t>& bucket) {
    absl::StrAppend(out, absl::StrJoin(bucket, " "));
  };
  metadata["draw_plan"] = absl::StrJoin(state.plan->buckets(), ",", bucket_text);
  metadata["seeds"] = absl::StrJoin(state.seeds, " ");
  return metadata;
}

absl::StatusOr<HookState> PowerSgdSnapshot::State(const OwnsParameter& owns) const {
  const std::vector<ParameterSpec>& manifest = *session_->manifest;
  HookState state{.metadata = {{"format", kSessionStateFormat},
                               {"options", session_->OptionsText()},
                               {"layout", session_->LayoutText()},
                               {"iteration", absl::StrCat(state_.iteration)}},
                  .tensors = {}};
  state.metadata.merge(DrawMetadata(state_));
  if (owns) {
    const BucketLayout layout = MakeLayout(session_->options, manifest);
    state.metadata[kCompressedKey] = absl::StrCat(std::count_if(
        layout.matrices.begin(), layout.matrices.end(),
        [&](const auto& matrix) { return owns(static_cast<std::uint32_t>(matrix.parameter)); }));
  }
  // A block may hold factors whose owner is now another block; only the owner's are current. Those
  // of another shard's parameters are as they were drawn.
  // Sorting by name makes the file independent of the order in which buckets arrived.
  std::vector<std::pair<std::uint32_t, const FactorBlock*>> kept;
  for (const FactorTable::Slot& slot : state_.factors->slots) {
    if (slot.block == nullptr) continue;
    for (const LowRankMatrix& matrix : slot.block->layout->matrices()) {
      const auto parameter = static_cast<std::uint32_t>(matrix.parameter);
      if (owns && !owns(parameter)) continue;
      if (state_.factors->SlotOf(parameter) == &slot)
        kept.emplace_back(parameter, slot.block.get());
    }
  }
  std::sort(kept.begin(), kept.end(), [&](const auto& a, const auto& b) {
    return manifest[a.first].name < manifest[b.first].name;
  });
  for (const auto& [parameter, block] : kept) {
    const ParameterSpec& spec = manifest[parameter];
    state.tensors.push_back(TensorOf(*block, parameter, Side::kQ, spec));
    if (session_->options.rounds == 1) {
      state.tensors.push_back(TensorOf(*block, parameter, Side::kP, spec));
    }
    state.metadata["version/" + spec.name] = absl::StrCat(block->version);
    if (!block->layout->batched()) continue;
    state.metadata["bucket/" + spec.name] = absl::StrJoin(block->layout->owners(), " ");
  }
  return state;
}

// With one round a step sends P or Q; the report shows the ratio of the larger one.
ParameterReport PowerSgdSnapshot::LineOf(std::uint32_t parameter, const LowRankMatrix& matrix,
                                         std::size_t numel, std::int64_t version) const {
  const std::size_t sent = session_->options.rounds == 1
                               ? std::max(matrix.p_numel(), matrix.q_numel())
                               : matrix.p_numel() + matrix.q_numel();
  return {.name = (*session_->manifest)[parameter].name,
          .rank = static_cast<std::int64_t>(matrix.rank),
          .ratio = static_cast<double>(numel) / static_cast<double>(sent),
          .version = version};
}

std::vector<ParameterReport> PowerSgdSnapshot::Report() const {
  const PowerSgdOptions& options = session_->options;
  const std::vector<ParameterSpec>& manifest = *session_->manifest;
  std::vector<ParameterReport> report;
  if (state_.iteration < options.start_powerSGD_iter) return report;
  if (options.batched) {
    for (const FactorTable::Slot& slot : shown_->slots) {
      if (slot.block == nullptr) continue;
      std::size_t numel = 0;
      for (const std::uint32_t p : slot.block->layout->owners()) numel += manifest[p].numel();
      report.push_back(LineOf(slot.block->layout->owners().front(),
                              slot.block->layout->matrices().front(), numel, slot.block->version));
    }
    return report;
  }
  const BucketLayout layout = MakeLayout(options, manifest);
  std::vector<const LowRankMatrix*> matrices(manifest.size());
  for (const LowRankMatrix& matrix : layout.matrices) matrices[matrix.parameter] = &matrix;
  for (std::uint32_t i = 0; i < manifest.size(); ++i) {
    if (matrices[i] == nullptr) {
      report.push_back({.name = manifest[i].name});
      continue;
    }
    const FactorTable::Slot* slot = shown_->SlotOf(i);
    report.push_back(
        LineOf(i, *matrices[i], manifest[i].numel(), slot == nullptr ? 0 : slot->block->version));
  }
  return report;
}

}  // namespace gradwire
