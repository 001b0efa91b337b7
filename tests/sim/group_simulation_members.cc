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
  SendUp(member, {.header = std::move(effect.header)});
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
  const Group& group = groups_[member.group];
  if (effect.group.ranks != group.ranks || effect.group.groups != groups_.size()) {
    return Violate(absl::StrCat("rank ", member.rank, " is told of another group"));
  }
  if (group.ranks.size() == 1) Note(GroupCount::kMembersAlone);
  if (!effect.names) return;
  client::Effects effects;
  member.member->NameGroup("virtual", effects);
  Apply(member, std::move(effects));
}

void GroupSimulation::On(Member& member, client::WelcomeEffect&) {
  member.welcomed = true;
  After(Delay(), [this, &member] { BeginStep(member); });
}

// ---- The job

void GroupSimulation::BeginStep(Member& member) {
  if (member.dead || member.failed) return;
  const auto step = static_cast<std::size_t>(member.member->step());
  if (step == scenario_.steps.size()) {
    member.done = true;
    return;
  }
  auto order = scenario_.steps[step];
  random_.Shuffle(order);
  absl::Duration at = absl::ZeroDuration();
  for (const auto& parameters : order) {
    at += Delay();
    After(at, [this, &member, parameters] { StartBucket(member, parameters); });
  }
  if (!scenario_.ended[step]) return;
  After(at + Delay(), [this, &member, step] {
    // All parameters may have been reduced before.
    if (member.dead || member.failed || member.steps != step) return;
    client::Effects effects;
    const absl::Status ended = member.member->EndStep(effects);
    if (!ended.ok() && !member.failed) Violate(std::string(ended.message()));
    Apply(member, std::move(effects));
  });
}

void GroupSimulation::StartBucket(Member& member, const std::vector<std::uint32_t>& parameters) {
  if (member.dead || member.failed) return;
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
  if (effect.status.ok()) return;
  if (!death_) Violate(absl::StrCat("a bucket failed: ", effect.status.message()));
}

void GroupSimulation::On(Member& member, client::StepDoneEffect& effect) {
  CheckStep(member, effect.step, effect.verdict);
  member.buckets.clear();
  ++member.steps;
  Note(effect.verdict == Verdict::kApply ? GroupCount::kSteps : GroupCount::kSkips);
  After(Delay(), [this, &member] { BeginStep(member); });
}

void GroupSimulation::On(Member& member, client::FailedEffect& effect) {
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
  Call(member, effect.ticket, /*gather=*/false);
}

void GroupSimulation::On(Member& member, client::GatherEffect& effect) {
  Call(member, effect.ticket, /*gather=*/true);
}

void GroupSimulation::Call(Member& member, client::Ticket ticket, bool gather) {
  if (member.in_operation) return Violate("a call before the one before it was answered");
  member.in_operation = true;
  Group& group = groups_[member.group];
  const std::size_t number = member.calls++;
  auto& calls = group.calls[number];
  calls[member.rank] = ticket;
  if (calls.size() < group.ranks.size()) return;
  Note(gather ? GroupCount::kGathers : GroupCount::kExchanges);
  const std::map<int, client::Ticket> all = calls;
  for (const int rank : group.ranks) {
    const OpenBucket& other = members_[static_cast<std::size_t>(rank)]->buckets.at(all.at(rank));
    const OpenBucket& own = member.buckets.at(ticket);
    if (other.parameters != own.parameters || other.step != own.step) {
      return Violate("members of a group do not do the same in the same order");
    }
  }
  // What the members send is fixed now; when each of them is told is chance.
  for (const int rank : group.ranks) {
    Member& one = *members_[static_cast<std::size_t>(rank)];
    if (!gather) Exchange(one, all.at(rank), all);
  }
  for (const int rank : group.ranks) {
    Member& one = *members_[static_cast<std::size_t>(rank)];
    if (gather) Gather(one, all.at(rank), all);
  }
  for (const int rank : group.ranks) {
    Member& one = *members_[static_cast<std::size_t>(rank)];
    After(Delay(), [this, &one, gather, mine = all.at(rank)] {
      one.in_operation = false;
      if (one.dead || one.member->failed()) return;
      client::Effects effects;
      if (gather) {
        one.member->Gathered(mine, effects);
      } else {
        std::vector<GradBucket*> own;
        for (const auto& share : one.buckets.at(mine).shares) own.push_back(share.get());
        one.member->Exchanged(mine, own, effects);
      }
      Apply(one, std::move(effects));
    });
  }
}

