#include "server/core/generation.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"

namespace gradwire::server {

absl::Status CheckGeneration(const wire::Header& header, std::uint64_t generation) {
  if (IsActive(Mutant::kGenerationNotCompared)) return absl::OkStatus();
  const auto check = [&](std::uint64_t of_frame, absl::string_view did) {
    if (of_frame == generation) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(did, " of generation ", of_frame,
                                                   "; this session is generation ", generation));
  };
  if (const auto* chunk = std::get_if<wire::Contribution>(&header)) {
    return check(chunk->generation, "sent a chunk");
  }
  if (const auto* announce = std::get_if<wire::Announce>(&header)) {
    return check(announce->generation, "announced a bucket");
  }
  if (const auto* bucket = std::get_if<wire::GroupBucket>(&header)) {
    return check(bucket->generation, "sent a bucket of its node group");
  }
  if (const auto* id = std::get_if<wire::GroupId>(&header)) {
    return check(id->generation, "named a communicator");
  }
  if (const auto* end = std::get_if<wire::EndStep>(&header)) {
    return check(end->generation, "ended a step");
  }
  if (const auto* digest = std::get_if<wire::ParameterDigest>(&header)) {
    return check(digest->generation, "sent a digest of its parameters");
  }
  if (const auto* account = std::get_if<wire::LedgerAccount>(&header)) {
    return check(account->generation, "sent its account");
  }
  if (const auto* ready = std::get_if<wire::Ready>(&header)) {
    return check(ready->generation, "sent READY");
  }
  if (const auto* concluded = std::get_if<wire::Concluded>(&header)) {
    return check(concluded->generation, "concluded a step");
  }
  if (const auto* again = std::get_if<wire::GatherAgain>(&header)) {
    return check(again->generation, "asked all members to gather again");
  }
  if (const auto* plan = std::get_if<wire::DrawPlan>(&header)) {
    return check(plan->generation, "sent a draw plan");
  }
  if (const auto* enter = std::get_if<wire::Enter>(&header)) {
    return check(enter->generation, "entered a collective");
  }
  if (const auto* copy = std::get_if<wire::StateCopy>(&header)) {
    return check(copy->generation, "sent a copy of the hook's state");
  }
  if (const auto* hand_over = std::get_if<wire::HandOver>(&header)) {
    return check(hand_over->generation, "handed its residuals over");
  }
  if (const auto* answer = std::get_if<wire::HandOverAnswer>(&header)) {
    return check(answer->generation, "answered a member that leaves");
  }
  return absl::OkStatus();
}

}  // namespace gradwire::server
