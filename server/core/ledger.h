// The session's ledger: what became of all gradients that members have contributed.
//
// Each member keeps an account of its own (hooks/ledger_hook.h) and sends it with each step. Here
// they are added up when a step is over, with those of members that are gone. What those had not
// applied yet, their residuals, is lost; everything else is accounted for, or the sum is not 0.
//
// The daemon keeps nothing that its members do not have: they get the total after each step, and a
// further daemon finds out what members that are gone had by subtracting the accounts of the others
// from it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/core/effects.h"

namespace gradwire::server {

class Membership;

class Ledger {
 public:
  // `rows`: 0 for a session without a ledger.
  explicit Ledger(std::size_t rows) : rows_(rows) {}

  bool on() const { return rows_ > 0; }

  // Of a session that another daemon had: these members have no part of what was before.
  void SetNewcomers(const std::vector<int>& ranks) {
    newcomers_.insert(ranks.begin(), ranks.end());
  }

  // A member's account of the open step, or of the one before. A resume repeats it. An error names
  // the field.
  absl::Status Take(int rank, const wire::LedgerAccount& account, std::int64_t open_step);

  // The step has this end. Settle follows.
  void Conclude(std::int64_t step, Verdict verdict);

  // The last step's total, once all members that are in the session have sent their accounts of it.
  // `tells`: members are to keep it for a further daemon.
  void Settle(const Membership& membership, bool tells, Effects& effects);

  // A new stream: the last total may not have arrived.
  void Repeat(int rank, Effects& effects) const;

  // The sum of all accounts after the last step that is settled; and that step. Empty and -1: none
  // is.
  const std::vector<LedgerRow>& total() const { return total_; }
  std::int64_t settled() const { return settled_; }
  // The most members that have contributed to a step here.
  int members() const { return members_; }
  // Those that are in the session and have sent no account.
  std::vector<int> Silent(const Membership& membership) const;
  // What of it is not known, in a sentence. "": everything is.
  const std::string& incomplete() const { return incomplete_; }

 private:
  struct Ended {
    std::int64_t step = 0;
    Verdict verdict = Verdict::kApply;
  };

  // The accounts of members that are gone, from what the others were told by an earlier daemon.
  void FindGone(const Membership& membership);
  void EnterUnknown();
  // What has become lost with members that are gone, and was not handed over.
  void WarnOfLosses(Effects& effects) const;
  bool IsUnknownToSome(std::int64_t step) const;
  const wire::LedgerSnapshot* LastTotal() const;
  std::optional<std::int64_t> FirstUnknown(const wire::LedgerSnapshot* last,
                                           const Membership& membership) const;

  const std::size_t rows_;
  std::map<int, wire::LedgerAccount> told_;         // the last of each rank
  std::map<int, std::vector<LedgerRow>> accounts_;  // after the last step that is settled, by rank
  // What members know from an earlier daemon, until the first step is settled here.
  std::map<int, std::vector<wire::LedgerSnapshot>> earlier_;
  std::set<int> newcomers_;
  std::vector<LedgerRow> gone_;
  std::vector<LedgerRow> last_total_;  // of an earlier daemon
  std::vector<LedgerRow> total_;
  std::optional<Ended> ended_;  // that is not settled
  std::int64_t settled_ = -1;
  bool found_gone_ = false;
  int members_ = 0;
  std::string incomplete_;
};

}  // namespace gradwire::server
