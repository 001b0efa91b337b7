// The members of a node group, each a process with an emulated GPU of its own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/group/nccl.h"
#include "hooks/device.h"

namespace gradwire::testing {

// No wait of a member takes longer.
inline constexpr std::chrono::seconds kLimit(15);

// Whether `condition` came true within `limit`.
bool Await(const std::function<bool()>& condition, std::chrono::milliseconds limit = kLimit);

// What the processes have in common.
struct Shared {
  static constexpr int kPoints = 8;
  std::atomic<bool> has_id = false;
  char id[128] = {};
  std::atomic<int> arrived[kPoints] = {};
};

// In the process of a member. Its failures are the test's.
class Member {
 public:
  Member(int index, int size, Shared& shared);
  // Checks that it connects.
  void Connect();

  int index() const { return index_; }
  int size() const { return size_; }
  Device& device() { return *device_; }
  client::NodeCommunicator& group() { return *group_; }
  void Disconnect() { group_.reset(); }

  // Waits until the group's last call is in the device's order.
  void AwaitOrder();
  // Waits until the device has done all, and the group has no error.
  void AwaitDevice();
  bool IsDone(DeviceMark mark) { return device_->IsComplete(mark); }
  // Waits until all of `members` have come to `point`.
  void Meet(int point, int members);
  int arrived(int point) const { return shared_.arrived[point]; }

  // Memory of the device with these bytes.
  std::byte* Upload(const std::string& bytes);
  std::byte* Allocate(std::size_t bytes) { return device_->Allocate(bytes); }
  std::string Download(const std::byte* memory, std::size_t bytes);

 private:
  const int index_;
  const int size_;
  Shared& shared_;
  const std::shared_ptr<Device> device_;
  std::unique_ptr<client::NodeCommunicator> group_;
};

// Runs `body` in a process for each member and waits for them. A member that is killed by SIGKILL,
// which only `body` sends, is no failure.
void RunMembers(int size, const std::function<void(Member&)>& body);

}  // namespace gradwire::testing
