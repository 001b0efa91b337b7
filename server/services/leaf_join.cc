#include "server/services/leaf_join.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::server {
namespace {

// The most that a session may have.
constexpr std::size_t kMostChunks = 1024;
constexpr std::size_t kMostBuckets = 1024;
// Memory is taken for each bucket's last chunk as for a whole one, so chunks are small: this many
// to a model, unless that makes them too small.
constexpr std::size_t kChunks = kMostChunks / 2;
constexpr std::size_t kLeastChunk = std::size_t{16} << 10;

std::size_t RoundUp(std::size_t bytes) { return (bytes / 8 + 1) * 8; }

absl::Status Refused(const std::string& what) {
  return Coded(ErrorCode::kLeaf, absl::InvalidArgumentError(what));
}

// A leaf that stood for other leaves could be one of its own upstreams.
absl::Status CheckTrainer(const JoinAsk& ask) {
  if (ask.leaf_ranks > 0) {
    return Refused(absl::StrCat("leaf \"", ask.leaf,
                                "\": this daemon is a leaf itself; allowed: a root as upstream"));
  }
  if (!ask.addresses.empty()) {
    return Refused("shards: this daemon is a leaf; allowed: it alone, with shards as its upstream");
  }
  if (ask.group.name.empty()) return absl::OkStatus();
  return Refused("node_group: this daemon is a leaf; allowed: one of the two");
}

}  // namespace

// A bucket goes to the root when all of it is here, so a window holds any bucket; and every bucket
// that members announce is open, because the root alone knows which of them other nodes have.
absl::Status MakeLeaf(const JoinAsk& ask, const std::string& upstream, SessionOptions& session) {
  if (absl::Status status = CheckTrainer(ask); !status.ok()) return status;
  // Sizes are computed from the manifest below.
  if (absl::Status status = session.Validate(); !status.ok()) return status;
  if (!HookRegistry::IsBuiltIn(ask.spec.comm_hook)) {
    return Refused(
        absl::StrCat("hook: \"", ask.spec.comm_hook,
                     "\" is a user's own, and this daemon is a leaf, which runs the hook "
                     "itself; allowed: built-in hooks"));
  }
  if (ask.node.members < 1) {
    return Refused(
        "node: not given; this daemon is a leaf, and must know which ranks are on its node: set "
        "local_rank and local_world_size, or LOCAL_RANK and LOCAL_WORLD_SIZE to what fits rank and "
        "world size");
  }
  session.leaf = {
      .first = ask.node.first, .members = ask.node.members, .hook = ask.spec, .upstream = upstream};
  session.spec = HookSpec();
  if (ask.spec.comm_hook == "noop") session.spec.comm_hook = "noop";
  const std::size_t model = ask.manifest.GradientBytes();
  const std::size_t wanted =
      std::clamp(RoundUp(model / kChunks), kLeastChunk, std::max(kLeastChunk, session.chunk_bytes));
  session.chunk_bytes = std::max(wanted, RoundUp(model / kMostChunks));
  session.window_chunks = kMostChunks;
  session.open_buckets =
      static_cast<std::uint32_t>(std::clamp<std::size_t>(ask.manifest.size(), 1, kMostBuckets));
  return absl::OkStatus();
}

}  // namespace gradwire::server
