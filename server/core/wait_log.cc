#include "server/core/wait_log.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/core/membership.h"
#include "server/core/step.h"
#include "server/core/waiting_for.h"

namespace gradwire::server {
namespace {

// Shorter pauses between events are too many to be looked into, and too short to matter.
constexpr absl::Duration kLeastPause = absl::Microseconds(500);
// Less waiting than this is not worth a sentence: of a step, and of its duration.
constexpr absl::Duration kLeastWait = absl::Milliseconds(1);
constexpr double kLeastShare = 0.05;
// Who caused this part of the waiting stands out.
constexpr double kMost = 0.5;

using On = Blocking::On;

bool IsCompute(On on) { return on == On::kAnnouncement || on == On::kEnd || on == On::kGroup; }

}  // namespace

CausedWait& CausedWait::operator+=(const CausedWait& other) {
  compute += other.compute;
  link += other.link;
  return *this;
}

absl::Duration StepRecord::straggler_gap() const {
  absl::Time first = absl::InfiniteFuture();
  absl::Time last = absl::InfinitePast();
  for (const Member& member : members) {
    if (member.announced == absl::InfinitePast()) continue;
    first = std::min(first, member.announced);
    last = std::max(last, member.announced);
  }
  return last < first ? absl::ZeroDuration() : last - first;
}

void StepHistogram::Add(absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<std::size_t>(bound - kBounds.begin())];
  sum_ += seconds;
}

WaitLog::WaitLog(int world_size) : totals_(static_cast<std::size_t>(world_size)) {
  current_.members.resize(totals_.size());
}

void WaitLog::Observe(const Step& step, const Membership& membership, absl::Time now) {
  // The step ended in the last event.
  if (step.number() != current_.step) {
    End(last_);
    current_.step = step.number();
  }
  const absl::Time last = last_;
  last_ = std::max(last_, now);  // threads may read the clock and come here in another order
  // Nobody in the session causes the wait at a shut gate.
  if (!step.began() || step.gate().shut()) return;
  current_.began = *step.began();
  const absl::Duration pause = last_ - std::max(last, current_.began);
  if (pause >= kLeastPause) PutDown(step, membership, pause);
}

void WaitLog::End(absl::Time ended) {
  if (current_.began != absl::InfinitePast()) {
    current_.ended = std::max(ended, current_.began);
    durations_.Add(current_.duration());
    straggler_gaps_.Add(current_.straggler_gap());
    recent_.push_back(std::move(current_));
    if (recent_.size() > kRecent) recent_.pop_front();
  }
  current_ = {};
  current_.members.resize(totals_.size());
}

void WaitLog::PutDown(const Step& step, const Membership& membership, absl::Duration waited) {
  // What other daemons are late with, this one cannot tell.
  if (step.agreement().prepared() && !step.is_leaf()) {
    current_.other_shards += waited;
    other_shards_total_ += waited;
    return;
  }
  const std::vector<bool> idle = FindIdle(step, membership);
  if (std::find(idle.begin(), idle.end(), true) == idle.end()) return;
  const Blocking blocking = FindBlocking(step, membership);
  if (blocking.on == On::kDaemon || blocking.on == On::kUpstream) {
    current_.daemon += waited;
    daemon_total_ += waited;
    return;
  }
  const auto waits = [&](std::size_t rank) {
    return idle[rank] && std::find(blocking.ranks.begin(), blocking.ranks.end(),
                                   static_cast<int>(rank)) == blocking.ranks.end();
  };
  bool anybody = false;
  for (std::size_t r = 0; r < idle.size(); ++r) anybody |= waits(r);
  if (!anybody || blocking.ranks.empty()) return;
  const absl::Duration part = waited / static_cast<std::int64_t>(blocking.ranks.size());
  const CausedWait caused = IsCompute(blocking.on)
                                ? CausedWait{.compute = part, .link = absl::ZeroDuration()}
                                : CausedWait{.compute = absl::ZeroDuration(), .link = part};
  for (const int rank : blocking.ranks) {
    current_.members[static_cast<std::size_t>(rank)].caused += caused;
    totals_[static_cast<std::size_t>(rank)] += caused;
  }
}

