// Throughput of the kernels on a GPU, next to a copy inside the GPU in the same run.
//
//   gpu_bench [--mib N] [--repeats N] [--json FILE] [--host]
//
// Bytes read and bytes written both count, for the copy too. Arrays are far larger than the caches.
// `--host` tries the program itself on the processor; its figures say nothing of a GPU.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "hooks/cpu/host_device.h"
#include "hooks/cuda/library.h"
#include "hooks/device_status.h"
#include "hooks/device_vector.h"
#include "tests/bench/spread.h"

namespace gradwire {
namespace {

using bench::Spread;
using bench::SpreadOf;

struct Options {
  std::size_t mib = 1024;  // of the largest array of a kernel
  std::size_t repeats = 9;
  std::string json;
  bool host = false;
};

struct Kernel {
  std::string name;
  std::size_t bytes = 0;  // read and written by one call
  std::function<void()> run;
};

struct Row {
  std::string name;
  Spread gb_per_s;
  Spread of_copy;
};

class Bench {
 public:
  Bench(std::shared_ptr<Device> device, const Options& options)
      : device_(std::move(device)),
        options_(options),
        bytes_(options.mib << 20),
        out_(*device_),
        flag_(*device_) {
    for (std::size_t i = 0; i < kArrays; ++i) {
      arrays_.emplace_back(*device_);
      arrays_.back().Resize(bytes_);
      device_->Zero(arrays_.back().data(), bytes_);
      sources_.push_back(arrays_.back().data());
    }
    out_.Resize(bytes_);
    flag_.Resize(1);
  }

  // The copy comes first.
  std::vector<Row> Run() {
    const Kernel copy{"copy", 2 * bytes_,
                      [this] { device_->Copy(out_.data(), sources_[0], bytes_); }};
    std::vector<Row> rows;
    std::vector<double> copies;
    for (const Kernel& kernel : Kernels()) {
      std::vector<double> rates;
      std::vector<double> ratios;
      for (std::size_t i = 0; i <= options_.repeats; ++i) {
        const double baseline = Rate(copy);
        const double rate = Rate(kernel);
        if (i == 0) continue;  // loads the kernel
        copies.push_back(baseline);
        rates.push_back(rate);
        ratios.push_back(rate / baseline);
      }
      rows.push_back({kernel.name, SpreadOf(rates), SpreadOf(ratios)});
    }
    rows.insert(rows.begin(), {copy.name, SpreadOf(copies), {1, 1, 1}});
    return rows;
  }

  absl::Status status() const { return StatusOf(*device_); }

 private:
  static constexpr std::size_t kArrays = 8;
  static constexpr std::size_t kCalls = 8;  // per time that is taken

  double Rate(const Kernel& kernel) {
    Wait();
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kCalls; ++i) kernel.run();
    Wait();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return static_cast<double>(kCalls * kernel.bytes) / elapsed.count() / 1e9;
  }
  void Wait() {
    const DeviceMark mark = device_->Record();
    while (!device_->IsComplete(mark)) std::this_thread::yield();
  }

  Kernel Cast(const std::string& name, DType from, DType to, double divisor) {
    const std::size_t numel = bytes_ / std::max(ByteSize(from), ByteSize(to));
    return {name, numel * (ByteSize(from) + ByteSize(to)), [=, this] {
              device_->ConvertAndDivide(from, sources_[0], to, out_.data(), numel, divisor);
            }};
  }
  Kernel Sum(const std::string& name, DType dtype, std::size_t count) {
    const std::size_t numel = bytes_ / ByteSize(dtype);
    return {name, (count + 1) * bytes_, [=, this] {
              device_->Sum(dtype, std::span(sources_).first(count), 1, out_.data(), numel,
                           flag_.data());
            }};
  }

