#include "server/core/state_recovery.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "proto/wire/digest.h"

namespace gradwire::server {
namespace {

FailureEvent Lost(absl::Status what) {
  return {.kind = FailureEvent::Kind::kOwner, .what = Coded(ErrorCode::kResume, std::move(what))};
}

}  // namespace

void StateRecovery::OnAttach(int rank, std::int64_t step) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  if (stage_ == Stage::kReading || stage_ == Stage::kRestored) return;  // all have answered
  member = {.step = step};
  if (rank == donor_) file_.Take();
}

// The answer is about the state after the step that has ended, so its end comes first.
MaybeFailure StateRecovery::Ask(const Gathering::Outcome& gathered, Effects& effects) {
  if (stage_ == Stage::kReading || stage_ == Stage::kRestored) return std::nullopt;
  stage_ = Stage::kAsking;
  const auto has_state = [&](int rank) {
    const bool is_new = gathered.change && std::ranges::count(gathered.change->newcomers, rank) > 0;
    return std::ranges::binary_search(gathered.here, rank) && !is_new;
  };
  if (!has_state(donor_)) {
    donor_ = gathered.donor;
    file_.Take();
    Member& member = members_[static_cast<std::size_t>(donor_)];
    member = {.step = member.step, .unanswered = member.unanswered};
  }
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const int rank = static_cast<int>(r);
    members_[r].is_new = !has_state(rank);
    if (members_[r].is_new || std::exchange(members_[r].asked, true)) continue;
    for (const wire::StepDone& done : gathered.ended) {
      if (members_[r].step > done.step) continue;
      effects.push_back(SendEffect{.rank = rank, .frame = {.header = done}});
    }
    ++members_[r].unanswered;
    asked_.reset();
    effects.push_back(
        SendEffect{.rank = rank, .frame = {.header = wire::StateRequest{.donor = rank == donor_}}});
  }
  return Missing().empty() ? Compare(effects) : std::nullopt;
}

absl::Status StateRecovery::Check(int rank, const wire::StateCopy& copy,
                                  const wire::Payload* payload) {
  const Member& member = members_[static_cast<std::size_t>(rank)];
  if (stage_ != Stage::kAsking || !member.asked || member.digest) {
    return absl::FailedPreconditionError("sent its copy of the hook's state; nobody asked for it");
  }
  if (rank != donor_) {
    if (copy.bytes == 0 && payload == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("sent bytes of the hook's state; allowed: its digest");
  }
  if (copy.bytes == 0 || copy.bytes > most_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("state_copy.bytes: ", copy.bytes, "; allowed: 1 to ", most_bytes_));
  }
  absl::Status added = file_.Add(copy.offset, copy.bytes, payload);
  if (!added.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("its copy of the state ", added.message()));
  }
  if (!file_.complete()) return absl::OkStatus();
  if (const std::uint64_t digest = wire::DigestOf(file_.content()); digest != copy.digest) {
    return absl::DataLossError(absl::StrCat("its copy of the hook's state has digest ", digest,
                                            "; it announced ", copy.digest));
  }
  return absl::OkStatus();
}

MaybeFailure StateRecovery::Take(int rank, const wire::StateCopy& copy,
                                 const wire::Payload* payload, Effects& effects) {
  if (copy.unknown && stage_ == Stage::kAsking) {
    return Lost(absl::FailedPreconditionError(
        absl::StrCat("the hook's state was replaced by one from a file, which was lost with the "
                     "daemon before a step had ended with it; rank ",
                     rank, " cannot say what it was")));
  }
  // What it was asked before it became the donor.
  Member& member = members_[static_cast<std::size_t>(rank)];
  if (member.unanswered > 1 && copy.bytes == 0) {
    --member.unanswered;
    return std::nullopt;
  }
  if (absl::Status status = Check(rank, copy, payload); !status.ok()) {
    return ViolationOf(rank, std::move(status));
  }
  if (rank == donor_ && !file_.complete()) return std::nullopt;
  --member.unanswered;
  member.digest = copy.digest;
  if (!Missing().empty()) return std::nullopt;
  return Compare(effects);
}

MaybeFailure StateRecovery::Compare(Effects& effects) {
  const auto donors = members_[static_cast<std::size_t>(donor_)].digest;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (members_[r].is_new || members_[r].digest == donors) continue;
    return Lost(absl::FailedPreconditionError(
        absl::StrCat("ranks ", donor_, " and ", r,
                     " hold different copies of the hook's state, of which the daemon was lost")));
  }
  stage_ = Stage::kReading;
  effects.push_back(
      RestoreEffect{.file = std::make_shared<const std::vector<std::byte>>(file_.Take())});
  return std::nullopt;
}

std::vector<int> StateRecovery::Missing() const {
  std::vector<int> missing;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const bool answers = !members_[r].is_new && !members_[r].digest;
    if (answers) missing.push_back(static_cast<int>(r));
  }
  return missing;
}

std::string StateRecovery::WaitingFor() const {
  if (stage_ != Stage::kAsking) return "reads the hook's state, which the members have brought";
  const std::vector<int> missing = Missing();
  return absl::StrCat("waits for what ", missing.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(missing, ", "), missing.size() == 1 ? " holds" : " hold",
                      " of the hook's state");
}

MaybeFailure StateRecovery::Tick(absl::Time now, absl::Duration timeout) {
  if (stage_ != Stage::kAsking) return std::nullopt;
  if (!asked_) asked_ = now;
  if (now - *asked_ <= timeout) return std::nullopt;
  return FailureEvent{.kind = FailureEvent::Kind::kStepTimeout,
                      .what = absl::DeadlineExceededError(WaitingFor()),
                      .waited = timeout};
}

}  // namespace gradwire::server
