#include "hooks/non_finite.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

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

void NoteOne(std::size_t index, std::size_t element, bool is_nan, NonFiniteSources& sources) {
  auto place = PlaceOf(index, sources);
  if (place == sources.end() || place->contribution != index) {
    place = sources.insert(place, {.contribution = index, .element = element});
  }
  ++(is_nan ? place->nans : place->infinities);
}

// Copies bytes out of pieces; an element may straddle them.
class Reader {
 public:
  explicit Reader(std::span<const std::span<const std::byte>> pieces) : pieces_(pieces) {}

  void Read(std::size_t bytes, std::byte* out) {
    while (bytes > 0 && piece_ < pieces_.size()) {
      const std::span<const std::byte> rest = pieces_[piece_].subspan(offset_);
      const std::size_t part = std::min(bytes, rest.size());
      if (part > 0) std::memcpy(out, rest.data(), part);
      out += part;
      bytes -= part;
      offset_ += part;
      if (part == rest.size()) {
        ++piece_;
        offset_ = 0;
      }
    }
  }

 private:
  std::span<const std::span<const std::byte>> pieces_;
  std::size_t piece_ = 0;
  std::size_t offset_ = 0;
};

}  // namespace

// Not a kernel: steps with such values are rare, and then only their blocks are read.
void NoteNonFinite(std::size_t index, std::size_t begin, DType dtype, const void* values,
                   std::size_t numel, NonFiniteSources& sources) {
  std::array<double, kBlockNumel> wide;
  const auto* const bytes = static_cast<const std::byte*>(values);
  for (std::size_t done = 0; done < numel; done += kBlockNumel) {
    const std::size_t block = std::min(kBlockNumel, numel - done);
    cpu::Convert(dtype, bytes + done * ByteSize(dtype), DType::kFloat64, wide.data(), block);
    for (std::size_t i = 0; i < block; ++i) {
      if (std::isfinite(wide[i])) continue;
      NoteOne(index, begin + done + i, std::isnan(wide[i]), sources);
    }
  }
}

NonFiniteSources FindNonFinite(
    DType dtype, std::size_t numel,
    std::span<const std::span<const std::span<const std::byte>>> contributions,
    const RawContributions& raw) {
  NonFiniteSources sources;
  alignas(kWidest) Block values;
  alignas(kWidest) Block cast;
  for (std::size_t index = 0; index < contributions.size(); ++index) {
    Reader reader(contributions[index]);
    const bool is_raw = raw.raw(index);
    const DType sent = is_raw ? raw.dtype : dtype;
    for (std::size_t done = 0; done < numel; done += kBlockNumel) {
      const std::size_t block = std::min(kBlockNumel, numel - done);
      reader.Read(block * ByteSize(sent), values.data());
      if (is_raw) {
        cpu::ConvertAndDivide(sent, values.data(), dtype, cast.data(), block, raw.divisor);
      }
      NoteNonFinite(index, done, dtype, is_raw ? cast.data() : values.data(), block, sources);
    }
  }
  return sources;
}

}  // namespace gradwire
