// What a leaf's upstream says, as events for the session's core.
#include <memory>

#include "server/rpc/clock.h"
#include "server/session/leaf_session.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

void SessionRunner::ConnectLeaf() {
  if (host_.leaf != nullptr) host_.leaf->SetAnswers(AnswersToLeaf());
}

// The leaf belongs to the session, so it must not keep it.
LeafAnswers SessionRunner::AnswersToLeaf() {
  const auto to = [weak = weak_from_this()](auto event) {
    return [weak, event](auto... arguments) {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->Handle([&](SessionCore& core, Effects& effects) {
        const absl::Time now = MonotonicNow();
        core.Observe(now);
        event(core, effects, now, arguments...);
      });
    };
  };
  return {
      .waits = to([](SessionCore& core, Effects&, absl::Time, const std::string& why) {
        core.UpstreamWaits(why);
      }),
      .joined = to([](SessionCore& core, Effects& effects, absl::Time,
                      const UpstreamWelcome& welcome) { core.UpstreamJoined(welcome, effects); }),
      .concluded = to([](SessionCore& core, Effects& effects, absl::Time now, std::int64_t step,
                         const UpstreamConclusion& conclusion) {
        core.UpstreamConcluded(step, conclusion, now, effects);
      }),
      .goes_on =
          to([](SessionCore& core, Effects& effects, absl::Time now,
                const UpstreamProgress& progress) { core.UpstreamGoesOn(progress, now, effects); }),
      .failed = to([](SessionCore& core, Effects& effects, absl::Time, const absl::Status& why,
                      int blamed_rank) { core.FailElsewhere(why, blamed_rank, effects); })};
}

}  // namespace gradwire::server
