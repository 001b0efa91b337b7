#include "server/core/hook_state.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "hooks/safetensors.h"
#include "hooks/state_parts.h"

namespace gradwire::server {
namespace {

// Puts the copies of several members together. What two of them have is the same in both.
class Parts {
 public:
  absl::Status Add(int rank, HookState part) {
    for (auto& [key, value] : part.metadata) {
      const auto [found, is_new] = copy_.metadata.try_emplace(key, value);
      const int first = givers_.try_emplace(key, rank).first->second;
      if (!is_new && found->second != value) return Differ(first, rank, key);
    }
    for (StateTensor& tensor : part.tensors) {
      const auto [found, is_new] = places_.try_emplace(tensor.name, copy_.tensors.size());
      const int first = givers_.try_emplace(tensor.name, rank).first->second;
      if (is_new) {
        copy_.tensors.push_back(std::move(tensor));
        continue;
      }
      const StateTensor& known = copy_.tensors[found->second];
      const bool is_same = known.dtype == tensor.dtype && known.data == tensor.data;
      if (!is_same) return Differ(first, rank, tensor.name);
    }
    return absl::OkStatus();
  }

  HookState Take() { return std::move(copy_); }

 private:
  static absl::Status Differ(int first, int second, const std::string& what) {
    return Coded(ErrorCode::kResume, absl::FailedPreconditionError(
                                         absl::StrCat("ranks ", first, " and ", second,
                                                      " hold different copies of \"", what, "\"")));
  }

  HookState copy_;
  std::map<std::string, std::size_t> places_;  // of tensors
  std::map<std::string, int> givers_;          // of tensors and metadata
};

}  // namespace

absl::StatusOr<HookState> StateSnapshot::State() const {
  OwnsParameter owns;
  if (shard.count() > 1) owns = [this](std::uint32_t parameter) { return shard.Owns(parameter); };
  absl::StatusOr<HookState> state = hook->State(owns);
  if (!state.ok()) return state;
  state->metadata[kStepKey] = absl::StrCat(step);
  if (shard.count() > 1) state->metadata[kShardKey] = ShardText(shard.number, shard.count());
  return state;
}

// A parameter has two tensors at most, each with a description, and two lines of metadata; JSON
// writes a byte of a name as six at most.
std::size_t StateFileBytes(const CoordinatorHook* hook, const Manifest& manifest) {
  constexpr std::size_t kDescription = std::size_t{1} << 20;
  constexpr std::size_t kForEachParameter = 512;
  constexpr std::size_t kForEachByteOfName = std::size_t{4} * 6;
  if (hook == nullptr || !hook->HasState()) return 0;
  std::size_t bytes = hook->ExportBytes() + kDescription;
  for (const ParameterSpec& parameter : manifest) {
    bytes += kForEachParameter + kForEachByteOfName * parameter.name.size();
  }
  return bytes;
}

absl::Status SessionHookState::CheckIsThere() const {
  if (hook_ != nullptr) return absl::OkStatus();
  return Coded(ErrorCode::kNoState,
               absl::FailedPreconditionError(absl::StrCat(
                   "session \"", session_,
                   "\" has a hook of its members' own, which keeps no state on the coordinator")));
}

absl::Status SessionHookState::CheckReplaceable(const Moment& moment) const {
  if (absl::Status status = CheckIsThere(); !status.ok()) return status;
  const auto [state, step, in_step, paused, concluding, shards] = moment;
  if (shards != shard_.count()) {
    return Coded(ErrorCode::kShards,
                 absl::FailedPreconditionError(absl::StrCat(
                     "session \"", session_, "\" has ",
                     shard_.count() == 1 ? std::string("one daemon")
                                         : absl::StrCat(shard_.count(), " daemons (",
                                                        absl::StrJoin(shard_.addresses, ","), ")"),
                     ", and the state goes to ", shards,
                     "; allowed: all, which gradwirectl does if --address names them")));
  }
  if (concluding) {
    return Coded(ErrorCode::kStateInStep, absl::UnavailableError(absl::StrCat(
                                              "session \"", session_, "\" has not heard how step ",
                                              step, " ended; try again")));
  }
  if (in_step) {
    return Coded(ErrorCode::kStateInStep,
                 absl::FailedPreconditionError(absl::StrCat(
                     "session \"", session_,
                     paused ? absl::StrCat("\" is paused, but members have begun step ", step,
                                           " with the present state")
                            : absl::StrCat("\" is in the middle of step ", step),
                     "; import between two steps, while the training script keeps all members in a "
                     "barrier")));
  }
  if (state == SessionState::kRunning) return absl::OkStatus();
  return Coded(ErrorCode::kStateInStep, absl::FailedPreconditionError(absl::StrCat(
                                            "session \"", session_, "\" is ", Name(state),
                                            "; a state goes into a running one")));
}

StateSnapshot SessionHookState::Export(std::int64_t step) const {
  return {.hook = hook_->Snapshot(), .step = step, .imports = imports_, .shard = shard_};
}

absl::StatusOr<std::shared_ptr<HookImport>> SessionHookState::ReadState(
    const HookState& state) const {
  if (absl::Status whole = CheckIsWhole(state); !whole.ok()) return whole;
  return hook_->ReadState(state);
}

void SessionHookState::Install(HookImport& import) {
  hook_->Install(import);
  ++imports_;
}

absl::StatusOr<std::shared_ptr<HookImport>> SessionHookState::ReadCopy(
    std::span<const StateFile> files) const {
  Parts parts;
  for (const auto& [rank, bytes] : files) {
    const auto* const text = reinterpret_cast<const char*>(bytes->data());
    absl::StatusOr<HookState> part = ReadSafetensors({text, bytes->size()});
    if (!part.ok()) return part.status();
    if (absl::Status added = parts.Add(rank, *std::move(part)); !added.ok()) return added;
  }
  OwnsParameter owns;
  if (shard_.count() > 1) owns = [this](std::uint32_t p) { return shard_.Owns(p); };
  return hook_->ReadCopy(parts.Take(), owns);
}

std::shared_ptr<const HookSnapshot> SessionHookState::Snapshot() const {
  return hook_ == nullptr ? nullptr : hook_->Snapshot();
}

}  // namespace gradwire::server
