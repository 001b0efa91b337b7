#include "server/ctl/failures.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "server/ctl/explain.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {

using server::kExitFailed;
using server::kExitUnavailable;

int FailedHere(const absl::Status& status) {
  PrintFailure(ErrorCode::kCtl, std::string(status.message()));
  return kExitFailed;
}

int Failed(const std::string& address, const absl::Status& status) {
  const auto code = FindCode(std::string(status.message()));
  // A file of this side, so that nothing was asked.
  if (code == ErrorCode::kTlsFiles || code == ErrorCode::kToken) return FailedHere(status);
  const bool unreachable = status.code() == absl::StatusCode::kUnavailable ||
                           status.code() == absl::StatusCode::kDeadlineExceeded;
  const std::string why = Printable(std::string(status.message()));
  // The daemon names its admin addresses there.
  const bool elsewhere = status.code() == absl::StatusCode::kPermissionDenied &&
                         absl::StrContains(why, "(--admin-listen)");
  PrintFailure(
      unreachable ? ErrorCode::kNoDaemon : ErrorCode::kCtl,
      absl::StrCat(unreachable ? "no daemon answers at " : "", address, ": ", why,
                   unreachable ? "; --address or GRADWIRE_ADDRESS names another daemon" : "",
                   elsewhere ? "; give one of them with --address or GRADWIRE_ADDRESS" : ""));
  // Scripts distinguish a daemon that does not answer from one that refuses.
  return unreachable ? kExitUnavailable : kExitFailed;
}

int AllFailed(const std::vector<Failure>& failures, int otherwise) {
  int code = otherwise;
  for (const Failure& failure : failures) code = Failed(failure.address, failure.status);
  return code;
}

}  // namespace gradwire::ctl
