// How the members of a node group exchange data among themselves, without the coordinator: NCCL
// between the GPUs of one node (client/group/nccl.h), the host's memory in tests.
//
// All members of a group make the same calls in the same order, with sizes that fit; the
// coordinator gives that order. No call waits for a peer, and none begins before Poll has said that
// the one before it is in order. Members are numbered from 0 in the group.
//
// Not thread-safe. Uses only memory of the device that it was made for.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::client {

// Bytes of this member that go to or come from another one. 1 or more.
struct PeerBytes {
  int peer = 0;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
};

class NodeCommunicator {
 public:
  // Ends what is open, as Abort does.
  virtual ~NodeCommunicator() = default;

  // Sends and receives, all at once. What goes from one member to another arrives in the order of
  // the lists. `peer` is never this member.
  virtual void Exchange(std::span<const PeerBytes> sends, std::span<const PeerBytes> receives) = 0;

  // Each piece becomes, on all members, what it is on member `peer`. All members list the same
  // sizes and peers.
  virtual void Gather(std::span<const PeerBytes> pieces) = 0;

  // True: connected, and all calls are in the device's order, so that work which the device is
  // given now follows them. An error is final; it may come long after a call was in order, so Poll
  // is called as long as the device has not finished.
  virtual absl::StatusOr<bool> Poll() = 0;

  // Frees the device from calls whose peers may be gone: its later work is done, and the contents
  // of the memory of open calls are unspecified. No call follows but the destructor.
  virtual void Abort() = 0;
};

// Makes the communicators of one member, on one device.
class NodeCommunicators {
 public:
  virtual ~NodeCommunicators() = default;

  // "NCCL 2.30.4": members of one group need the same.
  virtual std::string name() const = 0;

  // Names a new communicator. One member of the group asks for it and gives it to the others; it
  // stays until they have connected.
  virtual absl::StatusOr<std::string> NewId() = 0;

  // Begins to connect as member `index` of `size`; Poll says when it is done. `id` comes from the
  // network: InvalidArgument if it is none.
  virtual absl::StatusOr<std::unique_ptr<NodeCommunicator>> Connect(const std::string& id, int size,
                                                                    int index) = 0;
};

}  // namespace gradwire::client
