// Threads that answer offers of shared memory. To map gigabytes takes seconds, for which neither
// connections nor other members' offers wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "base/unique_fd.h"
#include "proto/wire/memory_offer.h"
#include "proto/wire/memory_segment.h"

namespace gradwire::server {

// Thread-safe. Of one member (one token) one offer at a time is at work, so that a member that
// offers without end takes one thread at most. Further segments, which may have gigabytes, leave a
// thread and a quarter of the queue to first ones: however many members give gradients, others
// attach at once. Whoever gets no answer sends payloads in its stream.
class OfferThreads {
 public:
  // Maps the segment and says what the member is told. Runs on these threads, for several members
  // at a time. `go_on` is an error once nobody waits for the answer any more: the member closed its
  // connection, the offer's time is over, or the daemon stops.
  using Handler =
      std::function<absl::StatusOr<wire::MemoryReply>(wire::MemoryRequest, wire::GoOn go_on)>;

  struct Options {
    std::size_t threads = 4;  // started when first needed
    std::size_t max_pending = 256;
    std::size_t max_pending_of_member = 4;
    // From the offer's arrival to its answer. A member waits 5 s at most when it joins.
    std::chrono::milliseconds timeout{10'000};
  };

  OfferThreads(const Options& options, Handler handler)
      : options_(options), handler_(std::move(handler)) {}
  ~OfferThreads() { Stop(); }

  OfferThreads(const OfferThreads&) = delete;
  OfferThreads& operator=(const OfferThreads&) = delete;

  // Takes an offer whose bytes are there; never waits. One that is no offer, or one too many, is
  // refused at once, with an answer that says why.
  void Submit(UniqueFd connection) GRADWIRE_EXCLUDES(mutex_);

  // Ends what is at work, closes what waits, and returns when no thread is left. Later offers are
  // refused.
  void Stop() GRADWIRE_EXCLUDES(mutex_);

  // Offers that wait for a thread.
  std::size_t pending() const GRADWIRE_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Offer {
    UniqueFd connection;
    wire::MemoryRequest request;
    Clock::time_point deadline;
  };

  absl::Status Enqueue(Offer& offer) GRADWIRE_EXCLUDES(mutex_);
  // An error: there is no thread at all.
  absl::Status StartThreads() GRADWIRE_REQUIRES(mutex_);
  void Run() GRADWIRE_EXCLUDES(mutex_);
  // The oldest whose turn it is; pending_.end(): none.
  std::deque<Offer>::iterator NextOffer() GRADWIRE_REQUIRES(mutex_);
  // The lock is given back meanwhile.
  void Take(std::deque<Offer>::iterator next) GRADWIRE_REQUIRES(mutex_);
  void Answer(Offer offer) GRADWIRE_EXCLUDES(mutex_);
  absl::Status MayGoOn(const UniqueFd& connection, Clock::time_point deadline) const
      GRADWIRE_EXCLUDES(mutex_);

  const Options options_;
  const Handler handler_;
  mutable Mutex mutex_;
  CondVar work_;
  std::deque<Offer> pending_ GRADWIRE_GUARDED_BY(mutex_);
  std::set<std::string> at_work_ GRADWIRE_GUARDED_BY(mutex_);  // tokens
  std::size_t further_at_work_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool stopping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server
