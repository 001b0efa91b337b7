#include "hooks/state_parts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/limits.h"
#include "hooks/safetensors.h"

namespace gradwire {
namespace {

constexpr std::size_t kShown = 80;

struct Place {
  std::uint32_t shard = 0;
  std::uint32_t shards = 0;
};

absl::Status NoPart(const std::string& why) {
  return Coded(ErrorCode::kStateFile, absl::InvalidArgumentError(absl::StrCat("state: ", why)));
}

absl::Status Differs(const std::string& why) {
  return Coded(ErrorCode::kStateDiffers,
               absl::FailedPreconditionError(absl::StrCat("state: ", why)));
}

std::string Text(const HookState& state, const char* key) {
  const auto found = state.metadata.find(key);
  return found == state.metadata.end() ? std::string() : found->second;
}

absl::StatusOr<Place> PlaceOf(const HookState& part) {
  const std::string text = Text(part, kShardKey);
  const std::vector<std::string> words = absl::StrSplit(text, " of ");
  Place place;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &place.shard) ||
      !absl::SimpleAtoi(words[1], &place.shards) || place.shards > kMaxShards ||
      place.shard >= place.shards) {
    return NoPart(absl::StrCat("shard is \"", text.substr(0, kShown),
                               "\"; allowed: a number and how many there are, such as 1 of 4"));
  }
  return place;
}

// The parameter that a name ends in. nullopt: it is about none.
std::optional<std::string_view> ParameterOf(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  return name.substr(slash + 1);
}

// All parts, by shard: one of each.
absl::StatusOr<std::vector<HookState>> InOrder(std::vector<HookState> parts) {
  if (parts.empty()) return NoPart("there are no parts");
  std::map<std::uint32_t, HookState> by_shard;
  std::uint32_t shards = 0;
  for (HookState& part : parts) {
    const absl::StatusOr<Place> place = PlaceOf(part);
    if (!place.ok()) return place.status();
    if (shards != 0 && place->shards != shards) {
      return Differs(absl::StrCat("has parts of sessions with ", shards, " and with ",
                                  place->shards, " shards"));
    }
    shards = place->shards;
    if (!by_shard.emplace(place->shard, std::move(part)).second) {
      return Differs(absl::StrCat("has the part of shard ", place->shard, " twice"));
    }
  }
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    if (by_shard.contains(shard)) continue;
    return Differs(absl::StrCat("the part of shard ", shard, " of ", shards,
                                " is missing; name all daemons of the session"));
  }
  std::vector<HookState> ordered;
  ordered.reserve(by_shard.size());
  for (auto& [shard, part] : by_shard) ordered.push_back(std::move(part));
  return ordered;
}

absl::Status CheckSameStep(const std::vector<HookState>& parts) {
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (Text(parts[i], kStepKey) == Text(parts[0], kStepKey)) continue;
    return Coded(ErrorCode::kStateInStep,
                 absl::FailedPreconditionError(absl::StrCat(
                     "state: shard 0's is after step ", Text(parts[0], kStepKey).substr(0, kShown),
                     ", shard ", i, "'s after ", Text(parts[i], kStepKey).substr(0, kShown),
                     "; export while no step ends: between two steps, or in a pause")));
  }
  return absl::OkStatus();
}

// What a hook has drawn, on every shard that has something to draw.
bool IsDrawn(const std::string& key) {
  return key == "generator" || key == "seed" || key == "seeds" || key == "draw_plan";
}

// What is not about one parameter, without what only parts have.
std::map<std::string, std::string> Common(const HookState& part, bool drawn) {
  std::map<std::string, std::string> common;
  for (const auto& [key, value] : part.metadata) {
    if (ParameterOf(key) || key == kShardKey || key == kCompressedKey) continue;
    if (drawn || !IsDrawn(key)) common.emplace(key, value);
  }
  return common;
}

// The first key that two parts do not have alike. Empty: there is none.
std::string FirstDifference(const std::map<std::string, std::string>& a,
                            const std::map<std::string, std::string>& b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a != a.end()) return in_a->first;
  return in_b == b.end() ? std::string() : in_b->first;
}

// Puts what `part` says of its parameters into `whole`.
absl::Status Append(HookState part, std::set<std::string>& names, HookState& whole) {
  for (StateTensor& tensor : part.tensors) {
    if (!names.insert(tensor.name).second) {
      return NoPart(absl::StrCat("two parts have the tensor \"", tensor.name.substr(0, kShown),
                                 "\"; each parameter is one shard's"));
    }
    whole.tensors.push_back(std::move(tensor));
  }
  for (auto& [key, value] : part.metadata) {
    if (ParameterOf(key)) whole.metadata[key] = std::move(value);
  }
  return absl::OkStatus();
}

}  // namespace

