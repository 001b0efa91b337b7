#include "hooks/cuda/device.h"

#include <cstdio>
#include <string>

#include "hooks/cuda/kernels.h"
#include "hooks/cuda/stream.h"

namespace gradwire::cuda {
namespace {

template <class T>
class CudaLowRank final : public LowRankMath<T> {
 public:
  explicit CudaLowRank(Stream& stream) : stream_(stream) {}

  void AddAndMultiply(std::span<const ProductOperands<T>> matrices) override {
    for (const auto& m : matrices) cuda::AddAndMultiply(stream_, m);
  }
  void TransposeMultiply(std::span<const TransposedOperands<T>> matrices) override {
    for (const auto& m : matrices) cuda::TransposeMultiply(stream_, m);
  }
  void ReconstructAndSubtract(std::span<const ReconstructOperands<T>> matrices) override {
    for (const auto& m : matrices) cuda::ReconstructAndSubtract(stream_, m);
  }
  void Orthonormalize(double epsilon, std::span<const FactorOperands<T>> factors) override {
    cuda::Orthonormalize(stream_, epsilon, factors);
  }
  void Transpose(std::span<const FactorOperands<T>> factors) override {
    cuda::Transpose(stream_, factors);
  }
  void Add(std::size_t numel, T* into, const T* from) override {
    cuda::Add(stream_, numel, into, from);
  }
  void Scale(std::size_t numel, T* values, double factor) override {
    cuda::Scale(stream_, numel, values, factor);
  }
  void AddSquares(std::size_t numel, const T* values, double* sum) override {
    cuda::AddSquares(stream_, numel, values, sum);
  }
  void RoundTo(DType wire, std::size_t numel, T* values) override {
    cuda::RoundTo(stream_, wire, numel, values);
  }
  void TakeResults(DType wire, const void* in, std::size_t numel, T* values, ResidualOf of,
                   T* residual) override {
    cuda::TakeResults(stream_, wire, in, numel, values, of, residual);
  }

 private:
  Stream& stream_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::chrono::milliseconds wait)
      : stream_(ordinal, wait), floats_(stream_), doubles_(stream_) {}

  DeviceId id() const override { return {DeviceKind::kCuda, stream_.ordinal()}; }
  const DeviceError& error() const override { return stream_.error(); }

  void* stream() override { return stream_.stream(); }
  void WithSelected(const std::function<void()>& call) override {
    const Selected selected(stream_.ordinal());
    call();
  }

  DeviceMark Record() override { return stream_.Record(); }
  bool IsComplete(DeviceMark mark) override { return stream_.IsComplete(mark); }

  std::byte* Allocate(std::size_t bytes) override { return stream_.Allocate(bytes); }
  void Free(std::byte* memory, std::size_t /*bytes*/) override { stream_.Free(memory); }
  void Copy(void* to, const void* from, std::size_t bytes) override {
    stream_.Copy(to, from, bytes);
  }
  void Zero(void* to, std::size_t bytes) override { stream_.Zero(to, bytes); }
  void UploadPieces(void* to, std::span<const std::span<const std::byte>> pieces) override {
    stream_.Upload(to, pieces);
  }
  bool Download(void* to, const void* from, std::size_t bytes) override {
    return stream_.Download(to, from, bytes);
  }
  std::shared_ptr<std::byte> AllocatePinned(std::size_t bytes) override {
    return stream_.AllocatePinned(bytes);
  }
  void DownloadLater(std::byte* to, const void* from, std::size_t bytes) override {
    stream_.DownloadLater(to, from, bytes);
  }

  void Convert(DType from, const void* src, DType to, void* dst, std::size_t numel) override {
    cuda::Convert(stream_, from, src, to, dst, numel);
  }
  void ConvertStreaming(DType from, const void* src, DType to, void* dst,
                        std::size_t numel) override {
    cuda::Convert(stream_, from, src, to, dst, numel);
  }
  void ConvertAndDivide(DType from, const void* src, DType to, void* dst, std::size_t numel,
                        double divisor) override {
    cuda::ConvertAndDivide(stream_, from, src, to, dst, numel, divisor);
  }
  void Sum(DType dtype, std::span<const void* const> srcs, double divisor, void* dst,
           std::size_t numel, std::uint32_t* not_finite) override {
    cuda::Sum(stream_, dtype, srcs, divisor, dst, numel, not_finite);
  }
  void SumQuotients(std::span<const void* const> srcs, double divisor, void* dst, std::size_t numel,
                    std::uint32_t* not_finite) override {
    cuda::SumQuotients(stream_, srcs, divisor, dst, numel, not_finite);
  }

  LowRankMath<float>& floats() override { return floats_; }
  LowRankMath<double>& doubles() override { return doubles_; }

 private:
  Stream stream_;
  CudaLowRank<float> floats_;
  CudaLowRank<double> doubles_;
};

std::string Version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// Why no GPU can be used, or nothing.
std::string Obstacle() {
  int driver = 0;
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA driver is installed";
  }
  if (driver / 1000 < runtime / 1000) {
    return "the NVIDIA driver is for CUDA " + Version(driver) + " and this library for CUDA " +
           Version(runtime) + "; install a driver for CUDA " + std::to_string(runtime / 1000) +
           " or later";
  }
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (result == cudaErrorNoDevice || (result == cudaSuccess && count == 0)) {
    return "there is no GPU, or none that CUDA_VISIBLE_DEVICES shows";
  }
  if (result != cudaSuccess) {
    return std::string("the driver refuses: ") + cudaGetErrorName(result) + ", " +
           cudaGetErrorString(result);
  }
  return "";
}

}  // namespace
}  // namespace gradwire::cuda

const char* gradwire_cuda_interface() { return GRADWIRE_CUDA_INTERFACE; }

bool gradwire_cuda_available(char* text, std::uint64_t size) {
  const std::string obstacle = gradwire::cuda::Obstacle();
  std::snprintf(text, size, "%s", obstacle.c_str());
  return obstacle.empty();
}

int gradwire_cuda_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

gradwire::DeviceEvent* gradwire_cuda_record(int ordinal, void* stream) {
  return new gradwire::cuda::StreamEvent(ordinal, static_cast<cudaStream_t>(stream));
}

gradwire::Device* gradwire_cuda_open(int ordinal, std::int64_t wait_ms) {
  return new gradwire::cuda::CudaDevice(ordinal, std::chrono::milliseconds(wait_ms));
}
