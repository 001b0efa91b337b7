// What a leaf daemon is in a session: the members on its node, whom it represents at the root.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "gradwire/hooks/hook_spec.h"

namespace gradwire::server {

// A leaf adds up its members' gradients as they are and runs the session's hook on their mean, as
// one member of the root's session. Ranks are the root's. By default: it is no leaf.
struct LeafPlace {
  int first = 0;
  int members = 0;         // with the ranks from `first` on; 0: no leaf
  HookSpec hook{};         // that the members asked for
  std::string upstream{};  // the root's address, for messages

  bool is_leaf() const { return members > 0; }
  bool Has(int rank) const { return rank >= first && rank < first + members; }
};

// "leaf \"host-b\" with ranks 4 to 7"
std::string NameOfLeaf(const std::string& name, int first, int ranks);

// What a leaf tells the root of the end of its own session, which it calls as the root does. The
// words name the leaf, and if nobody behind it is to blame (-1), it is itself. The leaf says so and
// not the root, which cannot tell it from what the leaf's client passes on from another shard.
struct LeafEnd {
  absl::Status why;
  int blamed_rank = -1;
};
LeafEnd EndOfLeaf(const LeafPlace& leaf, const std::string& name, const std::string& session,
                  const absl::Status& why, int blamed_rank);

}  // namespace gradwire::server
