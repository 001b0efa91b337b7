// What the registry gives its sessions, and what those of a leaf daemon.
#include <functional>
#include <memory>
#include <utility>

#include "server/record/record_sink.h"
#include "server/session/leaf_session.h"
#include "server/session/registry.h"

namespace gradwire::server {

std::uint64_t Registry::record_left_out() const {
  return recorder_ == nullptr ? 0 : recorder_->left_out();
}

// Its tasks have an owner of their own, so that a long task of the session delays none of them.
SessionHost Registry::HostOf(const SessionOptions& options) const {
  SessionHost host = host_;
  // gradwirectl's trials are nobody's training.
  if (!options.is_trial()) host.record = recorder_;
  host.arbiter = arbiter_;
  if (!options.leaf.is_leaf()) return host;
  const auto owner = std::make_shared<char>();
  const auto post = [threads = host_.work_threads, owner](std::function<void()> task) {
    threads->Post(owner.get(), std::move(task));
  };
  // It may wait for the upstream when it ends, and whoever drops it may have no time for that.
  host.leaf = std::shared_ptr<LeafSession>(
      new LeafSession(
          options.manifest, make_upstream_(options),
          {.post = post, .before_long_work = host_.before_long_work, .threads = leaf_threads_}),
      [post](LeafSession* leaf) { post([leaf = std::shared_ptr<LeafSession>(leaf)] {}); });
  host.reducer = host.leaf;
  return host;
}

}  // namespace gradwire::server
