// Add and SumOfSquares of low_rank.h.
#include <cstddef>
#include <type_traits>

#include "hooks/cpu/low_rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hooks/cpu/element-inl.h"
#include "hwy/highway.h"

#ifndef GRADWIRE_HOOKS_CPU_ELEMENTWISE_LOOPS
#define GRADWIRE_HOOKS_CPU_ELEMENTWISE_LOOPS
namespace gradwire::cpu {

template <class T>
struct Loops {
  void (*add)(std::size_t numel, T* into, const T* from);
  double (*sum_of_squares)(std::size_t numel, const T* values);
};

}  // namespace gradwire::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace gradwire::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A loop named ...From handles whole vectors of its tag from `i` on and returns where it stopped.
// Each is called with full vectors first, and then with vectors of one lane for the remainder.

template <class D, class T>
HWY_INLINE std::size_t AddFrom(D d, std::size_t i, std::size_t numel, T* into, const T* from) {
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= numel; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, into + i), hn::LoadU(d, from + i)), d, into + i);
  }
  return i;
}

template <class T>
void AddLoop(std::size_t numel, T* into, const T* from) {
  const std::size_t done = AddFrom(hn::ScalableTag<T>(), 0, numel, into, from);
  AddFrom(One<T>(), done, numel, into, from);
}

template <class D, class T>
HWY_INLINE hn::Vec<D> AddSquare(D d, const T* from, hn::Vec<D> sum) {
  const auto value = LoadWide(d, from);
  return hn::MulAdd(value, value, sum);
}

// Four sums hide the latency of the multiply-add.
template <class D, class T>
HWY_INLINE std::size_t SquaresFrom(D d, std::size_t i, std::size_t numel, const T* values,
                                   double& sum) {
  const std::size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d);
  auto s1 = s0, s2 = s0, s3 = s0;
  for (; i + 4 * lanes <= numel; i += 4 * lanes) {
    s0 = AddSquare(d, values + i, s0);
    s1 = AddSquare(d, values + i + lanes, s1);
    s2 = AddSquare(d, values + i + 2 * lanes, s2);
    s3 = AddSquare(d, values + i + 3 * lanes, s3);
  }
  for (; i + lanes <= numel; i += lanes) s0 = AddSquare(d, values + i, s0);
  sum += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  return i;
}

template <class T>
double SumOfSquaresLoop(std::size_t numel, const T* values) {
  double sum = 0;
  const std::size_t done = SquaresFrom(hn::ScalableTag<double>(), 0, numel, values, sum);
  SquaresFrom(One<double>(), done, numel, values, sum);
  return sum;
}

template <class T>
Loops<T> LoopsOf() {
  return {AddLoop<T>, SumOfSquaresLoop<T>};
}
Loops<float> FloatLoops() { return LoopsOf<float>(); }
Loops<double> DoubleLoops() { return LoopsOf<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::cpu {
namespace {

HWY_EXPORT(FloatLoops);
HWY_EXPORT(DoubleLoops);

template <class T>
Loops<T> BestLoops() {
  if constexpr (std::is_same_v<T, float>) {
    return HWY_DYNAMIC_DISPATCH(FloatLoops)();
  } else {
    return HWY_DYNAMIC_DISPATCH(DoubleLoops)();
  }
}

}  // namespace

template <class T>
void Add(std::size_t numel, T* into, const T* from) {
  BestLoops<T>().add(numel, into, from);
}

template <class T>
double SumOfSquares(std::size_t numel, const T* values) {
  return BestLoops<T>().sum_of_squares(numel, values);
}

template void Add(std::size_t, float*, const float*);
template void Add(std::size_t, double*, const double*);
template double SumOfSquares(std::size_t, const float*);
template double SumOfSquares(std::size_t, const double*);

}  // namespace gradwire::cpu
#endif  // HWY_ONCE
