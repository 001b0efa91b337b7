// The threads to which gRPC tells that what the daemon's calls began is over.
//
// With gRPC's epoll engine, wherever two threads wait for events, each event that one takes wakes
// the other. For small buckets those switches cost more than anything else. So of these threads one
// at a time waits, and deals with what comes; only before long work does it let another wait.
#pragma once

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/sync.h"

namespace gradwire::server {

// Thread-safe, but for Start and Stop.
class RpcThreads {
 public:
  // What is begun on the queue, one at a time. Lives until it is over; `done` may destroy it.
  // `done` runs on one of the threads and must not wait for another event.
  struct Operation {
    void (*done)(void* owner, bool ok);
    void* owner;
  };

  explicit RpcThreads(std::unique_ptr<grpc::ServerCompletionQueue> queue);
  // Stop.
  ~RpcThreads();

  RpcThreads(const RpcThreads&) = delete;
  RpcThreads& operator=(const RpcThreads&) = delete;

  // One more than there are cores, so that sums on all of them leave one to wait; at least 3, at
  // most 16.
  static std::size_t Count();

  void Start(std::size_t threads);

  // Nothing is begun any more, and what was begun is over or about to be. Returns when no thread is
  // left. Later calls do nothing.
  void Stop();

  grpc::ServerCompletionQueue* queue() { return queue_.get(); }

  // The tag with which gRPC is to begin it. `done` sees what was written before.
  void* Begin(Operation& operation);

  // The calling thread is about to do long work: another waits for events meanwhile. Does nothing
  // on other threads than these, and nothing the second time in one `done`.
  static void YieldLeadership();

 private:
  void Run();
  // Waits until nobody else leads. False: the queue has ended.
  bool TakeBaton() GRADWIRE_EXCLUDES(mutex_);
  void EndLeadership() GRADWIRE_EXCLUDES(mutex_);
  void End() GRADWIRE_EXCLUDES(mutex_);

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  // gRPC orders an operation's beginning and its end, but not where ThreadSanitizer sees it.
  std::atomic<std::uint64_t> begun_ = 0;
  std::vector<std::thread> threads_;
  bool stopped_ = false;

  Mutex mutex_;
  CondVar free_;
  bool taken_ GRADWIRE_GUARDED_BY(mutex_) = false;  // somebody leads: waits for events
  std::size_t idle_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool ended_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::server