void GroupSimulation::Exchange(Member& member, client::Ticket ticket,
                               const std::map<int, client::Ticket>& calls) {
  if (member.dead || member.member->failed()) return;
  OpenBucket& open = member.buckets.at(ticket);
  const double divisor = static_cast<double>(members_.size()) / static_cast<double>(groups_.size());
  for (const client::BucketShare& share : member.member->SharesOf(ticket)) {
    if (member.member->OwnerOf(share.share) != member.member->index()) continue;
    ByteVector sum(share.bytes);
    std::size_t at = 0;
    for (const client::BucketShare::Piece& piece : share.pieces) {
      for (std::size_t i = 0; i < piece.bytes / sizeof(float); ++i) {
        double exact = 0;
        for (const auto& [rank, others] : calls) {
          const ByteVector& bytes =
              members_[static_cast<std::size_t>(rank)]->buckets.at(others).bytes;
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
                             const std::map<int, client::Ticket>& calls) {
  if (member.dead || member.member->failed()) return;
  OpenBucket& open = member.buckets.at(ticket);
  const Group& group = groups_[member.group];
  std::map<std::size_t, std::size_t> next;  // of each owner's shares
  for (const client::BucketShare& share : member.member->SharesOf(ticket)) {
    const std::size_t owner = member.member->OwnerOf(share.share);
    const int rank = group.ranks[owner];
    const OpenBucket& from = members_[static_cast<std::size_t>(rank)]->buckets.at(calls.at(rank));
    const ByteVector& sum = from.sums[next[owner]++];
    auto at = sum.begin();
    for (const client::BucketShare::Piece& piece : share.pieces) {
      std::copy_n(at, piece.bytes, open.bytes.begin() + static_cast<std::ptrdiff_t>(piece.offset));
      at += static_cast<std::ptrdiff_t>(piece.bytes);
    }
  }
}

// ---- What must come out

testing::MemberGradients GroupSimulation::OfGroup(const Group& group, std::int64_t step) const {
  const double divisor = static_cast<double>(members_.size()) / static_cast<double>(groups_.size());
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
  for (const Group& group : groups_) gradients.push_back(OfGroup(group, step));
  testing::Buckets buckets;
  for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)]) {
    buckets.emplace_back(bucket.begin(), bucket.end());
  }
  const auto verdict = reference_->RunStep(gradients, buckets);
  if (!verdict.ok()) Violate(std::string(verdict.status().message()));
  verdicts_[step] = verdict.value_or(Verdict::kSkip);
  const bool low_rank = scenario_.options.spec.ToString().find("sgd") != std::string::npos;
  if (low_rank && step > 0) Note(GroupCount::kLowRankSteps);
  return gradients;
}

// Bit for bit, whatever came first. The reference has one member for each group, in one loop.
void GroupSimulation::CheckStep(Member& member, std::int64_t step, Verdict verdict) {
  const testing::MemberGradients& expected = Expected(step).front();
  if (verdict != verdicts_[step]) {
    return Violate(absl::StrCat("rank ", member.rank, " has another verdict of step ", step));
  }
  std::size_t parameters = 0;
  for (const auto& [ticket, open] : member.buckets) {
    parameters += open.parameters.size();
    if (verdict == Verdict::kSkip) continue;
    ByteVector want;
    for (const std::uint32_t p : open.parameters) {
      want.insert(want.end(), expected[p].begin(), expected[p].end());
    }
    if (open.bytes != want) {
      Violate(absl::StrCat("rank ", member.rank, " has other results of step ", step,
                           " for bucket ", scenario_.options.manifest.BucketName(open.parameters)));
    }
  }
  std::size_t all = 0;
  for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)]) all += bucket.size();
  if (parameters != all) {
    Violate(absl::StrCat("rank ", member.rank, " ends step ", step, " with ", parameters, " of ",
                         all, " parameters"));
  }
}

}  // namespace gradwire::sim
