// What the members of the simulation of shards do, and what they must end up with.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/bytes.h"
#include "tests/sim/shard_simulation.h"

namespace gradwire::sim {
namespace {

// A state by the names of its values. Keys with a slash are a parameter's, as tensors are.
struct StateImage {
  std::map<std::string, std::string> whole;
  std::map<std::string, std::string> parts;
};

StateImage ImageOf(const HookState& state) {
  StateImage image;
  for (const auto& [key, value] : state.metadata) {
    if (key == "step") continue;  // the session's, not the hook's
    (absl::StrContains(key, "/") ? image.parts : image.whole)[key] = value;
  }
  for (const StateTensor& tensor : state.tensors) {
    const auto* bytes = reinterpret_cast<const char*>(tensor.data.data());
    image.parts["tensor " + tensor.name] = std::string(bytes, tensor.data.size());
  }
  return image;
}

std::string Short(const std::string& value) { return value.substr(0, 60); }

// What the shards have together is what one coordinator has: of each parameter at its owner. Other
// shards may have drawn its first factors, and one that has reduced nothing has drawn nothing.
std::string FirstDifference(const StateImage& expected, const std::vector<StateImage>& shards,
                            const std::function<bool(std::size_t, const std::string&)>& owns,
                            bool draws) {
  std::map<std::string, std::string> missing = expected.parts;
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    for (const auto& [key, value] : expected.whole) {
      const auto found = shards[shard].whole.find(key);
      if (found == shards[shard].whole.end()) return absl::StrCat("no ", key);
      const bool of_draws = key == "generator" || key == "seed" || key == "seeds";
      if (of_draws && shards[shard].parts.empty()) continue;
      if (found->second != value) {
        return absl::StrCat(key, " is ", Short(found->second), ", not ", Short(value));
      }
    }
    for (const auto& [key, value] : shards[shard].parts) {
      if (!owns(shard, key.substr(key.rfind('/') + 1))) continue;
      const auto found = missing.find(key);
      if (found == missing.end()) return absl::StrCat(key, " is not there, or twice");
      if (found->second != value) return absl::StrCat("other values of ", key);
      missing.erase(found);
    }
  }
  for (const auto& [key, value] : missing) {
    for (std::size_t shard = 0; shard < shards.size(); ++shard) {
      if (!owns(shard, key.substr(key.rfind('/') + 1))) continue;
      if (!draws || !shards[shard].parts.empty()) return absl::StrCat("no ", key);
    }
  }
  return "";
}

}  // namespace

// A commit is allowed only while the step is concluded with APPLY.
void ShardSimulation::Deliver(Link& link, const wire::Frame& frame) {
  if (link.left) return;
  const auto* done = std::get_if<wire::StepDone>(&frame.header);
  const auto* restart = std::get_if<wire::Restart>(&frame.header);
  if (restart != nullptr && restart->step > link.core->step()) Note(ShardCount::kEarlyRestarts);
  link.hook->AllowCommit(done != nullptr && done->verdict == Verdict::kApply && link.shard == 0);
  client::Effects effects;
  link.core->Receive(frame, effects);
  link.hook->AllowCommit(false);
  Apply(link, std::move(effects));
}

void ShardSimulation::Apply(Link& link, client::Effects effects) {
  for (client::Effect& effect : effects) {
    std::visit([&](auto& one) { On(link, one); }, effect);
  }
  if (link.sending || !link.core->has_chunks()) return;
  link.sending = true;
  After(Delay(), [this, &link] {
    link.sending = false;
    if (link.owner->dead || !link.core->has_chunks()) return;
    client::Effects more;
    link.core->SendNext(more);
    Apply(link, std::move(more));
  });
}

void ShardSimulation::On(Link& link, client::SendFrameEffect& effect) {
  SendUp(link, {.header = std::move(effect.header)});
}

void ShardSimulation::On(Link& link, client::SendChunkEffect& effect) {
  if (link.core->failed()) return;
  ByteVector bytes(effect.bytes);
  if (absl::Status encoded = effect.run->Encode(effect.range, bytes); !encoded.ok()) {
    return Violate(std::string(encoded.message()));
  }
  wire::Frame frame{.header = effect.header, .payload = MakePayload(std::move(bytes), random_)};
  if (effect.announce) frame.header = *effect.announce;
  SendUp(link, std::move(frame));
}

