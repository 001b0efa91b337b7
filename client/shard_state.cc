#include "client/shard_state.h"

#include <cstdint>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error_code.h"
#include "client/runtime/member_hook.h"
#include "hooks/safetensors.h"
#include "hooks/state_parts.h"

namespace gradwire::client {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(5);

bool IsInStep(const absl::Status& status) {
  return FindCode(std::string(status.message())) == ErrorCode::kStateInStep;
}

// The daemon has said that it did not take the state. Any other error may come after it did.
bool IsRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return IsInStep(status);
  }
}

// A single daemon is known to the reader.
absl::Status Of(const std::vector<std::string>& daemons, std::size_t daemon,
                const absl::Status& status) {
  if (daemons.size() == 1) return status;
  return absl::Status(status.code(), absl::StrCat(daemons[daemon], ": ", status.message()));
}

// All of them, or the first error.
absl::StatusOr<std::vector<std::string>> FetchAll(const std::vector<std::string>& daemons,
                                                  const FetchPart& fetch) {
  std::vector<absl::StatusOr<std::string>> parts(daemons.size(), std::string());
  std::vector<std::thread> threads;
  threads.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    threads.emplace_back([&fetch, &part = parts[i], i] { part = fetch(i); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> files;
  files.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].ok()) return Of(daemons, i, parts[i].status());
    files.push_back(*std::move(parts[i]));
  }
  return files;
}

}  // namespace

absl::StatusOr<std::string> FetchWholeState(const std::vector<std::string>& daemons,
                                            const FetchPart& fetch, absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  while (true) {
    const absl::StatusOr<std::vector<std::string>> parts = FetchAll(daemons, fetch);
    if (!parts.ok()) return parts.status();
    absl::StatusOr<std::string> whole = JoinSessionFiles(*parts);
    if (whole.ok() || !IsInStep(whole.status()) || absl::Now() >= end) return whole;
    absl::SleepFor(kPause);
  }
}

LoadedState LoadWholeState(const std::vector<std::string>& daemons, const LoadWhole& load,
                           absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  LoadedState loaded;
  while (loaded.daemons < daemons.size()) {
    const absl::Status status = load(loaded.daemons);
    if (status.ok()) {
      ++loaded.daemons;
      continue;
    }
    // Unavailable: it will hear of the step's end. FailedPrecondition: a member has begun one.
    if (absl::IsUnavailable(status) && IsInStep(status) && absl::Now() < end) {
      absl::SleepFor(kPause);
      continue;
    }
    loaded.unknown = daemons.size() > 1 && !IsRefusal(status);
    loaded.status = Of(daemons, loaded.daemons, status);
    if (loaded.is_half()) {
      loaded.status =
          absl::Status(loaded.status.code(),
                       absl::StrCat("a new state is on ", loaded.daemons, " of ", daemons.size(),
                                    " daemons only, ", loaded.unknown ? "or on one more, " : "",
                                    "because ", loaded.status.message()));
    }
    break;
  }
  return loaded;
}

absl::StatusOr<std::string> JoinMemberParts(std::vector<HookState> parts) {
  const absl::StatusOr<HookState> whole = JoinMemberState(std::move(parts));
  if (!whole.ok()) return whole.status();
  return WriteSafetensors(*whole);
}

absl::StatusOr<std::vector<HookState>> DivideMemberState(const std::string& file,
                                                         const ClientOptions& options,
                                                         const ShardMap& map) {
  const absl::StatusOr<HookState> whole = ReadSafetensors(file);
  if (!whole.ok()) return whole.status();
  const absl::StatusOr<MemberHook> scratch = MakeMemberHook(options);
  if (!scratch.ok()) return scratch.status();
  const absl::Status fits = scratch->hook->LoadState(*whole, options.parameters);
  if (!fits.ok()) return fits;
  std::unordered_map<std::string_view, std::uint32_t> positions;
  for (std::uint32_t i = 0; i < options.parameters.size(); ++i) {
    positions[options.parameters[i].name] = i;
  }
  std::vector<HookState> parts;
  for (std::uint32_t shard = 0; shard < map.shards(); ++shard) {
    parts.push_back(MemberPart(*whole, [&](std::string_view parameter) {
      const auto position = positions.find(parameter);
      return position != positions.end() && map.Owns(shard, position->second);
    }));
  }
  return parts;
}

}  // namespace gradwire::client
