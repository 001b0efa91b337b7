// What the members of the simulation of shards must end up with.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

// What a group contributes, by arithmetic of the test's own: a leaf's members divide in fp32, as
// the hook "no" does; their sum is taken in fp64 and rounded once; and the group's part of the mean
// over all ranks is weighed in fp64 and rounded once more.
ByteVector ShardSimulation::GroupGradient(const ShardGroup& group, std::int64_t step,
                                          std::uint32_t parameter) const {
  std::vector<std::vector<float>> own;
  const std::size_t numel = scenario_.options.manifest[parameter].numel();
  for (int rank = group.first; rank < group.first + group.ranks; ++rank) {
    const ByteVector bytes = scenario_.GradientBytes(rank, step, parameter);
    if (numel > 0) std::memcpy(own.emplace_back(numel).data(), bytes.data(), bytes.size());
  }
  const double weight =
      static_cast<double>(static_cast<std::size_t>(group.ranks) * scenario_.groups.size()) /
      scenario_.options.world_size;
  ByteVector result(numel * sizeof(float));
  for (std::size_t i = 0; i < numel; ++i) {
    double sum = 0;
    for (std::size_t r = 0; r < own.size(); ++r) {
      const double one = own[r][i] / static_cast<float>(group.ranks);
      sum = r == 0 ? one : sum + one;
    }
    const auto value = static_cast<float>(static_cast<double>(static_cast<float>(sum)) * weight);
    std::memcpy(result.data() + i * sizeof(float), &value, sizeof value);
  }
  return result;
}

