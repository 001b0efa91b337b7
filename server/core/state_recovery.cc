#include "server/core/state_recovery.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/digest.h"
#include "proto/wire/rank_names.h"

namespace gradwire::server {
namespace {

FailureEvent Lost(absl::Status what) {
  return {.kind = FailureEvent::Kind::kOwner, .what = Coded(ErrorCode::kResume, std::move(what))};
}

}  // namespace

void StateRecovery::OnAttach(int rank, std::int64_t step) {
  if (stage_ == Stage::kReading || stage_ == Stage::kRestored) return;  // all have answered
  members_[static_cast<std::size_t>(rank)] = {.step = step};
}

void StateRecovery::MakeDonor(Member& member) {
  member = {.step = member.step, .is_donor = true, .unanswered = member.unanswered};
}

void StateRecovery::Send(int rank, Effects& effects) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  member.asked = true;
  ++member.unanswered;
  asked_.reset();
  effects.push_back(
      SendEffect{.rank = rank, .frame = {.header = wire::StateRequest{.donor = member.is_donor}}});
}

// The answer is about the state after the step that has ended, so its end comes first.
void StateRecovery::Ask(const Gathering::Outcome& gathered, Effects& effects) {
  if (stage_ == Stage::kReading || stage_ == Stage::kRestored) return;
  stage_ = Stage::kAsking;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const int rank = static_cast<int>(r);
    members_[r].is_new =
        !std::ranges::binary_search(gathered.here, rank) ||
        (gathered.change && std::ranges::count(gathered.change->newcomers, rank) > 0);
  }
  const auto gives = [](const Member& one) { return one.is_donor && !one.is_new; };
  if (std::ranges::none_of(members_, gives)) {
    const auto first = std::ranges::find(members_, false, &Member::is_new);
    if (first != members_.end()) MakeDonor(*first);
  }
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (members_[r].is_new || members_[r].asked) continue;
    for (const wire::StepDone& done : gathered.ended) {
      if (members_[r].step > done.step) continue;
      effects.push_back(SendEffect{.rank = static_cast<int>(r), .frame = {.header = done}});
    }
    Send(static_cast<int>(r), effects);
  }
  if (Missing().empty()) Compare(effects);
}

absl::Status StateRecovery::Check(Member& member, const wire::StateCopy& copy,
                                  const wire::Payload* payload) {
  if (stage_ != Stage::kAsking || !member.asked || member.digest) {
    return absl::FailedPreconditionError("sent its copy of the hook's state; nobody asked for it");
  }
  if (!member.is_donor) {
    if (copy.bytes == 0 && payload == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("sent bytes of the hook's state; allowed: its digest");
  }
  if (copy.bytes == 0 || copy.bytes > most_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("state_copy.bytes: ", copy.bytes, "; allowed: 1 to ", most_bytes_));
  }
  wire::PieceReader& file = member.file;
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
  // What it was asked before it became a donor.
  Member& member = members_[static_cast<std::size_t>(rank)];
  if (member.unanswered > 1 && copy.bytes == 0) {
    --member.unanswered;
    return std::nullopt;
  }
  if (absl::Status status = Check(member, copy, payload); !status.ok()) {
    return ViolationOf(rank, std::move(status));
  }
  if (member.is_donor && !member.file.complete()) return std::nullopt;
  --member.unanswered;
  member.digest = copy.digest;
  if (Missing().empty()) Compare(effects);
  return std::nullopt;
}

bool StateRecovery::IsGiven(std::uint64_t digest) const {
  return std::ranges::any_of(members_, [&](const Member& one) {
    return one.is_donor && !one.is_new && one.digest == digest;
  });
}

// What differs from the files that are here may be parts of the same state, or a wrong copy: its
// file tells.
void StateRecovery::Compare(Effects& effects) {
  std::set<std::uint64_t> awaited;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    Member& member = members_[r];
    if (member.is_new || IsGiven(*member.digest)) continue;
    if (!awaited.insert(*member.digest).second) continue;
    MakeDonor(member);
    Send(static_cast<int>(r), effects);
  }
  if (!awaited.empty()) return;
  stage_ = Stage::kReading;
  RestoreEffect restore;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (!members_[r].is_donor || members_[r].is_new) continue;
    restore.files.push_back(
        {.rank = static_cast<int>(r),
         .bytes = std::make_shared<const std::vector<std::byte>>(members_[r].file.Take())});
  }
  effects.push_back(std::move(restore));
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
  return absl::StrCat("waits for what ", wire::RankNames(missing),
                      missing.size() == 1 ? " holds" : " hold", " of the hook's state");
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
