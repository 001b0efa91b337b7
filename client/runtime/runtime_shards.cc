// Of a session with several shards: this runtime is one shard's. Or of one that outlives its only
// daemon.
#include "client/runtime/runtime.h"

namespace gradwire::client {

// After the device has decoded the last result.
void Runtime::On(PreparedEffect& effect) {
  device_.queue().AfterDevice([this, stream = stream_, effect] {
    if (shards_ > 1) {
      if (link_.prepared) link_.prepared(effect);
    } else if (stream == stream_) {  // a resume repeats it, and another daemon decides anew
      SayReady(effect.verdict, effect.digest);
    }
  });
}

void Runtime::SayReady(Verdict verdict, std::uint64_t digest) {
  Effects effects;
  member_.SayReady(verdict, digest, effects);
  Apply(std::move(effects));
}

void Runtime::ConcludeAs(Verdict verdict) {
  Effects effects;
  member_.ConcludeAs(verdict, effects);
  Apply(std::move(effects));
}

void Runtime::FailElsewhere(const absl::Status& status, int blamed_rank) {
  Effects effects;
  member_.FailElsewhere(status, blamed_rank, effects);
  Apply(std::move(effects));
}

}  // namespace gradwire::client
