#include "server/core/session_options.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/limits.h"
#include "base/mutants.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::server {
namespace {

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

absl::Status ValidateManifest(const Manifest& manifest) {
  if (manifest.size() > kMaxParameters) {
    return Coded(ErrorCode::kModelTooLarge,
                 absl::InvalidArgumentError(absl::StrCat("the manifest has ", manifest.size(),
                                                         " parameters; at most ", kMaxParameters,
                                                         " are allowed")));
  }
  std::unordered_set<std::string_view> names;
  std::size_t bytes = 0;
  for (const ParameterSpec& parameter : manifest) {
    if (absl::Status status = parameter.Validate(); !status.ok()) return status;
    if (!names.insert(parameter.name).second) {
      return Coded(ErrorCode::kModelTooLarge,
                   absl::InvalidArgumentError(
                       absl::StrCat("the manifest names parameter ", parameter.name, " twice")));
    }
    bytes += parameter.numel() * ByteSize(parameter.dtype);
    if (bytes > std::numeric_limits<std::size_t>::max() / 4) {
      return Coded(
          ErrorCode::kModelTooLarge,
          absl::InvalidArgumentError("the manifest's parameters do not fit 62 bits of bytes"));
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Differs(const std::string& field, const T& asked, const T& here) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", asked, "; the session's is ", here));
}

absl::Status CompareManifests(const Manifest& asked, const Manifest& here) {
  if (asked.shared() == here.shared()) return absl::OkStatus();
  const std::size_t common = std::min(asked.size(), here.size());
  for (std::size_t i = 0; i < common; ++i) {
    const auto where = [i] { return absl::StrCat("manifest parameter ", i); };
    if (asked[i].name != here[i].name) {
      return Differs(absl::StrCat(where(), ": name"), asked[i].name, here[i].name);
    }
    if (asked[i].shape != here[i].shape) {
      const auto text = [](const ParameterSpec& spec) {
        std::string shape = "[";
        for (std::size_t d = 0; d < spec.shape.size(); ++d) {
          absl::StrAppend(&shape, d == 0 ? "" : ", ", spec.shape[d]);
        }
        return shape + "]";
      };
      return Differs(absl::StrCat(where(), " (", here[i].name, "): shape"), text(asked[i]),
                     text(here[i]));
    }
    if (asked[i].dtype != here[i].dtype) {
      return Differs(absl::StrCat(where(), " (", here[i].name, "): dtype"), Name(asked[i].dtype),
                     Name(here[i].dtype));
    }
  }
  if (asked.size() != here.size()) {
    return Differs("number of manifest parameters", asked.size(), here.size());
  }
  return absl::OkStatus();
}

// The first difference. Whoever names one daemon twice asks it to be two shards.
absl::Status CompareShards(const JoinAsk& ask, const ShardPlace& here) {
  if (ask.addresses.size() != here.addresses.size()) {
    return Differs("number of shards", std::max<std::size_t>(ask.addresses.size(), 1),
                   std::max<std::size_t>(here.addresses.size(), 1));
  }
  for (std::size_t i = 0; i < ask.addresses.size(); ++i) {
    if (ask.addresses[i] == here.addresses[i]) continue;
    return Differs(absl::StrCat("shards[", i, "]"), ask.addresses[i], here.addresses[i]);
  }
  if (ask.shard == here.number) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "shards[", ask.shard, "] is this daemon, which is shards[", here.number, "] too"));
}

absl::Status CheckBehindLeaf(const JoinAsk& ask, const LeafPlace& leaf) {
  const auto refused = [](const std::string& what) {
    return Coded(ErrorCode::kLeaf, absl::InvalidArgumentError(what));
  };
  if (ask.node.first != leaf.first || ask.node.members != leaf.members) {
    // They are as the wire has them.
    const std::int64_t last = std::int64_t{ask.node.first} + ask.node.members - 1;
    return refused(absl::StrCat("node: ranks ", ask.node.first, " to ", last,
                                "; the other members of this leaf have ", leaf.first, " to ",
                                leaf.first + leaf.members - 1));
  }
  if (ask.rank == -1 || leaf.Has(ask.rank)) return absl::OkStatus();
  return refused(absl::StrCat("rank is ", ask.rank, "; allowed on this node are ", leaf.first,
                              " to ", leaf.first + leaf.members - 1));
}

}  // namespace

absl::Status CheckStraggler(double multiple, double share) {
  if (multiple != 0 &&
      !(multiple >= kLeastStragglerMultiple && multiple <= kMostStragglerMultiple)) {
    return Coded(ErrorCode::kSetting,
                 absl::InvalidArgumentError(
                     absl::StrCat("straggler_multiple is ", multiple, "; allowed are 0 and ",
                                  kLeastStragglerMultiple, " to ", kMostStragglerMultiple)));
  }
  if (share > 0 && share <= kMostStragglerShare) return absl::OkStatus();
  return Coded(ErrorCode::kSetting,
               absl::InvalidArgumentError(absl::StrCat("straggler_share is ", share,
                                                       "; allowed is more than 0, and at most ",
                                                       kMostStragglerShare)));
}

