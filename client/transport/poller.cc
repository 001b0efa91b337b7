#include "client/transport/poller.h"

#include <grpcpp/alarm.h>

#include <algorithm>

#include "base/thread_name.h"
#include "proto/wire/process_setup.h"

namespace gradwire::client {

void Poller::Do(Shared& shared, void* tag, bool ok) noexcept {
  shared.begun.load(std::memory_order_acquire);
  // `done` may destroy the operation, so it is copied first.
  const Operation operation = *static_cast<const Operation*>(tag);
  operation.done(operation.owner, ok);
}

bool Poller::Take(Shared& shared) {
  MutexLock lock(shared.mutex);
  while (!shared.ending) {
    const Clock::time_point now = Clock::now();
    if (!shared.polling && now >= shared.polls_until) {
      shared.polling = true;
      return true;
    }
    // A thread that stops polling while no call is open does not wake this thread (that would cost
    // a context switch in each round of a loop of small calls), so this thread checks by itself.
    shared.wake.WaitUntil(
        shared.mutex, shared.polling ? now + shared.settings.poll_while_idle : shared.polls_until);
  }
  return false;
}

// This thread gives the queue back after each event. If a caller found it taken meanwhile and may
// come back at once, the thread stays off the queue for a moment, so that the caller can poll.
void Poller::GiveBack(Shared& shared) {
  MutexLock lock(shared.mutex);
  shared.polling = false;
  if (!shared.turned_one_away || shared.calls > 0) return;
  shared.turned_one_away = false;
  const Clock::time_point now = Clock::now();
  if (now < shared.no_help_until) return;  // nobody would poll
  shared.polls_until = now + shared.settings.poll_while_idle;
}

void Poller::Poll(Shared& shared) {
  NameThread("gradwire-read");
  void* tag = nullptr;
  bool ok = false;
  while (Take(shared)) {
    if (!shared.queue.Next(&tag, &ok)) return;
    Do(shared, tag, ok);
    GiveBack(shared);
  }
  // Drain the queue. Every operation ends, because streams that are no longer used were cancelled.
  while (shared.queue.Next(&tag, &ok)) Do(shared, tag, ok);
}

// Makes gRPC's order of start and completion visible to ThreadSanitizer (with Do).
void* Poller::Begin(Operation& operation) {
  shared_->begun.fetch_add(1, std::memory_order_release);
  return &operation;
}

// Only a single open call is worth waiting for on its own thread: with several calls in flight,
// handing the queue over between threads costs more than the wake-up that it saves.
void Poller::CallBegins(bool may_help) {
  bool alone = false;
  {
    MutexLock lock(shared_->mutex);
    alone = ++shared_->calls == 1;
  }
  if (!may_help || !alone) PollNow();
}

void Poller::CallEnds() {
  MutexLock lock(shared_->mutex);
  --shared_->calls;
}

void Poller::PollNow() {
  MutexLock lock(shared_->mutex);
  shared_->no_help_until = Clock::now() + shared_->settings.no_waiting_poll;
  if (shared_->polls_until == Clock::time_point::min()) return;
  shared_->polls_until = Clock::time_point::min();
  if (!shared_->polling) shared_->wake.NotifyOne();
}

void Poller::PollWhileWaiting(const std::function<bool()>& done, Clock::time_point until,
                              bool came_at_once) {
  Shared& shared = *shared_;
  Clock::time_point now = Clock::now();
  {
    MutexLock lock(shared.mutex);
    if (shared.calls > 1 || now < shared.no_help_until) return;
    if (shared.polling) {
      shared.turned_one_away = came_at_once;
      return;
    }
    shared.polling = true;
  }
  until = std::min(until, now + shared.settings.help);
  bool is_done = done();
  while (!is_done && now < until) {
    void* tag = nullptr;
    bool ok = false;
    const auto found =
        shared.queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + (until - now));
    if (found == grpc::CompletionQueue::GOT_EVENT) Do(shared, tag, ok);
    is_done = done();
    now = Clock::now();
  }
  MutexLock lock(shared.mutex);
  shared.polling = false;
  if (!is_done) shared.no_help_until = now + shared.settings.no_waiting_poll;  // the result is slow
  // In a loop of small calls the caller is expected back at once, so the poller's own thread stays
  // off the queue until `polls_until`. Otherwise it takes over now.
  if (came_at_once && shared.calls == 0 && now >= shared.no_help_until) {
    shared.polls_until = now + shared.settings.poll_while_idle;
  } else {
    shared.polls_until = Clock::time_point::min();
    shared.wake.NotifyOne();
  }
}

bool Poller::stands_by() const {
  MutexLock lock(shared_->mutex);
  return !shared_->polling && Clock::now() < shared_->polls_until;
}

// The waiting thread sits in AsyncNext, and its result came by way of another thread: only an event
// on the queue wakes it.
void Poller::Interrupt() {
  struct Interruption {
    Operation operation;
    grpc::Alarm alarm;
  };
  auto* const interruption = new Interruption;  // its end deletes it
  interruption->operation = {
      .done = [](void* owner, bool) { delete static_cast<Interruption*>(owner); },
      .owner = interruption};
  // A time long past: gRPC rounds an alarm for now up to the next millisecond.
  interruption->alarm.Set(queue(), std::chrono::system_clock::time_point(),
                          Begin(interruption->operation));
}

Poller::Poller(const Settings& settings)
    : shared_([&settings] {
        wire::KeepGrpc();
        return std::make_shared<Shared>(settings);
      }()),
      thread_([shared = shared_] { Poll(*shared); }) {}

Poller::~Poller() {
  {
    MutexLock lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->wake.NotifyOne();
  shared_->queue.Shutdown();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // it is about to see the end of the queue
  } else {
    thread_.join();  // soon: a stream with an operation in flight would hold a reference to this
  }
}

}  // namespace gradwire::client