void ShardSimulation::On(Link& link, client::WelcomeEffect&) {
  link.welcomed = true;
  Member& member = *link.owner;
  if (++member.welcomed < member.links.size()) return;
  After(Delay(), [this, &member] { BeginStep(member); });
}

// ---- The job

void ShardSimulation::BeginStep(Member& member) {
  if (member.over()) return;
  if (member.steps == scenario_.steps.size()) return Leave(*member.links.front());
  if (member.rank == 0 && static_cast<std::int64_t>(member.steps) == scenario_.draw_plan_step) {
    Note(ShardCount::kDrawPlans);
    for (auto& link : member.links) {
      client::Effects effects;
      absl::Status set = link->core->SetDrawPlan(scenario_.draw_plan, effects);
      if (!set.ok() && !fault_) Violate(std::string(set.message()));
      Apply(*link, std::move(effects));
    }
  }
  auto order = scenario_.steps[member.steps];
  random_.Shuffle(order);
  absl::Duration at = absl::ZeroDuration();
  for (const auto& parameters : order) {
    at += random_.Between(absl::ZeroDuration(), scenario_.longest_thought);
    After(at, [this, &member, parameters] { StartBucket(member, parameters); });
  }
  if (!scenario_.ended[member.steps]) return;
  After(at + Delay(), [this, &member, step = member.steps] {
    // All parameters may have been reduced before.
    if (member.steps == step) EndStep(member);
  });
}

void ShardSimulation::StartBucket(Member& member, const std::vector<std::uint32_t>& parameters) {
  if (member.over()) return;
  OpenBucket& open = *member.buckets.emplace_back(std::make_unique<OpenBucket>());
  open.parameters = parameters;
  std::vector<ParameterSpec> specs;
  for (const std::uint32_t p : parameters) {
    const ByteVector bytes =
        scenario_.GradientBytes(member.rank, static_cast<std::int64_t>(member.steps), p);
    open.bytes.insert(open.bytes.end(), bytes.begin(), bytes.end());
    specs.push_back(scenario_.options.manifest[p]);
  }
  const std::size_t numel = open.bytes.size() / sizeof(float);
  open.whole = std::make_unique<GradBucket>(
      *GradBucket::Make(0, {DType::kFloat32, open.bytes.data(), numel}, specs));
  auto parts = divide_.Divide(*open.whole);
  if (!parts.ok()) return Violate(std::string(parts.status().message()));
  open.parts = *std::move(parts);
  open.open = open.parts.size();
  const bool slices = scenario_.map->has_slices();
  if (slices && open.parts.size() > 1 && numel > 2 * Slice::kGrain * open.parts.size()) {
    Note(ShardCount::kSlicedBuckets);
  }
  if (!slices && open.parts.size() > 1) Note(ShardCount::kDividedBuckets);
  for (client::ShardBucket& part : open.parts) {
    Link& link = *member.links[part.shard];
    const client::Ticket ticket = next_ticket_++;
    member.parts[ticket] = {&open, &part};
    client::Effects effects;
    const absl::Status started = link.core->StartBucket(ticket, part.bucket, effects);
    if (!started.ok() && !link.core->failed()) Violate(std::string(started.message()));
    Apply(link, std::move(effects));
  }
}

void ShardSimulation::EndStep(Member& member) {
  if (member.over()) return;
  for (auto& link : member.links) {
    if (link->core->step() != static_cast<std::int64_t>(member.steps)) continue;
    client::Effects effects;
    const absl::Status ended = link->core->EndStep(effects);
    if (!ended.ok() && !link->core->failed()) Violate(std::string(ended.message()));
    Apply(*link, std::move(effects));
  }
}

void ShardSimulation::On(Link& link, client::BucketDoneEffect& effect) {
  if (!effect.status.ok()) {
    if (!fault_) Violate(absl::StrCat("a bucket failed: ", effect.status.message()));
    return;
  }
  const auto [bucket, part] = link.owner->parts.at(effect.ticket);
  part->CopyBack(bucket->bytes.data());
  --bucket->open;
}

// ---- What ShardExchange does

