#include "hooks/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/cpu/kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hooks/cpu/convert-inl.h"
#include "hooks/cpu/element-inl.h"
#include "hooks/cpu/sum-inl.h"
#include "hwy/highway.h"

#ifndef GRADWIRE_KERNELS_ONCE
#define GRADWIRE_KERNELS_ONCE
namespace gradwire::cpu {
// Whether all elements of `dtype` times 1 / divisor have the bits of those divided by `divisor`.
//
// It is so for powers of two from 1 up whose reciprocal is a normal number; and for bfloat16 and
// whole numbers: the quotient of one with 8 significant bits is either halfway between two
// neighbours or at least 2^15 / divisor of binary32's units in the last place away from there, and
// the product is within 1.5 such units of the quotient. Only subnormals can be halfway; there the
// product is off by less than half a unit before it is rounded, so that it is the quotient.
inline bool ReciprocalWillDo(DType dtype, double divisor) {
  int exponent = 0;
  if (std::frexp(divisor, &exponent) == 0.5 && exponent < 100) return true;
  return dtype == DType::kBFloat16 && divisor <= 2048 && std::floor(divisor) == divisor;
}
}  // namespace gradwire::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace gradwire::cpu {
namespace HWY_NAMESPACE {

// ---- Divide

template <DType kType, bool kMultiply, class D>
HWY_INLINE std::size_t DivideFrom(D d, std::size_t i, const std::byte* src, std::byte* dst,
                                  std::size_t numel, double divisor) {
  const std::size_t lanes = hn::Lanes(d);
  const auto by = Operand(d, kMultiply, divisor);
  for (; i + lanes <= numel; i += lanes) {
    const std::size_t at = i * sizeof(Lane<kType>);
    PrefetchAhead(d, src + at);
    StoreRounded<kType>(d, Quotient<kMultiply>(d, LoadAs<kType>(d, src + at), by), dst + at);
  }
  return i;
}

template <DType kType>
void DivideAs(const std::byte* src, std::byte* dst, std::size_t numel, double divisor) {
  using T = std::conditional_t<kType == DType::kFloat64, double, float>;
  const hn::ScalableTag<T> d;
  const std::size_t done = ReciprocalWillDo(kType, divisor)
                               ? DivideFrom<kType, true>(d, 0, src, dst, numel, divisor)
                               : DivideFrom<kType, false>(d, 0, src, dst, numel, divisor);
  // The remainder divides in either case: where the product is used, it has the same bits.
  DivideFrom<kType, false>(One<T>(), done, src, dst, numel, divisor);
}

void DivideAny(DType dtype, const std::byte* src, std::byte* dst, std::size_t numel,
               double divisor) {
  switch (dtype) {
    case DType::kFloat32:
      return DivideAs<DType::kFloat32>(src, dst, numel, divisor);
    case DType::kFloat64:
      return DivideAs<DType::kFloat64>(src, dst, numel, divisor);
    case DType::kFloat16:
      return DivideAs<DType::kFloat16>(src, dst, numel, divisor);
    case DType::kBFloat16:
      return DivideAs<DType::kBFloat16>(src, dst, numel, divisor);
  }
}

// The hot pairs of ConvertAndDivide in one pass: binary32 cast to 16 bits, then divided.
template <DType kTo, bool kMultiply, class D>
HWY_INLINE std::size_t NarrowAndDivideFrom(D d, std::size_t i, const std::byte* src, std::byte* dst,
                                           std::size_t numel, double divisor) {
  const std::size_t lanes = hn::Lanes(d);
  const auto by = Operand(d, kMultiply, divisor);
  for (; i + lanes <= numel; i += lanes) {
    const std::byte* at = src + i * sizeof(float);
    PrefetchAhead(d, at);
    const auto v = LoadBytes(d, at);
    StoreBytes(hn::Rebind<Lane<kTo>, D>(), RoundDivideRound<kTo, kMultiply>(d, v, by),
               dst + i * sizeof(Lane<kTo>));
  }
  return i;
}

template <DType kTo>
void NarrowAndDivide(const std::byte* src, std::byte* dst, std::size_t numel, double divisor) {
  const hn::ScalableTag<float> d;
  const std::size_t done = ReciprocalWillDo(kTo, divisor)
                               ? NarrowAndDivideFrom<kTo, true>(d, 0, src, dst, numel, divisor)
                               : NarrowAndDivideFrom<kTo, false>(d, 0, src, dst, numel, divisor);
  NarrowAndDivideFrom<kTo, false>(One<float>(), done, src, dst, numel, divisor);
}

void NarrowAndDivideAny(const std::byte* src, DType to, std::byte* dst, std::size_t numel,
                        double divisor) {
  if (to == DType::kFloat16) return NarrowAndDivide<DType::kFloat16>(src, dst, numel, divisor);
  return NarrowAndDivide<DType::kBFloat16>(src, dst, numel, divisor);
}

// ---- Sum

bool SumAny(DType dtype, const void* const* srcs, std::size_t count, double divisor, std::byte* dst,
            std::size_t begin, std::size_t end) {
  const SumArguments a{srcs, count, divisor, dst};
  switch (dtype) {
    case DType::kFloat32:
      return SumAs<DType::kFloat32>(a, begin, end);
    case DType::kFloat64:
      return SumAs<DType::kFloat64>(a, begin, end);
    case DType::kFloat16:
      return SumAs<DType::kFloat16>(a, begin, end);
    case DType::kBFloat16:
      return SumAs<DType::kBFloat16>(a, begin, end);
  }
  return false;
}

bool SumQuotientsAny(const void* const* srcs, std::size_t count, double divisor, std::byte* dst,
                     std::size_t begin, std::size_t end) {
  const SumArguments a{srcs, count, 1, dst, divisor};
  return ReciprocalWillDo(DType::kFloat32, divisor)
             ? SumAs<DType::kFloat32, Before::kMultiply>(a, begin, end)
             : SumAs<DType::kFloat32, Before::kDivide>(a, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::cpu {
namespace {

HWY_EXPORT(ConvertAny);
HWY_EXPORT(StreamAny);
HWY_EXPORT(DivideAny);
HWY_EXPORT(NarrowAndDivideAny);
HWY_EXPORT(SumAny);
HWY_EXPORT(SumQuotientsAny);

// Small enough for two passes over a block to meet in the first-level cache.
constexpr std::size_t kBlockNumel = 2048;

// Which operand's NaN survives an addition is up to the compiler and the processor. One NaN for all
// keeps results equal bit for bit everywhere.
template <class Bits>
void CanonicalizeNans(std::byte* data, std::size_t numel, Bits infinity, Bits quiet_nan) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  for (std::size_t i = 0; i < numel; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    if ((bits & kMagnitude) > infinity) {
      std::memcpy(data + i * sizeof(Bits), &quiet_nan, sizeof(Bits));
    }
  }
}

void CanonicalizeNans(DType dtype, std::byte* data, std::size_t numel) {
  switch (dtype) {
    case DType::kFloat32:
      return CanonicalizeNans<std::uint32_t>(data, numel, 0x7F800000U, 0x7FC00000U);
    case DType::kFloat64:
      return CanonicalizeNans<std::uint64_t>(data, numel, 0x7FF0000000000000U, 0x7FF8000000000000U);
    case DType::kFloat16:
      return CanonicalizeNans<std::uint16_t>(data, numel, 0x7C00U, 0x7E00U);
    case DType::kBFloat16:
      return CanonicalizeNans<std::uint16_t>(data, numel, 0x7F80U, 0x7FC0U);
  }
}

}  // namespace

void Convert(DType from, const void* src, DType to, void* dst, std::size_t numel) {
  if (numel == 0) return;
  HWY_DYNAMIC_DISPATCH(ConvertAny)
  (from, static_cast<const std::byte*>(src), to, static_cast<std::byte*>(dst), numel);
}

void ConvertStreaming(DType from, const void* src, DType to, void* dst, std::size_t numel) {
  if (numel == 0) return;
  HWY_DYNAMIC_DISPATCH(StreamAny)
  (from, static_cast<const std::byte*>(src), to, static_cast<std::byte*>(dst), numel);
}

void ConvertAndDivide(DType from, const void* src, DType to, void* dst, std::size_t numel,
                      double divisor) {
  if (numel == 0 || (divisor == 1 && src == dst)) return;
  if (divisor == 1) return Convert(from, src, to, dst, numel);
  const auto* in = static_cast<const std::byte*>(src);
  auto* out = static_cast<std::byte*>(dst);
  if (from == to) return HWY_DYNAMIC_DISPATCH(DivideAny)(to, in, out, numel, divisor);
  if (from == DType::kFloat32 && to != DType::kFloat64) {
    return HWY_DYNAMIC_DISPATCH(NarrowAndDivideAny)(in, to, out, numel, divisor);
  }
  const std::size_t from_bytes = ByteSize(from);
  const std::size_t to_bytes = ByteSize(to);
  // The rare pairs take two passes, a block at a time, so that the second reads the cache.
  for (std::size_t i = 0; i < numel; i += kBlockNumel) {
    const std::size_t block = std::min(kBlockNumel, numel - i);
    // The rounding to `to` comes before the division, as in the wire contract and in
    // RoundDivideRound.
    std::byte* at = out + i * to_bytes;
    HWY_DYNAMIC_DISPATCH(ConvertAny)(from, in + i * from_bytes, to, at, block);
    HWY_DYNAMIC_DISPATCH(DivideAny)(to, at, at, block, divisor);
  }
}

// The kernel only reports whether a result is not finite. NaNs are rare, so the block is searched
// for them afterwards, while it is in the cache.
bool Sum(DType dtype, const void* const* srcs, std::size_t count, double divisor, void* dst,
         std::size_t numel) {
  auto* out = static_cast<std::byte*>(dst);
  bool finite = true;
  for (std::size_t begin = 0; begin < numel; begin += kBlockNumel) {
    const std::size_t end = std::min(begin + kBlockNumel, numel);
    if (!HWY_DYNAMIC_DISPATCH(SumAny)(dtype, srcs, count, divisor, out, begin, end)) {
      finite = false;
      CanonicalizeNans(dtype, out + begin * ByteSize(dtype), end - begin);
    }
  }
  return finite;
}

bool SumQuotients(const void* const* srcs, std::size_t count, double divisor, void* dst,
                  std::size_t numel) {
  auto* out = static_cast<std::byte*>(dst);
  bool finite = true;
  for (std::size_t begin = 0; begin < numel; begin += kBlockNumel) {
    const std::size_t end = std::min(begin + kBlockNumel, numel);
    if (!HWY_DYNAMIC_DISPATCH(SumQuotientsAny)(srcs, count, divisor, out, begin, end)) {
      finite = false;
      CanonicalizeNans(DType::kFloat32, out + begin * sizeof(float), end - begin);
    }
  }
  return finite;
}

std::vector<Target> SupportedTargets() {
  std::vector<Target> targets;
  for (const std::int64_t id : hwy::SupportedAndGeneratedTargets()) {
    targets.push_back({id, hwy::TargetName(id)});
  }
  return targets;
}

void SetTargetForTesting(std::int64_t id) {
  // Highway caches its choice of a target at the first dispatch; Update repeats the choice.
  hwy::SetSupportedTargetsForTest(id);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace gradwire::cpu
#endif  // HWY_ONCE
