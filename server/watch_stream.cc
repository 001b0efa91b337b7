#include "server/watch_stream.h"

#include <utility>

#include "server/answer.h"
#include "server/clock.h"

namespace gradwire::server {
namespace {

// The sentence about what is waited for counts seconds; that alone is no news more often than this.
constexpr absl::Duration kSentenceInterval = absl::Seconds(1);

bool SameButSentence(const v1::WatchResponse& a, const v1::WatchResponse& b) {
  return a.state() == b.state() && a.step() == b.step() && a.generation() == b.generation();
}

}  // namespace

WatchStream* WatchStream::Start(std::shared_ptr<const HostedSession> session,
                                std::shared_ptr<TickList> ticks) {
  const std::shared_ptr<WatchStream> stream(new WatchStream(std::move(session), std::move(ticks)));
  stream->self_ = stream;
  stream->ticks_->Add(stream);
  stream->OnTick(MonotonicNow());
  return stream.get();
}

WatchStream::WatchStream(std::shared_ptr<const HostedSession> session,
                         std::shared_ptr<TickList> ticks)
    : session_(std::move(session)), ticks_(std::move(ticks)) {}

void WatchStream::OnTick(absl::Time now) {
  const bool over = session_->ended();
  v1::WatchResponse current = session_->Snapshot(now);
  {
    MutexLock lock(mutex_);
    if (writing_ || over_ || finish_) return;
    if (SameButSentence(current, response_) &&
        (current.waiting_for() == response_.waiting_for() || now < told_at_ + kSentenceInterval)) {
      return;
    }
    response_ = std::move(current);
    told_at_ = now;
    over_ = over;
    writing_ = true;
  }
  StartWrite(&response_);
}

void WatchStream::OnWriteDone(bool ok) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok && !finish_) finish_ = absl::CancelledError("the watcher is gone");
    if (over_ && !finish_) finish_ = absl::OkStatus();
    if (!finish_ || finished_) return;
    finished_ = true;
    status = *finish_;
  }
  Finish(ToShortGrpc(status));
}

void WatchStream::OnCancel() { FinishOnce(absl::CancelledError("the watcher is gone")); }

void WatchStream::FinishOnce(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!finish_) finish_ = status;
    if (writing_ || finished_) return;  // OnWriteDone does it
    finished_ = true;
  }
  Finish(ToShortGrpc(status));
}

void WatchStream::OnDone() {
  ticks_->Remove(this);
  self_.reset();
}

}  // namespace gradwire::server