void ShardSimulation::On(Link& link, client::PreparedEffect& effect) {
  After(Delay(), [this, &link, effect] {
    Member& member = *link.owner;
    if (member.over()) return;
    const auto outcome = member.vote.OnPrepared(link.shard, effect);
    if (!outcome.ok()) return Violate(std::string(outcome.status().message()));
    if (!*outcome) return;
    if ((*outcome)->verdict != effect.verdict) Note(ShardCount::kSkipsOfOthers);
    Link& lead = *member.links.front();
    client::Effects effects;
    lead.core->SayReady((*outcome)->verdict, (*outcome)->digest, effects);
    Apply(lead, std::move(effects));
  });
}

void ShardSimulation::On(Link& link, client::StepDoneEffect& effect) {
  Member& member = *link.owner;
  if (link.shard == 0) {
    CheckStep(member, effect.step, effect.verdict);
    member.vote.Conclude();
    ConcludeOthers(member, effect.verdict);
  }
  if (++member.concluded < member.links.size()) return;
  member.concluded = 0;
  member.buckets.clear();
  member.parts.clear();
  ++member.steps;
  Note(effect.verdict == Verdict::kApply ? ShardCount::kSteps : ShardCount::kSkips);
  After(Delay(), [this, &member] { BeginStep(member); });
}

void ShardSimulation::ConcludeOthers(Member& member, Verdict verdict) {
  for (std::size_t shard = 1; shard < member.links.size(); ++shard) {
    After(Delay(), [this, &link = *member.links[shard], verdict] {
      if (link.owner->dead) return;
      link.hook->AllowCommit(verdict == Verdict::kApply);
      client::Effects effects;
      link.core->ConcludeAs(verdict, effects);
      link.hook->AllowCommit(false);
      Apply(link, std::move(effects));
    });
  }
}

void ShardSimulation::On(Link& link, client::FailedEffect& effect) {
  if (effect.last_words && !link.left) SendUp(link, {.header = *effect.last_words});
  Close(link);
  Member& member = *link.owner;
  if (std::exchange(member.failed, true)) return;
  Note(ShardCount::kFailures);
  CheckWords(link, effect);
  for (auto& other : member.links) {
    if (other.get() == &link) continue;
    After(Delay(), [this, &one = *other, effect] {
      if (one.owner->dead) return;
      client::Effects effects;
      one.core->FailElsewhere(effect.status, effect.blamed_rank, effects);
      Apply(one, std::move(effects));
    });
  }
}

// ---- What must come out

const std::vector<testing::MemberGradients>& ShardSimulation::Expected(std::int64_t step) {
  const auto known = expected_.find(step);
  if (known != expected_.end()) return known->second;
  std::vector<testing::MemberGradients>& gradients = expected_[step];
  for (const auto& member : members_) {
    testing::MemberGradients& own = gradients.emplace_back();
    for (std::uint32_t p = 0; p < scenario_.options.manifest.size(); ++p) {
      own.push_back(scenario_.GradientBytes(member->rank, step, p));
    }
  }
  if (step == scenario_.draw_plan_step) {
    absl::Status set = reference_->coordinator().SetDrawPlan(scenario_.draw_plan);
    if (!set.ok()) Violate(std::string(set.message()));
  }
  testing::Buckets buckets;
  bool low_rank = false;
  for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)]) {
    buckets.emplace_back(bucket.begin(), bucket.end());
    low_rank |= reference_->coordinator().Plan(bucket).ok() &&
                reference_->coordinator().SharedVersion(bucket) != 0;
  }
  if (low_rank) Note(ShardCount::kLowRankSteps);
  const auto verdict = reference_->RunStep(gradients, buckets);
  if (!verdict.ok()) Violate(std::string(verdict.status().message()));
  verdicts_[step] = verdict.value_or(Verdict::kSkip);
  return gradients;
}

