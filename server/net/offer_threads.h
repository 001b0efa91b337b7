// Threads that answer offers of shared memory. Mapping gigabytes takes seconds; neither connections
// nor other members' offers wait for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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

// Thread-safe. Only one offer of each member (token) runs at a time, so that a member occupies at
// most one thread. One thread and a quarter of the queue are reserved for first segments, which are
// small, so that members can attach while others map gigabytes. A member that gets no answer sends
// its payloads in the stream.
class OfferThreads {
 public:
  // Maps the segment and returns the reply. Runs on these threads, for several members at a time.
  // `go_on` returns an error when nobody waits for the answer: the member closed its connection,
  // the offer's time is over, or the daemon stops.
  // `user` made the offer, as the kernel says.
  using Handler = std::function<absl::StatusOr<wire::MemoryReply>(wire::MemoryRequest, uid_t user,
                                                                  wire::GoOn go_on)>;
  // The proof for a member that asks whose socket this is. Called on the caller's thread of Submit.
  using Prover =
      std::function<absl::StatusOr<std::string>(std::uint64_t start_id, const std::string& probe)>;

  struct Options {
    std::size_t threads = 4;  // started when first needed
    std::size_t max_pending = 256;
    std::size_t max_pending_of_member = 4;
    // Time from the offer's arrival to its answer. A joining member waits 5 s at most.
    std::chrono::milliseconds timeout{10'000};
  };

  // `prove` null: probes are refused.
  OfferThreads(const Options& options, Handler handler, Prover prove = nullptr)
      : options_(options), handler_(std::move(handler)), prove_(std::move(prove)) {}
  ~OfferThreads() { Stop(); }

  OfferThreads(const OfferThreads&) = delete;
  OfferThreads& operator=(const OfferThreads&) = delete;

  // Takes an offer whose bytes have arrived; never waits. If it is not an offer, or one too many,
  // it is refused at once with the reason. A probe is answered at once.
  void Submit(UniqueFd connection) GRADWIRE_EXCLUDES(mutex_);

  // Ends running offers, closes waiting ones, and returns when all threads have ended. Later offers
  // are refused.
  void Stop() GRADWIRE_EXCLUDES(mutex_);

  // The number of offers that wait for a thread.
  std::size_t pending() const GRADWIRE_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Offer {
    UniqueFd connection;
    uid_t user = 0;
    wire::MemoryRequest request;
    Clock::time_point deadline;
  };

  wire::MemoryReply Prove(const wire::MemoryRequest& request) const;
  absl::Status Enqueue(Offer& offer) GRADWIRE_EXCLUDES(mutex_);
  // Returns an error if no thread could be started and none runs.
  absl::Status StartThreads() GRADWIRE_REQUIRES(mutex_);
  void Run() GRADWIRE_EXCLUDES(mutex_);
  // The oldest whose turn it is; pending_.end(): none.
  std::deque<Offer>::iterator NextOffer() GRADWIRE_REQUIRES(mutex_);
  // The lock is given back meanwhile.
  void Take(const std::deque<Offer>::iterator& next) GRADWIRE_REQUIRES(mutex_);
  void Answer(Offer offer) GRADWIRE_EXCLUDES(mutex_);
  absl::Status MayGoOn(const UniqueFd& connection, Clock::time_point deadline) const
      GRADWIRE_EXCLUDES(mutex_);

  const Options options_;
  const Handler handler_;
  const Prover prove_;
  mutable Mutex mutex_;
  CondVar work_;
  std::deque<Offer> pending_ GRADWIRE_GUARDED_BY(mutex_);
  std::set<std::string> at_work_ GRADWIRE_GUARDED_BY(mutex_);  // tokens
  std::size_t further_at_work_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool stopping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server
