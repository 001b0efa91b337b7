// Plain values to and from the messages of gradwire.v1. What comes from outside is checked on the
// way: InvalidArgument names the field, the value and what is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook_spec.h"
#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/frame.h"

namespace gradwire::wire {

// Limits on one message beside those of base/limits.h. They are part of the contract:
// proto/README.md lists them.
inline constexpr std::size_t kMaxTokenBytes = 256;
inline constexpr std::size_t kMaxMessageBytes = 4096;  // of a Failure
inline constexpr std::size_t kMaxOptions = 64;
inline constexpr std::size_t kMaxOptionBytes = 4096;
inline constexpr std::uint64_t kMaxNumel = std::uint64_t{1} << 48;
inline constexpr std::uint64_t kMaxMatrixSide = std::uint64_t{1} << 32;
inline constexpr std::uint64_t kMaxMatrixCols = 1024;  // bounds the work of an orthonormal sum
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 48;
inline constexpr std::int64_t kMaxRank = kMaxWorldSize - 1;

// What a join of so many parameters may take beyond the usual timeouts, on both sides. Each side
// takes some 2 us for each parameter to check a manifest or to prepare for it; on a busy machine it
// is more. Without this, a large join would count as unanswered or abandoned, and begin again.
// Whole seconds, because messages show it with the timeout.
inline absl::Duration ReadingTime(std::size_t parameters) {
  return absl::Floor(absl::Microseconds(20) * static_cast<std::int64_t>(parameters),
                     absl::Seconds(1));
}

// Too long a Failure message is cut.
v1::Header ToProto(const Header& header);
absl::StatusOr<Header> FromProto(const v1::Header& header);

// Both directions write "" as "no". From outside, a hook's name and options need only be well
// formed, since a member's own hook is not registered in the daemon; built-in ones are checked
// completely.
v1::HookSpec ToProto(const HookSpec& spec);
absl::StatusOr<HookSpec> FromProto(const v1::HookSpec& spec);

v1::Parameter ToProto(const ParameterSpec& parameter);

using Manifest = google::protobuf::RepeatedPtrField<v1::Parameter>;
// Every parameter valid, no name twice, no more than kMaxManifestBytes together.
absl::StatusOr<std::vector<ParameterSpec>> FromProto(const Manifest& manifest);

// InfiniteDuration becomes the longest that protobuf has.
google::protobuf::Duration ToProto(absl::Duration duration);
// Refuses what is negative. `field` is what the error calls it.
absl::StatusOr<absl::Duration> FromProto(const google::protobuf::Duration& duration,
                                         const std::string& field);

}  // namespace gradwire::wire
