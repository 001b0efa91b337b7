#include "client/runtime/device_path.h"

#include <algorithm>
#include <utility>

#include "hooks/device_status.h"

namespace gradwire::client {
namespace {

// How long a GPU may take for what a chunk needs.
constexpr std::chrono::seconds kDeviceTimeout(30);

// Bytes in a GPU's memory, which only the hook reads.
class DevicePayload final : public wire::Payload {
 public:
  explicit DevicePayload(std::span<const std::byte> bytes) : piece_(bytes) {}
  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return piece_.size(); }

 private:
  const std::span<const std::byte> piece_;
};

}  // namespace

DevicePath::DevicePath(std::shared_ptr<Device> device, const Options& options)
    : device_(std::move(device)),
      chunk_bytes_(options.chunk_bytes),
      pool_(BufferPool::Make(options.chunk_bytes, options.keep_buffers,
                             [this](std::size_t bytes) { return device_->AllocatePinned(bytes); })),
      encoded_(*device_),
      received_(*device_),
      calls_(options.gradients_timeout),
      queue_(*device_, kDeviceTimeout) {}

absl::Status DevicePath::status() const { return StatusOf(*device_); }

// Without a GPU nothing ever waits.
void DevicePath::Call(std::unique_ptr<DeviceEvent> ready, std::function<void()> call) {
  if (ready == nullptr && calls_.empty()) return queue_.InOrder(std::move(call));
  calls_.Add(std::move(ready), [this, call = std::move(call)] { queue_.InOrder(call); });
}

void DevicePath::CallWithGradients(std::unique_ptr<DeviceEvent> ready, std::function<void()> call) {
  if (!holds_) return Call(std::move(ready), std::move(call));
  calls_.Add(std::move(ready), [this, call = std::move(call)] { queue_.InOrder(call); });
}

absl::Status DevicePath::Poll(Clock::time_point now) {
  if (absl::Status status = queue_.Poll(now); !status.ok()) return status;
  return holds_ ? absl::OkStatus() : calls_.Poll(now);
}

absl::StatusOr<std::shared_ptr<BufferPool::Buffer>> DevicePath::Take(std::size_t bytes) {
  std::shared_ptr<BufferPool::Buffer> buffer = pool_->Take(bytes);
  if (buffer == nullptr) return status();
  return buffer;
}

absl::StatusOr<wire::PayloadRef> DevicePath::Encode(HookRun& run, ElementRange range,
                                                    std::size_t bytes) {
  auto buffer = Take(bytes);
  if (!buffer.ok()) return buffer.status();
  const std::span<std::byte> out = (*buffer)->content();
  if (!on_gpu()) {
    if (absl::Status encoded = run.Encode(range, out); !encoded.ok()) return encoded;
    return *std::move(buffer);
  }
  encoded_.Resize(std::max(bytes, encoded_.size()));
  absl::Status encoded = run.Encode(range, {encoded_.data(), bytes});
  if (!encoded.ok()) return encoded;
  device_->DownloadLater(out.data(), encoded_.data(), bytes);
  if (absl::Status failed = status(); !failed.ok()) return failed;
  return *std::move(buffer);
}

wire::PayloadRef DevicePath::OnDevice(wire::PayloadRef payload) {
  if (!on_gpu() || payload == nullptr || payload->bytes() > chunk_bytes_) return payload;
  received_.Resize(std::max(payload->bytes(), received_.size()));
  device_->UploadPieces(received_.data(), payload->pieces());
  return std::make_shared<DevicePayload>(std::span(received_.data(), payload->bytes()));
}

}  // namespace gradwire::client
