#include "proto/wire/ledger_frames.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::wire {
namespace {

using Rows = google::protobuf::RepeatedPtrField<v1::LedgerRow>;

constexpr std::size_t kMostSnapshots = 3;

void SetRows(const std::vector<LedgerRow>& rows, Rows& messages) {
  messages.Reserve(static_cast<int>(rows.size()));
  for (const LedgerRow& row : rows) wire::Set(row, *messages.Add());
}

// Steps ascend.
std::int64_t FirstAfter(std::int64_t step) { return step < kMaxInt64 ? step + 1 : step; }

// `finite`: what is not would stay in all later sums.
std::vector<LedgerRow> GetRows(const char* field, const Rows& messages, bool finite,
                               Checker& check) {
  check.Count(field, static_cast<std::size_t>(messages.size()), 0, kMostLedgerRows);
  std::vector<LedgerRow> rows;
  if (!check.status().ok()) return rows;
  for (const v1::LedgerRow& message : messages) {
    rows.push_back(Get(message));
    if (finite) check.Finite(field, rows.back().is_finite());
  }
  return rows;
}

}  // namespace

void Set(const LedgerRow& row, v1::LedgerRow& message) {
  message.set_contributed(row.contributed);
  message.set_applied(row.applied);
  message.set_residual(row.residual);
  message.set_skipped(row.skipped);
  message.set_dropped(row.dropped);
  message.set_lost(row.lost);
  message.set_contributed_squares(row.contributed_squares);
  message.set_residual_squares(row.residual_squares);
  message.set_skipped_squares(row.skipped_squares);
  message.set_dropped_squares(row.dropped_squares);
  message.set_lost_squares(row.lost_squares);
  message.set_rounded_squares(row.rounded_squares);
}

LedgerRow Get(const v1::LedgerRow& message) {
  return {.contributed = message.contributed(),
          .applied = message.applied(),
          .residual = message.residual(),
          .skipped = message.skipped(),
          .dropped = message.dropped(),
          .lost = message.lost(),
          .contributed_squares = message.contributed_squares(),
          .residual_squares = message.residual_squares(),
          .skipped_squares = message.skipped_squares(),
          .dropped_squares = message.dropped_squares(),
          .lost_squares = message.lost_squares(),
          .rounded_squares = message.rounded_squares()};
}

void Set(const LedgerAccount& account, v1::Header& out) {
  v1::LedgerAccount& message = *out.mutable_ledger_account();
  message.set_step(account.step);
  message.set_generation(account.generation);
  SetRows(account.before, *message.mutable_before());
  SetRows(account.change, *message.mutable_change());
  for (const LedgerSnapshot& snapshot : account.earlier) {
    v1::LedgerSnapshot& earlier = *message.add_earlier();
    earlier.set_step(snapshot.step);
    SetRows(snapshot.own, *earlier.mutable_own());
    SetRows(snapshot.total, *earlier.mutable_total());
  }
}

LedgerAccount Get(const v1::LedgerAccount& message, Checker& check) {
  LedgerAccount account{.step = check.Step(message.step()),
                        .generation = message.generation(),
                        .before = GetRows("before", message.before(), true, check),
                        // A gradient may not be finite; the step is a skip then.
                        .change = GetRows("change", message.change(), false, check)};
  check.Count("earlier", static_cast<std::size_t>(message.earlier_size()), 0, kMostSnapshots);
  if (!check.status().ok()) return account;
  for (const v1::LedgerSnapshot& earlier : message.earlier()) {
    const std::int64_t low = account.earlier.empty() ? 0 : FirstAfter(account.earlier.back().step);
    account.earlier.push_back({.step = check.Range("earlier.step", earlier.step(), low, kMaxInt64),
                               .own = GetRows("earlier.own", earlier.own(), true, check),
                               .total = GetRows("earlier.total", earlier.total(), true, check)});
  }
  return account;
}

void Set(const LedgerTotal& total, v1::Header& out) {
  v1::LedgerTotal& message = *out.mutable_ledger_total();
  message.set_step(total.step);
  SetRows(total.rows, *message.mutable_rows());
}

LedgerTotal Get(const v1::LedgerTotal& message, Checker& check) {
  return {.step = check.Step(message.step()), .rows = GetRows("rows", message.rows(), true, check)};
}

}  // namespace gradwire::wire
