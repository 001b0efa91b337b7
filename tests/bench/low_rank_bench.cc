// The three passes of PowerSGD over the matrices of whole models on one core, next to memcpy of the
// same bytes in the same run, and what a step sends.
//
// All matrices of a model lie in one bucket; a pass runs over all of them before the next one
// starts, as in a step. The passes read or write the bucket's bytes seven times (residual in 3,
// product 1, residual out 3) and memcpy twice: at memcpy's rate they take 3.5 memcpys, and less
// where reading is cheaper than writing or the cache keeps a part of the bucket between passes. The
// ratio is to the faster of a whole-array memcpy, which may bypass the cache, and one by chunks of
// 1 MiB.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "hooks/cpu/kernels.h"
#include "hooks/cpu/low_rank.h"
#include "tests/bench/spread.h"

namespace gradwire {
namespace {

using bench::Spread;
using bench::SpreadOf;

struct Options {
  std::size_t repetitions = 9;
  std::string target;  // a Highway target by name; empty: the best
  std::string json;    // file to write; empty: none
};

struct Matrix {
  std::size_t rows;
  std::size_t cols;
};

struct Model {
  std::string name;
  std::vector<Matrix> matrices;
  std::size_t vector_numel = 0;  // biases and normalisation, never compressed
};

// torchvision's layout; the CIFAR-10 variant has a 3x3 first convolution and 10 classes.
Model ResNet18(const std::string& name, std::size_t first_kernel, std::size_t classes) {
  Model model{name, {{64, 3 * first_kernel * first_kernel}}, std::size_t{128} + classes};
  std::size_t in = 64;
  for (const std::size_t out : {64U, 128U, 256U, 512U}) {
    model.matrices.push_back({out, in * 9});
    for (int i = 0; i < 3; ++i) model.matrices.push_back({out, out * 9});
    model.vector_numel += 8 * out;
    if (in != out) {
      model.matrices.push_back({out, in});
      model.vector_numel += 2 * out;
    }
    in = out;
  }
  model.matrices.push_back({classes, in});
  return model;
}

// The PowerSGD paper's: three layers of 650, the decoder tied to the encoder.
Model WikiTextLstm() {
  Model model{"LSTM WikiText-2", {{28869, 650}}, 28869};
  for (int i = 0; i < 6; ++i) {
    model.matrices.push_back({2600, 650});
    model.vector_numel += 2600;
  }
  return model;
}

// PyTorch's rule with its default min_compression_rate.
bool IsCompressed(const Matrix& matrix, std::size_t rank) {
  return (matrix.rows + matrix.cols) * rank * 2 < matrix.rows * matrix.cols;
}

struct Row {
  std::string model;
  std::size_t rank = 0;
  std::size_t model_bytes = 0;
  std::size_t wire_bytes = 0;
  Spread memcpy_ms;
  Spread pass_ms[3];
  Spread passes_ms;
  Spread ratio;
};

double Milliseconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count();
}

class Buffer {
 public:
  Buffer(std::size_t numel, std::uint32_t seed)
      : numel_(numel), data_(static_cast<float*>(std::aligned_alloc(64, Bytes(numel)))) {
    if (data_ == nullptr) throw std::bad_alloc();
    for (std::size_t i = 0; i < numel; ++i) {
      seed = seed * 1664525U + 1013904223U;
      data_[i] = static_cast<float>(seed >> 8) * 0x1p-24F - 0.5F;
    }
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  float* data() const { return data_; }
  std::size_t bytes() const { return numel_ * sizeof(float); }

 private:
  static std::size_t Bytes(std::size_t numel) { return (numel * sizeof(float) + 63) / 64 * 64; }

  std::size_t numel_;
  float* data_;
};

struct Sizes {
  std::size_t matrices = 0;
  std::size_t p = 0;
  std::size_t q = 0;
  std::size_t uncompressed = 0;
};

Sizes SizesOf(const Model& model, std::size_t rank) {
  Sizes sizes{0, 0, 0, model.vector_numel};
  for (const Matrix& matrix : model.matrices) {
    const std::size_t numel = matrix.rows * matrix.cols;
    if (!IsCompressed(matrix, rank)) {
      sizes.uncompressed += numel;
      continue;
    }
    sizes.matrices += numel;
    sizes.p += matrix.rows * rank;
    sizes.q += matrix.cols * rank;
  }
  return sizes;
}

class Bench {
 public:
  Bench(const Model& model, std::size_t rank)
      : sizes_(SizesOf(model, rank)),
        bucket_(sizes_.matrices, 1),
        residual_in_(sizes_.matrices, 2),
        residual_out_(sizes_.matrices, 3),
        p_in_(sizes_.p, 4),
        p_out_(sizes_.p, 5),
        q_in_(sizes_.q, 6),
        q_out_(sizes_.q, 7) {
    std::size_t m = 0;
    std::size_t p = 0;
    std::size_t q = 0;
    for (const Matrix& matrix : model.matrices) {
      if (!IsCompressed(matrix, rank)) continue;
      places_.push_back({{matrix.rows, matrix.cols, rank}, m, p, q});
      m += matrix.rows * matrix.cols;
      p += matrix.rows * rank;
      q += matrix.cols * rank;
    }
    row_.model = model.name;
    row_.rank = rank;
    row_.model_bytes = (sizes_.matrices + sizes_.uncompressed) * sizeof(float);
    row_.wire_bytes = (sizes_.p + sizes_.q + sizes_.uncompressed) * sizeof(float);
  }

