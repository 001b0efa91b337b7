// What a member does with its node group: adds up its shares of a bucket for all, and takes the
// results of the others.
//
// An error of the communicator may be a member that was lost, which the others hear of before the
// daemon knows. In a session that outlives its daemon it is held back for as long as the daemon may
// need, and forgotten if the session then gathers its members (Abort); meanwhile nothing is done.
// What is wrong with the group itself, such as two members on one GPU, is said at once when a
// member connects for the first time. Members that have been a group before hold it back, too: the
// newcomer among them is the reason; it hears the error at once, and ends.
//
// Not thread-safe. Nothing waits: Poll begins and finishes what can be.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/core/bucket_shares.h"
#include "client/core/effects.h"
#include "client/group/node_communicator.h"
#include "hooks/device_vector.h"

namespace gradwire::client {

class GroupedMember;

class GroupPath {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    Clock::duration connect_timeout{0};
    Clock::duration task_timeout{0};  // of one exchange or gather
  };
  // `communicators` null: this member is never in a group with others.
  GroupPath(std::shared_ptr<Device> device, std::shared_ptr<NodeCommunicators> communicators,
            const Options& options);

  // The member is in a session with node groups; it outlives this.
  void Begin(GroupedMember& member);
  absl::StatusOr<std::string> NewId();
  absl::Status Connect(const std::string& id);

  // One at a time; Poll says when it is done. The gradients are there.
  void Exchange(Ticket ticket);
  void Gather(Ticket ticket);

  // Nothing is to be polled for.
  bool idle() const { return held_ || (!task_ && !connecting_); }
  // An error is held back; until then.
  bool failed() const { return held_.has_value(); }
  Clock::time_point fails_at() const { return held_->until; }

  // A task that is done: everything that the device is given from now on follows it.
  struct Done {
    Ticket ticket = 0;
    bool gather = false;
    std::vector<GradBucket*> own{};  // of an exchange: this member's shares, with their sums
  };
  // An error ends the session.
  absl::StatusOr<std::optional<Done>> Poll(Clock::time_point now);

  // The step is over, and with it the hook's use of the shares.
  void EndStep();
  // The session is over, or the group connects anew: what is open is forgotten.
  void Abort();

 private:
  struct Task {
    Ticket ticket = 0;
    bool gather = false;
    bool begun = false;
    Clock::time_point since;
  };
  // One of this member's shares of a bucket.
  struct OwnShare {
    DeviceVector<std::byte> memory;
    std::unique_ptr<GradBucket> bucket;
  };
  using OwnShares = std::vector<OwnShare>;

  bool IsOwn(const BucketShare& share) const;
  std::byte* BytesOf(Ticket ticket) const;
  // The bytes of this member's shares of the bucket, and where those of group member `peer` lie.
  std::size_t OwnBytes(Ticket ticket) const;
  std::byte* ReceivedFrom(std::size_t peer, Ticket ticket);
  void BeginTask();
  void BeginExchange(Ticket ticket);
  void BeginGather(Ticket ticket);
  absl::Status AddUp(Ticket ticket, Done& done);
  DeviceVector<std::byte> TakeMemory(std::size_t bytes);
  absl::Status Late(const Task& task) const;
  absl::Status DidNotConnect() const;
  // False: it is to be said at once.
  bool HoldBack(const absl::Status& error, bool may_pass, Clock::time_point now);
  std::string Names() const;
  // What NCCL says, with the members that it concerns.
  absl::Status Failed(const absl::Status& status) const;

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<NodeCommunicators> communicators_;
  const Options options_;
  GroupedMember* member_ = nullptr;
  std::unique_ptr<NodeCommunicator> communicator_;
  bool connecting_ = false;
  int begun_ = 0;  // times: once with each daemon
  Clock::time_point connecting_since_;
  std::optional<Task> task_;
  struct Held {
    absl::Status error;
    Clock::time_point until;
  };
  std::optional<Held> held_;
  // The device works in order: the next exchange may be enqueued before the sums are over.
  DeviceVector<std::byte> received_;
  DeviceVector<std::uint32_t> not_finite_;
  std::map<Ticket, OwnShares> own_;              // of the step
  std::vector<DeviceVector<std::byte>> unused_;  // memory for shares
};

}  // namespace gradwire::client
