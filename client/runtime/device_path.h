// The way between the memory of a member's device and the wire: buffers for chunks, and the order
// of what has to wait for the device.
//
// Not thread-safe, except for the release of buffers.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "client/runtime/buffer_pool.h"
#include "client/runtime/device_calls.h"
#include "client/runtime/device_queue.h"
#include "gradwire/hooks/hook.h"
#include "hooks/device_vector.h"

namespace gradwire::client {

class DevicePath {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::size_t chunk_bytes = 0;
    std::size_t keep_buffers = 0;          // idle ones
    Clock::duration gradients_timeout{0};  // from AllReduce until the gradients are there
  };

  DevicePath(std::shared_ptr<Device> device, const Options& options);

  DevicePath(const DevicePath&) = delete;
  DevicePath& operator=(const DevicePath&) = delete;

  bool on_gpu() const { return device_->id().kind != DeviceKind::kCpu; }
  absl::Status status() const;

  // ---- Order. Effects go through `queue`; a user's calls go through Call, and by it through
  // `queue`.
  DeviceQueue& queue() { return queue_; }
  // Runs `call` when `ready` is complete (null: now) and after the earlier ones.
  void Call(std::unique_ptr<DeviceEvent> ready, std::function<void()> call);
  // As Call, for gradients: from Hold to Release these wait, and so do the calls after them.
  void CallWithGradients(std::unique_ptr<DeviceEvent> ready, std::function<void()> call);
  void Hold() { holds_ = true; }
  void Release() { holds_ = false; }
  // Whether only Release is waited for, so that polling is of no use.
  bool holds() const { return holds_ && queue_.empty(); }
  bool idle() const { return queue_.empty() && calls_.empty(); }
  // Runs what is due. An error ends the session: RunCalls must follow.
  absl::Status Poll(Clock::time_point now);
  void RunCalls() { calls_.RunAll(); }

  // ---- Bytes
  // A buffer of the host for `bytes` bytes, which the device reaches.
  absl::StatusOr<std::shared_ptr<BufferPool::Buffer>> Take(std::size_t bytes);
  // A buffer with the encoded range. On a GPU the bytes are there once it has done its work.
  absl::StatusOr<wire::PayloadRef> Encode(HookRun& run, ElementRange range, std::size_t bytes);
  // The payload as the hook can read it, until the next call. One that is larger than any chunk is
  // left where it is, for the core to refuse.
  wire::PayloadRef OnDevice(wire::PayloadRef payload);

 private:
  const std::shared_ptr<Device> device_;
  const std::size_t chunk_bytes_;
  const std::shared_ptr<BufferPool> pool_;
  // A GPU's memory. It works in order: the next use may be enqueued before the last is over.
  DeviceVector<std::byte> encoded_;
  DeviceVector<std::byte> received_;
  DeviceCalls calls_;
  bool holds_ = false;
  DeviceQueue queue_;
};

}  // namespace gradwire::client
