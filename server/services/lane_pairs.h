// Pairs a member's stream with its bulk lane: two calls on two connections, of which either may
// come first.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "base/sync.h"

namespace gradwire::server {

class BulkLane;
class MemberExchange;

// Thread-safe. Remembers the first half until the second comes or the first withdraws.
class LanePairs {
 public:
  struct Key {
    std::uint64_t generation = 0;
    int rank = 0;
    std::uint64_t pair = 0;  // Hello.pair
    // clang-tidy takes the 0 in the rewritten comparison for a pointer.
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr)
  };

  // When the second half arrives, calls MemberExchange::Connect.
  void Add(const Key& key, const std::shared_ptr<MemberExchange>& stream) GRADWIRE_EXCLUDES(mutex_);
  void Add(const Key& key, const std::shared_ptr<BulkLane>& lane) GRADWIRE_EXCLUDES(mutex_);

  // Withdraws a half that arrived, whichever it is.
  void Remove(const Key& key, const void* half) GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Halves {
    std::shared_ptr<MemberExchange> stream;
    std::shared_ptr<BulkLane> lane;
  };

  // Stores `half`, and returns both halves if it is the second.
  template <typename Half>
  Halves Put(const Key& key, std::shared_ptr<Half> Halves::*place,
             const std::shared_ptr<Half>& half) GRADWIRE_EXCLUDES(mutex_);

  Mutex mutex_;
  std::map<Key, Halves> alone_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server
