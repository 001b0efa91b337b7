#include "server/services/bulk_lane.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/wire/codec.h"
#include "server/rpc/clock.h"
#include "server/services/member_exchange.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

BulkLane::BulkLane(const StreamLimits& limits, std::shared_ptr<Registry> registry,
                   std::shared_ptr<LanePairs> pairs, std::shared_ptr<PeriodicTasks> ticks)
    : limits_(limits),
      registry_(std::move(registry)),
      pairs_(std::move(pairs)),
      ticks_(std::move(ticks)),
      opened_(MonotonicNow()) {}

void BulkLane::OnStart() {
  SendInitialMetadata();
  StartRead();
  ticks_->Add(Self<BulkLane>());  // last: the ticker may end it
}

// The lane may have ended while its pair was found; `done_` decides this race under the lock.
bool BulkLane::Connect(const std::shared_ptr<MemberExchange>& stream) {
  MutexLock lock(mutex_);
  if (!done_) stream_ = stream;
  return !done_;
}

std::shared_ptr<MemberExchange> BulkLane::stream() const {
  MutexLock lock(mutex_);
  return stream_;
}

void BulkLane::OnTick(absl::Time now) {
  if (now <= opened_ + limits_.hello_timeout || stream() != nullptr) return;
  Finish(
      absl::DeadlineExceededError(absl::StrCat("no Hello, or no Exchange of the same pair, within ",
                                               absl::FormatDuration(limits_.hello_timeout))));
}

void BulkLane::OnReadDone(bool ok) {
  const std::shared_ptr<MemberExchange> its = stream();
  if (!ok) {
    // Both lanes are one connection: the stream ends with its lane, and the member resumes both.
    TellEnd();
    return Finish(absl::CancelledError("the member ended its bulk lane"));
  }
  // Computing the digest of a large frame takes long, and a sum may follow.
  if (incoming().Length() > wire::kSmallPayload) RpcThreads::YieldLeadership();
  absl::StatusOr<wire::Frame> frame =
      wire::Parse(incoming(), {.max_payload_bytes = limits_.max_payload_bytes});
  incoming().Clear();
  // No further read begins here: after the Hello, MemberExchange reads on when its pair is there,
  // and after a frame when the session has taken it.
  if (its != nullptr) return its->OnFrame(wire::Lane::kBulk, std::move(frame));
  if (absl::Status status = HandleHello(frame); !status.ok()) Finish(status);
}

absl::Status BulkLane::HandleHello(const absl::StatusOr<wire::Frame>& frame) {
  if (!frame.ok()) return frame.status();
  const auto* hello = std::get_if<wire::Hello>(&frame->header);
  if (hello == nullptr)
    return absl::InvalidArgumentError("the first frame of a lane must be a Hello");
  if (hello->pair == 0) {
    return absl::InvalidArgumentError(
        "hello.pair is 0; allowed: the random number in the Hello of the Exchange");
  }
  const absl::StatusOr<MemberHandle> member =
      registry_->Find(hello->token, hello->start_id, caller().identity);
  if (!member.ok()) return member.status();
  const LanePairs::Key key = {.generation = member->session->options().generation,
                              .rank = member->rank,
                              .pair = hello->pair};
  {
    MutexLock lock(mutex_);
    // Set before Add, because OnDone removes the lane from the pairs by this key.
    key_ = key;
  }
  CountAsMember();
  pairs_->Add(key, Self<BulkLane>());
  return absl::OkStatus();
}

void BulkLane::OnWriteDone(bool ok) {
  if (const std::shared_ptr<MemberExchange> its = stream()) its->OnBulkWritten(ok);
}

void BulkLane::OnCancel() { TellEnd(); }

void BulkLane::TellEnd() {
  if (const std::shared_ptr<MemberExchange> its = stream()) {
    its->OnBulkEnd();
  }
}

void BulkLane::OnDone() {
  std::optional<LanePairs::Key> key;
  std::shared_ptr<MemberExchange> its;  // let go without the lock
  {
    MutexLock lock(mutex_);
    key = key_;
    its = std::move(stream_);
    done_ = true;
  }
  if (its != nullptr) its->OnBulkEnd();
  if (key) pairs_->Remove(*key, this);
  ticks_->Remove(this);
}

}  // namespace gradwire::server
