// One vector of elements: loading from and storing to the four dtypes, and the roundings between
// them. Compiled once per Highway target.
//
// Highway 1.0.3 truncates in DemoteTo(bfloat16_t) on every target and is wrong in
// DemoteTo(float16_t) below AVX2, so the roundings are integer arithmetic here, except where F16C
// does binary16 in one instruction. Its DemoteTo(float) from double saturates instead of giving
// infinity on the targets without vectors.

// Per-target include guard: this header is included anew for each target.
#if defined(GRADWIRE_HOOKS_CPU_ELEMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_HOOKS_CPU_ELEMENT_INL_H_
#undef GRADWIRE_HOOKS_CPU_ELEMENT_INL_H_
#else
#define GRADWIRE_HOOKS_CPU_ELEMENT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gradwire/hooks/dtype.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#undef GRADWIRE_F16C
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define GRADWIRE_F16C 1
#else
#define GRADWIRE_F16C 0
#endif

HWY_BEFORE_NAMESPACE();
namespace gradwire::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The loops take a descriptor of the arithmetic type and run over whole vectors; each is called
// once with full vectors and once, for the rest, with vectors of one lane.
template <class T>
using One = hn::CappedTag<T, 1>;

// Loads float or double as the fp64 of `d`.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadWide(D d, const T* from) {
  if constexpr (std::is_same_v<T, double>) {
    return hn::LoadU(d, from);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
  }
}

// What one element is in memory, and which bits of it are the exponent.
template <DType kType>
struct Storage;
template <>
struct Storage<DType::kFloat32> {
  using Lane = float;
  static constexpr std::uint32_t kExponent = 0x7F800000U;
};
template <>
struct Storage<DType::kFloat64> {
  using Lane = double;
  static constexpr std::uint64_t kExponent = 0x7FF0000000000000U;
};
template <>
struct Storage<DType::kFloat16> {
  using Lane = std::uint16_t;
  static constexpr std::uint16_t kExponent = 0x7C00U;
};
template <>
struct Storage<DType::kBFloat16> {
  using Lane = std::uint16_t;
  static constexpr std::uint16_t kExponent = 0x7F80U;
};
template <DType kType>
using Lane = typename Storage<kType>::Lane;

// `p` may be unaligned. With one lane, LoadU and StoreU dereference it.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const std::byte* p) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    hn::TFromD<D> lane;
    std::memcpy(&lane, p, sizeof(lane));
    return hn::Set(d, lane);
  } else {
    return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(p));
  }
}

template <class D>
HWY_INLINE void StoreBytes(D d, hn::Vec<D> v, std::byte* p) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    const hn::TFromD<D> lane = hn::GetLane(v);
    std::memcpy(p, &lane, sizeof(lane));
  } else {
    hn::StoreU(v, d, reinterpret_cast<hn::TFromD<D>*>(p));
  }
}

// Starts fetching what a loop over arrays reads some steps after the `bytes` at `p`. By itself the
// processor looks no further ahead than the end of the page, and arithmetic fills the window in
// which it runs ahead of a load that waits: without this, arrays beyond the cache are waited for.
HWY_INLINE void PrefetchAhead(const std::byte* p, std::size_t bytes, std::size_t distance) {
  constexpr std::size_t kCacheLine = 64;
  for (std::size_t i = 0; i < bytes; i += kCacheLine) {
    // An address past the array does no harm: prefetching does not fault.
    const std::uintptr_t ahead = reinterpret_cast<std::uintptr_t>(p) + distance + i;
    hwy::Prefetch(reinterpret_cast<const std::byte*>(ahead));  // NOLINT(performance-no-int-to-ptr)
  }
}

// The same in a loop that loads one vector of `d` in each step. Vectors of one lane are for the
// rest of an array.
template <class D>
HWY_INLINE void PrefetchAhead(D d, const std::byte* p) {
  constexpr std::size_t kDistance = 2048;  // 512 are too few, 4096 no better
  if constexpr (hn::MaxLanes(D()) > 1) {
    PrefetchAhead(p, hn::Lanes(d) * sizeof(hn::TFromD<D>), kDistance);
  }
}

// ---- 16 bits to binary32: exact.

