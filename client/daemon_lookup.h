// Where the daemons of a session are now, if they are the addresses of one DNS name: a pod that is
// made anew comes back with another address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sync.h"

namespace gradwire::client {

// Thread-safe. All calls but Took look the name up, which takes as long as the resolver waits for
// an answer; a lookup that fails says nothing new.
class DaemonLookup {
 public:
  // The name's addresses, "10.0.0.1:29610", in the order of Resolve.
  using Function = std::function<absl::StatusOr<std::vector<std::string>>()>;

  // `addresses`: where the daemons are, by shard.
  DaemonLookup(std::vector<std::string> addresses, Function look_up)
      : look_up_(std::move(look_up)), addresses_(std::move(addresses)) {}

  // Where the shard's daemon is to be tried next. The only daemon of a session: at each of the
  // name's addresses in turn, the last known one first. One of several: where it was, if the name
  // still has that address, or has not as many as there are shards. Otherwise the addresses that
  // are new take the places of those that are gone, in their order, so that all members who get one
  // answer find the same daemon for a shard.
  std::string Next(std::uint32_t shard);
  // The shard's daemon was there.
  void Took(std::uint32_t shard, const std::string& address);
  // Whether the shard's daemon is not where it was: the name has other addresses, and not this one.
  bool HasMoved(std::uint32_t shard);

 private:
  std::vector<std::string> Places(const std::vector<std::string>& found) const
      GRADWIRE_REQUIRES(mutex_);

  const Function look_up_;
  Mutex mutex_;
  std::vector<std::string> addresses_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t tries_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // of the only daemon, since it was found
};

}  // namespace gradwire::client
