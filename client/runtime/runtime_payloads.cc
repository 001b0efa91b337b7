// Moves payloads between buckets and the daemon, in pooled chunks or shared memory.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "client/runtime/runtime.h"
#include "proto/tls/channel_credentials.h"

namespace gradwire::client {
namespace {

// Timeouts of an attachment. A daemon on this host answers at once unless the host is very busy. A
// resuming stream must not use up its grace period.
constexpr std::chrono::seconds kAttachTimeout(5);
constexpr std::chrono::milliseconds kReattachTimeout(300);
// Of a daemon that has just begun, at which all members attach.
constexpr std::chrono::seconds kRejoinAttachTimeout(2);

}  // namespace

// Attachments live as long as their stream, so each new stream needs another one.
void Runtime::OpenStream(std::shared_ptr<grpc::Channel> channel) {
  ++stream_;
  times_.Reset();
  memory_.reset();
  if (options_.shared_memory && !device_.on_gpu() && membership_.memory_bytes > 0 &&
      tls::IsUnixSocket(options_.address)) {
    Clock::duration attach_timeout = welcomed_ ? Clock::duration(kReattachTimeout) : kAttachTimeout;
    if (member_.awaits_welcome()) attach_timeout = kRejoinAttachTimeout;
    // Shared memory is optional, so an error only means that payloads travel in the stream.
    auto attached = SharedMemory::Attach({.address = options_.address,
                                          .token = membership_.token,
                                          .start_id = start_id_,
                                          .block_bytes = membership_.chunk_bytes,
                                          .staging_bytes = membership_.memory_bytes},
                                         Clock::now() + attach_timeout);
    if (attached.ok()) memory_ = *std::move(attached);
  }
  {
    MutexLock lock(shared_mutex_);
    metrics_.shared_memory = memory_ != nullptr;
    metrics_.unix_socket = tls::IsUnixSocket(options_.address);
    metrics_.leaf = membership_.leaf;
  }
  // Late gradients are kept in the host's memory, and are part of the whole mean.
  const bool may_miss = !device_.on_gpu() && shards_ == 1;
  // With shared memory large payloads rarely travel in frames, so a bulk lane is not worth it.
  if (memory_ != nullptr) {
    return connection_->Open(std::move(channel), nullptr, access_token(), member_.step(),
                             memory_->attachment(), may_miss);
  }
  connection_->Open(std::move(channel), WantsBulk() ? dialer_.Dial() : nullptr, access_token(),
                    member_.step(), 0, may_miss);
}

absl::StatusOr<std::shared_ptr<void>> Runtime::ShareGradients(const TensorView& gradients,
                                                              std::shared_ptr<void> owner) const {
  if (gradients.device.kind != DeviceKind::kCpu || device_.on_gpu()) {
    return absl::FailedPreconditionError("gradients on a GPU do not travel in shared memory");
  }
  if (!options_.shared_gradients) {
    return absl::FailedPreconditionError("shared gradients are off (GRADWIRE_SHARED_GRADIENTS)");
  }
  if (!metrics().shared_memory) {
    return absl::FailedPreconditionError("payloads do not travel in shared memory");
  }
  if (!options_.hook.TakesResults(gradients.dtype)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "hook ", options_.hook.ToString(), " computes with gradients of ", Name(gradients.dtype)));
  }
  return gradients_->Share({static_cast<std::byte*>(gradients.data), gradients.bytes()},
                           std::move(owner));
}

bool Runtime::LiesInSharedMemory(const GradBucket& bucket) {
  const TensorView buffer = bucket.buffer();
  return memory_ != nullptr && bucket.is_flat() && options_.hook.TakesResults(buffer.dtype) &&
         memory_->Has({static_cast<const std::byte*>(buffer.data), buffer.bytes()}, *gradients_);
}

absl::Status Runtime::Resolve(wire::Frame& frame) const {
  const auto* result = std::get_if<wire::Result>(&frame.header);
  if (result == nullptr || !(result->shared || result->in_place)) return absl::OkStatus();
  if (memory_ == nullptr)
    return Coded(ErrorCode::kBadAnswer,
                 absl::InternalError("the result is in shared memory, but none is shared"));
  absl::StatusOr<wire::PayloadRef> payload = memory_->Result(*result);
  if (!payload.ok()) return payload.status();
  frame.payload = *std::move(payload);
  return absl::OkStatus();
}

