// Where a bucket's parameters are in the manifest, and which of them the open step has had.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"

namespace gradwire::client {

class StepParameters {
 public:
  // `manifest` outlives this.
  explicit StepParameters(std::span<const ParameterSpec> manifest);

  std::optional<std::uint32_t> Find(const std::string& name) const;

  // The bucket's parameters in its order. An error names the one that is unknown, different, or in
  // `step` already. The work is that of the bucket's parameters, however many the manifest has.
  absl::StatusOr<std::vector<std::uint32_t>> Map(const GradBucket& bucket, std::int64_t step);

  // They are in the step.
  void Use(std::span<const std::uint32_t> positions);
  // The step is over.
  void Clear();

 private:
  const std::span<const ParameterSpec> manifest_;
  std::unordered_map<std::string, std::uint32_t> positions_;
  std::vector<bool> used_;
  // The number of the last Map that met the parameter: what one Map has met needs no clearing.
  std::vector<std::uint64_t> met_;
  std::uint64_t maps_ = 0;
};

}  // namespace gradwire::client
