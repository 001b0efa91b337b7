// What a leaf daemon is in a session: the members on its node, whom it represents at the root.
#pragma once

#include "gradwire/hooks/hook_spec.h"

namespace gradwire::server {

// A leaf adds up its members' gradients as they are and runs the session's hook on their mean, as
// one member of the root's session. Ranks are the root's. By default: it is no leaf.
struct LeafPlace {
  int first = 0;
  int members = 0;  // with the ranks from `first` on; 0: no leaf
  HookSpec hook{};  // that the members asked for

  bool is_leaf() const { return members > 0; }
  bool Has(int rank) const { return rank >= first && rank < first + members; }
};

}  // namespace gradwire::server
