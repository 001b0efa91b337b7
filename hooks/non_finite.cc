#include "hooks/non_finite.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "hooks/cpu/kernels.h"

namespace gradwire {
namespace {

constexpr std::size_t kBlockNumel = 512;
constexpr std::size_t kWidest = 8;  // bytes of an element
using Block = std::array<std::byte, kBlockNumel * kWidest>;

// Where contribution `index` is, or would be.
NonFiniteSources::iterator PlaceOf(std::size_t index, NonFiniteSources& sources) {
  return std::lower_bound(
      sources.begin(), sources.end(), index,
      [](const NonFinite& one, std::size_t wanted) { return one.contribution < wanted; });
}

}  // namespace

// Not a kernel: steps with such values are rare, and then only their blocks are read.
void NoteNonFinite(std::size_t index, std::size_t begin, DType dtype, const void* values,
                   std::size_t numel, NonFiniteSources& sources) {
  std::array<double, kBlockNumel> wide;
  const auto* const bytes = static_cast<const std::byte*>(values);
  NonFinite found{.contribution = index};
  for (std::size_t done = 0; done < numel; done += kBlockNumel) {
    const std::size_t block = std::min(kBlockNumel, numel - done);
    cpu::Convert(dtype, bytes + done * ByteSize(dtype), DType::kFloat64, wide.data(), block);
    for (std::size_t i = 0; i < block; ++i) {
      if (std::isfinite(wide[i])) continue;
      if (found.nans + found.infinities == 0) found.element = begin + done + i;
      ++(std::isnan(wide[i]) ? found.nans : found.infinities);
    }
  }
  if (found.nans + found.infinities == 0) return;
  const auto place = PlaceOf(index, sources);
  if (place == sources.end() || place->contribution != index) {
    sources.insert(place, found);
  } else {
    place->nans += found.nans;
    place->infinities += found.infinities;
  }
}

NonFiniteSources FindNonFinite(DType dtype, std::size_t numel,
                               std::span<const Pieces> contributions, const RawContributions& raw) {
  NonFiniteSources sources;
  alignas(kWidest) Block values;
  alignas(kWidest) Block cast;
  for (std::size_t index = 0; index < contributions.size(); ++index) {
    Cursor cursor{contributions[index]};
    cursor.SkipEmptyPieces();
    const bool is_raw = raw.raw(index);
    const DType sent = is_raw ? raw.dtype : dtype;
    for (std::size_t done = 0; done < numel; done += kBlockNumel) {
      const std::size_t block = std::min(kBlockNumel, numel - done);
      cursor.Gather(block * ByteSize(sent), values.data());
      if (is_raw) {
        cpu::ConvertAndDivide(sent, values.data(), dtype, cast.data(), block, raw.divisor);
      }
      NoteNonFinite(index, done, dtype, is_raw ? cast.data() : values.data(), block, sources);
    }
  }
  return sources;
}

}  // namespace gradwire
