// What the users of a session with shards do, and what must come out.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/shard_recovery_simulation.h"

namespace gradwire::sim {
namespace {

constexpr std::byte kClipped{0x55};
constexpr std::size_t kBroadcastBytes = 150;

}  // namespace

bool ShardRecoverySimulation::CanAct(const Member& member) const {
  const bool welcomed =
      std::ranges::all_of(member.places, [](const Place& one) { return one.welcomed; });
  return welcomed && member.step < steps_.size() && member.entered == 0 && !member.ended;
}

void ShardRecoverySimulation::Act(Member& member) {
  Step& step = steps_[member.step];
  if (member.order.empty()) {
    if (member.collectives < step.collectives.size()) return EnterCollective(member);
    if (member.rank == 0 && !member.has_set_plan && !draw_plan_.empty()) SetDrawPlan(member);
    member.order.resize(step.buckets.size());
    std::iota(member.order.begin(), member.order.end(), std::size_t{0});
    random_.Shuffle(member.order);
  }
  if (member.next_bucket < member.order.size()) {
    return StartBucket(member, step.buckets[member.order[member.next_bucket++]]);
  }
  member.ended = true;
  for (Place& place : member.places) {
    place.calls.emplace_back([this, &place] { EndStep(place); });
  }
}

void ShardRecoverySimulation::StartBucket(Member& member,
                                          const std::vector<std::uint32_t>& parameters) {
  OpenBucket& open = *member.buckets.emplace_back(std::make_unique<OpenBucket>());
  open.id = parameters.front();
  std::vector<ParameterSpec> specs;
  for (const std::uint32_t p : parameters) specs.push_back(manifest_[p]);
  open.buffer = std::make_shared<ByteVector>(Gradient(member.rank, member.step, parameters));
  ByteVector& bytes = *open.buffer;
  open.bucket = std::make_unique<GradBucket>(
      *GradBucket::Make(0, {DType::kFloat32, bytes.data(), bytes.size() / sizeof(float)}, specs));
  auto parts = divide_->Divide(*open.bucket);
  if (!parts.ok()) return Violate(std::string(parts.status().message()));
  open.parts = *std::move(parts);
  open.open = open.parts.size();
  if (map_->has_slices() && bytes.size() > 2 * Slice::kGrain * sizeof(float)) {
    Note(ShardRecoveryCount::kSlicedBuckets);
  }
  if (!map_->has_slices() && open.open > 1) Note(ShardRecoveryCount::kDividedBuckets);
  for (client::ShardBucket& part : open.parts) {
    Place& place = member.places[part.shard];
    place.calls.emplace_back([this, &place, &open, &part] { StartPart(place, open, part.bucket); });
  }
}

// As the runtime has it: the rest of a dropped step is nothing.
void ShardRecoverySimulation::StartPart(Place& place, OpenBucket& open, GradBucket& part) {
  if (!place.over.empty() && place.over.front().dropped) return;
  if (!place.over.empty()) return Violate("a step ends before its last bucket");
  const client::Ticket ticket = next_ticket_++;
  place.owner->parts[ticket] = &open;
  client::Effects effects;
  if (absl::Status started = place.core->StartBucket(ticket, part, effects); !started.ok()) {
    return Violate(absl::StrCat("StartBucket: ", started.message()));
  }
  if (place.owner->in_place && place.link != nullptr) place.core->SendAhead(open.id);
  ApplyMember(place, std::move(effects));
}

// The memory is the user's again, who may clip the gradients before the step's end.
void ShardRecoverySimulation::On(Place& place, client::BucketDoneEffect& effect) {
  if (!effect.status.ok()) return Violate(absl::StrCat("a bucket: ", effect.status.message()));
  OpenBucket& open = *place.owner->parts.at(effect.ticket);
  if (open.open == 0) return Violate("a bucket is done twice");
  if (--open.open > 0) return;
  open.result = *open.buffer;
  open.is_changed = random_.Percent(50);
  if (open.is_changed) std::ranges::fill(*open.buffer, kClipped);
}

void ShardRecoverySimulation::EndStep(Place& place) {
  if (!place.over.empty()) return TellEnd(place);
  place.ends_step = true;
  client::Effects effects;
  if (absl::Status ended = place.core->EndStep(effects); !ended.ok()) {
    return Violate(absl::StrCat("EndStep: ", ended.message()));
  }
  ApplyMember(place, std::move(effects));
}

void ShardRecoverySimulation::TellEnd(Place& place) {
  Member& member = *place.owner;
  member.done.push_back(place.over.front());
  place.over.pop_front();
  ++place.steps_told;
  if (member.done.size() == member.places.size()) FinishStep(member);
}

void ShardRecoverySimulation::SetDrawPlan(Member& member) {
  Note(ShardRecoveryCount::kDrawPlans);
  member.has_set_plan = true;
  for (Place& place : member.places) {
    place.calls.emplace_back([this, &place] {
      client::Effects effects;
      if (absl::Status set = place.core->SetDrawPlan(draw_plan_, effects); !set.ok()) {
        Violate(absl::StrCat("SetDrawPlan: ", set.message()));
      }
      ApplyMember(place, std::move(effects));
    });
  }
}

// As ShardedClient has it: a barrier on all shards, a broadcast on the first.
void ShardRecoverySimulation::EnterCollective(Member& member) {
  const auto kind = steps_[member.step].collectives[member.collectives];
  const bool is_broadcast = kind == wire::CollectiveKind::kBroadcast;
  Note(is_broadcast ? ShardRecoveryCount::kBroadcasts : ShardRecoveryCount::kBarriers);
  member.broadcast.assign(is_broadcast ? kBroadcastBytes : 0, std::byte{0});
  for (std::size_t i = 0; i < member.broadcast.size() && member.rank == 0; ++i) {
    member.broadcast[i] = CollectiveByte(seed_, member.step, i);
  }
  member.entered = is_broadcast ? 1 : member.places.size();
  for (std::size_t i = 0; i < member.entered; ++i) {
    Place& place = member.places[i];
    place.calls.emplace_back([this, &place, kind] {
      client::Effects effects;
      const auto entered = place.core->Enter(kind, 0, place.owner->broadcast.size(), effects);
      if (!entered.ok()) Violate(absl::StrCat("Enter: ", entered.status().message()));
      ApplyMember(place, std::move(effects));
    });
  }
}

void ShardRecoverySimulation::On(Place& place, client::CollectiveDoneEffect& effect) {
  Member& member = *place.owner;
  if (!effect.status.ok()) return Violate(absl::StrCat("collective: ", effect.status.message()));
  if (--member.entered > 0) return;
  ++member.collectives;
  for (std::size_t i = 0; i < member.broadcast.size(); ++i) {
    if (member.broadcast[i] == CollectiveByte(seed_, member.step, i)) continue;
    return Violate("a broadcast brought other bytes than the root's");
  }
}

// ---- What must come out

ByteVector ShardRecoverySimulation::Gradient(int rank, std::size_t step,
                                             const std::vector<std::uint32_t>& parameters) const {
  std::vector<float> values;
  for (const std::uint32_t p : parameters) {
    Random random(Mix(seed_, 11, rank, step, p));
    const bool nonfinite =
        steps_[step].nonfinite_rank == rank && steps_[step].nonfinite_parameter == p;
    for (std::size_t i = 0; i < manifest_[p].numel(); ++i) {
      const double drawn = static_cast<double>(random.Next() >> 40) / (1 << 20) - 8;
      values.push_back(nonfinite && i == 0 ? std::numeric_limits<float>::quiet_NaN()
                                           : static_cast<float>(drawn));
    }
  }
  ByteVector bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// As hooks/README.md has it: divided before the sum, in float32; added in fp64, rounded once.
ByteVector ShardRecoverySimulation::Mean(std::size_t step,
                                         const std::vector<std::uint32_t>& parameters) const {
  std::vector<ByteVector> all;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    all.push_back(Gradient(rank, step, parameters));
  }
  ByteVector mean(all.front().size());
  for (std::size_t at = 0; at < mean.size(); at += sizeof(float)) {
    double sum = 0;
    for (const ByteVector& one : all) {
      float value = 0;
      std::memcpy(&value, one.data() + at, sizeof(value));
      sum += static_cast<double>(value / static_cast<float>(options_.world_size));
    }
    const auto rounded = static_cast<float>(sum);
    std::memcpy(mean.data() + at, &rounded, sizeof(rounded));
  }
  return mean;
}

// With the first member that finishes the step: nobody is a step further, since all take part. A
// step that is skipped leaves the hooks as they were.
void ShardRecoverySimulation::RunReference(std::size_t step) {
  if (!std::exchange(has_reference_begun_, true) && !draw_plan_.empty()) {
    const absl::Status set = reference_->coordinator().SetDrawPlan(draw_plan_);
    if (!set.ok()) Violate(absl::StrCat("reference: ", set.message()));
  }
  std::vector<testing::MemberGradients> gradients(members_.size());
  for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
    for (std::uint32_t p = 0; p < manifest_.size(); ++p) {
      gradients[rank].push_back(Gradient(static_cast<int>(rank), step, {p}));
    }
  }
  testing::Buckets buckets;
  for (const auto& bucket : steps_[step].buckets) {
    buckets.emplace_back(bucket.begin(), bucket.end());
  }
  const absl::StatusOr<Verdict> verdict = reference_->RunStep(gradients, buckets);
  if (!verdict.ok() || *verdict != Verdict::kApply) {
    return Violate(absl::StrCat("step ", step, " was applied, and not by the reference"));
  }
  for (const auto& bucket : steps_[step].buckets) {
    ByteVector& expected = steps_[step].expected[bucket.front()];
    for (const std::uint32_t p : bucket) {
      expected.insert(expected.end(), gradients[0][p].begin(), gradients[0][p].end());
    }
  }
}

