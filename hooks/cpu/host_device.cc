#include "hooks/cpu/host_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include "hooks/cpu/kernels.h"
#include "hooks/cpu/low_rank.h"
#include "hooks/power_sgd/column_order.h"
#include "hooks/power_sgd/orthonormalize.h"

namespace gradwire {
namespace {

constexpr std::size_t kBlock = 1024;  // elements converted at a time
constexpr std::align_val_t kAlignment{64};

// `precise` is scratch memory, in which the columns lie one after the other.
template <class T>
void OrthonormalizeFactor(double epsilon, const FactorOperands<T>& f,
                          std::vector<double>& precise) {
  precise.resize(std::max(precise.size(), f.shape.numel()));
  const auto columns = std::span(precise).first(f.shape.numel());
  VisitByColumn(f.shape, [&](std::size_t i, std::size_t at) { columns[at] = f.from[i]; });
  Orthonormalize(f.shape, epsilon, columns);
  VisitByColumn(f.shape,
                [&](std::size_t i, std::size_t at) { f.to[i] = static_cast<T>(columns[at]); });
}

template <class T>
class HostLowRank final : public LowRankMath<T> {
 public:
  void AddAndMultiply(std::span<const ProductOperands<T>> matrices) override {
    for (const auto& m : matrices) cpu::AddAndMultiply(m.shape, m.matrix, m.residual, m.q, m.p);
  }
  void TransposeMultiply(std::span<const TransposedOperands<T>> matrices) override {
    for (const auto& m : matrices) cpu::TransposeMultiply(m.shape, m.matrix, m.p, m.q);
  }
  void ReconstructAndSubtract(std::span<const ReconstructOperands<T>> matrices) override {
    for (const auto& m : matrices) {
      cpu::ReconstructAndSubtract(m.shape, m.matrix, m.p, m.q, m.residual);
    }
  }

  void Orthonormalize(double epsilon, std::span<const FactorOperands<T>> factors) override {
    for (const auto& f : factors) OrthonormalizeFactor(epsilon, f, precise_);
  }

  void Transpose(std::span<const FactorOperands<T>> factors) override {
    for (const auto& f : factors) {
      for (std::size_t col = 0; col < f.shape.cols; ++col) {
        for (std::size_t row = 0; row < f.shape.rows; ++row) {
          f.to[col * f.shape.rows + row] = f.from[row * f.shape.cols + col];
        }
      }
    }
  }

  void Add(std::size_t numel, T* into, const T* from) override { cpu::Add(numel, into, from); }

  void Scale(std::size_t numel, T* values, double factor) override {
    for (T& value : std::span(values, numel)) value = static_cast<T>(value * factor);
  }

  void AddSquares(std::size_t numel, const T* values, double* sum) override {
    *sum += cpu::SumOfSquares(numel, values);
  }

  void RoundTo(DType wire, std::size_t numel, T* values) override {
    if (wire == kType) return;
    std::array<std::byte, kBlock * sizeof(double)> encoded;
    for (std::size_t i = 0; i < numel; i += kBlock) {
      const std::size_t count = std::min(numel - i, kBlock);
      cpu::Convert(kType, values + i, wire, encoded.data(), count);
      cpu::Convert(wire, encoded.data(), kType, values + i, count);
    }
  }

  // Block by block, because the residual needs the old values.
  void TakeResults(DType wire, const void* in, std::size_t numel, T* values, ResidualOf of,
                   T* residual) override {
    std::array<T, kBlock> result;
    std::array<T, kBlock> own;
    const auto* from = static_cast<const std::byte*>(in);
    for (std::size_t begin = 0; begin < numel; begin += kBlock) {
      const std::size_t count = std::min(numel - begin, kBlock);
      T* value = values + begin;
      cpu::Convert(wire, from + begin * ByteSize(wire), kType, result.data(), count);
      if (of == ResidualOf::kWire) {
        std::copy_n(value, count, own.data());
        RoundTo(wire, count, own.data());
      }
      const T* kept = of == ResidualOf::kWire ? own.data() : result.data();
      for (std::size_t i = 0; i < count; ++i) {
        if (of != ResidualOf::kNothing) residual[begin + i] = value[i] - kept[i];
        value[i] = result[i];
      }
    }
  }

 private:
  static constexpr DType kType = std::is_same_v<T, double> ? DType::kFloat64 : DType::kFloat32;

  std::vector<double> precise_;
};

class HostDevice final : public Device {
 public:
  DeviceId id() const override { return {}; }
  const DeviceError& error() const override { return error_; }

  void* stream() override { return nullptr; }
  void WithSelected(const std::function<void()>& call) override { call(); }

  DeviceMark Record() override { return 0; }
  bool IsComplete(DeviceMark /*mark*/) override { return true; }

  std::byte* Allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    return static_cast<std::byte*>(::operator new(bytes, kAlignment));
  }
  void Free(std::byte* memory, std::size_t /*bytes*/) override {
    ::operator delete(memory, kAlignment);
  }
  void Copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Zero(void* to, std::size_t bytes) override {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  void UploadPieces(void* to, std::span<const std::span<const std::byte>> pieces) override {
    auto* at = static_cast<std::byte*>(to);
    for (const std::span<const std::byte> piece : pieces) {
      Copy(at, piece.data(), piece.size());
      at += piece.size();
    }
  }
  bool Download(void* to, const void* from, std::size_t bytes) override {
    Copy(to, from, bytes);
    return true;
  }
  std::shared_ptr<std::byte> AllocatePinned(std::size_t bytes) override {
    return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
  }
  void DownloadLater(std::byte* to, const void* from, std::size_t bytes) override {
    Copy(to, from, bytes);
  }

  void Convert(DType from, const void* src, DType to, void* dst, std::size_t numel) override {
    cpu::Convert(from, src, to, dst, numel);
  }
  void ConvertStreaming(DType from, const void* src, DType to, void* dst,
                        std::size_t numel) override {
    cpu::ConvertStreaming(from, src, to, dst, numel);
  }
  void ConvertAndDivide(DType from, const void* src, DType to, void* dst, std::size_t numel,
                        double divisor) override {
    cpu::ConvertAndDivide(from, src, to, dst, numel, divisor);
  }
  void Sum(DType dtype, std::span<const void* const> srcs, double divisor, void* dst,
           std::size_t numel, std::uint32_t* not_finite) override {
    if (!cpu::Sum(dtype, srcs.data(), srcs.size(), divisor, dst, numel)) *not_finite = 1;
  }
  void SumQuotients(std::span<const void* const> srcs, double divisor, void* dst, std::size_t numel,
                    std::uint32_t* not_finite) override {
    if (!cpu::SumQuotients(srcs.data(), srcs.size(), divisor, dst, numel)) *not_finite = 1;
  }

  LowRankMath<float>& floats() override { return floats_; }
  LowRankMath<double>& doubles() override { return doubles_; }

 private:
  const DeviceError error_{};
  HostLowRank<float> floats_;
  HostLowRank<double> doubles_;
};

}  // namespace

std::shared_ptr<Device> MakeHostDevice() { return std::make_shared<HostDevice>(); }

}  // namespace gradwire