template <class D>
HWY_INLINE hn::Vec<D> WidenFloat16(D d, hn::Vec<hn::Rebind<std::uint16_t, D>> bits16) {
#if GRADWIRE_F16C
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits16));
#else
  const hn::RebindToUnsigned<D> du;
  const auto half = hn::PromoteTo(du, bits16);
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000U)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7FFFU)));
  const auto exponent = hn::And(magnitude, hn::Set(du, 0x7C00U << 13));
  const auto rebias = hn::Set(du, 112U << 23);
  const auto normal = hn::Add(magnitude, rebias);
  // 2^-14 * 1.m minus 2^-14 leaves the subnormal 2^-14 * 0.m.
  const auto magic = hn::Set(du, 113U << 23);
  const auto subnormal =
      hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Add(magnitude, magic)), hn::BitCast(d, magic)));
  const auto infinite = hn::Add(normal, rebias);
  const auto quiet = hn::Or(infinite, hn::Set(du, 0x00400000U));
  const auto is_top = hn::Eq(exponent, hn::Set(du, 0x7C00U << 13));
  const auto is_infinite = hn::Eq(magnitude, hn::Set(du, 0x7C00U << 13));
  const auto is_subnormal = hn::Eq(exponent, hn::Zero(du));
  auto bits = hn::IfThenElse(is_subnormal, subnormal, normal);
  bits = hn::IfThenElse(is_top, quiet, bits);
  bits = hn::IfThenElse(is_infinite, infinite, bits);
  return hn::BitCast(d, hn::Or(bits, sign));
#endif
}

template <class D>
HWY_INLINE hn::Vec<D> WidenBFloat16(D d, hn::Vec<hn::Rebind<std::uint16_t, D>> bits16) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits16)));
}

// ---- binary32 to 16 bits: to nearest, ties to even; the NaN's upper payload bits stay.

// Lanes hold at most 0xFFFF.
template <class D, class V>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> Narrow(D /*d*/, V bits) {
  const hn::Rebind<std::int32_t, D> di;
  return hn::DemoteTo(hn::Rebind<std::uint16_t, D>(), hn::BitCast(di, bits));
}

template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> RoundToFloat16(D d, hn::Vec<D> v) {
#if GRADWIRE_F16C
  return hn::BitCast(hn::Rebind<std::uint16_t, D>(),
                     hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
#else
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto all = hn::BitCast(du, v);
  const auto magnitude = hn::And(all, hn::Set(du, 0x7FFFFFFFU));
  const auto sign = hn::ShiftRight<16>(hn::Xor(all, magnitude));
  const auto is_odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  // Adds just under half a unit, or half for an odd value, and moves the exponent's bias.
  const auto rebias_and_round = hn::Set(du, 0xFFFU - (112U << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(is_odd, rebias_and_round)));
  // One unit in the last place of 0.5 is 2^-24, binary16's smallest subnormal.
  const auto half = hn::Set(d, 0.5F);
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(du, half));
  const auto infinity = hn::Set(du, 0x7C00U);
  const auto quiet_nan =
      hn::Or(hn::Set(du, 0x7E00U), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FFU)));
  // Magnitudes have a clear sign bit, so the signed comparison, which every target has, will do.
  const auto order = hn::BitCast(di, magnitude);
  const auto is_nan = hn::Gt(order, hn::Set(di, 0x7F800000));
  const auto is_over = hn::Gt(order, hn::Set(di, 0x477FEFFF));   // 65520 and up
  const auto is_under = hn::Lt(order, hn::Set(di, 0x38800000));  // below 2^-14
  auto bits = hn::IfThenElse(hn::RebindMask(du, is_under), subnormal, normal);
  bits = hn::IfThenElse(hn::RebindMask(du, is_over), infinity, bits);
  bits = hn::IfThenElse(hn::RebindMask(du, is_nan), quiet_nan, bits);
  return Narrow(d, hn::Or(bits, sign));
#endif
}

// The upper 16 bits of each lane are the bfloat16, the lower ones are left over; a NaN may carry
// over into anything.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundUpperHalfUnlessNan(D /*d*/, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto all = hn::BitCast(du, v);
  const auto is_odd = hn::And(hn::ShiftRight<16>(all), hn::Set(du, 1U));
  return hn::Add(all, hn::Add(is_odd, hn::Set(du, 0x7FFFU)));
}

// `bits`, or `v` made quiet where `v` is NaN.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> KeepNan(D /*d*/, hn::Vec<D> v,
                                                    hn::Vec<hn::RebindToUnsigned<D>> bits) {
  const hn::RebindToUnsigned<D> du;
  const auto quiet_nan = hn::Or(hn::BitCast(du, v), hn::Set(du, 0x00400000U));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet_nan, bits);
}

template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> RoundToBFloat16(D d, hn::Vec<D> v) {
  return Narrow(d, hn::ShiftRight<16>(KeepNan(d, v, RoundUpperHalfUnlessNan(d, v))));
}

// ---- binary64 to binary32.

template <class D64>
HWY_INLINE hn::Vec<hn::Rebind<float, D64>> RoundToFloat32(D64 d, hn::Vec<D64> v) {
  const hn::Rebind<float, D64> df;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  alignas(16) double wide[hn::MaxLanes(d)];
  alignas(16) float narrow[hn::MaxLanes(d)];
  hn::Store(v, d, wide);
  for (std::size_t i = 0; i < hn::MaxLanes(d); ++i) narrow[i] = static_cast<float>(wide[i]);
  return hn::Load(df, narrow);
#else
  (void)d;
  return hn::DemoteTo(df, v);
#endif
}

