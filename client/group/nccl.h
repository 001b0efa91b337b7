// NCCL between the GPUs of one node.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/group/node_communicator.h"
#include "hooks/device.h"

namespace gradwire::client {

// Opens NCCL and makes communicators whose work is in the order of `device`'s. `library` is the
// path of libnccl.so.2; if it is empty, the process's own or the one that the dynamic loader finds
// is taken. FailedPrecondition, with what to do: `device` is no GPU, or there is no NCCL, or it is
// older than 2.14.
//
// A user who sets NCCL_COMM_BLOCKING=1 makes calls wait for peers.
absl::StatusOr<std::unique_ptr<NodeCommunicators>> OpenNccl(const std::string& library,
                                                            std::shared_ptr<Device> device);

}  // namespace gradwire::client
