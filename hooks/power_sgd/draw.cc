#include "hooks/power_sgd/draw.h"

#include <numeric>
#include <utility>

#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/torch_random.h"

namespace gradwire {
namespace {

// How many elements follow one another without a break in torch's calls of randn.
std::vector<std::size_t> CallsOfRandn(const PowerSgdOptions& options, const FactorLayout& layout) {
  const bool stacked = options.batch_tensors_with_same_shape && !options.batched;
  std::vector<std::size_t> calls;
  const LowRankMatrix* before = nullptr;
  for (const LowRankMatrix& matrix : layout.matrices()) {
    if (stacked && before != nullptr && before->shape == matrix.shape) {
      calls.back() += matrix.q_numel();
    } else {
      calls.push_back(matrix.q_numel());
    }
    before = &matrix;
  }
  if (options.rounds != 1) return calls;
  for (const LowRankMatrix& matrix : layout.matrices()) calls.push_back(matrix.p_numel());
  return calls;
}

void Draw(const std::vector<std::size_t>& calls, std::uint32_t seed, DType dtype,
          std::span<std::byte> out) {
  TorchGenerator normals(seed);
  std::vector<float> drawn;
  std::byte* to = out.data();
  for (const std::size_t numel : calls) {
    drawn.resize(numel);
    normals.Normal(drawn);
    cpu::Convert(DType::kFloat32, drawn.data(), dtype, to, numel);
    to += numel * ByteSize(dtype);
  }
}

}  // namespace

DrawPlan::DrawPlan(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest,
                   std::vector<std::vector<std::uint32_t>> plan)
    : buckets(std::move(plan)) {
  if (options.batched) return;
  auto owner = std::make_shared<std::vector<std::uint32_t>>(manifest.size(), FactorTable::kNone);
  for (const std::vector<std::uint32_t>& bucket : buckets) {
    const auto index = static_cast<std::uint32_t>(frame.slots.size());
    auto layout = std::make_shared<FactorLayout>(options, manifest, bucket);
    FactorTable::Slot& slot = frame.slots.emplace_back();
    if (layout->matrices().empty()) continue;
    for (const std::uint32_t parameter : layout->owners()) (*owner)[parameter] = index;
    slot.owned = layout->owners().size();
    slot.owned_numel = layout->p_numel() + layout->q_numel();
    auto block = std::make_shared<FactorBlock>();
    block->layout = std::move(layout);
    slot.block = std::move(block);
  }
  frame.owner = std::move(owner);
}

std::shared_ptr<const DrawPlan> DefaultDrawPlan(const PowerSgdOptions& options,
                                                std::span<const ParameterSpec> manifest) {
  std::vector<std::uint32_t> all(manifest.size());
  std::iota(all.begin(), all.end(), std::uint32_t{0});
  return std::make_shared<const DrawPlan>(options, manifest,
                                          std::vector<std::vector<std::uint32_t>>{std::move(all)});
}

FactorBlockRef DrawBlock(const PowerSgdOptions& options, std::shared_ptr<const FactorLayout> layout,
                         std::uint32_t seed, std::uint64_t state_version) {
  const bool has_p = options.rounds == 1;
  const std::size_t numel = layout->q_numel() + (has_p ? layout->p_numel() : 0);
  const DType dtype = layout->dtype();
  auto fill = [options, layout, seed](std::span<std::byte> out) {
    Draw(CallsOfRandn(options, *layout), seed, layout->dtype(), out);
  };
  const auto array = std::make_shared<const FactorArray>(dtype, numel, std::move(fill));
  auto block = std::make_shared<FactorBlock>();
  block->q = {.array = array, .offset = 0};
  if (has_p) block->p = {.array = array, .offset = layout->q_numel()};
  block->layout = std::move(layout);
  block->state_version = state_version;
  return block;
}

}  // namespace gradwire
