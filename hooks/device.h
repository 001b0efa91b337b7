// Where a hook's arrays lie, and the arithmetic on them: the host's memory and its processor, or a
// GPU with a stream of its own. A hook gets a device and does everything to gradients through it,
// so that the same hooks run wherever the gradients lie.
//
// Work is done in the order of the calls and may complete later: a function returns when the work
// is in order, and Record names a point in that order that the caller can wait for. The host's work
// is complete when the function returns. Arrays stay valid, and nobody else writes them, until the
// work on them is complete.
//
// An error is kept: after the first one every function does nothing, and `error` says what
// happened. Bits: every device gives those of hooks/cpu/kernels.h, and for the low-rank products,
// whose order of addition is free, those within the tolerance of hooks/README.md.
//
// Not thread-safe: one session's hook has it, and calls come from one thread at a time. Only the
// standard library is used here, so that a device can come out of a library that is loaded at run
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "gradwire/hooks/device_id.h"
#include "gradwire/hooks/dtype.h"
#include "gradwire/hooks/round_plan.h"

namespace gradwire {

// One matrix M of a PowerSGD step: row-major, rows x cols. P is row-major, rows x rank. Q comes and
// goes transposed: rank rows of `cols` elements. Ranks are 1 or more.
struct LowRankShape {
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t rank = 0;
};

// Operands of one matrix in the passes below. Regions do not overlap.
template <class T>
struct ProductOperands {
  LowRankShape shape;
  T* matrix = nullptr;
  const T* residual = nullptr;  // null: nothing is added
  const T* q = nullptr;
  T* p = nullptr;
};
template <class T>
struct TransposedOperands {
  LowRankShape shape;
  const T* matrix = nullptr;
  const T* p = nullptr;
  T* q = nullptr;
};
template <class T>
struct ReconstructOperands {
  LowRankShape shape;
  T* matrix = nullptr;
  const T* p = nullptr;
  const T* q = nullptr;
  T* residual = nullptr;  // null: not wanted
};

// A row-major matrix that is written to another place. From and to do not overlap.
template <class T>
struct FactorOperands {
  MatrixShape shape;
  const T* from = nullptr;
  T* to = nullptr;
};

// What a decoded result leaves behind as the next residual.
enum class ResidualOf : std::uint8_t {
  kNothing = 0,
  kResult = 1,  // value - result
  kWire = 2,    // value - value rounded to the wire's dtype
};

// PowerSGD's arithmetic in T, float or double.
template <class T>
class LowRankMath {
 public:
  virtual ~LowRankMath() = default;

  // M += residual, in place, and P = M Q.
  virtual void AddAndMultiply(std::span<const ProductOperands<T>> matrices) = 0;
  // Q = M^T P.
  virtual void TransposeMultiply(std::span<const TransposedOperands<T>> matrices) = 0;
  // With x = P Q^T (sums in order of k, products rounded before they are added: the same bits on
  // every device): residual = M - x, M = x.
  virtual void ReconstructAndSubtract(std::span<const ReconstructOperands<T>> matrices) = 0;

  // to = from with orthonormal columns, computed in fp64 (hooks/power_sgd/orthonormalize.h).
  // cols <= rows.
  virtual void Orthonormalize(double epsilon, std::span<const FactorOperands<T>> factors) = 0;
  // to = from, transposed.
  virtual void Transpose(std::span<const FactorOperands<T>> factors) = 0;

  // into += from.
  virtual void Add(std::size_t numel, T* into, const T* from) = 0;
  // Each product is taken in fp64 and rounded to T.
  virtual void Scale(std::size_t numel, T* values, double factor) = 0;
  // Adds the squares of `values`, summed in fp64, to `sum`, which is memory of the device.
  virtual void AddSquares(std::size_t numel, const T* values, double* sum) = 0;
  // Rounds each value to `wire` and back.
  virtual void RoundTo(DType wire, std::size_t numel, T* values) = 0;
  // values become the results `in`, of dtype `wire`; residual (null with kNothing) what they leave.
  virtual void TakeResults(DType wire, const void* in, std::size_t numel, T* values, ResidualOf of,
                           T* residual) = 0;
};

// What went wrong first. Empty text: nothing.
struct DeviceError {
  bool out_of_memory = false;
  std::string text{};
};

// A point in a device's work: all that was called before it.
using DeviceMark = std::uint64_t;

// A point in the work of a stream of the user's. Not thread-safe.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether the stream has come so far. True also after an error of the GPU, which is in `error`
  // then.
  virtual bool IsComplete(DeviceError& error) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceId id() const = 0;
  virtual const DeviceError& error() const = 0;

  // ---- Work that another library gives it, such as NCCL
  virtual void* stream() = 0;  // its cudaStream_t; null: the host's
  // Calls `call` at once, with the GPU selected for the calling thread, as CUDA's libraries expect.
  virtual void WithSelected(const std::function<void()>& call) = 0;

  // ---- Completion
  virtual DeviceMark Record() = 0;
  // True also after an error: nothing is done any more.
  virtual bool IsComplete(DeviceMark mark) = 0;

  // ---- Memory. Its contents are whatever they are. Null for 0 bytes and after an error. What is
  // freed may still be used by work that was called before.
  virtual std::byte* Allocate(std::size_t bytes) = 0;
  virtual void Free(std::byte* memory, std::size_t bytes) = 0;
  virtual void Copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void Zero(void* to, std::size_t bytes) = 0;
  // The pieces, one after the other, are the host's and may change when the call returns.
  virtual void UploadPieces(void* to, std::span<const std::span<const std::byte>> pieces) = 0;
  void Upload(void* to, const void* from, std::size_t bytes) {
    const std::span<const std::byte> piece(static_cast<const std::byte*>(from), bytes);
    UploadPieces(to, {&piece, 1});
  }
  // Waits, for a time that the device was made with, until the host has the bytes: false, and an
  // error, if they did not come.
  virtual bool Download(void* to, const void* from, std::size_t bytes) = 0;

  // ---- Memory of the host that the device reads and writes itself. It may be released on any
  // thread, and after the device. Null after an error.
  virtual std::shared_ptr<std::byte> AllocatePinned(std::size_t bytes) = 0;
  // `to` is pinned memory; it has the bytes once a later mark is complete.
  virtual void DownloadLater(std::byte* to, const void* from, std::size_t bytes) = 0;

  // ---- Casts, quotients and sums: the contracts of hooks/cpu/kernels.h
  virtual void Convert(DType from, const void* src, DType to, void* dst, std::size_t numel) = 0;
  virtual void ConvertStreaming(DType from, const void* src, DType to, void* dst,
                                std::size_t numel) = 0;
  virtual void ConvertAndDivide(DType from, const void* src, DType to, void* dst, std::size_t numel,
                                double divisor) = 0;
  // Makes `*not_finite`, memory of the device, 1 if a result is not finite, and else leaves it.
  virtual void Sum(DType dtype, std::span<const void* const> srcs, double divisor, void* dst,
                   std::size_t numel, std::uint32_t* not_finite) = 0;
  virtual void SumQuotients(std::span<const void* const> srcs, double divisor, void* dst,
                            std::size_t numel, std::uint32_t* not_finite) = 0;

  virtual LowRankMath<float>& floats() = 0;
  virtual LowRankMath<double>& doubles() = 0;
  template <class T>
  LowRankMath<T>& low_rank();
};

template <>
inline LowRankMath<float>& Device::low_rank<float>() {
  return floats();
}
template <>
inline LowRankMath<double>& Device::low_rank<double>() {
  return doubles();
}

}  // namespace gradwire