const std::vector<testing::MemberGradients>& ShardSimulation::Expected(std::int64_t step) {
  const auto known = expected_.find(step);
  if (known != expected_.end()) return known->second;
  std::vector<testing::MemberGradients>& gradients = expected_[step];
  for (const ShardGroup& group : scenario_.groups) {
    testing::MemberGradients& own = gradients.emplace_back();
    for (std::uint32_t p = 0; p < scenario_.options.manifest.size(); ++p) {
      own.push_back(GroupGradient(group, step, p));
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
  if (verdicts_[step] == Verdict::kApply) CheckReference(step);
  return gradients;
}

// All groups have the same results; and where nothing is compressed, they are the mean over all
// ranks.
void ShardSimulation::CheckReference(std::int64_t step) {
  const std::vector<testing::MemberGradients>& results = expected_[step];
  const bool plain = scenario_.options.spec.ToString() == HookSpec().ToString();
  const int world = scenario_.options.world_size;
  for (const auto& bucket : scenario_.steps[static_cast<std::size_t>(step)]) {
    for (const std::uint32_t p : bucket) {
      for (const testing::MemberGradients& one : results) {
        if (one[p] != results.front()[p]) Violate("groups have different results");
      }
      std::vector<double> mean(plain ? scenario_.options.manifest[p].numel() : 0);
      for (int rank = 0; plain && rank < world; ++rank) {
        const ByteVector bytes = scenario_.GradientBytes(rank, step, p);
        for (std::size_t i = 0; i < mean.size(); ++i) {
          mean[i] += GetElement(DType::kFloat32, bytes, i) / world;
        }
      }
      for (std::size_t i = 0; i < mean.size(); ++i) {
        const double got = GetElement(DType::kFloat32, results.front()[p], i);
        if (std::abs(got - mean[i]) > 1e-6) Violate("the result is not the mean over all ranks");
      }
    }
  }
}

// When the lead has concluded, everything of all shards is there. Bit for bit, for every number of
// shards: the reference has one coordinator, in one loop. It knows of no leaf, but for what each
// contributes.
void ShardSimulation::CheckStep(Member& member, std::int64_t step, Verdict verdict) {
  const auto& expected = Expected(step)[member.group];
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

// A leaf whose last words are lost is blamed itself.
bool ShardSimulation::MayBlame(const Member& member, int blamed_rank) const {
  const Leaf* const leaf = FaultyLeaf();
  const bool inside = IsFaulty(member.behind);
  const int outside = leaf != nullptr ? leaf->place.first : -1;
  if (WordsAreLost() && !inside && blamed_rank == outside) return true;
  switch (scenario_.fault) {
    case ShardFault::kEvicted:
      return blamed_rank == (inside ? -1 : outside);
    case ShardFault::kLeafDeath:
      return blamed_rank == (inside ? member.rank : outside);
    case ShardFault::kAbsent:
      return blamed_rank == -1 || (blamed_rank == outside && !inside);
    case ShardFault::kCutOff:
      return blamed_rank == (scenario_.fault_leaf >= 0 ? outside : scenario_.fault_rank);
    case ShardFault::kNone:
    case ShardFault::kDeath:
    case ShardFault::kQuit:
      break;
  }
  return blamed_rank == scenario_.fault_rank;
}

// Whoever is cut off blames itself, in its own words, and may be faster than the daemon. Of a
// member that has left, or never came, each daemon says what it sees first.
void ShardSimulation::CheckWords(const Link& link, const client::FailedEffect& effect) {
  const Member& member = *link.owner;
  std::string words(effect.status.message());
  if (!fault_) return Violate(absl::StrCat("the session failed: ", words));
  const std::string who =
      absl::StrCat(member.client_of != nullptr ? "the leaf of " : "", "rank ", member.rank);
  if (!MayBlame(member, effect.blamed_rank) && !refused_) {
    Violate(absl::StrCat(who, " is told by shard ", link.shard(), " that rank ", effect.blamed_rank,
                         " is to blame: ", words));
  }
  const ShardFault fault = scenario_.fault;
  const bool inside = IsFaulty(member.behind);
  if (fault == ShardFault::kCutOff || (fault == ShardFault::kLeafDeath && inside)) return;
  if (fault != ShardFault::kEvicted && !absl::StrContains(words, "rank")) {
    Violate(absl::StrCat(who, " is told nothing of a rank: ", words));
  }
  if (fault == ShardFault::kAbsent || fault == ShardFault::kQuit) return;
  words = WithoutLeaf(words);
  std::string& others = inside ? words_at_leaf_ : words_;
  if (others.empty()) others = words;
  if (others != words) {
    Violate(absl::StrCat("members are told different things: ", others, " and ", words));
  }
}

// A leaf's words are the root's behind the leaf's name.
std::string ShardSimulation::WithoutLeaf(const std::string& words) const {
  const Leaf* const leaf = FaultyLeaf();
  if (leaf == nullptr) return words;
  const ShardGroup& place = leaf->place;
  const std::string with =
      place.ranks == 1 ? absl::StrCat("rank ", place.first)
                       : absl::StrCat("ranks ", place.first, " to ", place.first + place.ranks - 1);
  return absl::StrReplaceAll(words,
                             {{absl::StrCat("leaf \"", place.name(), "\" with ", with, ": "), ""}});
}

void ShardSimulation::CheckDaemon(const Daemon& daemon) {
  using State = server::SessionCore::State;
  if (daemon.dead) return;
  const server::SessionCore& session = *daemon.session;
  const absl::Status& failure = session.failure();
  if (session.held_bytes() > 0) {
    Violate(absl::StrCat("shard ", daemon.shard, " still holds ", session.held_bytes(), " bytes"));
  }
  if (!fault_ && session.state() != State::kClosed) {
    Violate(absl::StrCat("shard ", daemon.shard,
                         " does not end with its members: ", failure.message()));
  }
  // Members may all have left it before.
  if (!daemon.told || session.state() == State::kClosed || daemon.leaf != nullptr) return;
  if (words_.empty()) return;
  const std::string words = WithoutLeaf(std::string(failure.message()));
  if (words != words_) {
    Violate(absl::StrCat("shard ", daemon.shard, " was told \"", words_, "\" and says \"", words,
                         "\""));
  }
}

void ShardSimulation::CheckEnd() {
  for (const auto& daemon : daemons_) CheckDaemon(*daemon);
  Note(fault_ ? ShardCount::kFailedSeeds : ShardCount::kFinished);
  if (WordsAreLost()) Note(ShardCount::kLostWords);
  if (!WordsAreLost() && !words_.empty() && !words_at_leaf_.empty() && words_ != words_at_leaf_) {
    Violate(absl::StrCat("behind the leaf members are told \"", words_at_leaf_, "\", elsewhere \"",
                         words_, "\""));
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
    if (member->behind != nullptr) continue;  // it has none
    std::vector<StateImage> states;
    for (const auto& link : member->links) states.push_back(ImageOf(link->hook->State()));
    const StateImage image = ImageOf(reference_->hook(member->group).State());
    const std::string difference = FirstDifference(image, states, owns, /*draws=*/false);
    if (!difference.empty()) {
      Violate(absl::StrCat("rank ", member->rank, "'s state is not the reference's: ", difference));
    }
  }
  std::vector<StateImage> states;
  for (const auto& daemon : daemons_) {
    if (daemon->leaf != nullptr) continue;
    // Where nobody's word arrived, because the last streams broke, the last step stays open.
    if (daemon->shard > 0 && daemon->concluded < steps - 1) return;
    const auto exported = daemon->session->Export();
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
