// Casts and copies of arrays. Compiled once per Highway target.

// Per-target include guard: this header is included anew for each target.
#if defined(GRADWIRE_HOOKS_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_HOOKS_CPU_CONVERT_INL_H_
#undef GRADWIRE_HOOKS_CPU_CONVERT_INL_H_
#else
#define GRADWIRE_HOOKS_CPU_CONVERT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gradwire/hooks/dtype.h"
#include "hooks/cpu/element-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::cpu {
namespace HWY_NAMESPACE {

// kCached: as usual. kStreaming: past the caches, which saves reading what is overwritten; `at` is
// aligned to a vector then, and FlushStream follows.
enum class Stores { kCached, kStreaming };

template <Stores kStores, class D>
HWY_INLINE void StoreVector(D d, hn::Vec<D> v, hn::TFromD<D>* at) {
  if constexpr (kStores == Stores::kStreaming) {
    hn::Stream(v, d, at);
  } else {
    hn::StoreU(v, d, at);
  }
}

// How far `dst` is from the next cache line.
inline std::size_t ToNextLine(const std::byte* dst) {
  constexpr std::uintptr_t kLine = 64;
  return (kLine - reinterpret_cast<std::uintptr_t>(dst) % kLine) % kLine;
}

// ---- Copy

// memcpy with vectors. From 2 KiB on the C library uses `rep movsb`, which on AMD's Zen 3 takes 10
// to 20 times as long where the low 12 bits of `dst` are 1 to 31 above those of `src`: so they are
// when one buffer begins a page and the other one is malloc's.
template <Stores kStores>
void Copy(const std::byte* src, std::byte* dst, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto* from = reinterpret_cast<const std::uint8_t*>(src);
  auto* to = reinterpret_cast<std::uint8_t*>(dst);
  std::size_t i = bytes < 128 ? bytes : ToNextLine(dst);
  std::memcpy(to, from, i);
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    const auto v0 = hn::LoadU(d, from + i);
    const auto v1 = hn::LoadU(d, from + i + lanes);
    const auto v2 = hn::LoadU(d, from + i + 2 * lanes);
    const auto v3 = hn::LoadU(d, from + i + 3 * lanes);
    StoreVector<kStores>(d, v0, to + i);
    StoreVector<kStores>(d, v1, to + i + lanes);
    StoreVector<kStores>(d, v2, to + i + 2 * lanes);
    StoreVector<kStores>(d, v3, to + i + 3 * lanes);
  }
  std::memcpy(to + i, from + i, bytes - i);
}

// ---- Convert

template <DType kFrom, DType kTo, class D>
HWY_INLINE std::size_t ConvertFrom(D d, std::size_t i, const std::byte* src, std::byte* dst,
                                   std::size_t numel) {
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= numel; i += lanes) {
    const std::byte* at = src + i * sizeof(Lane<kFrom>);
    PrefetchAhead(d, at);
    const auto v = LoadAs<kFrom>(d, at);
    StoreRounded<kTo>(d, v, dst + i * sizeof(Lane<kTo>));
  }
  return i;
}

template <DType kFrom, DType kTo>
void ConvertPair(const std::byte* src, std::byte* dst, std::size_t numel) {
  if constexpr (kFrom == kTo) {
    Copy<Stores::kCached>(src, dst, numel * sizeof(Lane<kTo>));
  } else {
    constexpr bool kWide = kFrom == DType::kFloat64 || kTo == DType::kFloat64;
    using T = std::conditional_t<kWide, double, float>;
    const std::size_t done = ConvertFrom<kFrom, kTo>(hn::ScalableTag<T>(), 0, src, dst, numel);
    ConvertFrom<kFrom, kTo>(One<T>(), done, src, dst, numel);
  }
}

template <DType kFrom>
void ConvertTo(DType to, const std::byte* src, std::byte* dst, std::size_t numel) {
  switch (to) {
    case DType::kFloat32:
      return ConvertPair<kFrom, DType::kFloat32>(src, dst, numel);
    case DType::kFloat64:
      return ConvertPair<kFrom, DType::kFloat64>(src, dst, numel);
    case DType::kFloat16:
      return ConvertPair<kFrom, DType::kFloat16>(src, dst, numel);
    case DType::kBFloat16:
      return ConvertPair<kFrom, DType::kBFloat16>(src, dst, numel);
  }
}

void ConvertAny(DType from, const std::byte* src, DType to, std::byte* dst, std::size_t numel) {
  switch (from) {
    case DType::kFloat32:
      return ConvertTo<DType::kFloat32>(to, src, dst, numel);
    case DType::kFloat64:
      return ConvertTo<DType::kFloat64>(to, src, dst, numel);
    case DType::kFloat16:
      return ConvertTo<DType::kFloat16>(to, src, dst, numel);
    case DType::kBFloat16:
      return ConvertTo<DType::kBFloat16>(to, src, dst, numel);
  }
}

// ---- Past the caches

// 16 bits to binary32. `dst` is aligned to a binary32.
template <DType kFrom>
void StreamWidened(const std::byte* src, std::byte* dst, std::size_t numel) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const One<float> one;
  std::size_t i = std::min(numel, ToNextLine(dst) / sizeof(float));
  ConvertFrom<kFrom, DType::kFloat32>(one, 0, src, dst, i);
  auto* to = reinterpret_cast<float*>(dst);
  for (; i + lanes <= numel; i += lanes) {
    const std::byte* at = src + i * sizeof(Lane<kFrom>);
    PrefetchAhead(d, at);
    StoreVector<Stores::kStreaming>(d, LoadAs<kFrom>(d, at), to + i);
  }
  ConvertFrom<kFrom, DType::kFloat32>(one, i, src, dst, numel);
}

void StreamAny(DType from, const std::byte* src, DType to, std::byte* dst, std::size_t numel) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(dst) % sizeof(float) == 0;
  if (from == to) {
    Copy<Stores::kStreaming>(src, dst, numel * ByteSize(to));
  } else if (aligned && to == DType::kFloat32 && from == DType::kFloat16) {
    StreamWidened<DType::kFloat16>(src, dst, numel);
  } else if (aligned && to == DType::kFloat32 && from == DType::kBFloat16) {
    StreamWidened<DType::kBFloat16>(src, dst, numel);
  } else {
    return ConvertAny(from, src, to, dst, numel);
  }
  // Non-temporal stores are weakly ordered; the fence makes them visible before whatever tells
  // another thread that the result is there.
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
