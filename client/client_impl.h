// The SDK's client of one daemon.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/member_client.h"
#include "client/runtime/member_hook.h"
#include "client/runtime/runtime.h"

namespace gradwire {
namespace client {

// How long Join waits for other members before it says so: some ranks are always slower to start.
inline constexpr std::chrono::seconds kSilentWaitForMembers(3);

}  // namespace client

// Of one daemon. Threads and failure: as Client.
class ClientImpl final : public client::MemberClient {
 public:
  ClientImpl(ClientOptions options, client::Joined joined, std::uint64_t start_id,
             client::MemberHook hook, client::ShardPlace shard = {});
  ~ClientImpl() override;

  // ---- As MemberClient's.
  std::shared_ptr<client::Outcome> Start() override;
  void FailElsewhere(const absl::Status& status, int blamed_rank) override;
  void Barrier(std::function<void(const absl::Status&)> done) override;
  void Relay(client::RelayWish wish, std::function<void(const absl::Status&)> done) override;
  void Give(wire::PayloadRef bytes) override;
  void MakeRoom(std::uint64_t bytes) override;

  // ---- Of a session with several shards: as Member's. From any thread, without waiting.
  void SayReady(Verdict verdict, std::uint64_t digest);
  void ConcludeAs(const client::StepDoneEffect& lead);
  // The member has failed by itself: the others go on without it.
  void Abandon(const absl::Status& status);
  // As Runtime's.
  void AskToGather(std::uint32_t lost_shard, std::uint64_t number);
  void RejoinWith(const wire::MemberReport& report);
  void Follow(const client::ShardLife& life);

  // Begins a barrier; its outcome comes when all members have entered.
  std::shared_ptr<client::CollectiveCall> EnterBarrier();
  // StateDict and LoadStateDict without a file.
  absl::StatusOr<HookState> MemberState();
  absl::Status LoadMemberState(const HookState& state);

  // The first part of HandOverAndLeave. Until BeginLeave no step may begin. An error is one for
  // which the member cannot leave, either.
  absl::StatusOr<HandOver> GiveResiduals(absl::Duration timeout);

  // A callback runs inside the event handler, and only that handler could complete the call.
  absl::Status MayWait(const char* call) const;
  absl::Status MayCallBetweenSteps(const char* call);
  // What LeafWeight says of this member.
  double weight() const { return runtime_.weight(); }

  // ---- As Client's.
  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::vector<int> members() const override { return runtime_.members(); }
  std::int64_t step() const override { return runtime_.step(); }
  std::optional<MembershipChange> membership_change() const override {
    return runtime_.membership_change();
  }
  std::string skip_reason() const override { return runtime_.skip_reason(); }
  absl::Status CheckParameters(std::uint64_t digest) override;
  std::string parameter_drift() const override { return runtime_.parameter_drift(); }
  ClientMetrics metrics() const override { return runtime_.metrics(); }
  std::vector<BucketReport> Report() const override { return runtime_.Report(); }
  Completion AllReduce(GradBucket& bucket, void* stream) override;
  std::shared_ptr<std::byte> AllocateGradients(std::size_t bytes) override {
    return runtime_.AllocateGradients(bytes);
  }
  using Client::ShareGradients;
  absl::StatusOr<std::shared_ptr<void>> ShareGradients(const TensorView& gradients,
                                                       std::shared_ptr<void> owner) override {
    return runtime_.ShareGradients(gradients, std::move(owner));
  }
  absl::StatusOr<Verdict> EndStep() override;
  void EndStep(std::function<void(const absl::StatusOr<Verdict>&)> done) override;
  absl::Status SetDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets) override;
  absl::Status Broadcast(int root, void* data, std::size_t bytes) override;
  absl::Status Barrier() override;
  absl::Status Leave() override;
  absl::StatusOr<HandOver> HandOverAndLeave(absl::Duration timeout) override;
  absl::StatusOr<std::string> ExportState() override;
  absl::Status ImportState(const std::string& state) override;
  absl::StatusOr<std::string> StateDict() override;
  absl::Status LoadStateDict(const std::string& state) override;
  absl::Status SetLossScale(double scale) override;

 private:
  std::shared_ptr<client::CollectiveCall> Enter(wire::CollectiveKind kind, int root,
                                                std::byte* data, std::size_t bytes);
  void Enter(const std::shared_ptr<client::CollectiveCall>& call);

  // Of what only the leaf has, for its whole node.
  absl::Status RefuseBehindLeaf(const char* call) const;

  template <typename Function>
  absl::Status OnThread(Function function) {
    auto outcome = std::make_shared<client::Outcome>();
    events_->Push(client::CallEvent{[function, outcome] { outcome->Complete(function()); }});
    return outcome->Wait();
  }

  const int rank_;
  const int world_size_;
  const std::size_t parameters_;
  const DeviceId device_id_;
  const bool behind_leaf_;
  const bool residuals_at_leaf_;
  const std::optional<CudaLibrary> cuda_;
  const std::shared_ptr<client::EventQueue> events_;
  const std::shared_ptr<client::Poller> poller_;
  client::Runtime runtime_;
  std::thread thread_;
};

}  // namespace gradwire
