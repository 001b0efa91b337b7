#include "server/services/watch_stream.h"

#include <utility>

#include "server/access/permissions.h"
#include "server/rpc/clock.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

// `waiting_for` counts seconds. If nothing else has changed, it is sent at most this often.
constexpr absl::Duration kSentenceInterval = absl::Seconds(1);

bool SameButSentence(const v1::WatchResponse& a, const v1::WatchResponse& b) {
  return a.state() == b.state() && a.step() == b.step() && a.generation() == b.generation();
}

}  // namespace

WatchStream::WatchStream(std::shared_ptr<const Registry> registry,
                         std::shared_ptr<PeriodicTasks> ticks)
    : registry_(std::move(registry)), ticks_(std::move(ticks)) {}

void WatchStream::OnRequest(const v1::WatchRequest& request) {
  if (absl::Status may = CheckSession(caller(), request.session()); !may.ok()) return Finish(may);
  session_ = registry_->Get(request.session());
  if (session_ == nullptr) {
    return Finish(UnknownSession(request.session()));
  }
  ticks_->Add(Self<WatchStream>());
  OnTick(MonotonicNow());
}

// At most one write is in flight. A slow watcher skips states and gets the latest one, and `ended`
// is read before the snapshot, so that the last message shows the end.
void WatchStream::OnTick(absl::Time now) {
  const bool over = session_->ended();
  const v1::WatchResponse current = session_->Snapshot(now);
  {
    MutexLock lock(mutex_);
    if (writing_ || over_) return;
    if (SameButSentence(current, told_) &&
        (current.waiting_for() == told_.waiting_for() || now < told_at_ + kSentenceInterval)) {
      return;
    }
    told_ = current;
    told_at_ = now;
    over_ = over;
    writing_ = true;
  }
  StartWrite(ToBytes(current));
}

void WatchStream::OnWriteDone(bool ok) {
  bool over = false;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    over = over_;
  }
  if (!ok) return Finish(absl::CancelledError("the watcher is gone"));
  // The last message, which shows the end, has been written.
  if (over) Finish(absl::OkStatus());
}

void WatchStream::OnDone() { ticks_->Remove(this); }

}  // namespace gradwire::server
