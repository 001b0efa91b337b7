// What a session says about itself: limits, names, and what it waits for.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/hooks/registry.h"
#include "proto/wire/memory_layout.h"
#include "server/core/session.h"

namespace gradwire::server {
namespace {

constexpr int kMaxWorldSize = 4096;
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxParameters = std::size_t{1} << 20;
constexpr std::size_t kMaxChunkBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxNamesInMessage = 3;

// What a session keeps per chunk is not counted in its reserved bytes; this bounds it.
constexpr std::size_t kMaxChunks = std::size_t{1} << 20;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

absl::Status ValidateManifest(const std::vector<ParameterSpec>& manifest) {
  if (manifest.size() > kMaxParameters) {
    return absl::InvalidArgumentError(absl::StrCat("the manifest has ", manifest.size(),
                                                   " parameters; at most ", kMaxParameters,
                                                   " are allowed"));
  }
  std::set<std::string> names;
  std::size_t bytes = 0;
  for (const ParameterSpec& parameter : manifest) {
    if (absl::Status status = parameter.Validate(); !status.ok()) return status;
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the manifest names parameter ", parameter.name, " twice"));
    }
    bytes += parameter.numel() * ByteSize(parameter.dtype);
    if (bytes > std::numeric_limits<std::size_t>::max() / 4) {
      return absl::InvalidArgumentError("the manifest's parameters do not fit 62 bits of bytes");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SessionOptions::Validate() const {
  if (name.empty() || name.size() > kMaxNameBytes ||
      !std::all_of(name.begin(), name.end(), IsNameByte)) {
    return absl::InvalidArgumentError(
        "session: the name must be 1 to 128 letters, digits, '.', '_' or '-'");
  }
  if (world_size < 1 || world_size > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size is ", world_size, "; allowed are 1 to ", kMaxWorldSize));
  }
  if (absl::Status status = spec.Validate();
      !status.ok() && HookRegistry::IsBuiltIn(spec.comm_hook)) {
    return status;
  }
  if (chunk_bytes < 64 || chunk_bytes % 8 != 0 || chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("chunk_bytes is ", chunk_bytes,
                                                   "; allowed are multiples of 8 from 64 to ",
                                                   kMaxChunkBytes));
  }
  if (window_chunks < 1 || window_chunks > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("window_chunks is ", window_chunks, "; allowed are 1 to 1024"));
  }
  if (open_buckets < 1 || open_buckets > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("open_buckets is ", open_buckets, "; allowed are 1 to 1024"));
  }
  if (absl::Status status = ValidateManifest(manifest); !status.ok()) return status;
  std::size_t chunks = 0;
  for (const ParameterSpec& parameter : manifest) {
    chunks += parameter.numel() * ByteSize(parameter.dtype) / chunk_bytes;
  }
  if (chunks > kMaxChunks) {
    return absl::InvalidArgumentError(absl::StrCat("the manifest's gradients take ", chunks,
                                                   " chunks of ", chunk_bytes, " bytes; at most ",
                                                   kMaxChunks, " are allowed"));
  }
  return absl::OkStatus();
}

std::size_t SessionOptions::StepBytes() const {
  std::size_t gradient = 0;
  for (const ParameterSpec& parameter : manifest) {
    gradient += parameter.numel() * ByteSize(parameter.dtype);
  }
  const std::size_t extra = HookRegistry::IsBuiltIn(spec.comm_hook) ? 0 : kExtraRoundBytes;
  return kMaxBytesPerGradientByte * gradient + open_buckets * extra;
}

std::size_t SessionOptions::ReservedBytes() const {
  const std::size_t window = std::size_t{window_chunks} * open_buckets * chunk_bytes;
  const std::size_t held = std::min(window, StepBytes() + chunk_bytes);
  const auto members = static_cast<std::size_t>(world_size);
  // A window from each member, and one of results; a broadcast holds a window of its own. Chunks of
  // an uncompressed gradient bound what a window can hold at all.
  const std::size_t results = std::max(held, ResultBlocks() * wire::BlockStride(BlockBytes()));
  const std::size_t broadcast = std::size_t{window_chunks} * chunk_bytes;
  // Each member's eager contributions, and their results.
  const std::size_t eager = 2 * members * std::min(eager_bytes, StepBytes());
  return held * members + results + broadcast + eager;
}

// Each open bucket ends in a chunk of its own.
std::size_t SessionOptions::ResultBlocks() const {
  return std::min(std::size_t{window_chunks} * open_buckets,
                  StepBytes() / chunk_bytes + open_buckets);
}

std::size_t SessionOptions::BlockBytes() const { return std::min(chunk_bytes, StepBytes()); }

std::size_t SessionOptions::StagingBytes() const {
  return ResultBlocks() * wire::BlockStride(chunk_bytes);
}

std::size_t Session::held_bytes() const {
  std::size_t bytes = collectives_.held_bytes();
  for (const auto& [key, bucket] : buckets_) {
    for (const Round& round : bucket.rounds) {
      for (const Chunk& chunk : round.chunks) {
        if (chunk.result != nullptr && chunk.result->kept() != nullptr) {
          bytes += chunk.result->bytes();
        }
        for (const Slot& slot : chunk.slots) {
          if (slot.payload != nullptr && !slot.payload->takes_result()) {
            bytes += slot.payload->bytes();
          }
        }
      }
    }
  }
  return bytes;
}

std::string Session::BucketName(const std::vector<std::uint32_t>& parameters) const {
  std::string text = "[";
  for (std::size_t i = 0; i < parameters.size() && i < kMaxNamesInMessage; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ",
                    parameters[i] < options_.manifest.size() ? options_.manifest[parameters[i]].name
                                                             : absl::StrCat("#", parameters[i]));
  }
  if (parameters.size() > kMaxNamesInMessage) {
    absl::StrAppend(&text, ", and ", parameters.size() - kMaxNamesInMessage, " more");
  }
  return text + "]";
}

