#include "proto/wire/late_frames.h"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace gradwire::wire {
namespace {

constexpr std::size_t kMaxRefusalBytes = 1024;
// Of a member's residuals. Whoever takes them compares the size with that of its own parameters.
constexpr std::uint64_t kMaxResidualBytes = std::uint64_t{1} << 44;

std::uint64_t GetId(std::uint64_t id, Checker& check) {
  return check.Range("id", id, std::uint64_t{1}, std::numeric_limits<std::uint64_t>::max());
}

}  // namespace

void Set(const HandOver& hand_over, v1::Header& out) {
  v1::HandOver& message = *out.mutable_hand_over();
  message.set_generation(hand_over.generation);
  message.set_id(hand_over.id);
  message.set_rank(hand_over.rank);
  message.set_offset(hand_over.offset);
  message.set_bytes(hand_over.bytes);
}

HandOver Get(const v1::HandOver& message, Checker& check) {
  const std::uint64_t bytes =
      check.Range("bytes", message.bytes(), std::uint64_t{1}, kMaxResidualBytes);
  return {.generation = message.generation(),
          .id = GetId(message.id(), check),
          .rank = check.Rank("rank", message.rank()),
          .offset = check.Range("offset", message.offset(), std::uint64_t{0}, bytes),
          .bytes = bytes};
}

void Set(const HandOverAnswer& answer, v1::Header& out) {
  v1::HandOverAnswer& message = *out.mutable_hand_over_answer();
  message.set_generation(answer.generation);
  message.set_id(answer.id);
  message.set_rank(answer.rank);
  message.set_received(answer.received);
  message.set_taken(answer.taken);
  message.set_refusal(answer.refusal);
}

HandOverAnswer Get(const v1::HandOverAnswer& message, Checker& check) {
  check.Range("refusal's size", message.refusal().size(), std::size_t{0}, kMaxRefusalBytes);
  if (!check.status().ok()) return {};
  return {.generation = message.generation(),
          .id = GetId(message.id(), check),
          .rank = check.Rank("rank", message.rank()),
          .received = message.received(),
          .taken = message.taken(),
          .refusal = message.refusal()};
}

void Set(const Missed& missed, v1::Header& out) {
  v1::Missed& message = *out.mutable_missed();
  v1::RoundId& id = *message.mutable_id();
  id.set_step(missed.id.step);
  id.set_attempt(missed.id.attempt);
  id.set_bucket(missed.id.bucket);
  id.set_round(missed.id.round);
  message.mutable_parameters()->Add(missed.parameters.begin(), missed.parameters.end());
}

Missed Get(const v1::Missed& message, Checker& check) {
  check.Count("parameters", static_cast<std::size_t>(message.parameters_size()), 1, kMaxParameters);
  if (!check.status().ok()) return {};
  Missed missed{.id = check.Id(message.id())};
  missed.parameters.reserve(static_cast<std::size_t>(message.parameters_size()));
  for (const std::uint32_t parameter : message.parameters()) {
    missed.parameters.push_back(check.Parameter("parameters", parameter));
  }
  return missed;
}

}  // namespace gradwire::wire