std::string ShardText(std::uint32_t shard, std::uint32_t shards) {
  return absl::StrCat(shard, " of ", shards);
}

absl::Status CheckIsWhole(const HookState& state) {
  const auto shard = state.metadata.find(kShardKey);
  if (shard == state.metadata.end()) return absl::OkStatus();
  return Differs(absl::StrCat("is the part of shard ", shard->second.substr(0, kShown),
                              "; allowed: a whole one, which gradwirectl session export writes if "
                              "--address names all daemons of the session"));
}

// Shards that have nothing to draw keep the generator as it was, so the others' counts.
absl::StatusOr<HookState> JoinSessionState(std::vector<HookState> parts) {
  if (parts.size() == 1 && !parts.front().metadata.contains(kShardKey)) {
    return std::move(parts.front());
  }
  absl::StatusOr<std::vector<HookState>> ordered = InOrder(std::move(parts));
  if (!ordered.ok()) return ordered.status();
  if (absl::Status same = CheckSameStep(*ordered); !same.ok()) return same;
  const auto draws = [](const HookState& part) { return Text(part, kCompressedKey) != "0"; };
  const auto drawn = std::find_if(ordered->begin(), ordered->end(), draws);
  const HookState& model = drawn == ordered->end() ? ordered->front() : *drawn;
  HookState whole{.metadata = Common(model, /*drawn=*/true), .tensors = {}};
  for (const HookState& part : *ordered) {
    const std::string key = FirstDifference(Common(model, draws(part)), Common(part, draws(part)));
    if (key.empty()) continue;
    if (!IsDrawn(key)) {
      return Differs(absl::StrCat("the shards ", Text(model, kShardKey), " and ",
                                  Text(part, kShardKey), " differ in \"", key.substr(0, kShown),
                                  "\"; they are not of one session"));
    }
    return Differs(absl::StrCat(
        "the shards ", Text(model, kShardKey), " and ", Text(part, kShardKey),
        " have not drawn alike (\"", key,
        "\"): a step was without all compressed parameters of one of them; export after a step "
        "with all parameters"));
  }
  std::set<std::string> names;
  for (HookState& part : *ordered) {
    if (absl::Status status = Append(std::move(part), names, whole); !status.ok()) return status;
  }
  return whole;
}

absl::StatusOr<std::string> JoinSessionFiles(std::span<const std::string> parts) {
  std::vector<HookState> states;
  states.reserve(parts.size());
  for (const std::string& part : parts) {
    absl::StatusOr<HookState> state = ReadSafetensors(part);
    if (!state.ok()) return state.status();
    states.push_back(*std::move(state));
  }
  const absl::StatusOr<HookState> whole = JoinSessionState(std::move(states));
  if (!whole.ok()) return whole.status();
  return WriteSafetensors(*whole);
}

absl::StatusOr<HookState> JoinMemberState(std::vector<HookState> parts) {
  if (parts.empty()) return HookState();
  HookState whole{.metadata = Common(parts.front(), /*drawn=*/true), .tensors = {}};
  std::set<std::string> names;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string key = FirstDifference(whole.metadata, Common(parts[i], /*drawn=*/true));
    if (i == 0 || key.empty()) continue;
    return NoPart(absl::StrCat("a member's parts at shard 0 and ", i, " differ in \"",
                               key.substr(0, kShown), "\""));
  }
  for (HookState& part : parts) {
    if (absl::Status status = Append(std::move(part), names, whole); !status.ok()) return status;
  }
  return whole;
}

HookState MemberPart(const HookState& whole,
                     const std::function<bool(std::string_view parameter)>& owns) {
  const auto belongs = [&](std::string_view name) {
    const std::optional<std::string_view> parameter = ParameterOf(name);
    return !parameter || owns(*parameter);
  };
  HookState part;
  for (const auto& [key, value] : whole.metadata) {
    if (belongs(key)) part.metadata.emplace(key, value);
  }
  std::copy_if(whole.tensors.begin(), whole.tensors.end(), std::back_inserter(part.tensors),
               [&](const StateTensor& tensor) { return belongs(tensor.name); });
  return part;
}

}  // namespace gradwire
