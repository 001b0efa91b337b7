// A join whose manifest comes in parts: what proto/README.md says of JoinInParts.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/manifest_reader.h"

namespace gradwire::wire {

// Of the parameters of one part, by protobuf's count. Every daemon takes a message of this size.
inline constexpr std::size_t kJoinPartBytes = std::size_t{512} << 10;

// Puts parts together. Not thread-safe.
class JoinParts {
 public:
  // Asked once, before memory is taken: may the join have so many bytes?
  using Reserve = std::function<absl::Status(std::size_t bytes)>;

  explicit JoinParts(Reserve reserve) : reserve_(std::move(reserve)) {}

  // The next part. InvalidArgument, or what Reserve said; nothing more may be added then.
  absl::Status Add(v1::JoinPart part);
  // After the last: InvalidArgument unless everything that the first part told of is here.
  absl::Status CheckComplete() const;

  // Of a complete join.
  const v1::JoinRequest& request() const { return request_; }
  std::vector<ParameterSpec> TakeManifest() { return std::move(*reader_).Take(); }

 private:
  absl::Status Begin(v1::JoinPart& first);

  const Reserve reserve_;
  v1::JoinRequest request_;
  std::size_t parameters_ = 0;
  std::size_t name_bytes_left_ = 0;
  std::optional<ManifestReader> reader_;  // from the first part on
};

}  // namespace gradwire::wire
