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

void StateRecovery::SetParts(std::vector<int> parts) {
  for (std::size_t r = 0; r < members_.size(); ++r) members_[r].part = parts[r];
}

bool StateRecovery::IsDonor(int rank) const {
  const auto found = parts_.find(members_[static_cast<std::size_t>(rank)].part);
  return found != parts_.end() && found->second.donor == rank;
}

void StateRecovery::OnAttach(int rank, std::int64_t step) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  if (stage_ == Stage::kReading || stage_ == Stage::kRestored) return;  // all have answered
  if (IsDonor(rank)) PartOf(rank).file.Take();
  member = {.step = step, .part = member.part};
}

void StateRecovery::FindDonor(Part& part, int number) {
  const auto holds = [number](const Member& one) { return one.part == number && !one.is_new; };
  if (part.donor >= 0 && holds(members_[static_cast<std::size_t>(part.donor)])) return;
  const auto found = std::ranges::find_if(members_, holds);
  part.donor = found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
  part.file.Take();
  if (found == members_.end()) return;
  *found = {.step = found->step, .part = number, .unanswered = found->unanswered};
}

// The answer is about the state after the step that has ended, so its end comes first.
MaybeFailure StateRecovery::Ask(const Gathering::Outcome& gathered, Effects& effects) {
  if (stage_ == Stage::kReading || stage_ == Stage::kRestored) return std::nullopt;
  stage_ = Stage::kAsking;
  const auto has_state = [&](int rank) {
    const bool is_new = gathered.change && std::ranges::count(gathered.change->newcomers, rank) > 0;
    return std::ranges::binary_search(gathered.here, rank) && !is_new;
  };
  for (std::size_t r = 0; r < members_.size(); ++r) {
    members_[r].is_new = !has_state(static_cast<int>(r));
    parts_.try_emplace(members_[r].part, Part{.donor = -1});
  }
  for (auto& [number, part] : parts_) FindDonor(part, number);
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (members_[r].is_new || std::exchange(members_[r].asked, true)) continue;
    for (const wire::StepDone& done : gathered.ended) {
      if (members_[r].step > done.step) continue;
      effects.push_back(SendEffect{.rank = rank, .frame = {.header = done}});
    }
    ++members_[r].unanswered;
    asked_.reset();
    effects.push_back(
        SendEffect{.rank = rank, .frame = {.header = wire::StateRequest{.donor = IsDonor(rank)}}});
  }
  return Missing().empty() ? Compare(effects) : std::nullopt;
}

absl::Status StateRecovery::Check(int rank, const wire::StateCopy& copy,
                                  const wire::Payload* payload) {
  const Member& member = members_[static_cast<std::size_t>(rank)];
  if (stage_ != Stage::kAsking || !member.asked || member.digest) {
    return absl::FailedPreconditionError("sent its copy of the hook's state; nobody asked for it");
  }
  if (!IsDonor(rank)) {
    if (copy.bytes == 0 && payload == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("sent bytes of the hook's state; allowed: its digest");
  }
  if (copy.bytes == 0 || copy.bytes > most_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("state_copy.bytes: ", copy.bytes, "; allowed: 1 to ", most_bytes_));
  }
  wire::PieceReader& file = PartOf(rank).file;
  absl::Status added = file.Add(copy.offset, copy.bytes, payload);
  if (!added.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("its copy of the state ", added.message()));
  }
  if (!file.complete()) return absl::OkStatus();
  if (const std::uint64_t digest = wire::DigestOf(file.content()); digest != copy.digest) {
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
  if (IsDonor(rank) && !PartOf(rank).file.complete()) return std::nullopt;
  --member.unanswered;
  member.digest = copy.digest;
  if (!Missing().empty()) return std::nullopt;
  return Compare(effects);
}

MaybeFailure StateRecovery::Compare(Effects& effects) {
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (members_[r].is_new) continue;
    const int donor = PartOf(static_cast<int>(r)).donor;
    if (members_[r].digest == members_[static_cast<std::size_t>(donor)].digest) continue;
    return Lost(absl::FailedPreconditionError(
        absl::StrCat("ranks ", donor, " and ", r,
                     " hold different copies of the hook's state, of which the daemon was lost")));
  }
  stage_ = Stage::kReading;
  RestoreEffect restore;
  for (auto& [number, part] : parts_) {
    if (part.donor < 0) continue;
    restore.files.push_back(std::make_shared<const std::vector<std::byte>>(part.file.Take()));
  }
  effects.push_back(std::move(restore));
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
