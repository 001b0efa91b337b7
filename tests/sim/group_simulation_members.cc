// What the members of the simulation of node groups do, and what they must end up with.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hooks/device_hooks.h"
#include "tests/sim/bytes.h"
#include "tests/sim/group_simulation.h"

namespace gradwire::sim {

void GroupSimulation::Apply(Member& member, client::Effects effects) {
  for (client::Effect& effect : effects) {
    std::visit([&](auto& one) { On(member, one); }, effect);
  }
  if (member.sending || !member.member->has_chunks()) return;
  member.sending = true;
  After(Delay(), [this, &member] {
    member.sending = false;
    if (member.dead || !member.member->has_chunks()) return;
    client::Effects more;
    member.member->SendNext(more);
    Apply(member, std::move(more));
  });
}

void GroupSimulation::On(Member& member, client::SendFrameEffect& effect) {
  SendUp(member, {.header = std::move(effect.header), .payload = std::move(effect.payload)});
}

void GroupSimulation::On(Member& member, client::SendChunkEffect& effect) {
  if (member.member->failed()) return;
  ByteVector bytes(effect.bytes);
  if (absl::Status encoded = effect.run->Encode(effect.range, bytes); !encoded.ok()) {
    return Violate(std::string(encoded.message()));
  }
  wire::Frame frame{.header = effect.header, .payload = MakePayload(std::move(bytes), random_)};
  if (effect.announce) frame.header = *effect.announce;
  SendUp(member, std::move(frame));
}

void GroupSimulation::On(Member& member, client::GroupEffect& effect) {
  const std::vector<Group>& groups = member.groups;
  const std::size_t number = effect.group.group;
  if (groups.size() != effect.group.groups || groups[number].ranks != effect.group.ranks) {
    return Violate(absl::StrCat("rank ", member.rank, " is told of another group"));
  }
  if (effect.group.ranks.size() == 1) Note(GroupCount::kMembersAlone);
  if (groups != groups_) Note(GroupCount::kSharesMoved);
  if (!effect.names) return;
  client::Effects effects;
  member.member->NameGroup(absl::StrCat("virtual ", member.rank, " ", next_ticket_++), effects);
  Apply(member, std::move(effects));
}

void GroupSimulation::On(Member& member, client::WelcomeEffect& effect) {
  member.welcomed = true;
  member.steps = static_cast<std::size_t>(member.member->step());
  if (effect.change) Note(GroupCount::kHealed);
  After(Delay(), [this, &member] { BeginStep(member); });
}

// ---- The job

void GroupSimulation::BeginStep(Member& member) {
  if (member.dead || member.failed) return;
  const std::size_t step = member.steps;
  if (step >= scenario_.steps.size()) {
    member.done = true;
    return;
  }
  member.in_step = true;
  member.open_calls = static_cast<int>(scenario_.steps[step].size());
  auto order = scenario_.steps[step];
  random_.Shuffle(order);
  absl::Duration at = absl::ZeroDuration();
  for (const auto& parameters : order) {
    at += Delay();
    After(at, [this, &member, parameters] { StartBucket(member, parameters); });
  }
  if (!scenario_.ended[step]) return;
  ++member.open_calls;
  After(at + Delay(), [this, &member, step] {
    // All parameters may have been reduced before.
    if (member.steps == step) EndStep(member);
  });
}

void GroupSimulation::EndStep(Member& member) {
  if (member.dead || member.failed) return;
  --member.open_calls;
  if (!member.over.empty()) return MaybeFinish(member);
  client::Effects effects;
  const absl::Status ended = member.member->EndStep(effects);
  if (!ended.ok() && !member.failed) Violate(std::string(ended.message()));
  Apply(member, std::move(effects));
}

void GroupSimulation::StartBucket(Member& member, const std::vector<std::uint32_t>& parameters) {
  if (member.dead || member.failed) return;
  --member.open_calls;
  if (!member.over.empty()) return MaybeFinish(member);  // it was dropped
  const client::Ticket ticket = next_ticket_++;
  OpenBucket& open = member.buckets[ticket];
  open.step = member.member->step();
  open.parameters = parameters;
  std::vector<ParameterSpec> specs;
  for (const std::uint32_t p : parameters) {
    const ByteVector bytes = scenario_.GradientBytes(member.rank, open.step, p);
    open.bytes.insert(open.bytes.end(), bytes.begin(), bytes.end());
    specs.push_back(scenario_.options.manifest[p]);
  }
  open.bucket = std::make_unique<GradBucket>(*GradBucket::Make(
      0, {DType::kFloat32, open.bytes.data(), open.bytes.size() / sizeof(float)}, specs));
  client::Effects effects;
  const absl::Status started = member.member->StartBucket(ticket, *open.bucket, effects);
  if (!started.ok() && !member.member->failed()) Violate(std::string(started.message()));
  Apply(member, std::move(effects));
}

void GroupSimulation::On(Member& /*member*/, client::BucketDoneEffect& effect) {
  if (effect.status.ok() || IsLeftBehind(effect.status)) return;
  if (!death_) Violate(absl::StrCat("a bucket failed: ", effect.status.message()));
}

void GroupSimulation::On(Member& member, client::StepDoneEffect& effect) {
  if (effect.dropped && member.open_calls > 0) Note(GroupCount::kDroppedUnderTheUser);
  const bool by_reports = member.member->awaits_welcome() && effect.verdict == Verdict::kApply;
  if (by_reports) Note(GroupCount::kConcludedByReports);
  member.over.emplace_back(effect, member.groups);
  // A user that has not ended its step yet may hear at once that all of it is over.
  if (!effect.dropped) member.open_calls = 0;
  MaybeFinish(member);
}

// Of a step that others have dropped before this user has begun it, it hears in the next one.
void GroupSimulation::MaybeFinish(Member& member) {
  if (!member.in_step || member.open_calls > 0 || member.over.empty()) return;
  const auto [over, groups] = std::move(member.over.front());
  member.over.pop_front();
  CheckStep(member, over, groups);
  member.buckets.clear();
  member.in_step = false;
  member.steps = static_cast<std::size_t>(over.step) + 1;
  Note(over.verdict == Verdict::kApply ? GroupCount::kSteps : GroupCount::kSkips);
  After(Delay(), [this, &member] { BeginStep(member); });
}

void GroupSimulation::On(Member& member, client::FailedEffect& effect) {
  if (IsLeftBehind(effect.status)) {
    Note(GroupCount::kLeftBehind);
    member.dead = true;
    return Replace(member.rank);
  }
  member.failed = true;
  Note(GroupCount::kFailures);
  if (failure_.empty()) failure_ = std::string(effect.status.message());
  if (failure_ != effect.status.message()) {
    Violate(absl::StrCat("members are told different things: ", failure_, " and ",
                         effect.status.message()));
  }
}

// ---- The communicators: a call is done when all of the group have made it, and who is dead makes
// none, which the others are not told.

void GroupSimulation::On(Member& member, client::ExchangeEffect& effect) {
  Ask(member, effect.ticket, /*gather=*/false);
}

void GroupSimulation::On(Member& member, client::GatherEffect& effect) {
  Ask(member, effect.ticket, /*gather=*/true);
}

// A call may be asked for before the communicator has a name.
void GroupSimulation::Ask(Member& member, client::Ticket ticket, bool gather) {
  if (member.in_operation) return Violate("a call before the one before it was answered");
  member.in_operation = true;
  const bool alone = member.member->group()->ranks.size() == 1;
  if (alone || !member.communicator.empty()) return Call(member, ticket, gather);
  member.call = [this, &member, ticket, gather] { Call(member, ticket, gather); };
}

void GroupSimulation::On(Member& member, client::ConnectEffect& effect) {
  if (!member.communicator.empty()) return Violate("a group connects twice");
  member.communicator = effect.id;
  member.calls = 0;
  communicators_[effect.id].members[member.rank] = &member;
  if (auto call = std::exchange(member.call, nullptr)) call();
}

// Peers that have not left it yet wait for this member in vain.
void GroupSimulation::On(Member& member, client::AbortGroupEffect&) {
  ++member.aborts;
  if (!member.communicator.empty()) {
    for (auto& [number, calls] : communicators_.at(member.communicator).calls) {
      calls.erase(member.rank);
    }
  }
  member.communicator.clear();
  member.call = nullptr;
  member.in_operation = false;
}

void GroupSimulation::Call(Member& member, client::Ticket ticket, bool gather) {
  const std::vector<int>& ranks = member.member->group()->ranks;
  if (ranks.size() == 1) {
    Communicator alone{.members = {{member.rank, &member}}};
    return Complete(alone, {{member.rank, ticket}}, gather);
  }
  Communicator& communicator = communicators_.at(member.communicator);
  auto& calls = communicator.calls[member.calls++];
  calls[member.rank] = ticket;
  if (calls.size() == ranks.size()) Complete(communicator, calls, gather);
}

// What the members send is fixed now; when each of them is told is chance.
void GroupSimulation::Complete(Communicator& communicator,
                               const std::map<int, client::Ticket>& calls, bool gather) {
  Note(gather ? GroupCount::kGathers : GroupCount::kExchanges);
  const std::map<int, client::Ticket> all = calls;
  const OpenBucket& own = communicator.members.begin()->second->buckets.at(all.begin()->second);
  for (const auto& [rank, ticket] : all) {
    const OpenBucket& other = communicator.members.at(rank)->buckets.at(ticket);
    if (other.parameters != own.parameters || other.step != own.step) {
      return Violate("members of a group do not do the same in the same order");
    }
  }
  for (const auto& [rank, ticket] : all) {
    Member& one = *communicator.members.at(rank);
    gather ? Gather(one, ticket, communicator, all) : Exchange(one, ticket, communicator, all);
  }
  for (const auto& [rank, ticket] : all) {
    Member& one = *communicator.members.at(rank);
    After(Delay(), [this, &one, gather, mine = ticket, aborts = one.aborts] {
      if (one.aborts == aborts) Answer(one, mine, gather);
    });
  }
}

void GroupSimulation::Answer(Member& member, client::Ticket ticket, bool gather) {
  member.in_operation = false;
  if (member.dead || member.member->failed()) return;
  client::Effects effects;
  if (gather) {
    member.member->Gathered(ticket, effects);
  } else {
    std::vector<GradBucket*> own;
    for (const auto& share : member.buckets.at(ticket).shares) own.push_back(share.get());
    member.member->Exchanged(ticket, own, effects);
  }
  Apply(member, std::move(effects));
}

void GroupSimulation::Exchange(Member& member, client::Ticket ticket,
                               const Communicator& communicator,
                               const std::map<int, client::Ticket>& calls) {
  if (member.dead || member.member->failed()) return;
  OpenBucket& open = member.buckets.at(ticket);
  const double divisor = static_cast<double>(member.member->members()) /
                         static_cast<double>(member.member->group()->groups);
  for (const client::BucketShare& share : member.member->SharesOf(ticket)) {
    if (member.member->OwnerOf(share.share) != member.member->index()) continue;
    ByteVector sum(share.bytes);
    std::size_t at = 0;
    for (const client::BucketShare::Piece& piece : share.pieces) {
      for (std::size_t i = 0; i < piece.bytes / sizeof(float); ++i) {
        double exact = 0;
        for (const auto& [rank, others] : calls) {
          const ByteVector& bytes = communicator.members.at(rank)->buckets.at(others).bytes;
          exact += GetElement(DType::kFloat32, std::span(bytes).subspan(piece.offset), i);
        }
        PutElement(DType::kFloat32, std::span(sum).subspan(at), i, exact / divisor);
      }
      at += piece.bytes;
    }
    ByteVector& kept = open.sums.emplace_back(std::move(sum));
    open.shares.push_back(std::make_unique<GradBucket>(*GradBucket::Make(
        0, {DType::kFloat32, kept.data(), kept.size() / sizeof(float)}, share.parameters)));
  }
}

// From the owners' shares to this member's bucket.
void GroupSimulation::Gather(Member& member, client::Ticket ticket,
                             const Communicator& communicator,
                             const std::map<int, client::Ticket>& calls) {
  if (member.dead || member.member->failed()) return;
  OpenBucket& open = member.buckets.at(ticket);
  std::map<std::size_t, std::size_t> next;  // of each owner's shares
  for (const client::BucketShare& share : member.member->SharesOf(ticket)) {
    const std::size_t owner = member.member->OwnerOf(share.share);
    const int rank = member.member->group()->ranks[owner];
    const OpenBucket& from = communicator.members.at(rank)->buckets.at(calls.at(rank));
    const ByteVector& sum = from.sums[next[owner]++];
    auto at = sum.begin();
    for (const client::BucketShare::Piece& piece : share.pieces) {
      std::copy_n(at, piece.bytes, open.bytes.begin() + static_cast<std::ptrdiff_t>(piece.offset));
      at += static_cast<std::ptrdiff_t>(piece.bytes);
    }
  }
}

// ---- What must come out

testing::MemberGradients GroupSimulation::OfGroup(const Group& group, std::int64_t step,
                                                  double divisor) const {
  testing::MemberGradients gradients;
  for (std::uint32_t p = 0; p < scenario_.options.manifest.size(); ++p) {
    ByteVector& bytes = gradients.emplace_back(scenario_.GradientBytes(group.ranks[0], step, p));
    for (std::size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
      double exact = 0;
      for (const int rank : group.ranks) exact += scenario_.Gradient(rank, step, p, i);
      PutElement(DType::kFloat32, bytes, i, exact / divisor);
    }
  }
  return gradients;
}

const std::vector<testing::MemberGradients>& GroupSimulation::Expected(std::int64_t step) {
  const auto known = expected_.find(step);
  if (known != expected_.end()) return known->second;
  std::vector<testing::MemberGradients>& gradients = expected_[step];
  const std::vector<Group>& groups = of_step_.at(step);
  std::size_t members = 0;
  for (const Group& group : groups) members += group.ranks.size();
  const double divisor = static_cast<double>(members) / static_cast<double>(groups.size());
  for (const Group& group : groups) gradients.push_back(OfGroup(group, step, divisor));
  testing::Buckets buckets;
  for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)]) {
    buckets.emplace_back(bucket.begin(), bucket.end());
  }
  // Of other groups there is a reference only where no hook has a state.
  std::unique_ptr<testing::HookWorld> others;
  if (members < members_.size()) Note(GroupCount::kStepsOfFewer);
  if (groups != groups_) {
    others = *testing::HookWorld::Make(static_cast<int>(groups.size()), scenario_.options.spec,
                                       scenario_.options.manifest.list());
  }
  const auto verdict = (others ? others : reference_)->RunStep(gradients, buckets);
  if (!verdict.ok()) Violate(std::string(verdict.status().message()));
  verdicts_[step] = verdict.value_or(Verdict::kSkip);
  const bool low_rank = scenario_.options.spec.ToString().find("sgd") != std::string::npos;
  if (low_rank && step > 0) Note(GroupCount::kLowRankSteps);
  return gradients;
}

