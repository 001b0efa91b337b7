// A member's part of the session's ledger: what it says of its own account, and the totals that it
// keeps for a further daemon.
//
// An account is sent when the member holds all results of its step, before it may say READY: a
// member that is lost afterwards has said what became of its gradients, whatever the others decide.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "client/core/effects.h"
#include "hooks/ledger_hook.h"

namespace gradwire::client {

class LedgerSending {
 public:
  // The hook of all buckets, which outlives this. Null: the session has no ledger.
  explicit LedgerSending(LedgerHook* hook) : hook_(hook) {}

  // The member holds all results of the step. Has an effect once for each step and daemon.
  void Tell(std::int64_t step, std::uint64_t generation, Effects& effects);
  // A new stream to the same daemon: the last account may not have arrived.
  void Resumed(Effects& effects) const;

  // Around the hook's EndStep: the open step is dropped, or has ended.
  void Drop();
  void Concluded(std::int64_t step, bool dropped);

  void On(const wire::LedgerTotal& total);

  // Another daemon has the session, or the members have gathered again.
  void BeginAnew();

 private:
  LedgerHook* const hook_;
  std::optional<wire::LedgerAccount> told_;   // the last one
  bool tells_earlier_ = false;                // with the next account
  std::deque<wire::LedgerSnapshot> earlier_;  // ascending, of the last steps that were not dropped
  // Of a step whose end this member has not heard of.
  std::optional<wire::LedgerTotal> total_;
};

}  // namespace gradwire::client
