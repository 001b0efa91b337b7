#include "tests/sim/recovery_simulation.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/leaf_weight.h"
#include "hooks/coordinator_hook.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_hooks.h"
#include "tests/sim/places.h"
#include "tests/sim/power_sgd_forms.h"
#include "tests/sim/random_buckets.h"
#include "tests/sim/reduce_now.h"

namespace gradwire::sim {
namespace {

constexpr int kMostActions = 60'000;
// Lossless: the simulation has no time in which a member could be declared lost.
constexpr absl::Duration kLong = absl::Hours(1000);

}  // namespace

const char* Name(RecoveryCount count) {
  static constexpr std::array kNames = {"runs",
                                        "applied",
                                        "skipped for values",
                                        "dropped",
                                        "lives lost",
                                        "handed over",
                                        "lost while gathering",
                                        "two daemons at once",
                                        "concluded by reports",
                                        "followed",
                                        "went on",
                                        "reduced again",
                                        "cuts",
                                        "barriers",
                                        "broadcasts",
                                        "in place",
                                        "refused strangers",
                                        "states taken back",
                                        "draw plans",
                                        "members killed",
                                        "healed",
                                        "shrunk",
                                        "steps of fewer",
                                        "taken in",
                                        "left behind",
                                        "collectives void",
                                        "ledgers closed",
                                        "ledgers with losses",
                                        "ledgers incomplete",
                                        "left",
                                        "residuals handed over",
                                        "residuals not taken",
                                        "steps with leaves",
                                        "leaves lost",
                                        "claims",
                                        "claims of a minority",
                                        "claims of earlier sessions",
                                        "errors of the arbiter",
                                        "claims that nobody heard of",
                                        "steps of a minority",
                                        "daemons that came back",
                                        "left at the end",
                                        "stayed for others",
                                        "left after a loss"};
  static_assert(kNames.size() == static_cast<std::size_t>(RecoveryCount::kNumCounts));
  return kNames[static_cast<std::size_t>(count)];
}

// A successor may begin after the last step, which others have done.
bool RecoverySimulation::Member::finished() const { return step >= steps; }

RecoverySimulation::RecoverySimulation(std::uint64_t seed, bool late)
    : seed_(seed),
      late_(late),
      random_(Mix(seed, 77)),
      session_key_(wire::kSessionKeyBytes, 'k'),
      losses_(Mix(seed, 79)),
      arbiter_(Mix(seed, 80)),
      ends_(Mix(seed, 81)) {
  MakeScenario();
  leaves_at_end_ = !late_ && !options_.claims() && ends_.Percent(60);
}

RecoverySimulation::~RecoverySimulation() = default;

void RecoverySimulation::MakeScenario() {
  const bool shrinks = late_ || random_.Percent(30);
  int world = shrinks ? random_.Between(3, late_ ? 5 : 4) : random_.Between(2, 3);
  const int parameters = random_.Between(1, 4);
  const bool low_rank = random_.Percent(40);
  for (int p = 0; p < parameters; ++p) {
    std::vector<std::int64_t> shape = {random_.Between(random_.Percent(10) ? 0 : 1, 40)};
    if (low_rank && random_.Percent(70)) shape = {random_.Between(4, 8), random_.Between(4, 8)};
    manifest_.push_back(
        {.name = absl::StrCat("p", p), .shape = std::move(shape), .dtype = DType::kFloat32});
  }
  if (low_rank)
    options_.spec = *HookSpec::Parse(kPowerSgdForms[random_.Below(kPowerSgdForms.size())]);
  options_.name = "s";
  options_.manifest = server::Manifest(manifest_);
  options_.chunk_bytes = 64;
  options_.window_chunks = static_cast<std::uint32_t>(random_.Between(1, 3));
  options_.open_buckets = static_cast<std::uint32_t>(random_.Between(1, 2));
  options_.ledger = random_.Percent(70);
  options_.eager_bytes = random_.Percent(50) ? 128 : 0;
  options_.coordinator_grace = absl::Minutes(1);
  options_.join_timeout = options_.step_timeout = options_.silence_timeout = kLong;
  options_.resume_grace = options_.token_timeout = kRecoveryResumeGrace;
  if (shrinks || random_.Percent(50)) options_.member_grace = absl::Minutes(10);
  if (shrinks) {
    options_.shrinks_to = random_.Between(1, 2);
    options_.shrink_after = kRecoveryResumeGrace;
    if (!late_) MakeArbiter(world);
  }
  options_.world_size = world;
  keep_percent_ = random_.Percent(50) ? 0 : random_.Percent(70) ? 100 : 60;
  if (late_) MakeLateScenario();
  members_.resize(static_cast<std::size_t>(world));
  first_ranks_.resize(members_.size());
  std::iota(first_ranks_.begin(), first_ranks_.end(), 0);
  if (!late_) MakeLeaves();
  const int steps = late_ ? random_.Between(8, 16) : random_.Between(3, 6);
  for (int s = 0; s < steps; ++s) {
    Step& step = steps_.emplace_back();
    step.buckets = RandomBuckets(manifest_.size(), random_);
    // Late gradients outlast a few skips only.
    const bool may_skip = !late_ || s == 0 || steps_[steps_.size() - 2].nonfinite_rank < 0;
    if (may_skip && random_.Percent(15)) {
      step.nonfinite_rank = first_ranks_[random_.Below(members_.size())];
      step.nonfinite_parameter = static_cast<std::uint32_t>(random_.Below(manifest_.size()));
      if (manifest_[step.nonfinite_parameter].numel() == 0) step.nonfinite_rank = -1;
    }
    while (random_.Percent(20)) {
      step.collectives.push_back(random_.Percent(50) ? wire::CollectiveKind::kBarrier
                                                     : wire::CollectiveKind::kBroadcast);
    }
  }
  if (low_rank) reference_ = *testing::HookWorld::Make(world, options_.spec, manifest_);
  reference_holds_ = !late_;
  if (low_rank && random_.Percent(50)) draw_plan_ = RandomBuckets(manifest_.size(), random_);
  faults_left_ = random_.Between(1, 6);
  fault_percent_ = random_.Between(3, 30);
  for (const int rank : first_ranks_) Spawn(rank, 0);
}

void RecoverySimulation::MakeLeaves() {
  Random random(Mix(seed_, 78));
  if (random.Percent(40)) return;
  int next = 0;
  for (int& first : first_ranks_) {
    first = next;
    next += random.Between(1, 2);
  }
  options_.world_size = next;
}

std::size_t RecoverySimulation::IndexOf(int rank) const {
  const auto after = std::ranges::upper_bound(first_ranks_, rank);
  return static_cast<std::size_t>(after - first_ranks_.begin()) - 1;
}

int RecoverySimulation::StandsFor(int rank) const {
  const std::size_t next = IndexOf(rank) + 1;
  return (next < first_ranks_.size() ? first_ranks_[next] : options_.world_size) - rank;
}

double RecoverySimulation::Weight(int rank, const std::vector<int>& ranks) const {
  if (ranks.empty()) {
    return static_cast<double>(StandsFor(rank)) * static_cast<double>(members_.size()) /
           options_.world_size;
  }
  return static_cast<double>(StandsFor(rank)) * static_cast<double>(Contributors(ranks).size()) /
         static_cast<double>(ranks.size());
}

std::vector<int> RecoverySimulation::Contributors(const std::vector<int>& ranks) const {
  std::vector<int> here = first_ranks_;
  std::erase_if(here, [&](int rank) { return std::ranges::count(ranks, rank) == 0; });
  return ranks.empty() ? first_ranks_ : here;
}

void RecoverySimulation::Spawn(int rank, int process) {
  const std::size_t index = IndexOf(rank);
  auto& member = members_[index];
  if (member != nullptr) {
    NoteGone(*member);
    ForgetChainsOf(*member);
  }
  member = std::make_unique<Member>();
  member->rank = rank;
  member->stands_for = StandsFor(rank);
  member->start_id = Mix(seed_, 5, rank, process) | 1;
  member->hook = *MakeHook(options_.spec, MakeHostDevice());
  if (options_.LedgerRows() > 0) {
    auto hook = std::make_unique<LedgerHook>(std::move(member->hook), manifest_);
    member->ledger = hook.get();
    member->hook = std::move(hook);
  }
  member->in_place = !is_power_sgd() && random_.Percent(30);
  if (options_.claims()) member->in_place = false;  // several daemons run at once
  member->keeps_gradients = random_.Percent(keep_percent_);
  member->steps = steps_.size();
  member->model.resize(steps_.size());
  member->has_model = process == 0;
}

std::size_t RecoverySimulation::Numel(const std::vector<std::uint32_t>& parameters) const {
  std::size_t numel = 0;
  for (const std::uint32_t p : parameters) numel += manifest_[p].numel();
  return numel;
}

float RecoverySimulation::Value(int rank, std::size_t step, std::uint32_t parameter,
                                std::size_t element) const {
  const Step& of = steps_[step];
  if (of.nonfinite_rank == rank && of.nonfinite_parameter == parameter && element == 0) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const std::uint64_t drawn = Mix(seed_, 11, rank, step, parameter, element);
  // Of integers that 2 to 5 members can share without rounding no sum rounds.
  if (late_) return static_cast<float>((static_cast<int>(drawn % 31) - 15) * 60);
  return static_cast<float>(static_cast<double>(drawn >> 40) / (1 << 20)) - 8;
}

// As hooks/README.md has it: divided before the sum, in float32; added in fp64, rounded once.
ByteVector RecoverySimulation::Expected(std::size_t step,
                                        const std::vector<std::uint32_t>& parameters) const {
  ByteVector bytes(Numel(parameters) * sizeof(float));
  const std::vector<int> ranks = Contributors(steps_[step].ranks);
  std::size_t at = 0;
  for (const std::uint32_t p : parameters) {
    for (std::size_t i = 0; i < manifest_[p].numel(); ++i, ++at) {
      double sum = 0;
      for (const int rank : ranks) {
        const auto weighted =
            static_cast<float>(Value(rank, step, p, i) * Weight(rank, steps_[step].ranks));
        sum += static_cast<double>(weighted / static_cast<float>(ranks.size()));
      }
      PutElement(DType::kFloat32, bytes, at, static_cast<double>(static_cast<float>(sum)));
    }
  }
  return bytes;
}

ByteVector RecoverySimulation::Gradient(int rank, std::size_t step,
                                        const std::vector<std::uint32_t>& parameters,
                                        double weight) const {
  ByteVector bytes(Numel(parameters) * sizeof(float));
  std::size_t at = 0;
  for (const std::uint32_t p : parameters) {
    for (std::size_t i = 0; i < manifest_[p].numel(); ++i, ++at) {
      PutElement(DType::kFloat32, bytes, at, Value(rank, step, p, i));
    }
  }
  if (weight != 1) client::Weigh({DType::kFloat32, bytes.data(), at}, weight);
  return bytes;
}

// With the first member that finishes the step: nobody is a step further, since all take part. A
// step that is skipped leaves the hooks as they were.
void RecoverySimulation::RunReference(std::size_t step) {
  if (step < reference_steps_) return;
  if (reference_steps_ == 0 && !draw_plan_.empty()) {
    const absl::Status set = reference_->coordinator().SetDrawPlan(draw_plan_);
    if (!set.ok()) Violate(absl::StrCat("reference: ", set.message()));
  }
  for (; reference_steps_ <= step; ++reference_steps_) {
    for (const int rank : steps_[reference_steps_].replaced) {
      const absl::Status replaced = reference_->ReplaceMember(IndexOf(rank));
      if (!replaced.ok()) Violate(absl::StrCat("reference: ", replaced.message()));
    }
  }
  std::vector<testing::MemberGradients> gradients(members_.size());
  for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
    for (std::uint32_t p = 0; p < manifest_.size(); ++p) {
      gradients[rank].push_back(
          Gradient(first_ranks_[rank], step, {p}, Weight(first_ranks_[rank], {})));
    }
  }
  testing::Buckets buckets;
  for (const auto& bucket : steps_[step].buckets)
    buckets.emplace_back(bucket.begin(), bucket.end());
  const absl::StatusOr<Verdict> verdict = reference_->RunStep(gradients, buckets);
  if (!verdict.ok() || *verdict != Verdict::kApply) {
    return Violate(absl::StrCat("step ", step, " was applied, and not by the reference"));
  }
  for (const auto& bucket : steps_[step].buckets) {
    ByteVector& applied = steps_[step].applied[bucket.front()];
    for (const std::uint32_t p : bucket) {
      applied.insert(applied.end(), gradients[0][p].begin(), gradients[0][p].end());
    }
  }
}

