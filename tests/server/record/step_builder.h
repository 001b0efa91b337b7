// A recorded step in memory, made without a daemon: the plans are the hook's, the contributions are
// drawn, and the results are what Reduce makes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/hooks/hook_spec.h"
#include "gradwire/v1/record.pb.h"
#include "proto/wire/frame.h"
#include "server/core/manifest.h"
#include "server/record/record_file.h"

namespace gradwire::testing {

// Numbers in [0, 2^64), the same in every run.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next();
  // In [-1, 1).
  double Number() { return static_cast<double>(Next() >> 11) * 0x1p-52 - 1; }

 private:
  std::uint64_t state_;
};

// One record: what stands in front of it, and the rest.
std::string RecordBytes(server::RecordKind kind, const std::string& head,
                        const std::string& payload = "");

class StepBuilder {
 public:
  struct Options {
    std::string hook = "no";
    DType dtype = DType::kFloat32;
    int members = 3;
    std::size_t chunk_bytes = 256;
    Slice slice{};
    // Members that contribute gradients as they are.
    std::vector<bool> raw{};
    std::int64_t step = 41;
    std::uint64_t seed = 1;
    // Elements of each parameter; the shape is a square where that is one.
    std::vector<std::size_t> parameters = {256, 7, 144};
    // The number that a rank contributes for an element; by default a drawn one.
    std::function<double(int rank, std::size_t element)> number{};
  };

  explicit StepBuilder(Options options);

  // Changes of what is written, after the results were computed.
  std::vector<v1::RecordedReduction>& reductions() { return reductions_; }
  std::string& payload(std::size_t reduction) { return payloads_[reduction]; }
  v1::RecordedStep& step() { return step_; }
  v1::RecordedBucket& bucket() { return bucket_; }
  v1::RecordedEnd& end() { return end_; }

  std::string File() const;

 private:
  void AddReduction(std::uint32_t round, const wire::ChunkLayout& layout,
                    const wire::ChunkLayout::Unit& unit);
  void Conclude();

  const Options options_;
  Draws draws_;
  v1::RecordedStep step_;
  v1::RecordedModel model_;
  v1::RecordedBucket bucket_;
  std::vector<v1::RecordedReduction> reductions_;
  std::vector<std::string> payloads_;
  v1::RecordedEnd end_;
};

}  // namespace gradwire::testing
