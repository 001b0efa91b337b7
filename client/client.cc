#include "gradwire/client.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/thread_name.h"
#include "client/options.h"
#include "client/runtime/completion.h"
#include "client/runtime/join.h"
#include "client/runtime/runtime.h"
#include "client/transport/channel.h"
#include "client/transport/event_queue.h"
#include "hooks/safetensors.h"

namespace gradwire {
namespace {

constexpr absl::Duration kLeaveTimeout = absl::Seconds(10);
constexpr absl::Duration kLeaveInDestructorTimeout = absl::Seconds(2);
constexpr absl::Duration kStateTimeout = absl::Seconds(60);
constexpr std::chrono::seconds kSilentWaitForMembers(3);  // some ranks are always slower to start

// Gradients up to this size are encoded and their results read by the calling and waiting thread,
// because waking another thread takes longer.
constexpr std::size_t kLightBytes = std::size_t{64} << 10;

std::uint64_t DrawStartId() {
  std::random_device device;
  std::uniform_int_distribution<std::uint64_t> any(1);
  return any(device);
}

}  // namespace

class ClientImpl final : public Client {
 public:
  ClientImpl(ClientOptions options, client::JoinResult membership, std::uint64_t start_id,
             client::MemberHook hook, client::Dialer dialer, std::shared_ptr<grpc::Channel> channel)
      : rank_(membership.rank),
        world_size_(options.world_size),
        parameters_(options.parameters.size()),
        device_id_(options.device),
        cuda_(hook.cuda),
        events_(std::make_shared<client::EventQueue>(std::size_t{membership.window_chunks} *
                                                         membership.open_buckets +
                                                     client::kSmallFrames)),
        poller_(client::Poller::Start()),
        runtime_(std::move(options), std::move(membership), start_id, std::move(hook),
                 std::move(dialer), std::move(channel), events_, poller_) {}

  // The Leave is a call of its own on this thread, so the SDK's thread keeps the stream alive with
  // heartbeats until it is answered.
  ~ClientImpl() override {
    if (!thread_.joinable()) return;
    bool is_member = false;
    OnThread([&] {
      is_member = runtime_.CancelCalls();
      return absl::OkStatus();
    }).IgnoreError();
    if (is_member) runtime_.CallLeave(kLeaveInDestructorTimeout).IgnoreError();
    events_->Push(client::CallEvent{[this] { runtime_.Stop(); }});
    thread_.join();
  }