void ShardRecoverySimulation::Expect(std::size_t step) {
  if (!steps_[step].expected.empty()) return;
  if (reference_ != nullptr) return RunReference(step);
  for (const auto& bucket : steps_[step].buckets) {
    steps_[step].expected[bucket.front()] = Mean(step, bucket);
  }
}

void ShardRecoverySimulation::CheckApplied(const Member& member, Step& step) {
  if (step.nonfinite_rank >= 0) Violate("a step with NaN is applied");
  if (member.buckets.size() != step.buckets.size()) Violate("a step is applied in part");
  Expect(member.step);
  for (const auto& bucket : member.buckets) {
    if (bucket->open > 0) return Violate("a step is applied without a bucket's result");
    const ByteVector& expected = step.expected[bucket->id];
    if (bucket->result != expected) {
      Violate(
          absl::StrCat("rank ", member.rank, " applies step ", member.step, " with another mean"));
    }
    const bool is_whole =
        bucket->is_changed
            ? std::ranges::all_of(*bucket->buffer, [](std::byte one) { return one == kClipped; })
            : *bucket->buffer == expected;
    if (!is_whole) Violate("results are written over a bucket that was done");
  }
}

bool ShardRecoverySimulation::AllKeepGradients() const {
  return std::ranges::all_of(members_, [](const auto& one) { return one->keeps_gradients; });
}