// The reference has one member for each group, in one loop. Steps that are dropped change nothing.
void GroupSimulation::CheckStep(Member& member, const client::StepDoneEffect& over,
                                const std::vector<Group>& groups) {
  const std::int64_t step = over.step;
  if (over.dropped) {
    if (dropped_.insert(step).second) Note(GroupCount::kDropped);
    // One more than the losses: steps are dropped in pairs, one of which may be over.
    if (dropped_.size() > 2 * losses_) Violate(absl::StrCat("step ", step, " is dropped"));
  } else {
    const auto [first, is_new] = of_step_.try_emplace(step, groups);
    if (first->second != groups) {
      return Violate(absl::StrCat("rank ", member.rank, " ends step ", step, " among others"));
    }
    if (has_reference_) Expected(step);
  }
  const auto [verdict, is_first] = verdicts_.try_emplace(step, over.verdict);
  if (verdict->second != over.verdict) {
    return Violate(absl::StrCat("rank ", member.rank, " has another verdict of step ", step));
  }
  if (over.verdict == Verdict::kApply) CheckResults(member, step);
  if (over.dropped) return;
  std::size_t parameters = 0;
  for (const auto& [ticket, open] : member.buckets) parameters += open.parameters.size();
  std::size_t all = 0;
  for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)]) all += bucket.size();
  if (parameters != all) {
    Violate(absl::StrCat("rank ", member.rank, " ends step ", step, " with ", parameters, " of ",
                         all, " parameters"));
  }
}

// Bit for bit, whatever came first.
void GroupSimulation::CheckResults(const Member& member, std::int64_t step) {
  for (const auto& [ticket, open] : member.buckets) {
    ByteVector want = seen_.try_emplace({step, open.parameters}, open.bytes).first->second;
    if (has_reference_) {
      const testing::MemberGradients& expected = Expected(step).front();
      want.clear();
      for (const std::uint32_t p : open.parameters) {
        want.insert(want.end(), expected[p].begin(), expected[p].end());
      }
    }
    if (open.bytes == want) continue;
    Violate(absl::StrCat("rank ", member.rank, " has other results of step ", step, " for bucket ",
                         scenario_.options.manifest.BucketName(open.parameters)));
  }
}

}  // namespace gradwire::sim
