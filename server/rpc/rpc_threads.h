// The threads that handle the completions of the daemon's gRPC operations.
//
// They use the leader/followers pattern: the leader polls the completion queue and handles each
// event itself; before long work it yields leadership to a follower. With gRPC's epoll engine, if
// two threads poll, each event that one takes wakes the other. For small buckets these context
// switches cost more than anything else.
#pragma once

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/sync.h"

namespace gradwire::server {

// Thread-safe, except Start and Stop.
class RpcThreads {
 public:
  // An operation on the queue, in flight at most once at a time. It must live until it has
  // completed; `done` may destroy it. `done` runs on one of the threads and must not wait for
  // another event.
  struct Operation {
    void (*done)(void* owner, bool ok);
    void* owner;
  };

  explicit RpcThreads(std::unique_ptr<grpc::ServerCompletionQueue> queue);
  // Calls Stop.
  ~RpcThreads();

  RpcThreads(const RpcThreads&) = delete;
  RpcThreads& operator=(const RpcThreads&) = delete;

  // One more than the number of cores, so that one thread can poll while sums use all cores; at
  // least 3, at most 16.
  static std::size_t Count();

  // `name`: of each thread, for `top -H`. `is_unused`, if there is one, says that no event can come
  // before somebody calls Wake: the threads then do not poll, nor before the first Wake. All of
  // gRPC's pollers share one epoll set, so that two queues which are polled at a time wake each
  // other's threads. It is called under a lock.
  void Start(std::size_t threads, const char* name = "gradwire-rpc",
             std::function<bool()> is_unused = nullptr);

  // Events may come from here on, whatever `is_unused` has said. Thread-safe.
  void Wake() GRADWIRE_EXCLUDES(mutex_);
  // `is_unused` is not asked any more. Thread-safe.
  void StayAwake() GRADWIRE_EXCLUDES(mutex_);
  bool asleep() const GRADWIRE_EXCLUDES(mutex_);

  // No operation may begin any more, and those in flight must be about to complete. Returns when
  // all threads have ended. Later calls do nothing.
  void Stop();

  grpc::ServerCompletionQueue* queue() { return queue_.get(); }

  // Returns the tag for starting the operation in gRPC. `done` sees all memory written before.
  void* Begin(Operation& operation);

  // Call it before long work: another thread polls for events meanwhile. Has no effect on threads
  // other than these, or on the second call in one `done`.
  static void YieldLeadership();

 private:
  void Run();
  // The leader's next event. False: the queue has ended.
  bool Next(void** tag, bool* ok) GRADWIRE_EXCLUDES(mutex_);
  // Waits for leadership. False: the queue has ended.
  bool TakeLeadership() GRADWIRE_EXCLUDES(mutex_);
  void EndLeadership() GRADWIRE_EXCLUDES(mutex_);
  void End() GRADWIRE_EXCLUDES(mutex_);

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  // gRPC orders an operation's start before its completion, but ThreadSanitizer cannot see that.
  std::atomic<std::uint64_t> begun_ = 0;
  std::vector<std::thread> threads_;
  bool stopped_ = false;
  std::function<bool()> is_unused_;

  mutable Mutex mutex_;
  CondVar free_;
  CondVar awake_;
  bool asleep_ GRADWIRE_GUARDED_BY(mutex_) = false;  // the leader waits for Wake
  bool stays_awake_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool taken_ GRADWIRE_GUARDED_BY(mutex_) = false;  // a thread is the leader
  std::size_t idle_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool ended_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::server
