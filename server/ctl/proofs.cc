#include "server/ctl/proofs.h"

#include <iostream>
#include <string>
#include <utility>

#include "server/ctl/digests.h"
#include "server/ctl/failures.h"
#include "server/ctl/files.h"
#include "server/ctl/ledger.h"
#include "server/ctl/report.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {

using server::kExitFailed;
using server::kExitOk;

namespace {

int CompareWith(const Flags& flags, const StepDigests& other,
                const v1::GetDigestsResponse& digests) {
  const auto comparison = Compare({digests.digests().begin(), digests.digests().end()}, other);
  if (!comparison.ok()) return FailedHere(comparison.status());
  std::cout << (flags.table() ? ComparisonText(*comparison)
                              : flags.Document(ComparisonJson(*comparison)));
  return comparison->different ? kExitFailed : kExitOk;
}

}  // namespace

// Scripts learn whether it closes.
int ShowLedger(const Flags& flags) {
  const AskedSession asked = AskSession(flags.targets(), flags.session);
  if (asked.answers == 0) return AllFailed(asked.failures);
  const auto ledger = LedgerOf(asked.status);
  if (!ledger.ok()) return Failed(flags.address, ledger.status());
  std::cout << (flags.table() ? LedgerTable(asked.status, *ledger)
                              : flags.Document(LedgerJson(*ledger)));
  return AllFailed(asked.failures, Closes(*ledger) ? kExitOk : kExitFailed);
}

int ShowDigests(const Flags& flags) {
  StepDigests other;
  if (const std::string& file = flags.digest.compare; !file.empty()) {
    const auto text = ReadFile(file);
    if (!text.ok()) return FailedHere(text.status());
    absl::StatusOr<StepDigests> read = ReadDigests(file, *text);
    if (!read.ok()) return FailedHere(read.status());
    other = *std::move(read);
  }
  const AskedDigests asked =
      AskDigests(flags.targets(), flags.session, flags.digest.first, flags.digest.count);
  if (!asked.digests) return AllFailed(asked.failures);
  if (!flags.digest.compare.empty()) return CompareWith(flags, other, *asked.digests);
  if (!flags.table()) {
    std::cout << flags.Document(MessageJson(*asked.digests));
    return kExitOk;
  }
  std::cout << DigestsText(*asked.digests);
  const std::string why = WhyNoDigest(*asked.digests, flags.digest);
  if (!why.empty()) std::cerr << "gradwirectl: " << why << "\n";
  return kExitOk;
}

}  // namespace gradwire::ctl
