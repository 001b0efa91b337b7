#include "client/core/eager_sending.h"

#include "base/mutants.h"

namespace gradwire::client {

void EagerSending::Sent(std::uint32_t bucket, std::size_t bytes) {
  open_[bucket] = bytes;
  if (!IsActive(Mutant::kEagerBytesForgotten)) sent_ += bytes;
}

void EagerSending::Forget(std::uint32_t bucket) {
  const auto found = open_.find(bucket);
  if (found == open_.end()) return;
  sent_ -= found->second;
  open_.erase(found);
}

void EagerSending::Finish(std::uint32_t bucket) {
  const auto found = open_.find(bucket);
  if (found == open_.end()) return;
  // The bytes still count as sent, because the daemon learns of the result only with the next
  // announcement.
  done_ += found->second;
  open_.erase(found);
  finished_.push_back(bucket);
}

std::vector<std::uint32_t> EagerSending::TakeAcknowledged() {
  sent_ -= std::exchange(done_, 0);
  return std::exchange(finished_, {});
}

// `sent_` keeps the bytes of the open buckets; nothing depends on it until EndStep resets it,
// because the rest of the step sends nothing eagerly.
void EagerSending::Stop() {
  open_.clear();
  stopped_ = true;
}

void EagerSending::EndStep() {
  open_.clear();
  finished_.clear();
  sent_ = 0;
  done_ = 0;
  stopped_ = false;
}

}  // namespace gradwire::client
