#include "proto/wire/manifest_reader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/checks.h"

namespace gradwire::wire {
namespace {

// A set's node and its share of the table, and what the allocator adds to a name and to a shape.
constexpr std::size_t kNodeBytes = 48;
constexpr std::size_t kHeapBytes = std::size_t{2} * 16;
constexpr std::size_t kShapeBytes = 16 * sizeof(std::int64_t);

}  // namespace

ManifestReader::ManifestReader(std::size_t count) : count_(std::min(count, kMaxParameters)) {
  parameters_.reserve(count_);
}

std::size_t ManifestReader::BytesFor(std::size_t count, std::size_t name_bytes) {
  return count * (sizeof(ParameterSpec) + kNodeBytes + kHeapBytes + kShapeBytes) + name_bytes;
}

absl::Status ManifestReader::Add(const Manifest& parameters) {
  const auto count = static_cast<std::size_t>(parameters.size());
  // `names_` refers to names in `parameters_`, so this must never grow beyond its reserved
  // capacity.
  const std::size_t left = count_ - parameters_.size();
  if (count > left) {
    return NotAllowed("manifest", absl::StrCat("has ", count, " more parameters"),
                      absl::StrCat("at most ", left));
  }
  for (const v1::Parameter& parameter : parameters) {
    if (absl::Status status = AddOne(parameter); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ManifestReader::AddOne(const v1::Parameter& message) {
  const auto field = [this] { return absl::StrCat("manifest[", parameters_.size(), "]"); };
  if (!IsDType(message.dtype())) {
    return NotAllowed(absl::StrCat(field(), ".dtype"), static_cast<int>(message.dtype()), "1 to 4");
  }
  ParameterSpec parameter{.name = message.name(),
                          .shape = {message.shape().begin(), message.shape().end()},
                          .dtype = static_cast<DType>(message.dtype())};
  if (absl::Status status = parameter.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(field(), ": ", std::string(status.message())));
  }
  if (names_.contains(message.name())) {
    return NotAllowed(absl::StrCat(field(), ".name"),
                      absl::StrCat("\"", message.name(), "\" for the second time"),
                      "a name that no other parameter has");
  }
  bytes_ += parameter.numel() * ByteSize(parameter.dtype);
  if (bytes_ > kMaxManifestBytes) {
    return NotAllowed(
        "manifest",
        absl::StrCat("its first ", parameters_.size() + 1, " parameters take ", bytes_, " bytes"),
        absl::StrCat("at most ", kMaxManifestBytes));
  }
  parameters_.push_back(std::move(parameter));
  names_.insert(parameters_.back().name);
  return absl::OkStatus();
}

}  // namespace gradwire::wire