  // Waits until all members have joined. `still_waiting` is called once, if that takes long.
  absl::Status Start(const std::function<void()>& still_waiting) {
    auto joined = std::make_shared<client::Outcome>();
    thread_ = std::thread([this, joined] {
      NameThread("gradwire");
      runtime_.Run(joined);
    });
    joined->WaitUntil(std::chrono::steady_clock::now() + kSilentWaitForMembers).IgnoreError();
    if (!joined->done()) still_waiting();
    return joined->Wait();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::int64_t step() const override { return runtime_.step(); }
  ClientMetrics metrics() const override { return runtime_.metrics(); }
  std::vector<BucketReport> Report() const override { return runtime_.Report(); }

  Completion AllReduce(GradBucket& bucket, void* stream) override {
    auto state = std::make_shared<Completion::State>();
    if (const DeviceId device = bucket.buffer().device; device != device_id_) {
      state->Complete(Coded(ErrorCode::kBuffer, absl::InvalidArgumentError(absl::StrCat(
                                                    "the bucket's device is ", Name(device),
                                                    "; allowed: ", Name(device_id_),
                                                    ", the device of this client's options"))));
      return Completion(state);
    }
    // Recorded on this thread, which gives the stream its work. Shared, because a call must be
    // copyable.
    auto ready = std::make_shared<std::unique_ptr<DeviceEvent>>();
    if (cuda_) *ready = cuda_->Record(device_id_.index, stream);
    // The bucket is copied (not its buffer), because the caller's object may be gone before the
    // event is handled.
    const bool light = !cuda_ && bucket.buffer().bytes() <= kLightBytes;
    events_->Push(
        client::CallEvent{.call = [this, copy = std::make_shared<GradBucket>(bucket), ready,
                                   state] { runtime_.StartBucket(copy, std::move(*ready), state); },
                          .heavy = !light});
    state->ReadBy(poller_, light);
    return Completion(state);
  }

  std::shared_ptr<std::byte> AllocateGradients(std::size_t bytes) override {
    return runtime_.AllocateGradients(bytes);
  }

  using Client::ShareGradients;
  absl::StatusOr<std::shared_ptr<void>> ShareGradients(const TensorView& gradients,
                                                       std::shared_ptr<void> owner) override {
    return runtime_.ShareGradients(gradients, std::move(owner));
  }

  absl::StatusOr<Verdict> EndStep() override {
    if (absl::Status may = MayWait("EndStep"); !may.ok()) return may;
    auto call = std::make_shared<client::StepCall>();
    events_->Push(client::CallEvent{[this, call] { runtime_.EndStep(call); }});
    call->outcome.ReadBy(poller_, /*light=*/true);
    if (absl::Status outcome = call->outcome.Wait(); !outcome.ok()) return outcome;
    return call->verdict;
  }

  void EndStep(std::function<void(const absl::StatusOr<Verdict>&)> done) override {
    auto call = std::make_shared<client::StepCall>();
    events_->Push(client::CallEvent{[this, call, done = std::move(done)] {
      // Only the outcome holds `done`, and only the runtime the outcome.
      call->outcome.OnDone([step = call.get(), done](const absl::Status& outcome) {
        done(outcome.ok() ? absl::StatusOr<Verdict>(step->verdict) : outcome);
      });
      runtime_.EndStep(call);
    }});
    call->outcome.ReadBy(poller_, /*light=*/false);
  }

  absl::Status SetDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets) override {
    if (absl::Status status = CheckDrawPlan(buckets, rank_, parameters_); !status.ok()) {
      return status;
    }
    events_->Push(client::CallEvent{[this, buckets] { runtime_.SetDrawPlan(buckets); }});
    return absl::OkStatus();
  }

  absl::Status Broadcast(int root, void* data, std::size_t bytes) override {
    if (data == nullptr && bytes > 0) {
      return Coded(ErrorCode::kBuffer, absl::InvalidArgumentError(absl::StrCat(
                                           "data is null, but has ", bytes, " bytes")));
    }
    return Collective(wire::CollectiveKind::kBroadcast, root, static_cast<std::byte*>(data), bytes);
  }

  absl::Status Barrier() override {
    return Collective(wire::CollectiveKind::kBarrier, 0, nullptr, 0);
  }

  // Three parts: the SDK's thread stops resuming the stream, this thread makes the RPC, and the
  // SDK's thread closes the stream if the daemon agreed.
  absl::Status Leave() override {
    if (absl::Status may = MayWait("Leave"); !may.ok()) return may;
    if (runtime_.left()) return absl::OkStatus();
    if (absl::Status begun = OnThread([this] { return runtime_.BeginLeave(); }); !begun.ok()) {
      return begun;
    }
    absl::Status answer = runtime_.CallLeave(kLeaveTimeout);
    return OnThread([this, &answer] {
      runtime_.FinishLeave(answer);
      return answer;
    });
  }

  absl::StatusOr<std::string> ExportState() override {
    if (absl::Status may = MayCallBetweenSteps("ExportState"); !may.ok()) return may;
    return Coded(ErrorCode::kState, runtime_.CallExport(kStateTimeout));
  }

  absl::Status ImportState(const std::string& state) override {
    if (absl::Status may = MayCallBetweenSteps("ImportState"); !may.ok()) return may;
    return Coded(ErrorCode::kState, runtime_.CallImport(state, kStateTimeout));
  }

  absl::StatusOr<std::string> StateDict() override {
    if (absl::Status may = MayWait("StateDict"); !may.ok()) return may;
    absl::StatusOr<HookState> state;
    OnThread([this, &state] {
      state = runtime_.State();
      return absl::OkStatus();
    }).IgnoreError();
    if (!state.ok()) return Coded(ErrorCode::kState, state.status());
    return WriteSafetensors(*state);
  }

