// Throughput of the kernels on arrays beyond the cache, next to memcpy in the same run.
//
// Bytes read and bytes written both count, for memcpy too. Kernels and memcpy are called with one
// chunk at a time, as the daemon and the clients call them, walking over the arrays; a whole-array
// memcpy, which may bypass the cache, is measured as well and the ratio is to the faster of the
// two.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "hooks/cpu/kernels.h"
#include "tests/bench/spread.h"

namespace gradwire {
namespace {

using bench::Spread;
using bench::SpreadOf;

struct Options {
  std::size_t mib = 64;          // of the largest array of a kernel
  std::size_t chunk_kib = 1024;  // of the largest array's share of one call
  std::size_t repetitions = 9;
  std::string target;  // a Highway target by name; empty: the best
  std::string json;    // file to write; empty: none
};

// Runs over elements [begin, end).
struct Kernel {
  std::string name;
  std::size_t bytes_per_element;  // read and written
  std::size_t largest_element;    // bytes of an element of the widest array
  std::function<void(std::size_t begin, std::size_t end)> run;
};

struct Row {
  std::string name;
  Spread gb_per_s;
  Spread ratio;
};

double GbPerSecond(std::size_t bytes, const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(bytes) / elapsed.count() / 1e9;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    const std::size_t bytes = options.mib << 20;
    for (std::size_t i = 0; i < kArrays; ++i) {
      arrays_.emplace_back(bytes);
      Fill(arrays_.back(), i);
    }
    for (const auto& array : arrays_) sources_.push_back(array.data());
  }

  std::vector<Row> Run() {
    std::vector<Row> rows;
    for (const Kernel& kernel : Kernels()) rows.push_back(Measure(kernel));
    rows.insert(rows.begin(), {"memcpy, whole array", SpreadOf(memcpy_whole_), {1, 1, 1}});
    rows.insert(rows.begin(), {"memcpy, by chunks", SpreadOf(memcpy_chunks_), {1, 1, 1}});
    return rows;
  }

 private:
  static constexpr std::size_t kMaxSources = 8;
  static constexpr std::size_t kArrays = kMaxSources + 1;  // the last one is written

  // Small finite values in every dtype, so that no kernel takes its path for non-finite results.
  static void Fill(std::vector<std::byte>& array, std::size_t seed) {
    std::uint32_t state = static_cast<std::uint32_t>(seed) * 2654435761U + 1;
    for (std::size_t i = 0; i + 2 <= array.size(); i += 2) {
      state = state * 1664525U + 1013904223U;
      const auto half = static_cast<std::uint16_t>(0x2C00U | ((state >> 16) & 0x83FFU));
      std::memcpy(array.data() + i, &half, 2);
    }
  }

  std::byte* out() { return arrays_.back().data(); }

  Kernel ConvertKernel(const std::string& name, DType from, DType to) {
    const std::size_t a = ByteSize(from);
    const std::size_t b = ByteSize(to);
    return {name, a + b, std::max(a, b), [=, this](std::size_t begin, std::size_t end) {
              cpu::Convert(from, sources_[0] + begin * a, to, out() + begin * b, end - begin);
            }};
  }

  Kernel StreamKernel(const std::string& name, DType from, DType to) {
    const std::size_t a = ByteSize(from);
    const std::size_t b = ByteSize(to);
    return {name, a + b, std::max(a, b), [=, this](std::size_t begin, std::size_t end) {
              cpu::ConvertStreaming(from, sources_[0] + begin * a, to, out() + begin * b,
                                    end - begin);
            }};
  }

  Kernel DivideKernel(const std::string& name, DType from, DType to) {
    const std::size_t a = ByteSize(from);
    const std::size_t b = ByteSize(to);
    return {name, a + b, std::max(a, b), [=, this](std::size_t begin, std::size_t end) {
              cpu::ConvertAndDivide(from, sources_[0] + begin * a, to, out() + begin * b,
                                    end - begin, 3);
            }};
  }

  // With `divide`, as a daemon of three members adds what they leave in shared memory as it is.
  Kernel SumKernel(const std::string& name, DType dtype, std::size_t count, bool divide = false) {
    const std::size_t width = ByteSize(dtype);
    return {name, (count + 1) * width, width, [=, this](std::size_t begin, std::size_t end) {
              const void* srcs[kMaxSources];
              for (std::size_t k = 0; k < count; ++k) srcs[k] = sources_[k] + begin * width;
              std::byte* dst = out() + begin * width;
              const bool finite = divide ? cpu::SumQuotients(srcs, count, 3, dst, end - begin)
                                         : cpu::Sum(dtype, srcs, count, 1, dst, end - begin);
              if (!finite) std::abort();
            }};
  }

