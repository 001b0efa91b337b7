// Members and daemons of sessions with a ledger of one row, by the arithmetic of a few numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/ledger.h"
#include "server/core/membership.h"

namespace gradwire::server {

// Of a step in which a member's gradient is one number.
struct Change {
  double gradient = 0;
  double mean = 0;
  double residual = 0;

  LedgerRow row() const {
    return {.contributed = gradient,
            .applied = mean,
            .residual = residual,
            .contributed_squares = gradient * gradient,
            .residual_squares = residual * residual,
            .rounded_squares = gradient * gradient + mean * mean + residual * residual};
  }
};

// A member that keeps its account as LedgerSending does, but by arithmetic of its own.
class Trainer {
 public:
  wire::LedgerAccount Tell(std::int64_t step, const Change& change) const {
    return {.step = step,
            .generation = 1,
            .before = {own_},
            .change = {change.row()},
            .earlier = earlier_};
  }
  void Apply(std::int64_t step, const Change& change) {
    const LedgerRow more = change.row();
    own_.contributed += more.contributed;
    own_.contributed_squares += more.contributed_squares;
    own_.applied += more.applied;
    own_.residual = more.residual;
    own_.residual_squares = more.residual_squares;
    own_.rounded_squares += more.rounded_squares;
    Keep(step);
  }
  void Skip(std::int64_t step, double gradient) {
    Count(gradient);
    own_.skipped += gradient;
    own_.skipped_squares += gradient * gradient;
    Keep(step);
  }
  void Drop(double gradient) {
    Count(gradient);
    own_.dropped += gradient;
    own_.dropped_squares += gradient * gradient;
  }
  void Hear(const std::vector<LedgerRow>& total) { snapshots_.back().total = total; }
  // The daemon is lost: the next account has what is known from it.
  void Rejoin() { earlier_ = snapshots_; }
  void Welcomed() { earlier_.clear(); }

 private:
  void Count(double gradient) {
    own_.contributed += gradient;
    own_.contributed_squares += gradient * gradient;
  }
  void Keep(std::int64_t step) { snapshots_.push_back({.step = step, .own = {own_}}); }

  LedgerRow own_;
  std::vector<wire::LedgerSnapshot> snapshots_;
  std::vector<wire::LedgerSnapshot> earlier_;
};

// A daemon with all its members, but for those that are gone.
class Daemon {
 public:
  explicit Daemon(int world_size, std::int64_t step = 0, const std::vector<int>& gone = {},
                  bool tells = true)
      : membership_(world_size, {}, absl::UnixEpoch()), tells_(tells), step_(step) {
    for (int rank = 0; rank < world_size; ++rank) {
      const auto id = static_cast<std::uint64_t>(rank) + 1;
      EXPECT_TRUE(membership_.Join(rank, id, "s", absl::UnixEpoch()).ok());
      membership_.Attach(rank, id, absl::UnixEpoch());
    }
    for (const int rank : gone) membership_.SetGone(rank);
  }

  void SetNewcomer(int rank) { ledger_.SetNewcomers({rank}); }

  absl::Status Take(int rank, const wire::LedgerAccount& account) {
    absl::Status taken = ledger_.Take(rank, account, step_);
    ledger_.Settle(membership_, tells_, effects_);
    return taken;
  }
  void End(Verdict verdict) {
    ledger_.Conclude(step_++, verdict);
    ledger_.Settle(membership_, tells_, effects_);
  }
  // A step that is applied: of these ranks, in order. They hear the total if the daemon `lives`.
  void Reduce(std::vector<Trainer>& trainers, const std::vector<Change>& changes,
              bool lives = true) {
    const std::int64_t step = step_;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      EXPECT_TRUE(Take(static_cast<int>(i), trainers[i].Tell(step, changes[i])).ok());
      trainers[i].Apply(step, changes[i]);
      trainers[i].Welcomed();
    }
    End(Verdict::kApply);
    EXPECT_EQ(ledger_.settled(), step);
    for (std::size_t i = 0; lives && i < changes.size(); ++i) trainers[i].Hear(ledger_.total());
  }

  const Ledger& ledger() const { return ledger_; }
  LedgerRow total() const { return ledger_.total().empty() ? LedgerRow() : ledger_.total()[0]; }
  std::vector<int> Silent() const { return ledger_.Silent(membership_); }
  std::vector<FanOutEffect> Told() const {
    std::vector<FanOutEffect> told;
    for (const Effect& effect : effects_) {
      if (const auto* frame = std::get_if<FanOutEffect>(&effect)) told.push_back(*frame);
    }
    return told;
  }
  std::vector<std::string> Logged() const {
    std::vector<std::string> logged;
    for (const Effect& effect : effects_) {
      if (const auto* line = std::get_if<LogEffect>(&effect)) logged.push_back(line->message);
    }
    return logged;
  }

 private:
  Membership membership_;
  Ledger ledger_{1};
  const bool tells_;
  std::int64_t step_;
  Effects effects_;
};

// Sums: 18 contributed, 15 applied, 3 in residuals; squares 126, 75, 21.
inline const std::vector<Change> kFirst = {{.gradient = 3, .mean = 5, .residual = -2},
                                           {.gradient = 6, .mean = 5, .residual = 1},
                                           {.gradient = 9, .mean = 5, .residual = 4}};
inline const LedgerRow kAfterFirst = {.contributed = 18,
                                      .applied = 15,
                                      .residual = 3,
                                      .contributed_squares = 126,
                                      .residual_squares = 21,
                                      .rounded_squares = 222};

}  // namespace gradwire::server