  // Parsing takes long, so it is done here and not on the SDK's thread.
  absl::Status LoadStateDict(const std::string& state) override {
    if (absl::Status may = MayWait("LoadStateDict"); !may.ok()) return may;
    const absl::StatusOr<HookState> read = ReadSafetensors(state);
    if (!read.ok()) return Coded(ErrorCode::kState, read.status());
    return OnThread([this, &read] { return runtime_.LoadState(*read); });
  }

  absl::Status SetLossScale(double scale) override {
    if (!std::isfinite(scale) || scale <= 0) {
      return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                           "scale is ", scale, "; allowed: finite and above 0")));
    }
    if (absl::Status may = MayWait("SetLossScale"); !may.ok()) return may;
    return OnThread([this, scale] { return runtime_.SetLossScale(scale); });
  }

 private:
  absl::Status MayCallBetweenSteps(const char* call) {
    if (absl::Status may = MayWait(call); !may.ok()) return may;
    return OnThread([this, call] { return runtime_.BetweenSteps(call); });
  }

  // A callback runs inside the event handler, and only that handler could complete the call.
  absl::Status MayWait(const char* call) const {
    if (!events_->OnThisThread()) return absl::OkStatus();
    return Coded(ErrorCode::kWrongMoment,
                 absl::FailedPreconditionError(
                     absl::StrCat(call, " in a completion's callback would wait for itself")));
  }

  absl::Status Collective(wire::CollectiveKind kind, int root, std::byte* data, std::size_t bytes) {
    if (absl::Status may = MayWait("a broadcast or barrier"); !may.ok()) return may;
    auto call = std::make_shared<client::CollectiveCall>();
    call->kind = kind;
    call->root = root;
    call->data = data;
    call->bytes = bytes;
    events_->Push(client::CallEvent{[this, call] { runtime_.Enter(call); }});
    call->outcome.ReadBy(poller_, bytes <= kLightBytes);
    return call->outcome.Wait();
  }

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
  const std::optional<CudaLibrary> cuda_;
  const std::shared_ptr<client::EventQueue> events_;
  const std::shared_ptr<client::Poller> poller_;
  client::Runtime runtime_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Join(const ClientOptions& options) {
  if (absl::Status valid = options.Validate(); !valid.ok()) {
    return Coded(ErrorCode::kOption, valid);
  }
  ClientOptions effective = WithEnvironment(options);
  absl::StatusOr<client::MemberHook> hook = client::MakeMemberHook(effective);
  if (!hook.ok()) return Coded(ErrorCode::kOption, hook.status());
  return Coded(ErrorCode::kJoin, client::JoinWith(std::move(effective), *std::move(hook)));
}

// The start id identifies this attempt: a repeated Join with the same id gets the same token, while
// a new process that takes over the rank has another id.
absl::StatusOr<std::unique_ptr<Client>> client::JoinWith(ClientOptions effective,
                                                         client::MemberHook hook) {
  const std::uint64_t start_id = DrawStartId();
  client::GroupWish wish;
  if (hook.communicators != nullptr) {
    wish = {.name = hook.node_group, .communicator = hook.communicators->name()};
  }
  absl::StatusOr<client::Joined> place = client::JoinNearest(effective, wish, start_id);
  if (!place.ok()) return place.status();
  const std::string waiting =
      absl::StrCat("rank ", place->membership.rank, " waits up to ",
                   absl::FormatDuration(effective.join_timeout), " for all ", effective.world_size,
                   " members of session \"", effective.session,
                   "\" to join; gradwirectl status names the missing ones");
  // Removed from the options, because the function may refer to objects that live only until Join
  // returns.
  const auto on_wait = std::exchange(effective.on_wait, nullptr);
  auto joined = std::make_unique<ClientImpl>(std::move(effective), std::move(place->membership),
                                             start_id, std::move(hook), std::move(place->dialer),
                                             std::move(place->channel));
  if (absl::Status started = joined->Start([&] { SayWait(on_wait, waiting); }); !started.ok()) {
    return started;
  }
  return joined;
}

}  // namespace gradwire
