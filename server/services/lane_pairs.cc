#include "server/services/lane_pairs.h"

#include <utility>

#include "server/services/bulk_lane.h"
#include "server/services/member_exchange.h"

namespace gradwire::server {

// The stream and its lane arrive on two connections in any order. The first one waits here; the
// second one takes both out, so exactly one thread connects them.
template <typename Half>
LanePairs::Halves LanePairs::Put(const Key& key, std::shared_ptr<Half> Halves::*place,
                                 const std::shared_ptr<Half>& half) {
  std::shared_ptr<Half> replaced;  // destroyed without the lock
  MutexLock lock(mutex_);
  Halves& halves = alone_[key];
  // A half with the same number replaces this one, which then ends at its hello timeout.
  replaced = std::exchange(halves.*place, half);
  if (halves.stream == nullptr || halves.lane == nullptr) return {};
  Halves both = std::move(halves);
  alone_.erase(key);
  return both;
}

void LanePairs::Add(const Key& key, const std::shared_ptr<MemberExchange>& stream) {
  const Halves both = Put(key, &Halves::stream, stream);
  if (both.lane != nullptr) both.stream->Connect(both.lane);
}

void LanePairs::Add(const Key& key, const std::shared_ptr<BulkLane>& lane) {
  const Halves both = Put(key, &Halves::lane, lane);
  if (both.stream != nullptr) both.stream->Connect(both.lane);
}

void LanePairs::Remove(const Key& key, const void* half) {
  Halves removed;  // destroyed without the lock
  MutexLock lock(mutex_);
  const auto found = alone_.find(key);
  if (found == alone_.end()) return;
  // A half that was replaced must not remove its successor.
  if (found->second.stream.get() != half && found->second.lane.get() != half) return;
  removed = std::move(found->second);
  alone_.erase(found);
}

}  // namespace gradwire::server
