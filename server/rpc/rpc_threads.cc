#include "server/rpc/rpc_threads.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/thread_name.h"

namespace gradwire::server {
namespace {

// The object whose leader the calling thread is; null in a follower and in any other thread.
thread_local RpcThreads* leader_of = nullptr;

// What gRPC still has to do when the last connection has ended takes less.
constexpr std::chrono::seconds kAwakeAfterUse(1);

}  // namespace

RpcThreads::RpcThreads(std::unique_ptr<grpc::ServerCompletionQueue> queue)
    : queue_(std::move(queue)) {}

RpcThreads::~RpcThreads() { Stop(); }

// One more than cores, so that a thread still polls while every core computes.
std::size_t RpcThreads::Count() {
  return std::clamp<std::size_t>(std::thread::hardware_concurrency() + std::size_t{1}, 3, 16);
}

void RpcThreads::Start(std::size_t threads, const char* name, std::function<bool()> is_unused) {
  is_unused_ = std::move(is_unused);
  {
    MutexLock lock(mutex_);
    asleep_ = is_unused_ != nullptr && !stays_awake_;
  }
  while (threads_.size() < threads) {
    threads_.emplace_back([this, name] {
      NameThread(name);
      Run();
    });
  }
}

void RpcThreads::Stop() {
  // The destructor calls this again after an explicit Stop.
  if (std::exchange(stopped_, true)) return;
  StayAwake();
  queue_->Shutdown();
  // gRPC destroys only a queue whose end somebody has seen.
  if (threads_.empty()) Run();
  for (std::thread& thread : threads_) thread.join();
}

void* RpcThreads::Begin(Operation& operation) {
  // gRPC orders the beginning of an operation before its completion, but inside its own library,
  // where ThreadSanitizer does not see it. This pair of atomics (with Run) makes the order visible.
  begun_.fetch_add(1, std::memory_order_release);
  return &operation;
}

void RpcThreads::YieldLeadership() {
  if (RpcThreads* const threads = std::exchange(leader_of, nullptr)) threads->EndLeadership();
}

// Leader/followers: the leader polls and handles each event itself. Inside `done` the handler may
// have yielded leadership; this thread then becomes a follower and competes for leadership again.
void RpcThreads::Run() {
  while (TakeLeadership()) {
    leader_of = this;
    while (leader_of == this) {
      void* tag = nullptr;
      bool ok = false;
      if (!Next(&tag, &ok)) return End();
      begun_.load(std::memory_order_acquire);
      // `done` may destroy the operation, so it is copied first.
      const Operation operation = *static_cast<const Operation*>(tag);
      operation.done(operation.owner, ok);
    }
  }
}

void RpcThreads::Wake() {
  {
    MutexLock lock(mutex_);
    asleep_ = false;
  }
  awake_.NotifyAll();
}

void RpcThreads::StayAwake() {
  {
    MutexLock lock(mutex_);
    stays_awake_ = true;
  }
  Wake();
}

bool RpcThreads::asleep() const {
  MutexLock lock(mutex_);
  return asleep_;
}

// Asks `is_unused` under the lock, so that a Wake after its answer counts.
bool RpcThreads::Next(void** tag, bool* ok) {
  if (is_unused_ == nullptr) return queue_->Next(tag, ok);
  while (true) {
    {
      MutexLock lock(mutex_);
      while (asleep_) awake_.Wait(mutex_);
    }
    const auto until = std::chrono::system_clock::now() + kAwakeAfterUse;
    const auto next = queue_->AsyncNext(tag, ok, until);
    if (next != grpc::CompletionQueue::TIMEOUT) return next == grpc::CompletionQueue::GOT_EVENT;
    MutexLock lock(mutex_);
    asleep_ = !stays_awake_ && is_unused_();
  }
}

// After the end of the queue every follower returns too; `taken_` then no longer matters.
bool RpcThreads::TakeLeadership() {
  MutexLock lock(mutex_);
  ++idle_;
  while (taken_ && !ended_) free_.Wait(mutex_);
  --idle_;
  taken_ = true;
  return !ended_;
}

void RpcThreads::EndLeadership() {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    taken_ = false;
    wake = idle_ > 0;
  }
  // Notify without the lock, so that the follower does not wake up only to wait for it. Without an
  // idle thread nobody polls until a busy one returns to Run.
  if (wake) free_.NotifyOne();
}

void RpcThreads::End() {
  leader_of = nullptr;
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  free_.NotifyAll();
}

}  // namespace gradwire::server
