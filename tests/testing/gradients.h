// Gradients that every test process can compute by itself, and what reducing them must give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook_spec.h"

namespace gradwire::testing {

// Number i of rank's gradient in a step, in [-1, 1). The Python member computes the same.
double GradientValue(int rank, std::int64_t step, std::size_t i);

ParameterSpec MakeParameter(const std::string& name, std::size_t numel,
                            DType dtype = DType::kFloat32);

// Some parameters' gradients in memory of their own.
class Gradients {
 public:
  explicit Gradients(std::vector<ParameterSpec> parameters);

  void Fill(int rank, std::int64_t step);
  // Sets one element to what is no number.
  void Poison(std::size_t element);

  // Over all of it. The bucket refers to this object's memory.
  GradBucket Bucket(int index = 0);

  const std::vector<std::byte>& bytes() const { return bytes_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }

 private:
  std::vector<ParameterSpec> parameters_;
  DType dtype_;
  std::size_t numel_ = 0;
  std::vector<std::byte> bytes_;
};

// The bytes that a bucket of `parameters` holds after the step, computed without chunks, frames or
// processes. `poisoned_rank`: one that called Poison(0); -1: none.
absl::StatusOr<std::vector<std::byte>> ExpectedReduction(
    const HookSpec& spec, const std::vector<ParameterSpec>& parameters, int world_size,
    std::int64_t step, int rank = 0, int poisoned_rank = -1);

}  // namespace gradwire::testing
