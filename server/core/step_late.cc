// What a step does for members that are late: the others reduce buckets without them (LateMembers).
//
// A late member must know that a bucket goes on without it before any member has a result of that.
// Otherwise, if the daemon were lost, it would contribute to a bucket whose results others have
// without it: two means of one bucket. So it is told (Missed), and the sum begins when it has said
// that it knows (Ack). Until then its announcement may arrive, and nothing was said.
#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/core/step.h"

namespace gradwire::server {

// Members of groups, or behind leaves, contribute as one; and what one shard reduces without a
// member would have to be what the others do. The others must be able to go on without the daemon,
// because only then does nobody apply a step before the late member holds its results (READY).
bool Step::MayLeaveBehind() const {
  return options_.straggler_multiple > 0 && options_.shrinks() && outlives_daemon() &&
         options_.shard.count() == 1 && !options_.leaf.is_leaf() && !groups_.groups().any() &&
         !membership_.HasLeaves();
}

void Step::Tick(absl::Time now, Effects& effects) {
  records_.late.Observe(now);
  // Members cannot know a state that waits for the draw plan of one that is late.
  if (options_.straggler_multiple == 0) return;
  if (!MayLeaveBehind() && records_.late.Warns()) {
    effects.push_back(
        LogEffect{.level = LogEffect::Level::kWarning,
                  .message = "straggler_multiple has no effect in this session: it needs "
                             "on_member_loss shrink, one daemon, and neither node groups nor leaf "
                             "daemons"});
  }
  if (!MayLeaveBehind() || awaits_draw_plan_) return;
  const std::vector<int> late = records_.late.Find(*this, membership_, now);
  if (late.empty()) return;
  effects.push_back(LogEffect{
      .level = LogEffect::Level::kWarning,
      .message = records_.late.Sentence(late, membership_, number_, gate_.OpenFor(*began_, now)),
      .rank = late.size() == 1 ? late[0] : -1});
  for (auto& [key, bucket] : table_.all()) {
    if (bucket.step() == number_) TellMissed(bucket, effects);
  }
  MaybeConclude(effects);
}

void Step::TellMissed(Bucket& bucket, Effects& effects) {
  if (!records_.late.any() || bucket.awaits_draw_plan()) return;
  for (int r = 0; r < options_.world_size; ++r) {
    if (!records_.late.IsLate(r) || bucket.IsAnnouncedBy(r) || bucket.IsToldMissed(r)) continue;
    bucket.TellMissed(r);
    if (membership_.state(r) == MemberState::kConnected) SendMissed(bucket, r, effects);
  }
}

void Step::SendMissed(const Bucket& bucket, int rank, Effects& effects) const {
  const wire::RoundId id{.step = number_, .attempt = attempt_, .bucket = bucket.id()};
  effects.push_back(
      SendEffect{.rank = rank,
                 .frame = {.header = wire::Missed{.id = id, .parameters = bucket.parameters()}}});
}

// An announcement that has come since counts: the member ignores what it was told, then.
void Step::OnMissed(Bucket& bucket, int rank, Effects& effects) {
  if (bucket.step() != number_ || !bucket.IsToldMissed(rank) || bucket.IsAnnouncedBy(rank)) return;
  bucket.Miss(rank);
  if (records_.late.Count(rank, number_)) {
    effects.push_back(
        LogEffect{.message = absl::StrCat("step ", number_, " goes on without gradients of rank ",
                                          rank, ", which count in its next step"),
                  .rank = rank});
  }
  GrantResults(bucket, rank, effects);
  if (bucket.has_rounds()) flow_.ReduceComplete(bucket, effects);
  Advance(bucket, effects);  // one without elements is over now
}

// The shared state is computed even if the member has no stream now, so that its next one brings
// results at once: the step may be prepared by then. What is sent meanwhile is repeated there.
void Step::GrantResults(Bucket& bucket, int rank, Effects& effects) {
  Effects sent;
  const bool has_state = shared_.Send(bucket, rank, sent, /*late=*/true);
  const bool connected = membership_.state(rank) == MemberState::kConnected;
  if (!has_state || connected) std::ranges::move(sent, std::back_inserter(effects));
  if (!has_state) return;  // OnComputed comes back to it
  bucket.Grant(rank);
  if (connected) flow_.Resend(rank, bucket, effects);
}

void Step::ResumeMissed(Bucket& bucket, int rank, Effects& effects) {
  if (bucket.IsMissedBy(rank)) {
    bucket.Revoke(rank);
    GrantResults(bucket, rank, effects);
  } else if (bucket.IsToldMissed(rank) && !bucket.IsAnnouncedBy(rank)) {
    SendMissed(bucket, rank, effects);
  }
}

// A late member gets the results of all buckets that others have announced, and those are all.
std::vector<bool> Step::EndedOrLate() const {
  std::vector<bool> ended = ended_;
  for (int r = 0; r < options_.world_size; ++r) {
    if (records_.late.IsLate(r)) ended[Index(r)] = true;
  }
  return ended;
}

}  // namespace gradwire::server