absl::Status SessionOptions::Validate() const {
  if (name.empty() || name.size() > kMaxSessionNameBytes ||
      !std::all_of(name.begin(), name.end(), IsNameByte)) {
    return Coded(ErrorCode::kOption,
                 absl::InvalidArgumentError(
                     "session: the name must be 1 to 128 letters, digits, '.', '_' or '-'"));
  }
  if (world_size < 1 || world_size > kMaxWorldSize) {
    return Coded(ErrorCode::kWorldSize,
                 absl::InvalidArgumentError(absl::StrCat("world_size is ", world_size,
                                                         "; allowed are 1 to ", kMaxWorldSize)));
  }
  if (leaf.is_leaf() && (leaf.first < 0 || leaf.members > world_size - leaf.first)) {
    return Coded(ErrorCode::kLeaf,
                 absl::InvalidArgumentError(
                     absl::StrCat("node: ", leaf.members, " ranks from ", leaf.first,
                                  "; allowed are 1 and up, below the world size of ", world_size)));
  }
  if (absl::Status status = spec.Validate();
      !status.ok() && HookRegistry::IsBuiltIn(spec.comm_hook)) {
    return status;
  }
  // Multiples of 8 hold whole elements of every dtype.
  if (chunk_bytes < 64 || chunk_bytes % 8 != 0 || chunk_bytes > kMaxChunkBytes) {
    return Coded(ErrorCode::kSetting,
                 absl::InvalidArgumentError(absl::StrCat("chunk_bytes is ", chunk_bytes,
                                                         "; allowed are multiples of 8 from 64 to ",
                                                         kMaxChunkBytes)));
  }
  if (window_chunks < 1 || window_chunks > 1024) {
    return Coded(ErrorCode::kSetting,
                 absl::InvalidArgumentError(
                     absl::StrCat("window_chunks is ", window_chunks, "; allowed are 1 to 1024")));
  }
  if (open_buckets < 1 || open_buckets > 1024) {
    return Coded(ErrorCode::kSetting,
                 absl::InvalidArgumentError(
                     absl::StrCat("open_buckets is ", open_buckets, "; allowed are 1 to 1024")));
  }
  if (absl::Status status = CheckStraggler(straggler_multiple, straggler_share); !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateManifest(manifest); !status.ok()) return status;
  std::size_t chunks = 0;
  for (const ParameterSpec& parameter : manifest) {
    chunks += parameter.numel() * ByteSize(parameter.dtype) / chunk_bytes;
  }
  if (chunks > kMaxChunks) {
    return Coded(ErrorCode::kModelTooLarge,
                 absl::InvalidArgumentError(
                     absl::StrCat("the manifest's gradients take ", chunks, " chunks of ",
                                  chunk_bytes, " bytes; at most ", kMaxChunks, " are allowed")));
  }
  return absl::OkStatus();
}

absl::Status SessionOptions::CheckSame(const JoinAsk& ask) const {
  if (ask.world_size != world_size) {
    return Coded(ErrorCode::kWorldSize, Differs("world_size", ask.world_size, world_size));
  }
  if (ask.rank < -1 || ask.rank >= world_size) {
    return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                         "rank is ", ask.rank, "; allowed are 0 to ",
                                         world_size - 1, ", or -1 for any free rank")));
  }
  if (ask.leaf_ranks != 0 &&
      (ask.rank < 0 || ask.leaf_ranks < 1 || ask.leaf_ranks > world_size - ask.rank)) {
    return Coded(ErrorCode::kOption,
                 absl::InvalidArgumentError(
                     absl::StrCat("leaf.ranks is ", ask.leaf_ranks, " from rank ", ask.rank,
                                  "; allowed are 1 and up, below the world size of ", world_size)));
  }
  if (leaf.is_leaf()) {
    if (absl::Status status = CheckBehindLeaf(ask, leaf); !status.ok()) return status;
  }
  if (auto difference = FirstDifference(ask.spec, AskedHook())) {
    return Coded(ErrorCode::kHookDiffers, absl::InvalidArgumentError(*difference));
  }
  if (absl::Status status = CompareShards(ask, shard); !status.ok()) {
    return Coded(ErrorCode::kShards, std::move(status));
  }
  if (IsActive(Mutant::kModelNotCompared)) return absl::OkStatus();
  return Coded(ErrorCode::kModelDiffers, CompareManifests(ask.manifest, manifest));
}

// A leaf's members leave the hook to it, and a trial has nothing to account for.
std::size_t SessionOptions::LedgerRows() const {
  const bool reduces = spec.comm_hook != "noop" && !is_trial() && !leaf.is_leaf();
  return ledger && reduces ? LedgerRowsOf(manifest.size()) : 0;
}

}  // namespace gradwire::server
