#include "tests/conformance/grouped_memory.h"

#include "client/runtime/join.h"

namespace gradwire::conformance {
namespace {

class GroupedHostMemory final : public MemberMemory {
 public:
  GroupedHostMemory(std::unique_ptr<MemberMemory> memory, std::string group,
                    testing::HostMeetingPlace& place)
      : memory_(std::move(memory)), group_(std::move(group)), place_(place) {}

  DeviceId device() const override { return memory_->device(); }
  void* Put(std::span<const std::byte> bytes) override { return memory_->Put(bytes); }
  void Get(const void* from, std::span<std::byte> bytes) override { memory_->Get(from, bytes); }
  void Clear() override { memory_->Clear(); }
  absl::StatusOr<std::unique_ptr<Client>> Join(const ClientOptions& options) override {
    return JoinGroup(options, group_, place_);
  }

 private:
  const std::unique_ptr<MemberMemory> memory_;
  const std::string group_;
  testing::HostMeetingPlace& place_;
};

}  // namespace

MakeMemory GroupedMemory(Grouping grouping, testing::HostMeetingPlace& place) {
  return [grouping = std::move(grouping), &place](std::size_t rank) {
    return std::make_unique<GroupedHostMemory>(MakeHostMemory(rank), grouping[rank], place);
  };
}

absl::StatusOr<std::unique_ptr<Client>> JoinGroup(const ClientOptions& options,
                                                  const std::string& group,
                                                  testing::HostMeetingPlace& place) {
  absl::StatusOr<client::MemberHook> hook = client::MakeMemberHook(options);
  if (!hook.ok()) return hook.status();
  if (!group.empty()) {
    hook->node_group = group;
    hook->communicators = place.ForMember();
  }
  return client::JoinWith(options, *std::move(hook));
}

}  // namespace gradwire::conformance
