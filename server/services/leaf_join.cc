#include "server/services/leaf_join.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::server {
namespace {

// The most that a session may have.
constexpr std::uint32_t kAllChunks = 1024;
constexpr std::uint32_t kAllBuckets = 1024;

absl::Status Refused(const std::string& what) {
  return Coded(ErrorCode::kLeaf, absl::InvalidArgumentError(what));
}

}  // namespace

// A bucket goes to the root when all of it is here, so a window holds any bucket; and every bucket
// that members announce is open, because the root alone knows which of them other nodes have.
absl::Status MakeLeaf(const JoinAsk& ask, SessionOptions& session) {
  if (!HookRegistry::IsBuiltIn(ask.spec.comm_hook)) {
    return Refused(
        absl::StrCat("hook: \"", ask.spec.comm_hook,
                     "\" is a user's own, and this daemon is a leaf, which runs the hook "
                     "itself; allowed: built-in hooks"));
  }
  if (ask.node.members < 1) {
    return Refused(
        "node: not given; this daemon is a leaf, and must know which ranks are on its node: set "
        "local_rank and local_world_size, or LOCAL_RANK and LOCAL_WORLD_SIZE");
  }
  session.leaf = {.first = ask.node.first, .members = ask.node.members, .hook = ask.spec};
  session.spec = HookSpec();
  if (ask.spec.comm_hook == "noop") session.spec.comm_hook = "noop";
  const std::size_t least = (ask.manifest.GradientBytes() / kAllChunks / 8 + 1) * 8;
  session.chunk_bytes = std::max(session.chunk_bytes, least);
  session.window_chunks = kAllChunks;
  session.open_buckets = kAllBuckets;
  return absl::OkStatus();
}

}  // namespace gradwire::server
