// What the runtime does for its device and its node group.
#include <utility>

#include "client/runtime/runtime.h"

namespace gradwire::client {

void Runtime::PollDevice() {
  if (idle() && !group_.failed()) return;
  PollGroup();
  if (absl::Status status = device_.Poll(Clock::now()); !status.ok()) Fail(status);
  if (member_.failed()) device_.RunCalls();
}

// Also while only the device has work: what the group did may turn out to have failed.
void Runtime::PollGroup() {
  while (!member_.failed() && meets_group()) {
    absl::StatusOr<std::optional<GroupPath::Done>> done = group_.Poll(Clock::now());
    if (!done.ok()) return Fail(done.status());
    if (!*done) return;
    // Until the device has done it, it is polled: an error may come then, and a member without a
    // share of the bucket waits for nothing else.
    device_.queue().AfterDevice([] {});
    Effects effects;
    if ((*done)->gather) {
      member_.Gathered((*done)->ticket, effects);
    } else {
      {
        MutexLock lock(shared_mutex_);
        for (const GradBucket* share : (*done)->own) {
          stats_.Begin(member_.BucketId(*share).value_or(0),
                       static_cast<std::uint32_t>(share->parameters().size()),
                       share->buffer().bytes(), Clock::now());
        }
      }
      member_.Exchanged((*done)->ticket, (*done)->own, effects);
    }
    Apply(std::move(effects));
  }
}

void Runtime::On(GroupEffect& effect) {
  group_.Begin(member_);
  if (!effect.names) return;
  const absl::StatusOr<std::string> id = group_.NewId();
  if (!id.ok()) {
    hook_error_ = id.status();
    return;
  }
  Effects effects;
  member_.NameGroup(*id, effects);
  Apply(std::move(effects));
}

void Runtime::On(ConnectEffect& effect) {
  if (absl::Status status = group_.Connect(effect.id); !status.ok()) hook_error_ = status;
}

// The figures of a group's buckets are those of the member's shares.
void Runtime::On(ShareDoneEffect& effect) { SendReport(effect.bucket, effect.norms); }

}  // namespace gradwire::client
