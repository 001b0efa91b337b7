// What a session knows of the rosters of its lineage that daemons have claimed at an arbiter.
//
// Without a majority nothing in the members' reports says that others have not gone on elsewhere.
// An arbiter does: each roster's number can be claimed once there, by one daemon. So the rosters of
// a lineage are a log. A claim also says the end of which steps its members are told, because some
// of them may have heard it when the daemon that claimed is lost, and the next one must not decide
// otherwise.
//
// A roster may follow the last one that is claimed if a member here has heard of that: it is in it,
// and knows how it went. Or if a process here is in it, and nobody has heard of it: each step needs
// READY of all, so that none was concluded there, and none will be, as the process is here now.
//
// Not thread-safe. No clock, no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"

namespace gradwire::server {

// As it is at the arbiter.
struct RosterClaim {
  std::uint64_t number = 0;  // 0: none is claimed
  std::vector<int> ranks{};  // ascending
  // Of those ranks, which processes they are (ProcessOf). Of two that had one rank, only one is in
  // it.
  std::vector<std::uint64_t> processes{};
  std::vector<wire::StepDone> ended{};

  bool operator==(const RosterClaim&) const = default;
};

// What a claim came to: the highest claim of the lineage that there is now.
struct ClaimAnswer {
  RosterClaim highest{};
  bool is_own = false;  // it is the one that was asked for
};

// Tells processes apart. Nobody who lacks the key can tell the start id from it.
std::uint64_t ProcessOf(const std::string& session_key, std::uint64_t start_id);

class RosterClaims {
 public:
  // The last claim is the session's, and is this one, whatever its number.
  bool Has(const RosterClaim& wanted) const;
  std::uint64_t number() const { return own_->number; }  // of that
  // Its members are told.
  void Tell() { follows_own_ = true; }
  // It has come to nothing, as other members are here now; but the log has it. Whoever reads it
  // there goes on as if its members had been told, so the next claim has to. Once for each.
  const std::vector<wire::StepDone>* TakeVoid();

  // A member has come, which may have heard of any claim: what is known has to be as new as what
  // it says. True: the highest claim is to be asked for.
  bool AskAgain();
  bool IsUpToDate() const { return is_known_ && !is_stale_ && error_.ok(); }
  // What to ask the arbiter for. None: an answer is awaited.
  // `reported` is the number of the last roster that the members here have heard of.
  std::optional<RosterClaim> Ask(RosterClaim wanted, std::uint64_t reported);
  // True: the highest claim is to be asked for, as somebody has come meanwhile.
  bool Take(const absl::StatusOr<ClaimAnswer>& answer);

  // That is not the session's; its number is 0 if there is none.
  const RosterClaim& others() const { return others_; }
  // Whether those may go on whose processes are `here`, after all claims that are known.
  bool MayFollow(const std::vector<std::uint64_t>& here, std::uint64_t reported) const;
  // They may not.
  void SetWaiting(bool waits) { waits_ = waits; }
  bool waits() const { return waits_; }
  // True, a second after an answer that does not let them go on: the highest claim is to be asked
  // for.
  bool Tick(absl::Time now);

  // What is waited for, and why; "": nothing.
  std::string WaitingFor() const;

 private:
  bool awaits_answer_ = false;
  bool is_known_ = false;  // the highest claim, when `awaits_answer_` was false last
  bool is_stale_ = false;
  bool waits_ = false;
  bool follows_own_ = false;
  std::optional<RosterClaim> own_;
  RosterClaim others_;
  std::uint64_t highest_ = 0;
  absl::Status error_;                    // of the last answer
  std::optional<absl::Time> asks_again_;  // none: no tick has come since the last answer
};

}  // namespace gradwire::server
