#include "hooks/power_sgd/factors.h"

#include <algorithm>

#include "hooks/cpu/kernels.h"

namespace gradwire {
namespace {

std::size_t FactorNumel(const LowRankMatrix& matrix) { return matrix.p_numel() + matrix.q_numel(); }

}  // namespace

DType FactorDType(DType gradient) {
  return gradient == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

FactorArray::FactorArray(DType dtype, std::size_t numel)
    : FactorArray(dtype, numel, [](std::span<std::byte> /*out*/) {}) {
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(numel * ByteSize(dtype));
}

FactorArray::FactorArray(DType dtype, std::size_t numel, Fill fill)
    : dtype_(dtype), numel_(numel), fill_(std::move(fill)) {}

std::span<std::byte> FactorArray::bytes_to_write() {
  return {bytes_.get(), numel_ * ByteSize(dtype_)};
}

// The first caller computes the values and the others wait. Dropping `fill_` then releases the
// blocks that it reads from, and with them their memory.
std::span<const std::byte> FactorArray::Get() const {
  const std::size_t bytes = numel_ * ByteSize(dtype_);
  std::call_once(computed_, [&] {
    if (bytes_ == nullptr) bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    fill_({bytes_.get(), bytes});
    fill_ = nullptr;
  });
  return {bytes_.get(), bytes};
}

FactorLayout::FactorLayout(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest,
                           std::span<const std::uint32_t> positions)
    : FactorLayout(options, manifest, positions,
                   MakeLayout(options, BucketParameters(manifest, positions))) {}

FactorLayout::FactorLayout(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest,
                           std::span<const std::uint32_t> positions, const BucketLayout& layout)
    : matrices_(layout.matrices),
      batched_(options.batched),
      q_numel_(layout.q_numel),
      p_numel_(layout.p_numel) {
  // MakeLayout numbers parameters by their place in the bucket; a table needs manifest positions.
  // The block is float64 if any matrix needs it, because one array has one dtype.
  for (LowRankMatrix& matrix : matrices_) {
    matrix.parameter = positions[matrix.parameter];
    owners_.push_back(static_cast<std::uint32_t>(matrix.parameter));
    if (FactorDType(manifest[matrix.parameter].dtype) == DType::kFloat64) dtype_ = DType::kFloat64;
  }
  if (batched_ && !matrices_.empty()) owners_.assign(positions.begin(), positions.end());
}

// The index is built on first use: matrices are grouped by shape, not by parameter, and most
// layouts are never searched.
const LowRankMatrix& FactorLayout::MatrixOf(std::uint32_t parameter) const {
  std::call_once(sorted_, [&] {
    by_parameter_.reserve(matrices_.size());
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      by_parameter_.emplace_back(static_cast<std::uint32_t>(matrices_[i].parameter),
                                 static_cast<std::uint32_t>(i));
    }
    std::sort(by_parameter_.begin(), by_parameter_.end());
  });
  const auto found = std::lower_bound(by_parameter_.begin(), by_parameter_.end(),
                                      std::pair(parameter, std::uint32_t{0}));
  return matrices_[found->second];
}

const FactorTable::Slot* FactorTable::SlotOf(std::uint32_t parameter) const {
  if (owner == nullptr || (*owner)[parameter] == kNone) return nullptr;
  return &slots[(*owner)[parameter]];
}

// A block matches only if it still owns every parameter: a newer block may have taken some of them.
const FactorBlock* FactorTable::Matching(const FactorLayout& layout) const {
  const Slot* slot = SlotOf(layout.owners().front());
  if (slot == nullptr || slot->owned != layout.owners().size()) return nullptr;
  const FactorLayout& theirs = *slot->block->layout;
  if (&theirs != &layout && theirs.owners() != layout.owners()) return nullptr;
  return slot->block.get();
}

void CopyFactor(const FactorBlock& from, std::uint32_t parameter, Side side, DType dtype,
                std::byte* out) {
  const LowRankMatrix& matrix = from.layout->MatrixOf(parameter);
  const bool is_p = side == Side::kP;
  const FactorSide& values = is_p ? from.p : from.q;
  const DType kept = values.array->dtype();
  const std::size_t at = values.offset + (is_p ? matrix.p_offset : matrix.q_offset);
  cpu::Convert(kept, values.array->Get().data() + at * ByteSize(kept), dtype, out,
               is_p ? matrix.p_numel() : matrix.q_numel());
}

std::shared_ptr<const FactorArray> Gather(BlockOfParameter from,
                                          std::shared_ptr<const FactorLayout> layout, Side side) {
  const DType dtype = layout->dtype();
  const std::size_t numel = side == Side::kP ? layout->p_numel() : layout->q_numel();
  auto fill = [from = std::move(from), layout = std::move(layout), side](std::span<std::byte> out) {
    for (const LowRankMatrix& matrix : layout->matrices()) {
      const std::size_t at = side == Side::kP ? matrix.p_offset : matrix.q_offset;
      const auto parameter = static_cast<std::uint32_t>(matrix.parameter);
      CopyFactor(from(parameter), parameter, side, layout->dtype(),
                 out.data() + at * ByteSize(layout->dtype()));
    }
  };
  return std::make_shared<FactorArray>(dtype, numel, std::move(fill));
}

FactorTableEdit::FactorTableEdit(FactorTableRef from, std::size_t parameters)
    : from_(from == nullptr ? std::make_shared<const FactorTable>() : std::move(from)),
      parameters_(parameters),
      table_(std::make_shared<FactorTable>(*from_)) {
  for (std::size_t i = 0; i < table_->slots.size(); ++i) {
    if (table_->slots[i].block == nullptr) free_.push_back(static_cast<std::uint32_t>(i));
  }
}

// Copy on write: in the usual step the buckets are the same and the tables share one owner list.
std::vector<std::uint32_t>& FactorTableEdit::Owner() {
  if (owner_ == nullptr) {
    owner_ = table_->owner == nullptr
                 ? std::make_shared<std::vector<std::uint32_t>>(parameters_, FactorTable::kNone)
                 : std::make_shared<std::vector<std::uint32_t>>(*table_->owner);
    table_->owner = owner_;
  }
  return *owner_;
}

std::uint32_t FactorTableEdit::FreeSlot() {
  if (free_.empty()) {
    table_->slots.emplace_back();
    return static_cast<std::uint32_t>(table_->slots.size() - 1);
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

// A batched block approximates all its parameters by one matrix, so losing one makes it useless.
void FactorTableEdit::Release(std::uint32_t parameter, std::size_t numel) {
  const std::uint32_t index = Owner()[parameter];
  if (index == FactorTable::kNone) return;
  FactorTable::Slot& slot = table_->slots[index];
  Owner()[parameter] = FactorTable::kNone;
  if (slot.block->layout->batched()) {
    for (const std::uint32_t other : slot.block->layout->owners()) {
      Owner()[other] = FactorTable::kNone;
    }
    slot.owned = 0;
  } else {
    --slot.owned;
    slot.owned_numel -= numel;
  }
  if (slot.owned > 0) {
    if (diminished_.empty() || diminished_.back() != index) diminished_.push_back(index);
    return;
  }
  slot = {};
  free_.push_back(index);
}

void FactorTableEdit::Put(FactorBlockRef block) {
  const FactorLayout& layout = *block->layout;
  // The usual step: the same list of parameters, so only the pointer changes.
  if (table_->Matching(layout) != nullptr) {
    table_->slots[(*table_->owner)[layout.owners().front()]].block = std::move(block);
    return;
  }
  FactorTable::Slot fresh;
  for (std::size_t i = 0; i < layout.owners().size(); ++i) {
    const std::size_t numel = i < layout.matrices().size() ? FactorNumel(layout.matrices()[i]) : 0;
    Release(layout.owners()[i], numel);
    fresh.owned_numel += numel;
  }
  const std::uint32_t index = FreeSlot();
  for (const std::uint32_t parameter : layout.owners()) Owner()[parameter] = index;
  fresh.owned = layout.owners().size();
  fresh.block = std::move(block);
  table_->slots[index] = std::move(fresh);
}

// A block keeps all its memory while it owns anything. Replacing those that own less than half
// bounds the memory at twice that of the factors in use.
FactorTableRef FactorTableEdit::Finish(const PowerSgdOptions& options,
                                       std::span<const ParameterSpec> manifest,
                                       std::vector<std::shared_ptr<const FactorArray>>& pending) {
  std::sort(diminished_.begin(), diminished_.end());
  diminished_.erase(std::unique(diminished_.begin(), diminished_.end()), diminished_.end());
  for (const std::uint32_t index : diminished_) {
    FactorTable::Slot& slot = table_->slots[index];
    if (slot.block == nullptr) continue;
    const FactorLayout& old = *slot.block->layout;
    const bool is_half = slot.owned * 2 >= old.owners().size() &&
                         slot.owned_numel * 2 >= old.p_numel() + old.q_numel();
    if (is_half) continue;
    std::vector<std::uint32_t> owned;
    for (const std::uint32_t parameter : old.owners()) {
      if (Owner()[parameter] == index) owned.push_back(parameter);
    }
    auto block = std::make_shared<FactorBlock>(*slot.block);
    block->layout = std::make_shared<FactorLayout>(options, manifest, owned);
    for (auto [side, own] : {std::pair(Side::kQ, &block->q), std::pair(Side::kP, &block->p)}) {
      if (own->array == nullptr) continue;
      *own = {.array =
                  Gather([from = slot.block](std::uint32_t) -> const FactorBlock& { return *from; },
                         block->layout, side),
              .offset = 0};
      pending.push_back(own->array);
    }
    slot.block = std::move(block);
  }
  return std::move(table_);
}

}  // namespace gradwire