// ---- binary64 to 16 bits goes through binary32 without rounding twice.

// A binary32 that any narrower rounding treats as it would treat `v`: 24 significant bits with the
// lost ones or-ed into the last ("round to odd"). Values whose 16-bit result may be subnormal are
// brought to multiples of 2^-133, bfloat16's smallest, by a single rounding instead; they lie so
// far below binary16's smallest that it rounds them to zero all the same.
template <class D64>
HWY_INLINE hn::Vec<hn::Rebind<float, D64>> ToStickyFloat32(D64 d, hn::Vec<D64> v) {
  const hn::RebindToUnsigned<D64> du;
  const auto all = hn::BitCast(du, v);
  const auto lost = hn::Set(du, std::uint64_t{0x1FFFFFFF});
  const auto carry = hn::Add(hn::And(all, lost), lost);  // bit 29 set if any lost bit is
  const auto sticky = hn::And(carry, hn::Set(du, std::uint64_t{0x20000000}));
  const auto odd = hn::BitCast(d, hn::AndNot(lost, hn::Or(all, sticky)));
  const auto magnitude = hn::Abs(v);
  const auto magic = hn::Set(d, 0x1p-81);  // its unit in the last place is 2^-133
  const auto tiny = hn::CopySign(hn::Sub(hn::Add(magnitude, magic), magic), v);
  const auto is_tiny = hn::Lt(magnitude, hn::Set(d, 0x1p-126));
  return RoundToFloat32(d, hn::IfThenElse(is_tiny, tiny, odd));
}

// ---- Any dtype as vectors of the arithmetic type, float or double.

template <DType kType, class D>
HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<hn::Rebind<Lane<kType>, D>> v) {
  if constexpr (sizeof(Lane<kType>) == sizeof(hn::TFromD<D>)) {
    return v;
  } else if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::PromoteTo(d, Widen<kType>(hn::Rebind<float, D>(), v));
  } else if constexpr (kType == DType::kFloat16) {
    return WidenFloat16(d, v);
  } else {
    return WidenBFloat16(d, v);
  }
}

template <DType kType, class D>
HWY_INLINE hn::Vec<D> LoadAs(D d, const std::byte* p) {
  return Widen<kType>(d, LoadBytes(hn::Rebind<Lane<kType>, D>(), p));
}

// `v` rounded once to the dtype, as it is stored.
template <DType kType, class D>
HWY_INLINE hn::Vec<hn::Rebind<Lane<kType>, D>> Round(D d, hn::Vec<D> v) {
  constexpr bool kWide = sizeof(hn::TFromD<D>) == 8;
  if constexpr (sizeof(Lane<kType>) == sizeof(hn::TFromD<D>)) {
    return v;
  } else if constexpr (kType == DType::kFloat32) {
    return RoundToFloat32(d, v);
  } else if constexpr (kWide) {
    return Round<kType>(hn::Rebind<float, D>(), ToStickyFloat32(d, v));
  } else if constexpr (kType == DType::kFloat16) {
    return RoundToFloat16(d, v);
  } else {
    return RoundToBFloat16(d, v);
  }
}

// What to multiply or divide by.
template <class D>
HWY_INLINE hn::Vec<D> Operand(D d, bool multiply, double divisor) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(multiply ? 1 / divisor : divisor));
}

// v / by, or v * by with the divisor's reciprocal where that will do, which is several times
// faster.
template <bool kMultiply, class D>
HWY_INLINE hn::Vec<D> Quotient(D /*d*/, hn::Vec<D> v, hn::Vec<D> by) {
  if constexpr (kMultiply) {
    return hn::Mul(v, by);
  } else {
    return hn::Div(v, by);
  }
}

// binary32 rounded to a 16-bit dtype, then divided, and rounded to it again.
template <DType kType, bool kMultiply, class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> RoundDivideRound(D d, hn::Vec<D> v,
                                                                  hn::Vec<D> divisor) {
  if constexpr (kType == DType::kFloat16) {
    const auto cast = WidenFloat16(d, RoundToFloat16(d, v));
    return RoundToFloat16(d, Quotient<kMultiply>(d, cast, divisor));
  } else {
    const hn::RebindToUnsigned<D> du;
    const auto upper = hn::AndNot(hn::Set(du, 0xFFFFU), RoundUpperHalfUnlessNan(d, v));
    const auto quotient = Quotient<kMultiply>(d, hn::BitCast(d, upper), divisor);
    const auto rounded = RoundUpperHalfUnlessNan(d, quotient);
    return Narrow(d, hn::ShiftRight<16>(KeepNan(d, v, rounded)));
  }
}

template <DType kType, class D>
HWY_INLINE void StoreRounded(D d, hn::Vec<D> v, std::byte* p) {
  StoreBytes(hn::Rebind<Lane<kType>, D>(), Round<kType>(d, v), p);
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