std::vector<bool> WaitLog::FindIdle(const Step& step, const Membership& membership) {
  std::vector<std::size_t> covered(totals_.size());  // parameters
  std::vector<int> open(totals_.size());             // buckets
  std::size_t parameters = 0;
  for (const auto& [key, bucket] : step.buckets().all()) {
    if (bucket.step() != step.number()) continue;
    for (std::size_t r = 0; r < totals_.size(); ++r) {
      if (!bucket.IsAnnouncedBy(static_cast<int>(r))) continue;
      covered[r] += bucket.parameters().size();
      if (!bucket.reduced()) ++open[r];
    }
  }
  parameters = step.parameters();
  std::vector<bool> idle(totals_.size());
  for (std::size_t r = 0; r < totals_.size(); ++r) {
    if (membership.IsElsewhere(static_cast<int>(r))) continue;
    overlaps_ |= open[r] > 1;
    idle[r] = step.HasEnded(static_cast<int>(r)) || (parameters > 0 && covered[r] == parameters) ||
              (!overlaps_ && open[r] > 0);
  }
  return idle;
}

void WaitLog::OnUnpaused(absl::Time now) {
  for (StepRecord::Member& member : current_.members) {
    for (absl::Time* const time : {&member.began, &member.announced, &member.sent}) {
      if (*time != absl::InfinitePast()) *time = now;
    }
  }
}

void WaitLog::OnFrame(int rank, const wire::Header& header, absl::Time now) {
  const bool announces = std::holds_alternative<wire::Announce>(header) ||
                         std::holds_alternative<wire::GroupBucket>(header);
  const auto* contribution = std::get_if<wire::Contribution>(&header);
  if (!announces && contribution == nullptr) return;
  StepRecord::Member& member = current_.members[static_cast<std::size_t>(rank)];
  if (member.began == absl::InfinitePast()) member.began = now;
  if (announces) member.announced = std::max(member.announced, now);
  // An eager bucket's bytes come with its announcement.
  member.sent = std::max(member.sent, now);
}

std::size_t WaitLog::BytesFor(std::size_t members) {
  return (kRecent + 1) * (sizeof(StepRecord) + members * sizeof(StepRecord::Member)) +
         members * sizeof(CausedWait);
}

std::string WhoIsSlow(const WaitLog& log, const Membership& membership) {
  if (log.recent().empty()) return "";
  absl::Duration all;
  absl::Duration steps;
  std::vector<CausedWait> members(log.recent().back().members.size());
  for (const StepRecord& record : log.recent()) {
    steps += record.duration();
    all += record.daemon;
    for (std::size_t r = 0; r < members.size(); ++r) {
      members[r] += record.members[r].caused;
      all += record.members[r].caused.sum();
    }
  }
  const auto worst =
      std::max_element(members.begin(), members.end(),
                       [](const auto& a, const auto& b) { return a.sum() < b.sum(); });
  const auto count = static_cast<std::int64_t>(log.recent().size());
  const absl::Duration each = worst->sum() / count;
  if (each < kLeastWait || absl::FDivDuration(worst->sum(), steps) < kLeastShare ||
      absl::FDivDuration(worst->sum(), all) < kMost) {
    return "";
  }
  return absl::StrFormat(
      "%s caused %.0f%% of the waiting in the last %d steps, %.0f ms a step: %s",
      membership.NameOf(static_cast<int>(worst - members.begin())),
      100 * absl::FDivDuration(worst->sum(), all), count, absl::ToDoubleMilliseconds(each),
      worst->compute > worst->link ? "it announces its buckets late (it computes longer)"
                                   : "its bytes come late (its hook or its link is slow)");
}

}  // namespace gradwire::server
