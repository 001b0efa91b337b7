#include "client/completion.h"

#include <algorithm>
#include <utility>

namespace gradwire {
namespace client {

Outcome::~Outcome() {
  if (!done_ && poller_ != nullptr) poller_->CallEnds();
}

void Outcome::Complete(const absl::Status& status) {
  std::vector<std::function<void(const absl::Status&)>> callbacks;
  std::shared_ptr<Poller> poller;
  bool helped = false;
  {
    MutexLock lock(mutex_);
    if (done_) return;
    done_ = true;
    status_ = status;
    callbacks.swap(callbacks_);
    poller.swap(poller_);
    helped = helper_ != std::thread::id() && helper_ != std::this_thread::get_id();
  }
  if (poller != nullptr) poller->CallEnds();
  if (helped) poller->Interrupt();
  condition_.NotifyAll();
  for (const auto& callback : callbacks) callback(status);
}

void Outcome::Help(std::chrono::steady_clock::time_point deadline) const {
  std::shared_ptr<Poller> poller;
  {
    MutexLock lock(mutex_);
    if (done_ || !light_ || helper_ != std::thread::id()) return;
    poller = poller_;
    helper_ = std::this_thread::get_id();
  }
  poller->Help([this] { return done(); }, deadline);
  MutexLock lock(mutex_);
  helper_ = {};
}

bool Outcome::done() const {
  MutexLock lock(mutex_);
  return done_;
}

absl::Status Outcome::Wait() const {
  Help(std::chrono::steady_clock::time_point::max());
  MutexLock lock(mutex_);
  while (!done_) condition_.Wait(mutex_);
  return status_;
}

absl::Status Outcome::WaitUntil(std::chrono::steady_clock::time_point deadline) const {
  Help(deadline);
  MutexLock lock(mutex_);
  while (!done_) {
    if (!condition_.WaitUntil(mutex_, deadline) && !done_) {
      return absl::DeadlineExceededError("the call is still going on");
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
      if (light_) poller_->Attend();
      return;
    }
    outcome = status_;
  }
  callback(outcome);
}

}  // namespace client

Completion::Completion() : state_(std::make_shared<State>()) { state_->Complete(absl::OkStatus()); }

Completion::Completion(std::shared_ptr<State> state) : state_(std::move(state)) {}

bool Completion::done() const { return state_->done(); }

absl::Status Completion::Wait() const { return state_->Wait(); }

absl::Status Completion::Wait(absl::Duration timeout) const {
  timeout = std::min(timeout, absl::Hours(24 * 365));  // the clock must not overflow
  return state_->WaitUntil(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout));
}

void Completion::OnDone(std::function<void(const absl::Status&)> callback) {
  state_->OnDone(std::move(callback));
}

}  // namespace gradwire
