// XXH3-64, the digest of payloads, with the instructions that this processor has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace gradwire::wire {

std::uint64_t DigestOf(std::span<const std::byte> bytes);

// Of bytes that come in pieces. Not thread-safe.
class Digester {
 public:
  Digester();
  ~Digester();

  void Reset();
  void Update(std::span<const std::byte> piece);
  // Of all pieces since the last Reset.
  std::uint64_t Finish() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// Chains values: two chains that differ in one value only end in different digests.
std::uint64_t CombineDigests(std::uint64_t seed, std::uint64_t value);

}  // namespace gradwire::wire