  // One matrix as large as an array; factors are small beside it.
  void AddLowRank(std::vector<Kernel>& kernels, std::size_t rank) {
    const LowRankShape shape{.rows = bytes_ / sizeof(float) / 4096, .cols = 4096, .rank = rank};
    const std::size_t factors = rank * (shape.rows + shape.cols) * sizeof(float);
    auto* m = reinterpret_cast<float*>(arrays_[0].data());
    auto* residual = reinterpret_cast<float*>(arrays_[1].data());
    auto* p = reinterpret_cast<float*>(arrays_[2].data());
    auto* q = reinterpret_cast<float*>(arrays_[3].data());
    LowRankMath<float>& math = device_->floats();
    const std::string suffix = ", rank " + std::to_string(rank);
    kernels.push_back({"M += R, M Q" + suffix, 3 * bytes_ + factors, [=, &math] {
                         const ProductOperands<float> operands{shape, m, residual, q, p};
                         math.AddAndMultiply(std::span(&operands, 1));
                       }});
    kernels.push_back({"M^T P" + suffix, bytes_ + factors, [=, &math] {
                         const TransposedOperands<float> operands{shape, m, p, q};
                         math.TransposeMultiply(std::span(&operands, 1));
                       }});
    kernels.push_back({"P Q^T, residual" + suffix, 3 * bytes_ + factors, [=, &math] {
                         const ReconstructOperands<float> operands{shape, m, p, q, residual};
                         math.ReconstructAndSubtract(std::span(&operands, 1));
                       }});
  }

  std::vector<Kernel> Kernels() {
    const DType f32 = DType::kFloat32;
    const DType f16 = DType::kFloat16;
    const DType bf16 = DType::kBFloat16;
    std::vector<Kernel> kernels = {
        Cast("f32 to f16", f32, f16, 1),
        Cast("f32 to bf16", f32, bf16, 1),
        Cast("f16 to f32", f16, f32, 1),
        Cast("bf16 to f32", bf16, f32, 1),
        Cast("f32, divide", f32, f32, 3),
        Cast("f32 to f16, divide", f32, f16, 3),
        Cast("f32 to bf16, divide", f32, bf16, 3),
        Sum("sum f32 N=2", f32, 2),
        Sum("sum f32 N=4", f32, 4),
        Sum("sum f32 N=8", f32, 8),
        Sum("sum f16 N=4", f16, 4),
        Sum("sum bf16 N=4", bf16, 4),
    };
    for (const std::size_t rank : {1U, 4U, 16U, 32U}) AddLowRank(kernels, rank);
    return kernels;
  }

  const std::shared_ptr<Device> device_;
  const Options options_;
  const std::size_t bytes_;
  std::vector<DeviceVector<std::byte>> arrays_;
  std::vector<const void*> sources_;
  DeviceVector<std::byte> out_;
  DeviceVector<std::uint32_t> flag_;
};

int Main(const Options& options) {
  std::shared_ptr<Device> device = MakeHostDevice();
  if (!options.host) {
    const auto& library = CudaLibrary::Global();
    auto gpu = library.ok() ? library->MakeDevice(0, std::chrono::minutes(1)) : library.status();
    if (!gpu.ok()) {
      std::cerr << "gpu_bench: " << gpu.status().message() << "\n";
      return 1;
    }
    device = *std::move(gpu);
  }
  Bench bench(device, options);
  const std::vector<Row> rows = bench.Run();
  if (!bench.status().ok()) {
    std::cerr << "gpu_bench: " << bench.status().message() << "\n";
    return 1;
  }
  std::printf("%s, arrays of %zu MiB, %zu repeats\n%-24s %26s %22s\n", Name(device->id()).c_str(),
              options.mib, options.repeats, "", "GB/s read+written", "of a copy");
  nlohmann::json json;
  for (const Row& row : rows) {
    std::printf("%-24s %8.1f (%7.1f-%7.1f) %8.2f (%.2f-%.2f)\n", row.name.c_str(),
                row.gb_per_s.median, row.gb_per_s.min, row.gb_per_s.max, row.of_copy.median,
                row.of_copy.min, row.of_copy.max);
    json[row.name] = {{"gb_per_s", row.gb_per_s.median}, {"of_copy", row.of_copy.median}};
  }
  if (!options.json.empty()) std::ofstream(options.json) << json.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace gradwire

int main(int argc, char** argv) {
  gradwire::Options options;
  CLI::App app("Throughput of the kernels on a GPU.");
  app.add_option("--mib", options.mib, "MiB of the largest array")->check(CLI::Range(1, 16384));
  app.add_option("--repeats", options.repeats, "times of each row")->check(CLI::Range(1, 1000));
  app.add_option("--json", options.json, "file to write");
  app.add_flag("--host", options.host, "on the processor, to try the program");
  CLI11_PARSE(app, argc, argv);
  return gradwire::Main(options);
}
