#include "server/core/ledger.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"
#include "hooks/ledger_balance.h"
#include "hooks/ledger_hook.h"
#include "proto/wire/checks.h"
#include "server/core/membership.h"

namespace gradwire::server {
namespace {

void Add(std::vector<LedgerRow>& rows, const std::vector<LedgerRow>& more) {
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += more[i];
}

void Subtract(std::vector<LedgerRow>& rows, const std::vector<LedgerRow>& less) {
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] -= less[i];
}

const wire::LedgerSnapshot* Find(const std::vector<wire::LedgerSnapshot>& snapshots,
                                 std::int64_t step) {
  const auto found = std::ranges::find(snapshots, step, &wire::LedgerSnapshot::step);
  return found == snapshots.end() ? nullptr : &*found;
}

std::string NotKnown(std::int64_t step) {
  return absl::StrCat(
      "what became of the gradients of members that are gone, or new, in step ", step,
      " is not known, because the step's total had not come: what is missing since then "
      "counts as lost");
}

}  // namespace

absl::Status Ledger::Take(int rank, const wire::LedgerAccount& account, std::int64_t open_step) {
  if (!on()) return absl::FailedPreconditionError("sent an account; the session has no ledger");
  if (account.step > open_step) {
    return absl::FailedPreconditionError(absl::StrCat("sent its account of step ", account.step,
                                                      "; the session is at step ", open_step));
  }
  const auto check = [this](const char* field, const std::vector<LedgerRow>& rows, bool may_lack) {
    if (rows.size() == rows_ || (may_lack && rows.empty())) return absl::OkStatus();
    return wire::CheckCount(absl::StrCat("ledger_account.", field), rows.size(), rows_, rows_);
  };
  absl::Status status = check("before", account.before, false);
  status.Update(check("change", account.change, false));
  for (const wire::LedgerSnapshot& earlier : account.earlier) {
    status.Update(check("earlier.own", earlier.own, false));
    status.Update(check("earlier.total", earlier.total, true));
  }
  if (!status.ok()) return status;
  // Of a step that is settled, or has been told before.
  if (account.step <= settled_) return absl::OkStatus();
  const auto [place, is_new] = told_.try_emplace(rank);
  if (!is_new && place->second.step >= account.step) return absl::OkStatus();
  place->second = account;
  if (!account.earlier.empty()) earlier_[rank] = account.earlier;
  return absl::OkStatus();
}

void Ledger::Conclude(std::int64_t step, Verdict verdict) {
  if (on()) ended_ = {.step = step, .verdict = verdict};
}

void Ledger::Settle(const Membership& membership, bool tells, Effects& effects) {
  if (!ended_) return;
  std::vector<bool> is_here(static_cast<std::size_t>(membership.world_size()));
  for (const auto& [rank, account] : told_) {
    is_here[static_cast<std::size_t>(rank)] = account.step == ended_->step;
  }
  if (!membership.AllHere(is_here)) return;
  const bool first = !std::exchange(found_gone_, true);
  if (first) FindGone(membership);
  total_ = gone_;
  int members = 0;
  const Verdict verdict =
      IsActive(Mutant::kSkipSettledAsApplied) ? Verdict::kApply : ended_->verdict;
  for (auto& [rank, account] : told_) {
    if (account.step == ended_->step) {
      accounts_[rank] =
          After(std::move(account.before), account.change, verdict, /*dropped=*/false);
      account.before.clear();
      account.change.clear();
      account.earlier.clear();
      ++members;
    }
  }
  for (const auto& [rank, account] : accounts_) Add(total_, account);
  if (first && !incomplete_.empty()) EnterUnknown();
  if (first) WarnOfLosses(effects);
  members_ = std::max(members_, members);
  settled_ = ended_->step;
  ended_.reset();
  if (!tells) return;
  effects.push_back(
      FanOutEffect{.ranks = membership.Reachable(),
                   .frame = {.header = wire::LedgerTotal{.step = settled_, .rows = total_}}});
}

void Ledger::Repeat(int rank, Effects& effects) const {
  if (settled_ < 0) return;
  effects.push_back(SendEffect{
      .rank = rank, .frame = {.header = wire::LedgerTotal{.step = settled_, .rows = total_}}});
}