void ShardRecoverySimulation::FinishStep(Member& member) {
  Step& step = steps_[member.step];
  const client::StepDoneEffect done = member.done.front();
  for (const client::StepDoneEffect& one : member.done) {
    if (one.step != static_cast<std::int64_t>(member.step)) Violate("another step ends");
    if (one.verdict == done.verdict && one.dropped == done.dropped) continue;
    Violate(absl::StrCat("step ", member.step, " ends otherwise at another shard"));
  }
  if (step.verdict && *step.verdict != done.verdict) {
    Violate(absl::StrCat("step ", member.step, " is applied by some and skipped by others"));
  }
  step.verdict = done.verdict;
  if (done.verdict == Verdict::kApply) {
    Note(ShardRecoveryCount::kApplied);
    CheckApplied(member, step);
  } else {
    Note(done.dropped ? ShardRecoveryCount::kDropped : ShardRecoveryCount::kSkippedForValues);
    if (step.nonfinite_rank < 0 && AllKeepGradients()) {
      Violate(absl::StrCat("step ", member.step, " is skipped, and its gradients are kept"));
    }
    if (step.nonfinite_rank < 0 && !step.lost_in) {
      Violate(absl::StrCat("step ", member.step, " is skipped for no reason"));
    }
  }
  member.done.clear();
  member.buckets.clear();
  member.parts.clear();
  member.ended = false;
  member.next_bucket = 0;
  member.order.clear();
  member.collectives = 0;
  ++member.step;
}

}  // namespace gradwire::sim
