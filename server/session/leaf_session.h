// What makes a session a leaf's: sums go to the root's session, and its verdicts come back.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include "base/sync.h"
#include "server/core/manifest.h"
#include "server/session/leaf_answers.h"
#include "server/session/reducer.h"
#include "server/session/sum_threads.h"
#include "server/session/upstream.h"

namespace gradwire::server {

// As the session's Reducer it adds up the members' contributions of a whole bucket, lets the
// upstream reduce their mean, and answers with the root's result for every chunk.
//
// Thread-safe. Nothing that it is told by the upstream is handled on the upstream's thread, so that
// this object never ends there.
class LeafSession final : public Reducer, public std::enable_shared_from_this<LeafSession> {
 public:
  struct Host {
    // Runs a task on another thread, in the order in which they were given.
    std::function<void(std::function<void()> task)> post;
    std::function<void()> before_long_work;  // as SessionHost's
    std::shared_ptr<SumThreads> threads;
  };
  LeafSession(Manifest manifest, std::unique_ptr<Upstream> upstream, Host host);

  // Before anything else.
  void SetAnswers(LeafAnswers answers) { answers_ = std::move(answers); }

  // What the core asks for, in its order: Queue under the session's lock, then Pump without it.
  void Queue(UpstreamEffect effect) GRADWIRE_EXCLUDES(mutex_);
  // The session has ended; what is queued later has no effect, nor has what waits, after an error.
  void QueueEnd(const absl::Status& why, int blamed_rank) GRADWIRE_EXCLUDES(mutex_);
  void Pump() GRADWIRE_EXCLUDES(mutex_);

  void Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
              Answer answer) override GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Sum;
  struct End {
    absl::Status why;
    int blamed_rank = -1;
  };
  using Wish = std::variant<UpstreamEffect, std::shared_ptr<Sum>, End>;
  using Key = std::pair<std::int64_t, std::uint32_t>;  // step, bucket

  std::shared_ptr<Sum> SumOf(const ReduceEffect& reduce) GRADWIRE_EXCLUDES(mutex_);
  void Do(const Wish& wish) GRADWIRE_EXCLUDES(mutex_);
  void Join();
  void EndStep(std::int64_t step);
  Upstream::Progress ProgressLater();
  void ReduceEmpty(const UpstreamEffect& effect) GRADWIRE_EXCLUDES(mutex_);
  void QueueSum(std::shared_ptr<Sum> sum) GRADWIRE_EXCLUDES(mutex_);
  void SendUp(const std::shared_ptr<Sum>& sum);
  void SpreadOut(Sum& sum);
  GradBucket BucketOf(const std::vector<std::uint32_t>& parameters, std::byte* buffer) const;
  // An answer of the upstream's, for this object while it lives.
  template <typename Function>
  auto Later(Function function);

  const Manifest manifest_;
  const Host host_;
  LeafAnswers answers_;
  Mutex mutex_;
  std::deque<Wish> wishes_ GRADWIRE_GUARDED_BY(mutex_);
  bool pumping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool over_ GRADWIRE_GUARDED_BY(mutex_) = false;
  // Of the open step, whose buffers the upstream has.
  std::map<Key, std::shared_ptr<Sum>> sums_ GRADWIRE_GUARDED_BY(mutex_);
  const std::unique_ptr<Upstream> upstream_;  // ends first
};

}  // namespace gradwire::server