  Row Run(std::size_t repetitions) {
    std::vector<double> copies;
    std::vector<double> passes[3];
    std::vector<double> sums;
    std::vector<double> ratios;
    for (std::size_t repetition = 0; repetition <= repetitions; ++repetition) {
      const double copy =
          std::min(Milliseconds([this] { CopyWhole(); }), Milliseconds([this] { CopyChunks(); }));
      const double times[] = {Milliseconds([this] { AddAndMultiply(); }),
                              Milliseconds([this] { TransposeMultiply(); }),
                              Milliseconds([this] { Reconstruct(); })};
      if (repetition == 0) continue;  // touches the pages
      copies.push_back(copy);
      for (std::size_t i = 0; i < 3; ++i) passes[i].push_back(times[i]);
      sums.push_back(times[0] + times[1] + times[2]);
      ratios.push_back(sums.back() / copy);
    }
    row_.memcpy_ms = SpreadOf(copies);
    for (std::size_t i = 0; i < 3; ++i) row_.pass_ms[i] = SpreadOf(passes[i]);
    row_.passes_ms = SpreadOf(sums);
    row_.ratio = SpreadOf(ratios);
    return row_;
  }

 private:
  struct Place {
    LowRankShape shape;
    std::size_t m;
    std::size_t p;
    std::size_t q;
  };

  void CopyWhole() { std::memcpy(residual_out_.data(), bucket_.data(), bucket_.bytes()); }

  void CopyChunks() {
    constexpr std::size_t kChunk = (std::size_t{1} << 20) / sizeof(float);
    for (std::size_t i = 0; i < sizes_.matrices; i += kChunk) {
      std::memcpy(residual_out_.data() + i, bucket_.data() + i,
                  std::min(kChunk, sizes_.matrices - i) * sizeof(float));
    }
  }

  // The factors that a pass reads are not those that another one wrote, so that values stay small
  // over the repetitions without the orthonormalisation in between.
  void AddAndMultiply() {
    for (const Place& at : places_) {
      cpu::AddAndMultiply<float>(at.shape, bucket_.data() + at.m, residual_in_.data() + at.m,
                                 q_in_.data() + at.q, p_out_.data() + at.p);
    }
  }

  void TransposeMultiply() {
    for (const Place& at : places_) {
      cpu::TransposeMultiply<float>(at.shape, bucket_.data() + at.m, p_in_.data() + at.p,
                                    q_out_.data() + at.q);
    }
  }

  void Reconstruct() {
    for (const Place& at : places_) {
      cpu::ReconstructAndSubtract<float>(at.shape, bucket_.data() + at.m, p_in_.data() + at.p,
                                         q_in_.data() + at.q, residual_out_.data() + at.m);
    }
  }

