// A member with its node group, without a coordinator and without the others. Of two shares it has
// the second one: parameters w and e.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/core/grouped_member.h"
#include "tests/client/core/member_fixture.h"

namespace gradwire::client {

class GroupedMemberTest : public EffectsTest {
 protected:
  GroupedMemberTest() { member_.emplace(options_, &hook_, /*whole_buckets=*/false); }

  void Welcome(std::vector<int> ranks = {0, 1}) {
    const auto size = static_cast<std::uint32_t>(ranks.size());
    Receive(
        wire::Welcome{.group = wire::NodeGroup{
                          .ranks = std::move(ranks), .shares = 2, .groups = 3 - size, .group = 0}});
  }
  void Receive(wire::Header header, wire::PayloadRef payload = nullptr) {
    Effects effects;
    member_->Receive({std::move(header), std::move(payload)}, effects);
    Take(std::move(effects));
  }
  absl::Status Start(const std::vector<std::size_t>& parameters) {
    Effects effects;
    absl::Status status = member_->StartBucket(++ticket_, Bucket(parameters), effects);
    Take(std::move(effects));
    return status;
  }
  void Order(std::uint32_t number, std::uint32_t bucket, bool gather) {
    Receive(wire::GroupOrder{.number = number, .bucket = bucket, .gather = gather});
  }
  // Answers with shares of these parameters.
  void Exchanged(Ticket ticket, const std::vector<std::vector<std::size_t>>& shares) {
    std::vector<GradBucket*> own;
    for (const auto& share : shares) own.push_back(&Bucket(share));
    Effects effects;
    member_->Exchanged(ticket, own, effects);
    Take(std::move(effects));
  }
  void Gathered(Ticket ticket) {
    Effects effects;
    member_->Gathered(ticket, effects);
    Take(std::move(effects));
  }
  void End() {
    Effects effects;
    EXPECT_TRUE(member_->EndStep(effects).ok());
    Take(std::move(effects));
  }
  void Result(std::uint32_t bucket) {
    Receive(wire::Grant{{.bucket = bucket}});
    Receive(wire::Result{.id = {.bucket = bucket}}, Bytes(64));
  }
  std::string Message() const { return std::string(member_->failure().message()); }

  std::optional<GroupedMember> member_;
  Ticket ticket_ = 0;
};

}  // namespace gradwire::client