// What is missing is lost, and known for it, so that later steps are accounted for.
void Ledger::EnterUnknown() {
  for (std::size_t i = 0; i < rows_; ++i) {
    const double unknown = total_[i].balance();
    for (LedgerRow* const row : {&gone_[i], &total_[i]}) {
      row->lost += unknown;
      row->lost_squares += unknown * unknown;
    }
  }
}

// Whether a member that was there does not know how the step ended, and others do. It was told that
// the step was dropped, so that it was skipped for all.
bool Ledger::IsUnknownToSome(std::int64_t step) const {
  return std::ranges::any_of(told_, [&](const auto& one) {
    const auto found = earlier_.find(one.first);
    if (found == earlier_.end()) return !newcomers_.contains(one.first);
    return found->second.front().step <= step && Find(found->second, step) == nullptr;
  });
}

// The last step of which somebody has the total, and everybody who was there their own account.
const wire::LedgerSnapshot* Ledger::LastTotal() const {
  const wire::LedgerSnapshot* last = nullptr;
  for (const auto& [rank, snapshots] : earlier_) {
    for (const wire::LedgerSnapshot& snapshot : snapshots) {
      if (snapshot.total.empty() || (last != nullptr && last->step >= snapshot.step)) continue;
      if (!IsUnknownToSome(snapshot.step)) last = &snapshot;
    }
  }
  return last;
}

// The end of a step without its total: in it, members that are gone since may have contributed, or
// new ones that came too late to know how it ended.
std::optional<std::int64_t> Ledger::FirstUnknown(const wire::LedgerSnapshot* last,
                                                 const Membership& membership) const {
  if (earlier_.empty()) return std::nullopt;
  std::optional<std::int64_t> first;
  // Where no total has come, of the first step that anybody knows.
  std::int64_t since = earlier_.begin()->second.front().step;
  for (const auto& [rank, snapshots] : earlier_) {
    since = std::min(since, snapshots.front().step);
    for (const wire::LedgerSnapshot& snapshot : snapshots) {
      const bool is_later = last == nullptr || snapshot.step > last->step;
      if (!is_later || IsUnknownToSome(snapshot.step)) continue;
      first = std::min(first.value_or(snapshot.step), snapshot.step);
    }
  }
  if (last != nullptr) since = last->step;
  const bool all_were_there = std::ranges::all_of(told_, [&](const auto& one) {
    const auto found = earlier_.find(one.first);
    return found != earlier_.end() && Find(found->second, since) != nullptr;
  });
  const bool nobody_is_gone =
      all_were_there && std::cmp_equal(told_.size(), membership.world_size());
  return nobody_is_gone ? std::nullopt : first;
}

void Ledger::FindGone(const Membership& membership) {
  gone_.assign(rows_, {});
  const wire::LedgerSnapshot* const last = LastTotal();
  if (const auto step = FirstUnknown(last, membership)) incomplete_ = NotKnown(*step);
  if (last == nullptr) return earlier_.clear();
  gone_ = last->total;
  for (const auto& [rank, snapshots] : earlier_) {
    if (const auto* snapshot = Find(snapshots, last->step)) Subtract(gone_, snapshot->own);
  }
  last_total_ = last->total;
  for (std::size_t i = 0; i < rows_; ++i) {
    LedgerRow& row = gone_[i];
    const double squares = std::exchange(row.residual_squares, 0);
    if (squares > kLedgerNoise * last_total_[i].rounded_squares) row.lost_squares += squares;
    row.lost += std::exchange(row.residual, 0);
  }
  earlier_.clear();
}

void Ledger::WarnOfLosses(Effects& effects) const {
  double lost = 0;
  for (std::size_t i = 0; i < last_total_.size(); ++i) {
    lost += LostSquares(total_[i], last_total_[i]);
  }
  if (lost == 0) return;
  effects.push_back(
      LogEffect{.level = LogEffect::Level::kWarning,
                .message = absl::StrCat("ledger: residuals with a norm of ", std::sqrt(lost),
                                        " are lost with members that are gone")});
}

std::vector<int> Ledger::Silent(const Membership& membership) const {
  std::vector<int> silent;
  if (!on()) return silent;
  for (const int rank : membership.Reachable()) {
    if (!told_.contains(rank)) silent.push_back(rank);
  }
  return silent;
}

}  // namespace gradwire::server
