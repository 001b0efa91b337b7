// The ledgers of a session with several daemons: each has its own part of the model.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "hooks/ledger_balance.h"
#include "hooks/projection.h"
#include "server/core/ledger_tolerance.h"
#include "server/core/step.h"
#include "tests/sim/shard_recovery_simulation.h"

namespace gradwire::sim {

// Each row closes at each shard that has settled a step in its last life. If all have settled the
// last one, the rows' sums over shards have all means that were applied.
void ShardRecoverySimulation::CheckLedger() {
  if (!options_.ledger) return;
  std::vector<double> applied(manifest_.size());
  std::vector<double> allowed(manifest_.size());
  bool all_settled = true;
  const double tolerance = server::LedgerToleranceOf(options_).of_balance;
  for (const Daemon& daemon : daemons_) {
    const server::Ledger& ledger = daemon.lives.back()->session->progress().ledger();
    all_settled &= ledger.settled() + 1 == std::ssize(steps_);
    if (!ledger.incomplete().empty()) return Violate(ledger.incomplete());
    for (std::size_t p = 0; p < ledger.total().size(); ++p) {
      const LedgerRow& row = ledger.total()[p];
      const double most = LargestBalance(row, tolerance, ledger.members());
      allowed[p] += most;
      applied[p] += row.applied;
      if (std::abs(row.balance()) <= most) continue;
      return Violate(absl::StrCat("ledger: ", manifest_[p].name, " is off by ", row.balance(),
                                  "; rounding explains ", most));
    }
  }
  if (!all_settled) return;
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    if (steps_[s].verdict != Verdict::kApply) continue;
    for (const auto& [id, mean] : steps_[s].expected) {
      const auto bucket = std::ranges::find(
          steps_[s].buckets, id, [](const auto& parameters) { return parameters.front(); });
      ByteVector bytes = mean;
      std::size_t at = 0;
      for (const std::uint32_t p : *bucket) {
        const std::size_t numel = manifest_[p].numel();
        const Projector projector(manifest_[p].name, numel);
        applied[p] -=
            options_.world_size * projector.Of({DType::kFloat32, bytes.data() + at, numel}).value;
        at += numel * sizeof(float);
      }
    }
  }
  for (std::size_t p = 0; p < manifest_.size(); ++p) {
    if (std::abs(applied[p]) <= allowed[p]) continue;
    return Violate(absl::StrCat("ledger: ", manifest_[p].name, " has ", applied[p],
                                " more as applied than was"));
  }
  Note(ShardRecoveryCount::kLedgersClosed);
}

}  // namespace gradwire::sim
