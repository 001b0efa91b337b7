// The sums' loops. Compiled once per Highway target.

// Per-target include guard: this header is included anew for each target.
#if defined(GRADWIRE_HOOKS_CPU_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_HOOKS_CPU_SUM_INL_H_
#undef GRADWIRE_HOOKS_CPU_SUM_INL_H_
#else
#define GRADWIRE_HOOKS_CPU_SUM_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gradwire/hooks/dtype.h"
#include "hooks/cpu/element-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::cpu {
namespace HWY_NAMESPACE {

struct SumArguments {
  const void* const* srcs;
  std::size_t count;
  double divisor;
  std::byte* dst;
  double source_divisor = 1;
};

// What is done to an element before it is added.
enum class Before { kNothing, kMultiply, kDivide };

template <DType kType>
HWY_INLINE const std::byte* SourceAt(const SumArguments& a, std::size_t source, std::size_t i) {
  return static_cast<const std::byte*>(a.srcs[source]) + i * sizeof(Lane<kType>);
}

// One vector of elements as they are stored, or of their quotients, rounded to binary32.
template <Before kBefore, class DStored>
HWY_INLINE hn::Vec<DStored> LoadStored(DStored ds, const SumArguments& a, const std::byte* p) {
  const auto v = LoadBytes(ds, p);
  if constexpr (kBefore == Before::kNothing) {
    return v;
  } else {
    constexpr bool kMultiply = kBefore == Before::kMultiply;
    return Quotient<kMultiply>(ds, v, Operand(ds, kMultiply, a.source_divisor));
  }
}

// Stores; returns `bad` with all bits set in the lanes that are not finite.
template <DType kType, class DStored, class VBits>
HWY_INLINE VBits StoreResult(DStored ds, const SumArguments& a, hn::Vec<DStored> v, std::size_t i,
                             VBits bad) {
  const hn::RebindToUnsigned<DStored> du;
  StoreBytes(ds, v, a.dst + i * sizeof(Lane<kType>));
  const auto exponent = hn::Set(du, Storage<kType>::kExponent);
  const auto is_bad = hn::Eq(hn::And(hn::BitCast(du, v), exponent), exponent);
  return hn::Or(bad, hn::VecFromMask(du, is_bad));
}

// One vector of the arithmetic type at a time. Returns whether all results in [begin, end) are
// finite.
template <DType kType, Before kBefore, class D>
HWY_INLINE bool SumSingles(D d, SumArguments a, std::size_t begin, std::size_t end) {
  const hn::Rebind<Lane<kType>, D> ds;
  const hn::RebindToUnsigned<decltype(ds)> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto divisor = Operand(d, false, a.divisor);
  auto bad = hn::Zero(du);
  for (std::size_t i = begin; i + lanes <= end; i += lanes) {
    auto sum = Widen<kType>(d, LoadStored<kBefore>(ds, a, SourceAt<kType>(a, 0, i)));
    for (std::size_t k = 1; k < a.count; ++k) {
      const auto v = LoadStored<kBefore>(ds, a, SourceAt<kType>(a, k, i));
      sum = hn::Add(sum, Widen<kType>(d, v));
    }
    if (a.divisor != 1) sum = hn::Div(sum, divisor);
    bad = StoreResult<kType>(ds, a, Round<kType>(d, sum), i, bad);
  }
  return hn::AllTrue(du, hn::Eq(bad, hn::Zero(du)));
}

#if HWY_TARGET != HWY_SCALAR  // which has no vectors of two lanes

// ---- Two vectors of the arithmetic type at a time, `lower` and `upper`. They fill one vector as
// it is stored, or two if it is as wide. bfloat16 is not split in the middle: `lower` has every
// other element from the first on, the lower halves of binary32 lanes, and `upper` those between.
// So no lane moves.

template <DType kType, class D>
using Whole = hn::Repartition<Lane<kType>, D>;

// Whether the sum is taken in the type in which it is stored.
template <DType kType, class D>
constexpr bool kSameWidth = sizeof(Lane<kType>) == sizeof(hn::TFromD<D>);

template <DType kType, Before kBefore, class D>
HWY_INLINE void LoadPair(D d, const SumArguments& a, const std::byte* p, hn::Vec<D>& lower,
                         hn::Vec<D>& upper) {
  const Whole<kType, D> dw;
  if constexpr (kType == DType::kBFloat16) {
    const hn::RebindToUnsigned<D> du;
    const auto both = hn::BitCast(du, LoadBytes(dw, p));
    lower = hn::BitCast(d, hn::ShiftLeft<16>(both));
    upper = hn::BitCast(d, hn::And(both, hn::Set(du, 0xFFFF0000U)));
  } else if constexpr (kBefore != Before::kNothing && !kSameWidth<kType, D>) {
    const auto both = LoadStored<kBefore>(dw, a, p);
    const hn::Half<decltype(dw)> dh;
    lower = Widen<kType>(d, hn::LowerHalf(dh, both));
    upper = Widen<kType>(d, hn::UpperHalf(dh, both));
  } else {
    const hn::Rebind<Lane<kType>, D> ds;
    const std::size_t bytes = hn::Lanes(ds) * sizeof(Lane<kType>);
    lower = Widen<kType>(d, LoadStored<kBefore>(ds, a, p));
    upper = Widen<kType>(d, LoadStored<kBefore>(ds, a, p + bytes));
  }
}

template <DType kType, class D, class VBits>
HWY_INLINE VBits StorePair(D d, const SumArguments& a, hn::Vec<D> lower, hn::Vec<D> upper,
                           std::size_t i, VBits bad) {
  const Whole<kType, D> dw;
  if constexpr (kSameWidth<kType, D>) {
    bad = StoreResult<kType>(dw, a, lower, i, bad);
    return StoreResult<kType>(dw, a, upper, i + hn::Lanes(d), bad);
  } else if constexpr (kType == DType::kBFloat16) {
    // A sum that is NaN has the upper half of a source's NaN or of the processor's own, and nothing
    // below: the rounding leaves it NaN.
    const auto low = hn::ShiftRight<16>(RoundUpperHalfUnlessNan(d, lower));
    const auto high = RoundUpperHalfUnlessNan(d, upper);
    const auto both = hn::OddEven(hn::BitCast(dw, high), hn::BitCast(dw, low));
    return StoreResult<kType>(dw, a, both, i, bad);
  } else {
    const auto both = hn::Combine(dw, Round<kType>(d, upper), Round<kType>(d, lower));
    return StoreResult<kType>(dw, a, both, i, bad);
  }
}

// Two pairs in each step hide the latency of the chain of additions.
template <DType kType, Before kBefore, class D>
HWY_INLINE bool SumPairs(D d, SumArguments a, std::size_t begin, std::size_t end) {
  using V = hn::Vec<D>;
  const hn::RebindToUnsigned<Whole<kType, D>> du;
  const std::size_t pair = 2 * hn::Lanes(d);
  const std::size_t pair_bytes = pair * sizeof(Lane<kType>);
  const auto divisor = Operand(d, false, a.divisor);
  // Of all sources together: with 2 KiB of each of eight, which often lie at the same place of
  // their pages, the first-level cache drops lines before they are used.
  const std::size_t ahead = std::min<std::size_t>(4096 / a.count, 2048);
  auto bad = hn::Zero(du);
  for (std::size_t i = begin; i + 2 * pair <= end; i += 2 * pair) {
    const std::byte* p = SourceAt<kType>(a, 0, i);
    PrefetchAhead(p, 2 * pair_bytes, ahead);
    V lower0, upper0, lower1, upper1;
    LoadPair<kType, kBefore>(d, a, p, lower0, upper0);
    LoadPair<kType, kBefore>(d, a, p + pair_bytes, lower1, upper1);
    for (std::size_t k = 1; k < a.count; ++k) {
      p = SourceAt<kType>(a, k, i);
      PrefetchAhead(p, 2 * pair_bytes, ahead);
      V v0, v1, v2, v3;
      LoadPair<kType, kBefore>(d, a, p, v0, v1);
      LoadPair<kType, kBefore>(d, a, p + pair_bytes, v2, v3);
      lower0 = hn::Add(lower0, v0);
      upper0 = hn::Add(upper0, v1);
      lower1 = hn::Add(lower1, v2);
      upper1 = hn::Add(upper1, v3);
    }
    if (a.divisor != 1) {
      lower0 = hn::Div(lower0, divisor);
      upper0 = hn::Div(upper0, divisor);
      lower1 = hn::Div(lower1, divisor);
      upper1 = hn::Div(upper1, divisor);
    }
    bad = StorePair<kType>(d, a, lower0, upper0, i, bad);
    bad = StorePair<kType>(d, a, lower1, upper1, i + pair, bad);
  }
  return hn::AllTrue(du, hn::Eq(bad, hn::Zero(du)));
}

#endif  // HWY_TARGET != HWY_SCALAR

template <DType kType, Before kBefore = Before::kNothing>
bool SumAs(const SumArguments& a, std::size_t begin, std::size_t end) {
  constexpr bool kWide = kType == DType::kFloat32 || kType == DType::kFloat64;
  using T = std::conditional_t<kWide, double, float>;
  const hn::ScalableTag<T> d;
  const auto whole = [begin, end](std::size_t step) { return begin + (end - begin) / step * step; };
  bool finite = true;
  std::size_t done = begin;
#if HWY_TARGET != HWY_SCALAR
  done = whole(4 * hn::Lanes(d));
  finite = SumPairs<kType, kBefore>(d, a, begin, done);
#endif
  const std::size_t rest = whole(hn::Lanes(d));
  finite = SumSingles<kType, kBefore>(d, a, done, rest) && finite;
  return SumSingles<kType, kBefore>(One<T>(), a, rest, end) && finite;
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
