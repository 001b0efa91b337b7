#include "hooks/power_sgd/draw.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/torch_random.h"

namespace gradwire {
namespace {

// The sizes of torch's calls of randn. The split matters: randn uses another algorithm below 16
// elements and draws the last block of 16 again if the size is not a multiple of 16.
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

DrawPlan::DrawPlan(const PowerSgdOptions& options, SharedManifest manifest, DrawBuckets buckets)
    : options_(options), manifest_(std::move(manifest)), buckets_(std::move(buckets)) {}

std::shared_ptr<const DrawPlan> DrawPlan::Default(const PowerSgdOptions& options,
                                                  SharedManifest manifest) {
  std::vector<std::uint32_t> all(manifest->size());
  std::iota(all.begin(), all.end(), std::uint32_t{0});
  return std::make_shared<const DrawPlan>(options, std::move(manifest),
                                          DrawBuckets{std::move(all)});
}

bool DrawPlan::IsDefault() const {
  if (buckets_.size() != 1 || buckets_.front().size() != manifest_->size()) return false;
  for (std::uint32_t i = 0; i < manifest_->size(); ++i) {
    if (buckets_.front()[i] != i) return false;
  }
  return true;
}

const DrawPlan::Table& DrawPlan::Get() const {
  std::call_once(made_, [this] { Make(); });
  return table_;
}

// A bucket has a plan's seed only if the whole list is equal: other lists make another square.
std::optional<std::size_t> DrawPlan::SeedFor(std::span<const std::uint32_t> bucket) const {
  const auto found = Get().batched.find(bucket.front());
  if (found == Get().batched.end()) return std::nullopt;
  if (!std::ranges::equal(buckets_[found->second], bucket)) return std::nullopt;
  return found->second;
}

// torch takes a seed for each bucket, compressed or not. Parameters outside the plan have no
// counterpart in torch; they take one more seed, and only if they are compressed.
void DrawPlan::Make() const {
  table_.seeds = buckets_.size();
  if (options_.batched) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) table_.batched[buckets_[b].front()] = b;
    return;
  }
  auto owner = std::make_shared<std::vector<std::uint32_t>>(manifest_->size(), FactorTable::kNone);
  std::vector<bool> planned(manifest_->size());
  for (const std::vector<std::uint32_t>& bucket : buckets_) {
    for (const std::uint32_t parameter : bucket) planned[parameter] = true;
    AddSlot(std::make_shared<const FactorLayout>(options_, *manifest_, bucket), *owner);
  }
  std::vector<std::uint32_t> rest;
  for (std::uint32_t i = 0; i < planned.size(); ++i) {
    if (!planned[i]) rest.push_back(i);
  }
  auto left =
      rest.empty() ? nullptr : std::make_shared<const FactorLayout>(options_, *manifest_, rest);
  if (left != nullptr && !left->matrices().empty()) {
    ++table_.seeds;
    AddSlot(std::move(left), *owner);
  }
  table_.frame.owner = std::move(owner);
}

void DrawPlan::AddSlot(std::shared_ptr<const FactorLayout> layout,
                       std::vector<std::uint32_t>& owner) const {
  const auto index = static_cast<std::uint32_t>(table_.frame.slots.size());
  FactorTable::Slot& slot = table_.frame.slots.emplace_back();
  if (layout->matrices().empty()) return;
  for (const std::uint32_t parameter : layout->owners()) owner[parameter] = index;
  slot.owned = layout->owners().size();
  slot.owned_numel = layout->p_numel() + layout->q_numel();
  auto block = std::make_shared<FactorBlock>();
  block->layout = std::move(layout);
  slot.block = std::move(block);
}

// Both sides share one array, because they are drawn from one generator, Q first.
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

FactorTableRef DrawTable(const PowerSgdOptions& options, const DrawPlan& plan,
                         std::span<const std::uint32_t> seeds, std::uint64_t state_version) {
  auto drawn = std::make_shared<FactorTable>(plan.Get().frame);
  for (std::size_t b = 0; b < drawn->slots.size(); ++b) {
    FactorBlockRef& block = drawn->slots[b].block;
    if (block != nullptr) block = DrawBlock(options, block->layout, seeds[b], state_version);
  }
  return drawn;
}

}  // namespace gradwire