std::string Session::RankNames(const std::vector<int>& ranks, absl::Time now) const {
  std::string text =
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
  if (ranks.size() == 1) {
    const Member& member = members_[Index(ranks[0])];
    const absl::Duration ago = absl::Trunc(now - member.last_heard, absl::Milliseconds(100));
    absl::StrAppend(&text, " (", Name(member.state), ", last heard ",
                    ago > absl::ZeroDuration() ? absl::FormatDuration(ago) + " ago" : "just now",
                    ")");
  }
  return text;
}

std::string Session::MissingMembers() const {
  std::vector<int> missing;
  for (int r = 0; r < options_.world_size; ++r) {
    if (members_[Index(r)].state != MemberState::kConnected) missing.push_back(r);
  }
  return absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "),
                      " of ", options_.world_size);
}

std::string Session::WaitingFor(absl::Time now) const {
  switch (state_) {
    case State::kJoining:
      return absl::StrCat("waits for ", MissingMembers(), " to join");
    case State::kFailed:
      return std::string(failure_.message());
    case State::kClosed:
      return "ended: all members have left";
    case State::kRunning:
      break;
  }
  std::string collective = collectives_.WaitingFor();
  if (!collective.empty()) return collective;
  return StepProgress(now);
}

std::string Session::StepProgress(absl::Time now) const {
  if (!step_began_) {
    std::vector<int> staying;
    for (int r = 0; r < options_.world_size; ++r) {
      if (members_[Index(r)].state != MemberState::kLeft) staying.push_back(r);
    }
    return absl::StrCat("waits for ", RankNames(staying, now), " to begin step ", step_);
  }
  const Bucket* oldest = nullptr;
  for (const auto& [key, bucket] : buckets_) {
    if (bucket.step != step_ || bucket.reduced) continue;
    if (oldest == nullptr || bucket.order < oldest->order) oldest = &bucket;
  }
  const bool needs_credit =
      oldest != nullptr && !oldest->open && !oldest->rounds.empty() && WaitsForGrant(*oldest) &&
      std::all_of(oldest->announced.begin(), oldest->announced.end(), [](bool in) { return in; });
  if (needs_credit) {  // held by a bucket that somebody has not acknowledged, or not finished
    const Bucket* holder = nullptr;
    for (const auto& [key, bucket] : buckets_) {
      if (bucket.open && (holder == nullptr || (bucket.reduced && !holder->reduced))) {
        holder = &bucket;
      }
    }
    if (holder != nullptr) return BucketProgress(*holder, now);
  }
  if (oldest != nullptr) return BucketProgress(*oldest, now);
  for (const auto& [key, bucket] : buckets_) {
    if (bucket.open && bucket.step < step_) return BucketProgress(bucket, now);
  }
  std::vector<int> missing;
  for (int r = 0; r < options_.world_size; ++r) {
    if (!members_[Index(r)].ended_step) missing.push_back(r);
  }
  return absl::StrCat("step ", step_, " waits for further buckets, or the end of the step, from ",
                      RankNames(missing, now));
}

