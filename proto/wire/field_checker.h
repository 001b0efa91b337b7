// The checks that fields of a message from outside have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/v1/aggregation.pb.h"
#include "proto/wire/checks.h"
#include "proto/wire/frame.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::wire {

inline constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

// Collects the first error of a message's fields, so that a message reads as a list of its fields.
class Checker {
 public:
  explicit Checker(const char* message) : message_(message) {}

  const absl::Status& status() const { return status_; }

  void Note(const absl::Status& status) { status_.Update(status); }

  std::int64_t Step(std::int64_t step) { return Range("step", step, std::int64_t{0}, kMaxInt64); }

  int Rank(const char* field, std::int64_t rank, std::int64_t low = 0) {
    return static_cast<int>(Range(field, rank, low, kMaxRank));
  }

  std::uint32_t Parameter(const char* field, std::uint32_t position) {
    return Range(field, position, std::uint32_t{0}, static_cast<std::uint32_t>(kMaxParameters - 1));
  }

  RoundId Id(const v1::RoundId& id) {
    return {.step = Range("id.step", id.step(), std::int64_t{0}, kMaxInt64),
            .attempt = id.attempt(),
            .bucket = Parameter("id.bucket", id.bucket()),
            .round = Range("id.round", id.round(), std::uint32_t{0},
                           static_cast<std::uint32_t>(kMaxRounds - 1))};
  }

  template <class T>
  T Range(const char* field, T value, T low, T high) {
    if (!(value >= low && value <= high)) Note(CheckRange(Name(field), value, low, high));
    return value;
  }

  void Count(const char* field, std::size_t count, std::size_t low, std::size_t high) {
    Note(CheckCount(Name(field), count, low, high));
  }

  void Finite(const char* field, bool finite) {
    if (!finite) Note(NotAllowed(Name(field), "a value that is not finite", "finite values"));
  }

  void Enumerator(const char* field, int value, bool known, const char* allowed) {
    if (!known) Note(NotAllowed(Name(field), value, allowed));
  }

 private:
  std::string Name(const char* field) const { return absl::StrCat(message_, ".", field); }

  const char* message_;
  absl::Status status_;
};

}  // namespace gradwire::wire