// A result in place has no payload; the size of its contribution says what the wire dtype takes.
std::size_t Runtime::WireBytes(const wire::Result& result, const wire::PayloadRef& payload) const {
  if (payload != nullptr) return payload->bytes();
  return memory_ == nullptr ? 0 : memory_->WireBytes(SharedMemory::KeyOf(result.id, result.chunk));
}

// In order of cost: the daemon reads the gradients themselves; the chunk is encoded into shared
// memory; it is encoded into a pooled buffer and travels in the stream.
absl::StatusOr<wire::PayloadRef> Runtime::Encode(const SendChunkEffect& effect,
                                                 std::optional<wire::SharedBytes>& shared) {
  const auto key = SharedMemory::KeyOf(effect.header.id, effect.header.chunk);
  const bool may_share =
      memory_ != nullptr && effect.bytes > wire::kInlineBytes && !effect.announce;
  // Also the short last chunk: what is beyond the window may not travel in the stream.
  const bool may_be_raw = may_share || (memory_ != nullptr && effect.header.chunk > 0);
  if (may_be_raw && options_.hook.OnlyCasts()) {
    const std::span<const std::byte> raw = effect.run->Raw(effect.range);
    const DType dtype = options_.parameters[effect.header.id.bucket].dtype;
    if (!raw.empty()) {
      shared =
          memory_->Find(key, raw, *gradients_, options_.hook.TakesResults(dtype), effect.bytes);
    }
    if (shared) return wire::PayloadRef();
  }
  if (may_share) {
    // Without a free block the chunk travels in the stream.
    if (auto block = memory_->Take(key, effect.bytes)) {
      if (absl::Status encoded = effect.run->Encode(effect.range, block->content); !encoded.ok()) {
        return encoded;
      }
      shared = block->where;
      return wire::PayloadRef();
    }
  }
  return device_.Encode(*effect.run, effect.range, effect.bytes);
}

void Runtime::On(SendChunkEffect& effect) {
  // An earlier effect of the same call may have failed the session and ended the runs.
  if (member_.failed() || !hook_error_.ok()) return;
  const Clock::time_point before = Clock::now();
  std::optional<wire::SharedBytes> shared;
  absl::StatusOr<wire::PayloadRef> payload = Encode(effect, shared);
  if (!payload.ok()) {
    hook_error_ = payload.status();
    return;
  }
  const BucketStats::Seconds spent = Clock::now() - before;
  {
    MutexLock lock(shared_mutex_);
    metrics_.bytes_sent += effect.bytes;
    metrics_.compress_seconds += spent.count();
    stats_.Compressed(effect.header.id.bucket, spent, effect.bytes);
  }
  if (shared && shared->raw && shared->takes_result) member_.Expose(effect.header.id.bucket);
  effect.header.shared = shared;
  auto send = [this, stream = stream_, effect = std::move(effect),
               payload = *std::move(payload)]() mutable {
    // After an error of the device the bytes are not those that were encoded.
    if (stream != stream_ || !device_.status().ok()) return;
    // An eager bucket: its announcement carries the contribution.
    if (effect.announce) {
      if (sends_digests_) effect.announce->digest = wire::Digest(payload.get());
      return connection_->Send(*std::move(effect.announce), std::move(payload));
    }
    if (sends_digests_) effect.header.digest = wire::Digest(payload.get());
    if (!effect.header.shared) times_.Sent(effect.header, Clock::now());
    connection_->Send(effect.header, std::move(payload));
  };
  if (IsActive(DeviceMutant::kChunkSentEarly)) return send();
  device_.queue().AfterDevice(std::move(send));
}

void Runtime::On(SendCollectiveEffect& effect) {
  if (collective_ == nullptr) return;
  auto buffer = device_.Take(effect.bytes);
  if (!buffer.ok()) {
    hook_error_ = buffer.status();
    return;
  }
  if (collective_->relay) {
    collective_->given.Read(effect.offset, (*buffer)->content());
  } else {
    std::memcpy((*buffer)->content().data(), collective_->data + effect.offset, effect.bytes);
  }
  device_.queue().InOrder([this, stream = stream_, header = effect.header, buffer = *buffer] {
    if (stream == stream_) connection_->Send(header, buffer);
  });
}

void Runtime::On(ReceiveCollectiveEffect& effect) {
  if (collective_ == nullptr) return;
  if (collective_->relay) return collective_->relay->came(effect.payload);
  std::byte* out = collective_->data + effect.offset;
  for (const std::span<const std::byte> piece : effect.payload->pieces()) {
    std::memcpy(out, piece.data(), piece.size());
    out += piece.size();
  }
}

}  // namespace gradwire::client
