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

}  // namespace gradwire::wire
