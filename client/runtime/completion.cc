#include "client/runtime/completion.h"

#include <algorithm>
#include <utility>

#include "base/error_code.h"

namespace gradwire {
namespace client {
namespace {

// The longest time between a call and its wait in a program that does nothing in between.
constexpr std::chrono::microseconds kAtOnce(100);

// gRPC rounds waits up to milliseconds: shorter ones leave the reading to the poller's own thread.
constexpr std::chrono::milliseconds kShortest(2);

}  // namespace

Outcome::~Outcome() {
  // A call that nobody will complete must not count as open for ever.
  if (!done_ && poller_ != nullptr) poller_->CallEnds();
}

// Called after the event was pushed, so the outcome may already be complete.
void Outcome::ReadBy(std::shared_ptr<Poller> poller, bool light) {
  MutexLock lock(mutex_);
  if (done_) return;
  // With a callback the program need not wait, so no waiting thread would poll for the result.
  light_ = light && callbacks_.empty();
  begun_ = std::chrono::steady_clock::now();
  poller->CallBegins(/*may_help=*/light_);
  poller_ = std::move(poller);
}

// Callbacks run without the lock, because they may ask this outcome. A thread that polls on behalf
// of this outcome is interrupted, unless it is this one.
void Outcome::Complete(const absl::Status& status) {
  std::vector<std::function<void(const absl::Status&)>> callbacks;
  std::shared_ptr<Poller> poller;
  bool helped = false;
  // Each error that a caller gets from a call passes here.
  const absl::Status outcome = Coded(ErrorCode::kTraining, status);
  {
    MutexLock lock(mutex_);
    if (done_) return;
    done_ = true;
    status_ = outcome;
    callbacks.swap(callbacks_);
    poller.swap(poller_);
    helped = polling_thread_ != std::thread::id() && polling_thread_ != std::this_thread::get_id();
  }
  if (poller != nullptr) poller->CallEnds();
  if (helped) poller->Interrupt();
  condition_.NotifyAll();
  for (const auto& callback : callbacks) callback(outcome);
}

void Outcome::PollWhileWaiting(std::chrono::steady_clock::time_point deadline) const {
  const auto now = std::chrono::steady_clock::now();
  if (deadline < now + kShortest) return ReadNow();
  std::shared_ptr<Poller> poller;
  bool at_once = false;
  {
    MutexLock lock(mutex_);
    // One thread polls for this outcome; the others wait for the condition.
    if (done_ || !light_ || polling_thread_ != std::thread::id()) return;
    poller = poller_;
    at_once = now < begun_ + kAtOnce;
    polling_thread_ = std::this_thread::get_id();
  }
  poller->PollWhileWaiting([this] { return done(); }, deadline, at_once);
  MutexLock lock(mutex_);
  polling_thread_ = {};
}

bool Outcome::done() const {
  MutexLock lock(mutex_);
  return done_;
}

// The program looks but does not wait, so no thread of its own will poll for this result.
void Outcome::ReadNow() const {
  MutexLock lock(mutex_);
  if (!done_ && light_) poller_->PollNow();
}

absl::Status Outcome::Wait() const {
  PollWhileWaiting(std::chrono::steady_clock::time_point::max());
  MutexLock lock(mutex_);
  while (!done_) condition_.Wait(mutex_);
  return status_;
}

std::chrono::steady_clock::time_point DeadlineAfter(absl::Duration timeout) {
  timeout = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
}

absl::Status Outcome::WaitUntil(std::chrono::steady_clock::time_point deadline) const {
  PollWhileWaiting(deadline);
  MutexLock lock(mutex_);
  while (!done_) {
    if (!condition_.WaitUntil(mutex_, deadline) && !done_) {
      return Coded(ErrorCode::kStillWaiting,
                   absl::DeadlineExceededError("the call is still in progress"));
    }
  }
  return status_;
}

void Outcome::OnDone(std::function<void(const absl::Status&)> callback) {
  absl::Status outcome;
  {
    MutexLock lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      // The program may not wait at all, so the poller's own thread has to read.
      if (light_) poller_->PollNow();
      return;
    }
    outcome = status_;
  }
  callback(outcome);
}

}  // namespace client

Completion::Completion() : state_(std::make_shared<State>()) { state_->Complete(absl::OkStatus()); }

Completion::Completion(std::shared_ptr<State> state) : state_(std::move(state)) {}

bool Completion::done() const {
  if (state_->done()) return true;
  state_->ReadNow();
  return false;
}

absl::Status Completion::Wait() const { return state_->Wait(); }

absl::Status Completion::Wait(absl::Duration timeout) const {
  return state_->WaitUntil(client::DeadlineAfter(timeout));
}

void Completion::OnDone(std::function<void(const absl::Status&)> callback) {
  state_->OnDone(std::move(callback));
}

}  // namespace gradwire
