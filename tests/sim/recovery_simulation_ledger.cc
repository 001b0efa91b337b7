// The ledger of a session that outlives its daemon.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "hooks/ledger_balance.h"
#include "hooks/projection.h"
#include "server/core/ledger_tolerance.h"
#include "server/core/step.h"
#include "tests/sim/recovery_simulation.h"

namespace gradwire::sim {

// Each row closes, and has all means that were applied, which are known here without any account.
void RecoverySimulation::CheckLedger() {
  if (!options_.ledger || lives_.empty()) return;
  const server::Ledger& ledger = lives_.back()->session->progress().ledger();
  if (ledger.settled() < 0) return;
  bool knows_all = true;
  for (const auto& life : lives_) {
    knows_all &= life->session->progress().ledger().incomplete().empty();
  }
  std::vector<LedgerRow> applied(manifest_.size());
  for (std::size_t s = 0; s <= static_cast<std::size_t>(ledger.settled()); ++s) {
    const Step& step = steps_[s];
    if (step.verdict != Verdict::kApply) continue;
    const auto members = static_cast<double>(Contributors(step.ranks).size());
    for (const auto& parameters : step.buckets) {
      const auto found = step.applied.find(parameters.front());
      ByteVector mean = found != step.applied.end() ? found->second : Expected(s, parameters);
      std::size_t at = 0;
      for (const std::uint32_t p : parameters) {
        const std::size_t numel = manifest_[p].numel();
        const Projector projector(manifest_[p].name, numel);
        const TensorView view{DType::kFloat32, mean.data() + at, numel};
        applied[p].applied += members * projector.Of(view).value;
        at += numel * sizeof(float);
      }
    }
  }
  bool has_losses = false;
  const double tolerance = server::LedgerToleranceOf(options_).of_balance;
  for (std::size_t p = 0; p < manifest_.size(); ++p) {
    const LedgerRow& row = ledger.total()[p];
    const double allowed = LargestBalance(row, tolerance, ledger.members());
    if (std::abs(row.balance()) > allowed) {
      return Violate(absl::StrCat("ledger: ", manifest_[p].name, " is off by ", row.balance(),
                                  "; rounding explains ", allowed));
    }
    if (knows_all && std::abs(row.applied - applied[p].applied) > allowed) {
      return Violate(absl::StrCat("ledger: ", manifest_[p].name, " has ", row.applied,
                                  " as applied; it was ", applied[p].applied));
    }
    if (knows_all && !has_losses_ && std::abs(row.lost) > allowed) {
      return Violate(absl::StrCat("ledger: ", manifest_[p].name, " has ", row.lost,
                                  " as lost; nobody has lost any"));
    }
    has_losses |= LostSquares(row) > 0 || row.dropped_squares > 0 || row.skipped_squares > 0;
  }
  Note(knows_all ? RecoveryCount::kLedgersClosed : RecoveryCount::kLedgersIncomplete);
  if (has_losses) Note(RecoveryCount::kLedgersWithLosses);
}

}  // namespace gradwire::sim
