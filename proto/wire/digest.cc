#include "proto/wire/digest.h"

#include <xxhash.h>

// Plain XXH3_64bits is built for the least of all x86-64 processors: it takes up to three times as
// long. This header puts functions in its place that choose when the program runs.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

namespace gradwire::wire {

struct Digester::State {
  struct Deleter {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  // Allocated by the library, which wants it aligned.
  const std::unique_ptr<XXH3_state_t, Deleter> xxh{XXH3_createState()};
};

std::uint64_t DigestOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Digester::Digester() : state_(std::make_unique<State>()) { Reset(); }
Digester::~Digester() = default;

void Digester::Reset() { XXH3_64bits_reset(state_->xxh.get()); }

void Digester::Update(std::span<const std::byte> piece) {
  XXH3_64bits_update(state_->xxh.get(), piece.data(), piece.size());
}

std::uint64_t Digester::Finish() const { return XXH3_64bits_digest(state_->xxh.get()); }

// For a fixed value both operations are invertible (odd factor, xor-shift).
std::uint64_t CombineDigests(std::uint64_t seed, std::uint64_t value) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  seed = (seed ^ value) * kOdd;
  return seed ^ (seed >> 29);
}

}  // namespace gradwire::wire