std::string Session::BucketProgress(const Bucket& bucket, absl::Time now) const {
  std::vector<int> missing;
  for (int r = 0; r < options_.world_size; ++r) {
    if (!bucket.announced[Index(r)]) missing.push_back(r);
  }
  const std::string name = absl::StrCat("bucket ", BucketName(bucket.parameters));
  if (!missing.empty()) {
    return absl::StrCat("step ", bucket.step, " waits for ", RankNames(missing, now),
                        " to announce ", name);
  }
  if (bucket.rounds.empty())
    return absl::StrCat("step ", bucket.step, " is about to finish ", name);
  const Round& round = bucket.rounds.back();
  if (!round.finished()) {
    const wire::ChunkLayout::Unit unit = round.layout.UnitOf(round.reduced);
    for (std::uint32_t c = round.reduced; c < unit.first + unit.count; ++c) {
      const std::vector<Slot>& slots = round.chunks[c].slots;
      for (int r = 0; r < options_.world_size; ++r) {
        if (slots.empty() || !slots[Index(r)].filled) missing.push_back(r);
      }
      if (missing.empty()) continue;
      return absl::StrCat("step ", bucket.step, " waits for ", RankNames(missing, now), ": chunk ",
                          c, " of ", round.chunks.size(), " of ", name);
    }
    if (!round.chunks[round.reduced].reducing) missing = WindowsWithout(bucket, unit);
    if (missing.empty()) return absl::StrCat("step ", bucket.step, " reduces ", name);
    return absl::StrCat("step ", bucket.step, " waits for ", RankNames(missing, now),
                        " to acknowledge results of ", name);
  }
  for (int r = 0; r < options_.world_size; ++r) {
    if (members_[Index(r)].state == MemberState::kLeft) continue;
    const bool lacks =
        std::any_of(bucket.rounds.begin(), bucket.rounds.end(),
                    [r](const Round& any) { return any.received[Index(r)] < any.reduced; });
    if (lacks) missing.push_back(r);
  }
  return absl::StrCat("step ", bucket.step, " waits for ", RankNames(missing, now),
                      " to acknowledge ", name);
}

std::string Name(Session::State state) {
  switch (state) {
    case Session::State::kJoining:
      return "joining";
    case Session::State::kRunning:
      return "running";
    case Session::State::kFailed:
      return "failed";
    case Session::State::kClosed:
      return "closed";
  }
  return "unknown";
}

std::string Name(Session::MemberState state) {
  switch (state) {
    case Session::MemberState::kAbsent:
      return "absent";
    case Session::MemberState::kJoined:
      return "joined";
    case Session::MemberState::kConnected:
      return "connected";
    case Session::MemberState::kLost:
      return "lost";
    case Session::MemberState::kLeft:
      return "left";
    case Session::MemberState::kEnded:
      return "ended";
  }
  return "unknown";
}

}  // namespace gradwire::server
