// The factors of low-rank matrices as immutable blocks, which are shared by pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "hooks/coordinator_hook.h"
#include "hooks/power_sgd/layout.h"

namespace gradwire {

// The precision in which members compute: float64 for float64 gradients, else float32.
DType FactorDType(DType gradient);

// Contiguous float32 or float64 values. Immutable and thread-safe once it is shared.
class FactorArray {
 public:
  using Fill = std::function<void(std::span<std::byte>)>;

  // The caller writes the values before it shares the array.
  FactorArray(DType dtype, std::size_t numel);
  // The first Get computes the values. It calls `fill` once and then destroys it, with everything
  // that it has captured.
  FactorArray(DType dtype, std::size_t numel, Fill fill);

  DType dtype() const { return dtype_; }
  std::size_t numel() const { return numel_; }
  std::span<const std::byte> Get() const;
  std::span<std::byte> bytes_to_write();

 private:
  const DType dtype_;
  const std::size_t numel_;
  mutable std::once_flag computed_;
  mutable Fill fill_;
  mutable std::unique_ptr<std::byte[]> bytes_;
};

// The matrices of a block and their offsets in it. Thread-safe.
class FactorLayout {
 public:
  // The layout that MakeLayout gives the manifest's parameters at `positions`.
  FactorLayout(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest,
               std::span<const std::uint32_t> positions);
  FactorLayout(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest,
               std::span<const std::uint32_t> positions, const BucketLayout& layout);

  // `parameter` is a position in the manifest; batched: the bucket's first.
  const std::vector<LowRankMatrix>& matrices() const { return matrices_; }
  // The positions that own the block: those of the matrices; batched: the bucket's.
  const std::vector<std::uint32_t>& owners() const { return owners_; }
  bool batched() const { return batched_; }
  DType dtype() const { return dtype_; }  // that holds all of the block's numbers exactly
  std::size_t q_numel() const { return q_numel_; }
  std::size_t p_numel() const { return p_numel_; }

  // The matrix of a parameter that has one here.
  const LowRankMatrix& MatrixOf(std::uint32_t parameter) const;

 private:
  std::vector<LowRankMatrix> matrices_;
  std::vector<std::uint32_t> owners_;
  bool batched_ = false;
  DType dtype_ = DType::kFloat32;
  std::size_t q_numel_ = 0;
  std::size_t p_numel_ = 0;
  mutable std::once_flag sorted_;
  mutable std::vector<std::pair<std::uint32_t, std::uint32_t>> by_parameter_;
};

// One side (P or Q) of a layout's factors, in an array. The array is null if there is no such side.
struct FactorSide {
  std::shared_ptr<const FactorArray> array{};
  std::size_t offset = 0;  // elements
};

struct FactorBlock {
  std::shared_ptr<const FactorLayout> layout;
  FactorSide q{};
  FactorSide p{};                   // with one round per step only
  std::int64_t version = 0;         // the iteration that averaged them; 0: drawn
  std::uint64_t state_version = 0;  // batched: the version that members have copies of
};
using FactorBlockRef = std::shared_ptr<const FactorBlock>;

// Writes one factor of `parameter`, which has a matrix in the block, as `dtype`.
void CopyFactor(const FactorBlock& from, std::uint32_t parameter, Side side, DType dtype,
                std::byte* out);

// All blocks at one moment. A parameter's current factors are in the block that owns it; other
// blocks may still hold outdated factors of the same parameter.
struct FactorTable {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Slot {
    FactorBlockRef block{};       // null: the slot is free
    std::size_t owned = 0;        // parameters that it owns
    std::size_t owned_numel = 0;  // elements of their factors
  };

  std::vector<Slot> slots{};
  // The owner's slot by position in the manifest, or kNone. Null: no block owns anything.
  std::shared_ptr<const std::vector<std::uint32_t>> owner{};

  // The slot that owns the parameter, or null.
  const Slot* SlotOf(std::uint32_t parameter) const;
  // The block with exactly this layout that owns all its parameters, or null. Takes constant time
  // if the block's layout is the same object.
  const FactorBlock* Matching(const FactorLayout& layout) const;
};
using FactorTableRef = std::shared_ptr<const FactorTable>;

// One side of `layout`. The first Get copies each parameter's factor from the block that `from`
// returns.
using BlockOfParameter = std::function<const FactorBlock&(std::uint32_t parameter)>;
std::shared_ptr<const FactorArray> Gather(BlockOfParameter from,
                                          std::shared_ptr<const FactorLayout> layout, Side side);

// Makes a new table from an old one. Takes time in proportion to the number of blocks, and to the
// parameters of new blocks whose list of parameters no old block has.
class FactorTableEdit {
 public:
  // `from` may be null, which stands for an empty table. `parameters` is the manifest's size.
  FactorTableEdit(FactorTableRef from, std::size_t parameters);

  // The block becomes the owner of all its parameters. A batched block that loses one loses all.
  void Put(FactorBlockRef block);

  // Call it once. A block that owns less than half of its parameters or elements is replaced by a
  // block of those that it owns. The new blocks' arrays are appended to `pending`: each keeps the
  // old block's memory until its first Get.
  FactorTableRef Finish(const PowerSgdOptions& options, std::span<const ParameterSpec> manifest,
                        std::vector<std::shared_ptr<const FactorArray>>& pending);

 private:
  void Release(std::uint32_t parameter, std::size_t numel);
  std::uint32_t FreeSlot();
  std::vector<std::uint32_t>& Owner();

  const FactorTableRef from_;
  const std::size_t parameters_;
  std::shared_ptr<FactorTable> table_;
  std::shared_ptr<std::vector<std::uint32_t>> owner_;  // null: unchanged so far
  std::vector<std::uint32_t> diminished_;              // slots
  std::vector<std::uint32_t> free_;
};

}  // namespace gradwire