  Sizes sizes_;
  Buffer bucket_;
  Buffer residual_in_;
  Buffer residual_out_;
  Buffer p_in_;
  Buffer p_out_;
  Buffer q_in_;
  Buffer q_out_;
  std::vector<Place> places_;
  Row row_;
};

double WireRatio(const Row& row) {
  return static_cast<double>(row.model_bytes) / static_cast<double>(row.wire_bytes);
}

void PrintTable(const Options& options, const std::string& target, const std::vector<Row>& rows) {
  std::printf("target %s, %zu repetitions; milliseconds; 3.50 memcpys move as many bytes\n",
              target.c_str(), options.repetitions);
  std::printf("%-18s %4s %8s %8s %8s %8s %8s %22s %11s %9s\n", "", "rank", "memcpy", "add,M*Q",
              "M'*P", "P*Q'", "together", "memcpys", "wire bytes", "smaller");
  for (const Row& row : rows) {
    std::printf("%-18s %4zu %8.2f %8.2f %8.2f %8.2f %8.2f %6.2f (%5.2f to %5.2f) %11zu %8.1fx\n",
                row.model.c_str(), row.rank, row.memcpy_ms.median, row.pass_ms[0].median,
                row.pass_ms[1].median, row.pass_ms[2].median, row.passes_ms.median,
                row.ratio.median, row.ratio.min, row.ratio.max, row.wire_bytes, WireRatio(row));
  }
}

std::string Json(const Spread& spread) {
  char text[128];
  std::snprintf(text, sizeof(text), "{\"median\": %.4f, \"min\": %.4f, \"max\": %.4f}",
                spread.median, spread.min, spread.max);
  return text;
}

bool WriteJson(const Options& options, const std::string& target, const std::vector<Row>& rows) {
  std::ofstream file(options.json);
  file << "{\n  \"benchmark\": \"low_rank\",\n  \"target\": \"" << target
       << "\",\n  \"repetitions\": " << options.repetitions << ",\n  \"results\": [\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    file << "    {\"model\": \"" << row.model << "\", \"rank\": " << row.rank
         << ", \"model_bytes\": " << row.model_bytes << ", \"wire_bytes\": " << row.wire_bytes
         << ", \"wire_ratio\": " << WireRatio(row) << ", \"memcpy_ms\": " << Json(row.memcpy_ms)
         << ", \"add_and_multiply_ms\": " << Json(row.pass_ms[0])
         << ", \"transpose_multiply_ms\": " << Json(row.pass_ms[1])
         << ", \"reconstruct_ms\": " << Json(row.pass_ms[2])
         << ", \"passes_ms\": " << Json(row.passes_ms)
         << ", \"ratio_to_memcpy\": " << Json(row.ratio) << "}" << (i + 1 < rows.size() ? "," : "")
         << "\n";
  }
  file << "  ]\n}\n";
  file.close();
  return static_cast<bool>(file);
}

// Every option takes a value.
bool ParseOptions(int argc, char** argv, Options& options) {
  if (argc % 2 == 0) return false;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    const std::size_t number = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "--json") {
      options.json = value;
    } else if (name == "--target") {
      options.target = value;
    } else if (name == "--repetitions" && number > 0) {
      options.repetitions = number;
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, options)) {
    std::cerr << "usage: " << argv[0] << " [--json FILE] [--target NAME] [--repetitions N]\n";
    return 2;
  }
  const std::vector<cpu::Target> targets = cpu::SupportedTargets();
  cpu::Target chosen = targets.front();
  if (!options.target.empty()) {
    const auto found = std::find_if(targets.begin(), targets.end(), [&](const cpu::Target& target) {
      return target.name == options.target;
    });
    if (found == targets.end()) {
      std::cerr << "this machine has no target \"" << options.target << "\"; it has:";
      for (const cpu::Target& target : targets) std::cerr << " " << target.name;
      std::cerr << "\n";
      return 2;
    }
    chosen = *found;
    cpu::SetTargetForTesting(chosen.id);
  }
  std::vector<Row> rows;
  for (const Model& model :
       {ResNet18("ResNet-18", 7, 1000), ResNet18("ResNet-18 CIFAR-10", 3, 10), WikiTextLstm()}) {
    for (const std::size_t rank : {1U, 2U, 4U}) {
      rows.push_back(Bench(model, rank).Run(options.repetitions));
    }
  }
  PrintTable(options, chosen.name, rows);
  if (!options.json.empty() && !WriteJson(options, chosen.name, rows)) {
    std::cerr << "cannot write " << options.json << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace gradwire

int main(int argc, char** argv) { return gradwire::Main(argc, argv); }