void RecoverySimulation::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

bool RecoverySimulation::AllFinished() const {
  // Who comes when all steps are done is not taken in any more.
  return std::all_of(members_.begin(), members_.end(), [this](const auto& member) {
    const bool may_lack = (options_.shrinks() && processes_ > 0) || member->follows_leaver;
    const bool too_late = (may_lack || OnlyEndsAreLeft()) && !member->welcomed;
    const bool is_through = member->gone || (member->finished() && !leaves_at_end_);
    return member->dead || too_late || is_through;
  });
}

RecoverySimulation::Actions RecoverySimulation::Possible() {
  Actions actions;
  for (auto& member : members_) {
    Member& one = *member;
    if (one.gone) continue;
    if (one.dead) {
      if (random_.Percent(2)) actions.push_back([this, &one] { Return(one); });
      continue;
    }
    // Who is through with its steps may still know how one ended that others do not.
    if (one.link == nullptr) actions.push_back([this, &one] { Connect(one); });
    if (one.core != nullptr && one.core->has_chunks()) {
      actions.push_back([this, &one] {
        client::Effects effects;
        one.core->SendNext(effects);
        ApplyMember(one, std::move(effects));
      });
    }
    if (leaves_at_end_ && MayLeaveAtEnd(one)) actions.push_back([this, &one] { LeaveAtEnd(one); });
    if (one.leaves) actions.push_back([this, &one] { FinishLeave(one); });
    if (CanAct(one)) actions.push_back([this, &one] { Act(one); });
  }
  for (auto& link : links_) {
    Link& one = *link;
    if (!one.up.empty() && !one.life->over) actions.push_back([this, &one] { TakeUp(one); });
    if (!one.down.empty() || one.closed) actions.push_back([this, &one] { TakeDown(one); });
  }
  for (auto& life : lives_) {
    Life& one = *life;
    if (one.draining && !one.over) {
      actions.push_back([this, &one] { Disconnect(one, /*loses_frames=*/false); });
    }
    if (one.over || one.answers.empty()) continue;
    actions.push_back([this, &one] {
      const auto answer = std::move(one.answers.front());
      one.answers.pop_front();
      server::Effects effects;
      answer(*one.session, effects);
      Apply(one, std::move(effects));
    });
  }
  if (late_ && (actions.empty() || random_.Percent(20))) actions.push_back([this] { Tick(); });
  // Who still has a stream to a daemon that was replaced loses it, sooner or later.
  for (auto& member : members_) {
    Member& one = *member;
    const bool is_old = one.link != nullptr && one.link->life->replaced;
    if (!is_old) continue;
    const bool is_lost =
        actions.empty() || (options_.claims() ? arbiter_.Percent(2) : random_.Percent(20));
    if (!is_lost) continue;
    actions.push_back([this, &one] {
      NoteLoss();
      Cut(one);
    });
  }
  if (actions.empty() && OnlyEndsAreLeft()) {
    for (auto& member : members_) {
      Member& one = *member;
      const bool waits = one.welcomed && !one.dead && !one.gone;
      if (waits) actions.push_back([this, &one] { GiveUpAtEnd(one); });
    }
  }
  // Nobody looks at the time but where some may be waited for in vain.
  const bool gathers = !lives_.empty() && !lives_.back()->over &&
                       lives_.back()->session->state() == server::SessionCore::State::kJoining;
  // A daemon that came back may lack a member that has left at the other one.
  const bool may_wait = options_.shrinks() && (gathers || (options_.claims() && actions.empty()));
  if (may_wait && (actions.empty() || random_.Percent(20))) {
    actions.push_back([this] { Pass(kRecoveryResumeGrace / 4); });
  }
  return actions;
}

