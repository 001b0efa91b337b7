// The time of PowerSGD's arithmetic on a GPU for the matrices of a model: what a member computes in
// a step, and the orthonormal columns that the coordinator computes for all.
//
//   power_sgd_bench --shapes FILE [--rank N] [--repeats N] [--host]
//
// FILE has a list of [rows, columns]. Prints the milliseconds of each repeat, as JSON.
// power_sgd_torch.py times the same arithmetic as torch does it.
#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "hooks/cpu/host_device.h"
#include "hooks/cuda/library.h"
#include "hooks/device_status.h"
#include "hooks/device_vector.h"

namespace gradwire {
namespace {

struct Options {
  std::string shapes;
  std::size_t rank = 4;
  std::size_t repeats = 9;
  bool host = false;
};

// All matrices of the model, one after the other, as a bucket has them.
class Model {
 public:
  Model(Device& device, const std::vector<std::pair<std::size_t, std::size_t>>& shapes,
        std::size_t rank)
      : device_(device),
        m_(device),
        residual_(device),
        p_(device),
        orthonormal_(device),
        q_(device) {
    std::size_t numel = 0;
    std::size_t rows = 0;
    std::size_t cols = 0;
    for (const auto& [r, c] : shapes) {
      shapes_.push_back({.rows = r, .cols = c, .rank = std::min({rank, r, c})});
      numel += r * c;
      rows += r * shapes_.back().rank;
      cols += c * shapes_.back().rank;
    }
    Fill(m_, numel);
    Fill(residual_, numel);
    Fill(q_, cols);
    p_.Resize(rows);
    orthonormal_.Resize(rows);
  }

  void Step() {
    std::vector<ProductOperands<float>> products;
    std::vector<FactorOperands<float>> factors;
    std::vector<TransposedOperands<float>> transposed;
    std::vector<ReconstructOperands<float>> reconstructed;
    float* m = m_.data();
    float* residual = residual_.data();
    float* p = p_.data();
    float* o = orthonormal_.data();
    float* q = q_.data();
    for (const LowRankShape& shape : shapes_) {
      products.push_back({shape, m, residual, q, p});
      factors.push_back({{.rows = shape.rows, .cols = shape.rank}, p, o});
      transposed.push_back({shape, m, o, q});
      reconstructed.push_back({shape, m, o, q, residual});
      m += shape.rows * shape.cols;
      residual += shape.rows * shape.cols;
      p += shape.rows * shape.rank;
      o += shape.rows * shape.rank;
      q += shape.cols * shape.rank;
    }
    LowRankMath<float>& math = device_.floats();
    math.AddAndMultiply(products);
    math.Orthonormalize(0, factors);
    math.TransposeMultiply(transposed);
    math.ReconstructAndSubtract(reconstructed);
  }

 private:
  // With a block of random numbers, again and again.
  void Fill(DeviceVector<float>& array, std::size_t numel) {
    std::vector<float> block(std::min<std::size_t>(numel, 1 << 20));
    std::mt19937 random(static_cast<unsigned>(numel));
    std::normal_distribution<float> normal;
    for (float& value : block) value = normal(random);
    array.Resize(numel);
    for (std::size_t at = 0; at < numel; at += block.size()) {
      device_.Upload(array.data() + at, block.data(),
                     std::min(block.size(), numel - at) * sizeof(float));
    }
  }

  Device& device_;
  std::vector<LowRankShape> shapes_;
  DeviceVector<float> m_;
  DeviceVector<float> residual_;
  DeviceVector<float> p_;
  DeviceVector<float> orthonormal_;
  DeviceVector<float> q_;
};

absl::StatusOr<std::shared_ptr<Device>> OpenDevice(bool host) {
  if (host) return MakeHostDevice();
  const auto& library = CudaLibrary::Global();
  if (!library.ok()) return library.status();
  return library->MakeDevice(0, std::chrono::minutes(1));
}

int Main(const Options& options) {
  const auto shapes = nlohmann::json::parse(std::ifstream(options.shapes))
                          .get<std::vector<std::pair<std::size_t, std::size_t>>>();
  const auto device = OpenDevice(options.host);
  if (!device.ok()) {
    std::cerr << "power_sgd_bench: " << device.status().message() << "\n";
    return 1;
  }
  Model model(**device, shapes, options.rank);
  const auto wait = [&] {
    const DeviceMark mark = (*device)->Record();
    while (!(*device)->IsComplete(mark)) std::this_thread::yield();
  };
  std::vector<double> milliseconds;
  for (std::size_t i = 0; i <= options.repeats; ++i) {
    wait();
    const auto start = std::chrono::steady_clock::now();
    model.Step();
    wait();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (i > 0) milliseconds.push_back(took.count());  // the first one loads the kernels
  }
  if (absl::Status status = StatusOf(**device); !status.ok()) {
    std::cerr << "power_sgd_bench: " << status.message() << "\n";
    return 1;
  }
  std::cout << nlohmann::json(milliseconds).dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace gradwire

int main(int argc, char** argv) {
  gradwire::Options options;
  CLI::App app("The time of PowerSGD's arithmetic on a GPU.");
  app.add_option("--shapes", options.shapes, "JSON file")->required()->check(CLI::ExistingFile);
  app.add_option("--rank", options.rank, "approximation rank")->check(CLI::Range(1, 32));
  app.add_option("--repeats", options.repeats, "times")->check(CLI::Range(1, 1000));
  app.add_flag("--host", options.host, "on the processor, to try the program");
  CLI11_PARSE(app, argc, argv);
  return gradwire::Main(options);
}