// When the lead has concluded, everything of all shards is there. Bit for bit, for every number of
// shards: the reference has one coordinator, in one loop.
void ShardSimulation::CheckStep(Member& member, std::int64_t step, Verdict verdict) {
  const auto& expected = Expected(step)[static_cast<std::size_t>(member.rank)];
  if (verdict != verdicts_[step]) {
    return Violate(absl::StrCat("rank ", member.rank, " has another verdict of step ", step));
  }
  std::size_t parameters = 0;
  for (const auto& open : member.buckets) {
    const std::string name = scenario_.options.manifest.BucketName(open->parameters);
    parameters += open->parameters.size();
    if (open->open > 0) {
      Violate(absl::StrCat("rank ", member.rank, " ends step ", step, " without ", open->open,
                           " shards' results of bucket ", name));
    }
    if (verdict == Verdict::kSkip) continue;
    ByteVector want;
    for (const std::uint32_t p : open->parameters) {
      want.insert(want.end(), expected[p].begin(), expected[p].end());
    }
    if (open->bytes != want) {
      Violate(absl::StrCat("rank ", member.rank, " has other results of step ", step,
                           " for bucket ", name));
    }
  }
  std::size_t all = 0;
  for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)]) all += bucket.size();
  if (parameters != all) {
    Violate(absl::StrCat("rank ", member.rank, " ends step ", step, " with ", parameters, " of ",
                         all, " parameters"));
  }
}

// Whoever is cut off blames itself, in its own words, and may be faster than the daemon.
void ShardSimulation::CheckWords(const Link& link, const client::FailedEffect& effect) {
  const std::string words(effect.status.message());
  if (!fault_) return Violate(absl::StrCat("the session failed: ", words));
  const int blamed = scenario_.fault == ShardFault::kEvicted ? -1 : scenario_.fault_rank;
  if (effect.blamed_rank != blamed && !refused_) {
    Violate(absl::StrCat("rank ", link.owner->rank, " is told by shard ", link.shard, " that rank ",
                         effect.blamed_rank, " is to blame, and not ", blamed, ": ", words));
  }
  if (scenario_.fault == ShardFault::kCutOff) return;
  if (words_.empty()) words_ = words;
  if (words_ != words) {
    Violate(absl::StrCat("members are told different things: ", words_, " and ", words));
  }
}

void ShardSimulation::CheckEnd() {
  using State = server::SessionCore::State;
  for (const Shard& shard : shards_) {
    const absl::Status& failure = shard.session->failure();
    if (!fault_ && shard.session->state() != State::kClosed) {
      Violate(absl::StrCat("shard ", shard.number,
                           " does not end with its members: ", failure.message()));
    }
    // Members may all have left it before.
    if (!shard.told || shard.session->state() == State::kClosed) continue;
    if (scenario_.fault == ShardFault::kCutOff) continue;
    if (failure.message() != words_) {
      Violate(absl::StrCat("shard ", shard.number, " was told \"", words_, "\" and says \"",
                           failure.message(), "\""));
    }
  }
  if (std::all_of(members_.begin(), members_.end(), [](const auto& one) { return one->left; })) {
    CheckStates();
  }
}

void ShardSimulation::CheckStates() {
  const auto steps = static_cast<std::int64_t>(scenario_.steps.size());
  const auto owns = [this](std::size_t shard, const std::string& parameter) {
    const auto position = static_cast<std::uint32_t>(std::stoul(parameter.substr(1)));
    return scenario_.map->Owns(static_cast<std::uint32_t>(shard), position);
  };
  for (const auto& member : members_) {
    std::vector<StateImage> states;
    for (const auto& link : member->links) states.push_back(ImageOf(link->hook->State()));
    const auto rank = static_cast<std::size_t>(member->rank);
    const std::string difference =
        FirstDifference(ImageOf(reference_->hook(rank).State()), states, owns, /*draws=*/false);
    if (!difference.empty()) {
      Violate(absl::StrCat("rank ", rank, "'s state is not the reference's: ", difference));
    }
  }
  std::vector<StateImage> states;
  for (const Shard& shard : shards_) {
    // Where nobody's word arrived, because the last streams broke, the last step stays open.
    if (shard.number > 0 && shard.concluded < steps - 1) return;
    const auto exported = shard.session->Export();
    if (!exported.ok() && !fault_) Violate(std::string(exported.status().message()));
    if (!exported.ok()) return;
    const auto state = exported->State();
    if (!state.ok()) return;  // a hook without one
    states.push_back(ImageOf(*state));
  }
  const std::string difference =
      FirstDifference(ImageOf(reference_->Export()), states, owns, /*draws=*/true);
  if (!difference.empty()) {
    Violate(absl::StrCat("the shards' states are not the reference's: ", difference));
  }
}

}  // namespace gradwire::sim