void RecoverySimulation::MaybeFault() {
  if (loses_ && welcomed_ && MaybeLoseLate()) return;
  if (MaybeLoseAtEnd()) return;
  if (!welcomed_ || faults_left_ == 0 ||
      random_.Below(1000) >= static_cast<std::size_t>(fault_percent_)) {
    return;
  }
  --faults_left_;
  if (random_.Percent(25)) {
    Member& member = *members_[random_.Below(members_.size())];
    if (member.link != nullptr) Cut(member);
  } else if (!late_ && random_.Percent(10)) {
    Stranger();
  } else if ((!late_ || loses_) && options_.member_grace > absl::ZeroDuration() &&
             random_.Percent(60)) {
    random_.Percent(40) ? AskToLeave() : Kill(random_.Below(members_.size()));
  } else if (random_.Percent(25)) {
    Split();
  } else {
    EndLife(random_.Percent(20));
  }
}

std::string RecoverySimulation::Where() const {
  std::string where = lives_.empty() || lives_.back()->over
                          ? "no daemon"
                          : lives_.back()->session->WaitingFor(now_);
  for (const auto& member : members_) {
    absl::StrAppend(&where, "; rank ", member->rank, " in step ", member->step,
                    member->in_collective ? ", in a collective" : "", ", core in step ",
                    member->core == nullptr ? -1 : member->core->step(), ", bucket ",
                    member->next_bucket, " of ", member->order.size(),
                    member->ended ? ", ended" : "");
  }
  return where;
}

std::string RecoverySimulation::Run() {
  Note(RecoveryCount::kRuns);
  int taken = 0;
  while (violation_.empty() && !AllFinished() && !model_is_lost_) {
    if (++taken > kMostActions) {
      Violate(absl::StrCat("no end: ", Where()));
      break;
    }
    now_ += absl::Milliseconds(1);
    const Actions actions = Possible();
    if (actions.empty()) {
      Violate(absl::StrCat("stuck: ", Where()));
      break;
    }
    actions[random_.Below(actions.size())]();
    MaybeFault();
    MaybeFaultAtArbiter();
  }
  if (violation_.empty()) CheckChains();
  if (violation_.empty() && !model_is_lost_) CheckLedger();
  if (violation_.empty() && late_ && !model_is_lost_) CheckNothingIsLost();
  return violation_.empty() ? "" : absl::StrCat("seed ", seed_, ": ", violation_);
}

}  // namespace gradwire::sim
