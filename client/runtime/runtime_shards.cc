// Of a session with several shards: this runtime is one shard's. Or of one that outlives its only
// daemon.
#include <utility>

#include "client/core/shard_reports.h"
#include "client/runtime/runtime.h"
#include "client/transport/rejoin.h"

namespace gradwire::client {

// After the device has decoded the last result.
void Runtime::On(PreparedEffect& effect) {
  device_.queue().AfterDevice([this, stream = stream_, effect] {
    // A resume repeats it, and another daemon decides anew.
    if (stream != stream_ || is_lost_) return;
    if (shards_ > 1) {
      if (link_.prepared) link_.prepared(effect);
    } else if (effect.step == member_.step() && !group_.failed()) {  // else the step is over
      SayReady(effect.verdict, effect.digest);
    }
  });
}

void Runtime::SayReady(Verdict verdict, std::uint64_t digest) {
  Effects effects;
  member_.SayReady(verdict, digest, effects);
  Apply(std::move(effects));
}

void Runtime::ConcludeAs(const StepDoneEffect& lead) {
  Effects effects;
  member_.ConcludeAs(lead, effects);
  Apply(std::move(effects));
}

// ---- After the loss of a shard

// A daemon that took a report, and has not been attached to, has said nothing.
void Runtime::AskToGather(std::uint32_t lost_shard, std::uint64_t number) {
  if (member_.failed() || leaving_ || stopping_ || !link_.is_asked(number)) return;
  if (!is_lost_ && member_.outlives_daemon()) {
    Effects effects;
    member_.AskToGather(lost_shard, effects);
    return Apply(std::move(effects));
  }
  // A daemon that has not welcomed this member need not be asked. Its stream is cut here: nothing
  // else would close it, as timers do not run for a lost connection.
  if (!is_lost_) {
    connection_->Close(Clock::now());
    connection_->CheckTimers(Clock::now()).IgnoreError();
  }
  ++tries_;
  rejoin_.reset();
  OnLost(number);
}

void Runtime::RejoinWith(wire::MemberReport report) {
  if (is_lost_ && !member_.failed() && !stopping_) BeginRejoin(std::move(report));
}

void Runtime::TellOthers(const wire::Welcome& welcome, bool awaited) {
  if (!welcome.recovery || member_.failed() || !link_.goes_on) return;
  if (!awaited && welcomed_) return;  // a resume
  link_.goes_on({.number = awaited || welcome.change ? welcome.recovery->life : 0,
                 .roster = welcome.recovery->roster});
}

void Runtime::Follow(const ShardLife& life) {
  if (!is_lost_ || member_.failed() || stopping_ || link_.has_told()) return;
  wish_.shard.life = life.number;
  BeginRejoin(ReportToFollow(member_.Report(), life.roster));
}

void Runtime::FailElsewhere(const absl::Status& status, int blamed_rank) {
  Effects effects;
  member_.FailElsewhere(status, blamed_rank, effects);
  Apply(std::move(effects));
}

}  // namespace gradwire::client
