#include "server/ctl/ledger.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "hooks/ledger_balance.h"
#include "proto/wire/ledger_frames.h"
#include "server/ctl/report.h"
#include "server/ctl/table.h"

namespace gradwire::ctl {
namespace {

std::string Norm(double squares) {
  return squares <= 0 ? "0" : absl::StrFormat("%.3g", std::sqrt(squares));
}

bool Closes(const v1::LedgerStatus& ledger, const LedgerRow& row) {
  return RowCloses(row, ledger.tolerance(), ledger.members());
}

Row Line(const v1::LedgerStatus& ledger, const std::string& name, const LedgerRow& row) {
  const double all = std::sqrt(row.contributed_squares);
  const double part = all == 0 ? 0 : std::abs(row.balance()) / all;
  Row line = {name,
              Norm(row.contributed_squares),
              Norm(row.residual_squares),
              Norm(row.skipped_squares),
              Norm(row.dropped_squares),
              Norm(LostSquares(row)),
              part == 0 ? "0" : absl::StrFormat("%.1e", part)};
  if (!Closes(ledger, row)) line.emplace_back("too much");
  return line;
}

std::string NameOf(const v1::NamedLedgerRow& row) {
  const std::string name = Printable(row.name());
  return row.parameters() > 1 ? absl::StrCat(name, " and ", row.parameters() - 1, " more") : name;
}

}  // namespace

absl::StatusOr<v1::LedgerStatus> LedgerOf(const v1::SessionStatus& session) {
  std::vector<const v1::SessionStatus*> parts;
  for (const v1::SessionStatus& part : session.parts()) parts.push_back(&part);
  if (parts.empty()) parts.push_back(&session);
  v1::LedgerStatus sum;
  std::set<int> silent;
  for (const v1::SessionStatus* part : parts) {
    if (!part->has_ledger()) {
      return Coded(ErrorCode::kCtl,
                   absl::FailedPreconditionError(absl::StrCat(
                       "session \"", Printable(session.name()),
                       "\" has no ledger; gradwired --ledger (ledger: true) begins one")));
    }
    const v1::LedgerStatus& one = part->ledger();
    silent.insert(one.silent().begin(), one.silent().end());
    if (one.rows().empty()) {
      return Coded(
          ErrorCode::kCtl,
          absl::FailedPreconditionError(absl::StrCat(
              "session \"", Printable(session.name()), "\": nothing is in its ledger yet",
              silent.empty()
                  ? ""
                  : absl::StrCat(
                        "; these ranks have sent no account: ", absl::StrJoin(silent, ", "),
                        " (they send it with a step's end; gradients on a GPU have none)"))));
    }
    if (sum.rows().empty()) {
      sum = one;
      continue;
    }
    sum.set_settled(std::min(sum.settled(), one.settled()));
    sum.set_members(std::max(sum.members(), one.members()));
    sum.set_tolerance(std::max(sum.tolerance(), one.tolerance()));
    if (sum.incomplete().empty()) sum.set_incomplete(one.incomplete());
    for (int i = 0; i < std::min(sum.rows_size(), one.rows_size()); ++i) {
      LedgerRow row = wire::Get(sum.rows(i).row());
      row += wire::Get(one.rows(i).row());
      wire::Set(row, *sum.mutable_rows(i)->mutable_row());
    }
  }
  sum.clear_silent();
  for (const int rank : silent) sum.add_silent(rank);
  return sum;
}

bool Closes(const v1::LedgerStatus& ledger) {
  return std::all_of(ledger.rows().begin(), ledger.rows().end(),
                     [&](const auto& row) { return Closes(ledger, wire::Get(row.row())); });
}

std::string LedgerTable(const v1::SessionStatus& session, const v1::LedgerStatus& ledger) {
  std::vector<Row> rows = {
      {"PARAMETER", "CONTRIBUTED", "RESIDUALS", "SKIPPED", "DROPPED", "LOST", "UNEXPLAINED"}};
  LedgerRow all;
  for (const v1::NamedLedgerRow& line : ledger.rows()) {
    const LedgerRow row = wire::Get(line.row());
    rows.push_back(Line(ledger, NameOf(line), row));
    all += row;
  }
  rows.push_back(Line(ledger, "all", all));
  std::string text =
      absl::StrCat("session ", Printable(session.name()), " up to step ", ledger.settled(),
                   "; norms of all members' gradients\n\n", Table(rows), "\n");
  if (!ledger.incomplete().empty()) absl::StrAppend(&text, Printable(ledger.incomplete()), "\n");
  absl::StrAppend(&text, Closes(ledger)
                             ? "it closes: what was contributed was applied, is still a residual, "
                               "or was lost as said, up to rounding\n"
                             : "it does not close: rounding does not explain what is missing\n");
  return text;
}

std::string LedgerJson(const v1::LedgerStatus& ledger) {
  const std::string json = MessageJson(ledger);
  return absl::StrCat("{\"closes\":", Closes(ledger) ? "true" : "false",
                      ",\"ledger\":", absl::StripSuffix(json, "\n"), "}\n");
}

}  // namespace gradwire::ctl