  std::vector<Kernel> Kernels() {
    const DType f32 = DType::kFloat32;
    const DType f64 = DType::kFloat64;
    const DType f16 = DType::kFloat16;
    const DType bf16 = DType::kBFloat16;
    return {
        ConvertKernel("copy f32", f32, f32),
        StreamKernel("stream f32", f32, f32),
        ConvertKernel("f32 to f16", f32, f16),
        ConvertKernel("f32 to bf16", f32, bf16),
        ConvertKernel("f16 to f32", f16, f32),
        ConvertKernel("bf16 to f32", bf16, f32),
        StreamKernel("f16 to f32, stream", f16, f32),
        StreamKernel("bf16 to f32, stream", bf16, f32),
        DivideKernel("divide f32", f32, f32),
        DivideKernel("f32 to f16, divide", f32, f16),
        DivideKernel("f32 to bf16, divide", f32, bf16),
        SumKernel("sum f32 N=2", f32, 2),
        SumKernel("sum f32 N=4", f32, 4),
        SumKernel("sum f32 N=8", f32, 8),
        SumKernel("divide, sum f32 N=3", f32, 3, true),
        SumKernel("sum f64 N=2", f64, 2),
        SumKernel("sum f16 N=2", f16, 2),
        SumKernel("sum f16 N=4", f16, 4),
        SumKernel("sum bf16 N=2", bf16, 2),
        SumKernel("sum bf16 N=4", bf16, 4),
    };
  }

  double MemcpyRate(std::size_t chunk) {
    const std::size_t bytes = options_.mib << 20;
    return GbPerSecond(2 * bytes, [&] {
      for (std::size_t i = 0; i < bytes; i += chunk) {
        std::memcpy(out() + i, sources_[0] + i, std::min(chunk, bytes - i));
      }
    });
  }

  Row Measure(const Kernel& kernel) {
    const std::size_t numel = (options_.mib << 20) / kernel.largest_element;
    const std::size_t chunk = (options_.chunk_kib << 10) / kernel.largest_element;
    std::vector<double> rates;
    std::vector<double> ratios;
    for (std::size_t repetition = 0; repetition <= options_.repetitions; ++repetition) {
      const double chunks = MemcpyRate(options_.chunk_kib << 10);
      const double whole = MemcpyRate(options_.mib << 20);
      const double rate = GbPerSecond(numel * kernel.bytes_per_element, [&] {
        for (std::size_t i = 0; i < numel; i += chunk) kernel.run(i, std::min(i + chunk, numel));
      });
      if (repetition == 0) continue;  // touches the pages
      memcpy_chunks_.push_back(chunks);
      memcpy_whole_.push_back(whole);
      rates.push_back(rate);
      ratios.push_back(rate / std::max(chunks, whole));
    }
    return {kernel.name, SpreadOf(rates), SpreadOf(ratios)};
  }

  Options options_;
  std::vector<std::vector<std::byte>> arrays_;
  std::vector<const std::byte*> sources_;
  std::vector<double> memcpy_chunks_;
  std::vector<double> memcpy_whole_;
};

void PrintTable(const Options& options, const std::string& target, const std::vector<Row>& rows) {
  std::printf("target %s, arrays of %zu MiB, chunks of %zu KiB, %zu repetitions\n", target.c_str(),
              options.mib, options.chunk_kib, options.repetitions);
  std::printf("%-22s %26s %24s\n", "", "GB/s read+written", "of memcpy");
  for (const Row& row : rows) {
    std::printf("%-22s %8.2f (%6.2f to %6.2f) %8.2f (%5.2f to %5.2f)\n", row.name.c_str(),
                row.gb_per_s.median, row.gb_per_s.min, row.gb_per_s.max, row.ratio.median,
                row.ratio.min, row.ratio.max);
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
  file << "{\n  \"benchmark\": \"kernels\",\n  \"target\": \"" << target
       << "\",\n  \"array_mib\": " << options.mib << ",\n  \"chunk_kib\": " << options.chunk_kib
       << ",\n  \"repetitions\": " << options.repetitions << ",\n  \"results\": [\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    file << "    {\"name\": \"" << rows[i].name << "\", \"gb_per_s\": " << Json(rows[i].gb_per_s)
         << ", \"ratio_to_memcpy\": " << Json(rows[i].ratio) << "}"
         << (i + 1 < rows.size() ? "," : "") << "\n";
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
    } else if (name == "--mib" && number > 0) {
      options.mib = number;
    } else if (name == "--chunk-kib" && number > 0) {
      options.chunk_kib = number;
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
    std::cerr << "usage: " << argv[0]
              << " [--json FILE] [--target NAME] [--mib N] [--chunk-kib N] [--repetitions N]\n";
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
  const std::vector<Row> rows = Bench(options).Run();
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
