// The member core and its rooms with a hook that remembers, and without a coordinator.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/core/bucket_run.h"
#include "client/core/member.h"
#include "gradwire/hooks/registry.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::client {

// Parameters w: 1 chunk of 64 bytes, b: 3 chunks, e: none. The second of two members.
inline MemberOptions SmallOptions() {
  return {
      .rank = 1,
      .world_size = 2,
      .generation = 7,
      .chunk_bytes = 64,
      .window_chunks = 2,
      .manifest = {
          {"w", {16}, DType::kFloat32}, {"b", {40}, DType::kFloat32}, {"e", {0}, DType::kFloat32}}};
}

// A hook of one round that remembers what it was told; its wire bytes are the gradient's.
class RecordingHook final : public HookBase {
 public:
  explicit RecordingHook(bool empty_round_first = false) : empty_first_(empty_round_first) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t) const override {
    std::size_t numel = 0;
    for (const ParameterSpec& parameter : parameters) numel += parameter.numel();
    std::vector<RoundPlan> plans;
    if (empty_first_) plans.push_back({{Segment{DType::kFloat32, 0, ReduceOp::kSum}}});
    plans.push_back({{Segment{DType::kFloat32, numel, ReduceOp::kSum}}});
    return plans;
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override;
  void Forget(std::span<const std::string> parameters) override {
    forgotten.insert(forgotten.end(), parameters.begin(), parameters.end());
  }

  std::vector<std::string> forgotten;  // parameters
  int commits = 0;
  int aborts = 0;
  std::vector<std::size_t> decoded;  // beginnings of ranges
  absl::Status decode_status;

 private:
  bool empty_first_;
};

class RecordingRun final : public HookRunBase {
 public:
  RecordingRun(RecordingHook& hook, std::vector<RoundPlan> plans, TensorView buffer)
      : hook_(hook), plans_(std::move(plans)), buffer_(buffer) {}
  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext&) override {
    if (next_ == plans_.size()) return std::optional<RoundPlan>();
    return std::optional<RoundPlan>(plans_[next_++]);
  }
  absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
    std::memcpy(out.data(), static_cast<float*>(buffer_.data) + range.begin, out.size());
    return absl::OkStatus();
  }
  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
    hook_.decoded.push_back(range.begin);
    std::memcpy(static_cast<float*>(buffer_.data) + range.begin, in.data(), in.size());
    return hook_.decode_status;
  }
  void Commit() override { ++hook_.commits; }
  void Abort() override { ++hook_.aborts; }

 private:
  RecordingHook& hook_;
  const std::vector<RoundPlan> plans_;
  const TensorView buffer_;
  std::size_t next_ = 0;
};

inline absl::StatusOr<std::unique_ptr<HookRun>> RecordingHook::Start(GradBucket& bucket,
                                                                     std::int64_t step) {
  return std::make_unique<RecordingRun>(*this, *Plan(bucket.parameters(), step), bucket.buffer());
}

inline wire::PayloadRef Bytes(std::size_t count) {
  return wire::OwnedPayload::Make(std::vector<std::byte>(count));
}

// Collects effects. Chunks are encoded when they are handed out.
class EffectsTest : public testing::Test {
 protected:
  explicit EffectsTest(MemberOptions options = SmallOptions()) : options_(std::move(options)) {}

  // A bucket of parameters of the manifest, full of ones; it and its memory stay.
  GradBucket& Bucket(const std::vector<std::size_t>& parameters) {
    std::vector<ParameterSpec> specs;
    std::size_t numel = 0;
    for (std::size_t p : parameters) {
      specs.push_back(options_.manifest[p]);
      numel += specs.back().numel();
    }
    return Bucket(specs, numel);
  }
  GradBucket& Bucket(const std::vector<ParameterSpec>& specs, std::size_t numel) {
    buffers_.emplace_back(numel, 1.0F);
    buckets_.push_back(
        *GradBucket::Make(0, {DType::kFloat32, buffers_.back().data(), numel}, specs));
    return buckets_.back();
  }

  void Take(Effects effects) {
    for (Effect& effect : effects) {
      if (auto* chunk = std::get_if<SendChunkEffect>(&effect)) {
        std::vector<std::byte> out(chunk->bytes);
        EXPECT_TRUE(chunk->run->Encode(chunk->range, out).ok());
      }
      effects_.push_back(std::move(effect));
    }
  }
  // The effects of one kind since the last call.
  template <class T>
  std::vector<T> Drain() {
    std::vector<T> found;
    for (const Effect& effect : effects_) {
      if (const T* one = std::get_if<T>(&effect)) found.push_back(*one);
    }
    effects_.clear();
    return found;
  }
  template <class T>
  std::vector<T> DrainSent() {
    std::vector<T> found;
    for (const SendFrameEffect& effect : Drain<SendFrameEffect>()) {
      if (const T* header = std::get_if<T>(&effect.header)) found.push_back(*header);
    }
    return found;
  }

  MemberOptions options_;
  RecordingHook hook_;
  std::deque<std::vector<float>> buffers_;
  std::deque<GradBucket> buckets_;
  std::vector<Effect> effects_;
};

class MemberTest : public EffectsTest {
 protected:
  explicit MemberTest(MemberOptions options = SmallOptions()) : EffectsTest(std::move(options)) {
    member_.emplace(options_, &hook_);
  }

  absl::Status Start(const std::vector<std::size_t>& parameters) {
    return StartBucket(Bucket(parameters));
  }
  absl::Status StartBucket(GradBucket& bucket) {
    Effects effects;
    absl::Status status = member_->StartBucket(++ticket_, bucket, effects);
    Take(std::move(effects));
    return status;
  }
  void Receive(wire::Header header, wire::PayloadRef payload = nullptr) {
    Effects effects;
    member_->Receive({std::move(header), std::move(payload)}, effects);
    Take(std::move(effects));
  }
  void Grant(std::uint32_t bucket) { Receive(wire::Grant{{.bucket = bucket}}); }
  void Result(std::uint32_t bucket, std::uint32_t chunk, std::size_t bytes = 64) {
    Receive(wire::Result{.id = {.bucket = bucket}, .chunk = chunk}, Bytes(bytes));
  }
  std::string Message() const { return std::string(member_->failure().message()); }

  std::optional<Member> member_;
  Ticket ticket_ = 0;
};

}  // namespace gradwire::client
