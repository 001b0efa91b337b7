#include "client/client_impl.h"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/thread_name.h"
#include "client/options.h"
#include "client/transport/event_queue.h"
#include "hooks/safetensors.h"

namespace gradwire {
namespace {

constexpr absl::Duration kBetweenLeaves = absl::Milliseconds(20);
constexpr std::chrono::seconds kLeaveInDestructor(2);
constexpr absl::Duration kStateTimeout = absl::Seconds(60);

// Gradients up to this size are encoded and their results read by the calling and waiting thread,
// because waking another thread takes longer.
constexpr std::size_t kLightBytes = std::size_t{64} << 10;

// Others may have to hear first how the last step ended.
void LeaveNow(const client::Runtime& runtime) {
  const auto deadline = std::chrono::steady_clock::now() + kLeaveInDestructor;
  while (true) {
    const auto left = deadline - std::chrono::steady_clock::now();
    const absl::Status answer = runtime.CallLeave(absl::FromChrono(left));
    const bool is_refused = absl::IsUnavailable(answer) &&
                            FindCode(std::string(answer.message())) == ErrorCode::kWrongMoment;
    if (!is_refused || std::chrono::steady_clock::now() >= deadline) return;
    absl::SleepFor(kBetweenLeaves);
  }
}

template <typename T>
absl::Status Take(const absl::StatusOr<T>& from, T& to) {
  if (from.ok()) to = *from;
  return from.status();
}

}  // namespace

ClientImpl::ClientImpl(ClientOptions options, client::Joined joined, std::uint64_t start_id,
                       client::MemberHook hook, client::ShardPlace shard)
    : rank_(joined.membership.rank),
      world_size_(options.world_size),
      parameters_(options.parameters.size()),
      device_id_(options.device),
      behind_leaf_(joined.membership.leaf),
      residuals_at_leaf_(hook.residuals_at_leaf),
      cuda_(hook.cuda),
      events_(std::make_shared<client::EventQueue>(std::size_t{joined.membership.window_chunks} *
                                                       joined.membership.open_buckets +
                                                   client::kSmallFrames)),
      poller_(client::Poller::Start()),
      runtime_(std::move(options), std::move(joined), start_id, std::move(hook), std::move(shard),
               events_, poller_) {}

// The Leave is a call of its own on this thread, so the SDK's thread keeps the stream alive with
// heartbeats until it is answered.
ClientImpl::~ClientImpl() {
  if (!thread_.joinable()) return;
  bool is_member = false;
  OnThread([&] {
    is_member = runtime_.CancelCalls();
    return absl::OkStatus();
  }).IgnoreError();
  if (is_member) LeaveNow(runtime_);
  events_->Push(client::CallEvent{[this] { runtime_.Stop(); }});
  thread_.join();
}

// Attaches the member. The outcome comes when all members have.
std::shared_ptr<client::Outcome> ClientImpl::Start() {
  auto joined = std::make_shared<client::Outcome>();
  thread_ = std::thread([this, joined] {
    NameThread("gradwire");
    runtime_.Run(joined);
  });
  return joined;
}

void ClientImpl::SayReady(Verdict verdict, std::uint64_t digest) {
  events_->Push(client::CallEvent{[this, verdict, digest] { runtime_.SayReady(verdict, digest); }});
}
void ClientImpl::ConcludeAs(const client::StepDoneEffect& lead) {
  events_->Push(client::CallEvent{[this, lead] { runtime_.ConcludeAs(lead); }});
}
void ClientImpl::Abandon(const absl::Status& status) {
  events_->Push(client::CallEvent{[this, status] { runtime_.Fail(status); }});
}
// Heavy: it may wait for the thread that joins.
void ClientImpl::AskToGather(std::uint32_t lost_shard, std::uint64_t number) {
  events_->Push(client::CallEvent{
      .call = [this, lost_shard, number] { runtime_.AskToGather(lost_shard, number); },
      .heavy = true});
}
void ClientImpl::RejoinWith(const wire::MemberReport& report) {
  events_->Push(client::CallEvent{[this, report] { runtime_.RejoinWith(report); }});
}
void ClientImpl::Follow(const client::ShardLife& life) {
  events_->Push(client::CallEvent{[this, life] { runtime_.Follow(life); }});
}
void ClientImpl::FailElsewhere(const absl::Status& status, int blamed_rank) {
  events_->Push(client::CallEvent{
      [this, status, blamed_rank] { runtime_.FailElsewhere(status, blamed_rank); }});
}

Completion ClientImpl::AllReduce(GradBucket& bucket, void* stream) {
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

absl::StatusOr<Verdict> ClientImpl::EndStep() {
  if (absl::Status may = MayWait("EndStep"); !may.ok()) return may;
  auto call = std::make_shared<client::StepCall>();
  events_->Push(client::CallEvent{[this, call] { runtime_.EndStep(call); }});
  call->outcome.ReadBy(poller_, /*light=*/true);
  if (absl::Status outcome = call->outcome.Wait(); !outcome.ok()) return outcome;
  return call->verdict;
}

void ClientImpl::EndStep(std::function<void(const absl::StatusOr<Verdict>&)> done) {
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

absl::Status ClientImpl::CheckParameters(std::uint64_t digest) {
  if (absl::Status may = MayWait("CheckParameters"); !may.ok()) return may;
  return OnThread([this, digest] { return runtime_.CheckParameters(digest); });
}

absl::Status ClientImpl::SetDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets) {
  if (absl::Status status = CheckDrawPlan(buckets, rank_, parameters_); !status.ok()) {
    return status;
  }
  events_->Push(client::CallEvent{[this, buckets] { runtime_.SetDrawPlan(buckets); }});
  return absl::OkStatus();
}

absl::Status ClientImpl::Broadcast(int root, void* data, std::size_t bytes) {
  if (data == nullptr && bytes > 0) {
    return Coded(ErrorCode::kBuffer, absl::InvalidArgumentError(
                                         absl::StrCat("data is null, but has ", bytes, " bytes")));
  }
  if (absl::Status may = MayWait("a broadcast or barrier"); !may.ok()) return may;
  return Enter(wire::CollectiveKind::kBroadcast, root, static_cast<std::byte*>(data), bytes)
      ->outcome.Wait();
}

absl::Status ClientImpl::Barrier() {
  if (absl::Status may = MayWait("a broadcast or barrier"); !may.ok()) return may;
  return EnterBarrier()->outcome.Wait();
}

void ClientImpl::Barrier(std::function<void(const absl::Status&)> done) {
  EnterBarrier()->outcome.OnDone(std::move(done));
}

void ClientImpl::Relay(client::RelayWish wish, std::function<void(const absl::Status&)> done) {
  auto call = std::make_shared<client::CollectiveCall>();
  call->kind = wire::CollectiveKind::kBroadcast;
  call->root = wish.root;
  call->bytes = wish.bytes;
  call->relay = std::move(wish);
  Enter(call);
  call->outcome.OnDone(std::move(done));
}

void ClientImpl::Give(wire::PayloadRef bytes) {
  events_->Push(client::CallEvent{[this, bytes = std::move(bytes)] { runtime_.Give(bytes); }});
}

void ClientImpl::MakeRoom(std::uint64_t bytes) {
  events_->Push(client::CallEvent{[this, bytes] { runtime_.MakeRoom(bytes); }});
}

std::shared_ptr<client::CollectiveCall> ClientImpl::EnterBarrier() {
  return Enter(wire::CollectiveKind::kBarrier, 0, nullptr, 0);
}

// The SDK's thread stops resuming the stream, this thread makes the RPC, and the SDK's thread
// closes the stream if the daemon agreed; if not, all this again.
absl::Status ClientImpl::Leave() {
  if (absl::Status may = MayWait("Leave"); !may.ok()) return may;
  if (runtime_.left()) return absl::OkStatus();
  using Leaving = client::Runtime::Leaving;
  const auto began = std::chrono::steady_clock::now();
  const auto waited = [&] { return absl::FromChrono(std::chrono::steady_clock::now() - began); };
  Leaving next = Leaving::kWaits;
  absl::Duration timeout;
  while (true) {
    absl::Status may = OnThread([&] {
      timeout = runtime_.LeaveTimeout();
      return Take(runtime_.BeginLeave(waited()), next);
    });
    if (may.ok() && next == Leaving::kAsks) {
      const absl::Status answer = runtime_.CallLeave(timeout);
      may = OnThread([&] { return Take(runtime_.FinishLeave(answer, waited()), next); });
    }
    if (!may.ok() || next == Leaving::kLeft) return may;
    absl::SleepFor(kBetweenLeaves);
  }
}

absl::StatusOr<HandOver> ClientImpl::HandOverAndLeave(absl::Duration timeout) {
  absl::StatusOr<HandOver> given = GiveResiduals(timeout);
  if (!given.ok()) return given;
  if (absl::Status left = Leave(); !left.ok()) return left;
  return given;
}

// A file is made here, and not on the SDK's thread, because that takes long.
absl::StatusOr<HandOver> ClientImpl::GiveResiduals(absl::Duration timeout) {
  if (runtime_.left()) return HandOver{};
  if (absl::Status may = MayWait("HandOverAndLeave"); !may.ok()) return may;
  const auto deadline = client::DeadlineAfter(timeout);
  absl::StatusOr<HookState> state;
  OnThread([this, &state] {
    state = runtime_.BeginHandOver();
    return absl::OkStatus();
  }).IgnoreError();
  if (!state.ok()) return Coded(ErrorCode::kState, state.status());
  const std::string file = state->tensors.empty() ? "" : WriteSafetensors(*state);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  auto call = std::make_shared<client::HandOverCall>();
  events_->Push(client::CallEvent{.call =
                                      [this, call, bytes] {
                                        runtime_.HandOver(call, {bytes.begin(), bytes.end()});
                                      },
                                  .heavy = true});
  // Until then it may still be under way.
  if (!call->outcome.WaitUntil(deadline).ok()) {
    OnThread([this, timeout] {
      runtime_.CancelHandOver(
          absl::StrCat("nobody has taken them within ", absl::FormatDuration(timeout)));
      return absl::OkStatus();
    }).IgnoreError();
  }
  if (absl::Status outcome = call->outcome.Wait(); !outcome.ok()) return outcome;
  return HandOver{.rank = call->rank < 0 ? std::nullopt : std::optional(call->rank),
                  .reason = call->reason};
}

absl::Status ClientImpl::RefuseBehindLeaf(const char* call) const {
  if (!behind_leaf_) return absl::OkStatus();
  return Coded(ErrorCode::kLeaf,
               absl::FailedPreconditionError(absl::StrCat(
                   call,
                   ": this member's daemon is a leaf, which runs the hook for its node; "
                   "allowed: with a daemon that is no leaf")));
}

absl::StatusOr<std::string> ClientImpl::ExportState() {
  if (absl::Status may = RefuseBehindLeaf("ExportState"); !may.ok()) return may;
  if (absl::Status may = MayCallBetweenSteps("ExportState"); !may.ok()) return may;
  return Coded(ErrorCode::kState, runtime_.CallExport(kStateTimeout));
}

absl::Status ClientImpl::ImportState(const std::string& state) {
  if (absl::Status may = RefuseBehindLeaf("ImportState"); !may.ok()) return may;
  if (absl::Status may = MayCallBetweenSteps("ImportState"); !may.ok()) return may;
  return Coded(ErrorCode::kState, runtime_.CallImport(state, kStateTimeout));
}

absl::StatusOr<HookState> ClientImpl::MemberState() {
  if (absl::Status may = MayWait("StateDict"); !may.ok()) return may;
  absl::StatusOr<HookState> state;
  OnThread([this, &state] {
    state = runtime_.State();
    return absl::OkStatus();
  }).IgnoreError();
  return Coded(ErrorCode::kState, std::move(state));
}

absl::Status ClientImpl::LoadMemberState(const HookState& state) {
  if (absl::Status may = MayWait("LoadStateDict"); !may.ok()) return may;
  return OnThread([this, &state] { return runtime_.LoadState(state); });
}

absl::StatusOr<std::string> ClientImpl::StateDict() {
  if (absl::Status may = RefuseBehindLeaf("StateDict"); !may.ok()) return may;
  const absl::StatusOr<HookState> state = MemberState();
  if (!state.ok()) return state.status();
  return WriteSafetensors(*state);
}

// Parsing takes long, so it is done here and not on the SDK's thread.
absl::Status ClientImpl::LoadStateDict(const std::string& state) {
  if (absl::Status may = RefuseBehindLeaf("LoadStateDict"); !may.ok()) return may;
  if (absl::Status may = MayWait("LoadStateDict"); !may.ok()) return may;
  const absl::StatusOr<HookState> read = ReadSafetensors(state);
  if (!read.ok()) return Coded(ErrorCode::kState, read.status());
  return LoadMemberState(*read);
}

absl::Status ClientImpl::SetLossScale(double scale) {
  if (!std::isfinite(scale) || scale <= 0) {
    return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                         "scale is ", scale, "; allowed: finite and above 0")));
  }
  if (residuals_at_leaf_) {
    if (absl::Status may = RefuseBehindLeaf("SetLossScale"); !may.ok()) return may;
  }
  if (absl::Status may = MayWait("SetLossScale"); !may.ok()) return may;
  return OnThread([this, scale] { return runtime_.SetLossScale(scale); });
}

// A callback runs inside the event handler, and only that handler could complete the call.
absl::Status ClientImpl::MayWait(const char* call) const {
  if (!events_->OnThisThread()) return absl::OkStatus();
  return Coded(ErrorCode::kWrongMoment,
               absl::FailedPreconditionError(
                   absl::StrCat(call, " in a completion's callback would wait for itself")));
}

absl::Status ClientImpl::MayCallBetweenSteps(const char* call) {
  if (absl::Status may = MayWait(call); !may.ok()) return may;
  return OnThread([this, call] { return runtime_.BetweenSteps(call); });
}

std::shared_ptr<client::CollectiveCall> ClientImpl::Enter(wire::CollectiveKind kind, int root,
                                                          std::byte* data, std::size_t bytes) {
  auto call = std::make_shared<client::CollectiveCall>();
  call->kind = kind;
  call->root = root;
  call->data = data;
  call->bytes = bytes;
  Enter(call);
  return call;
}

void ClientImpl::Enter(const std::shared_ptr<client::CollectiveCall>& call) {
  events_->Push(client::CallEvent{[this, call] { runtime_.Enter(call); }});
  call->outcome.ReadBy(poller_, call->bytes <= kLightBytes);
}

}  // namespace gradwire
