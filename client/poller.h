// The thread to which gRPC tells that what a client's stream began is over.
//
// gRPC's own callback threads are two at least, and each event that one of them takes wakes the
// other. For small buckets those switches cost more than anything else; a queue with one thread has
// none.
#pragma once

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace gradwire::client {

// Thread-safe. Streams refer to it for as long as anything of theirs is in flight; the last
// reference ends the thread.
class Poller {
 public:
  // What a stream begins, one at a time. Lives until it is over; `done` may destroy it.
  struct Operation {
    void (*done)(void* owner, bool ok);
    void* owner;
  };

  static std::shared_ptr<Poller> Start() { return std::shared_ptr<Poller>(new Poller); }
  ~Poller();

  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::CompletionQueue* queue() { return &shared_->queue; }

  // The tag with which gRPC is to begin it. `done` sees what was written before.
  void* Begin(Operation& operation);

 private:
  // With the thread, which may be the last to have it.
  struct Shared {
    grpc::CompletionQueue queue;
    // gRPC orders an operation's beginning and its end, but not where ThreadSanitizer sees it.
    std::atomic<std::uint64_t> begun = 0;
  };

  Poller();
  static void Poll(Shared& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace gradwire::client
