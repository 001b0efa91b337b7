// A manifest from outside, taken in one piece or in several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::wire {

// Checks each parameter once, in time linear in their number. Not thread-safe.
class ManifestReader {
 public:
  // Takes the memory for `count` parameters, without their names: at most kMaxParameters.
  explicit ManifestReader(std::size_t count);
  ManifestReader(const ManifestReader&) = delete;
  ManifestReader& operator=(const ManifestReader&) = delete;

  // What a manifest of these sizes takes at most while it is read.
  static std::size_t BytesFor(std::size_t count, std::size_t name_bytes);

  // The next ones: at most what is left of `count`. InvalidArgument for a bad parameter, a name
  // for the second time, or more gradients than kMaxManifestBytes; nothing more may be added then.
  absl::Status Add(const Manifest& parameters);

  std::size_t size() const { return parameters_.size(); }
  std::vector<ParameterSpec> Take() && { return std::move(parameters_); }

 private:
  absl::Status AddOne(const v1::Parameter& message);

  const std::size_t count_;
  std::vector<ParameterSpec> parameters_;  // never grows beyond its capacity: names_ refers to it
  std::unordered_set<std::string_view> names_;
  std::uint64_t bytes_ = 0;  // of the gradients
};

}  // namespace gradwire::wire
