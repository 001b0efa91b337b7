#include "client/runtime/runtime.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "client/core/leaf_weight.h"
#include "client/runtime/member_hook.h"
#include "client/transport/address_watch.h"
#include "client/transport/rejoin.h"
#include "gradwire/hooks/registry.h"
#include "proto/tls/access_token.h"
#include "proto/wire/rank_names.h"

namespace gradwire::client {
namespace {

// The daemon's error at its join deadline names the missing members, so this side waits longer.
constexpr std::chrono::seconds kJoinSlack(2);

// The longest sleep of the SDK thread: during a Leave, and at any time (the clock must not
// overflow).
constexpr std::chrono::milliseconds kWhileLeaving(10);
constexpr std::chrono::hours kLongestWait(1);
// How soon after it a member says that it waits (SayAway).
constexpr std::chrono::milliseconds kSays(500);

// From the name of a node group's communicator until its members have found each other.
constexpr std::chrono::seconds kGroupConnects(60);

// How often a GPU is asked whether it is done.
constexpr std::chrono::microseconds kDevicePoll(50);

MemberOptions CoreOptions(const ClientOptions& options, const JoinResult& membership,
                          const ShardPlace& shard, const MemberHook& hook) {
  return {.rank = membership.rank,
          .ranks = shard.ranks,
          .world_size = options.world_size,
          .generation = membership.generation,
          .step = membership.next_step,
          .chunk_bytes = membership.chunk_bytes,
          .window_chunks = membership.window_chunks,
          .eager_bytes = membership.eager_bytes,
          .draw_plan = membership.draw_plan,
          .parameter_digests = membership.parameter_digests,
          .shard = shard.number,
          .shards = shard.map,
          .manifest = options.parameters,
          .keep_gradients = options.keep_gradients,
          .device = hook.device,
          .ledger = hook.ledger,
          .misses_early = options.hook.OnlyCasts()};
}

DevicePath::Options PathOptions(const ClientOptions& options, const JoinResult& membership) {
  return {.chunk_bytes = membership.chunk_bytes,
          .keep_buffers = std::size_t{membership.window_chunks} * membership.open_buckets,
          .gradients_timeout = absl::ToChronoNanoseconds(options.step_timeout)};
}

GroupPath::Options GroupOptions(const ClientOptions& options) {
  return {.connect_timeout = kGroupConnects,
          .task_timeout = std::chrono::duration_cast<GroupPath::Clock::duration>(
              absl::ToChronoNanoseconds(options.step_timeout))};
}

// These keep a matrix for a bucket, or read the bucket as they like.
bool TakesWholeBuckets(const HookSpec& hook) {
  return !HookRegistry::IsBuiltIn(hook.comm_hook) || hook.comm_hook == "batched_power_sgd";
}

}  // namespace

Runtime::Runtime(ClientOptions options, Joined joined, std::uint64_t start_id, MemberHook hook,
                 ShardPlace shard, std::shared_ptr<EventQueue> events,
                 std::shared_ptr<Poller> poller)
    : options_(std::move(options)),
      membership_(std::move(joined.membership)),
      start_id_(start_id),
      device_(hook.device, PathOptions(options_, membership_)),
      group_(hook.device, std::move(hook.communicators), GroupOptions(options_)),
      hook_(std::move(hook.hook)),
      shards_(shard.map == nullptr ? 1 : shard.map->shards()),
      leads_(shard.number == 0),
      ranks_(shard.ranks),
      link_(std::move(shard.link)),
      dialer_(std::move(joined.dialer)),
      sends_digests_(!tls::IsThisHost(options_.address) && !dialer_.encrypts()),
      events_(std::move(events)),
      gradients_(shard.gradients != nullptr ? std::move(shard.gradients)
                                            : std::make_shared<GradientMemory>()),
      channel_(std::move(joined.channel)),
      access_token_(dialer_.access_token()),
      token_(membership_.token),
      step_(membership_.next_step),
      member_(CoreOptions(options_, membership_, shard, hook), hook_.get(),
              TakesWholeBuckets(options_.hook)),
      poller_(std::move(poller)),
      connection_(std::make_unique<DaemonConnection>(options_.address, membership_, start_id_,
                                                     events_, poller_)),
      given_address_(std::move(joined.given_address)),
      wish_(std::move(joined.wish)),
      times_(std::move(shard.window), membership_.window_chunks) {
  if (membership_.leaf) member_.SetNode(options_.local_rank, options_.local_world_size);
  ranks_now_.resize(static_cast<std::size_t>(options_.world_size));
  std::iota(ranks_now_.begin(), ranks_now_.end(), 0);
}

void Runtime::Run(std::shared_ptr<Outcome> joined) {
  joined_ = std::move(joined);
  join_deadline_ =
      Clock::now() + kJoinSlack +
      std::chrono::duration_cast<Clock::duration>(absl::ToChronoNanoseconds(options_.join_timeout));
  OpenStream(channel());
  connection_->PumpWrites();
  events_->Serve(*this);
}

// The daemon, which does not know yet why the session ends, has some time to hear it.
void Runtime::Stop() {
  stopping_ = true;
  if (!connection_->has_last_words()) connection_->Close(Clock::now());
}

Clock::time_point Runtime::OnIdle() {
  PollDevice();
  connection_->PumpWrites();
  // What PollDevice began may be work.
  return finished() || has_work() ? Clock::now() : NextTimer();
}

// One chunk of a large bucket.
void Runtime::DoWork() {
  Effects effects;
  member_.SendNext(effects);
  Apply(std::move(effects));
  connection_->PumpWrites();
}

void Runtime::OnTimer(Clock::time_point now, Clock::duration late) {
  // This process did not run for a while, so the silence meanwhile was not the daemon's fault.
  if (late > std::chrono::seconds(wire::kStandstillSeconds)) events_->ForgivePause(late);
  CheckTimers(now);
}

void Runtime::Handle(Event event, const ReadOn& read_on) {
  connection_->OnReadOn(read_on);
  if (auto* call = std::get_if<CallEvent>(&event)) {
    call->call();
  } else {
    OnStream(event);
  }
  connection_->PumpWrites();
}

void Runtime::OnStream(Event& event) {
  if (auto* frame = std::get_if<FrameEvent>(&event)) {
    if (is_lost_ || !connection_->OnHeard(frame->from)) return;
    OnFrame(std::move(frame->frame));
  } else if (auto* write = std::get_if<WriteEvent>(&event)) {
    connection_->OnWrite(write->from, write->ok);
  } else if (auto* read = std::get_if<ReadEndEvent>(&event)) {
    connection_->OnReadEnd(read->from);
  } else if (auto* end = std::get_if<StreamEndEvent>(&event)) {
    if (absl::Status status = connection_->OnStreamEnd(end->from, end->status); !status.ok()) {
      // The answer to the Leave says whether this is its end.
      const bool may_have_left = leaving_ && member_.outlives_daemon() && absl::IsNotFound(status);
      if (may_have_left) {
        ended_in_leave_ = status;
      } else {
        OnEnded(status);
      }
    } else if (looks_to_leave_ && connection_->ended_well()) {
      Left();
    }
  }
}

// One frame may report several consecutive results in place (`more`); the core takes one at a time.
void Runtime::OnFrame(absl::StatusOr<wire::Frame> received) {
  const auto* several = received.ok() ? std::get_if<wire::Result>(&received->header) : nullptr;
  if (several == nullptr || several->more == 0) return OnOneFrame(std::move(received));
  wire::Result one = *several;
  one.more = 0;
  for (std::uint32_t i = 0; i <= several->more && !member_.failed(); ++i) {
    one.chunk = several->chunk + i;
    // The daemon merged the times of all results, so they count once.
    one.reduce_nanoseconds = i == 0 ? several->reduce_nanoseconds : 0;
    OnOneFrame(wire::Frame{.header = one, .payload = received->payload});
  }
}

void Runtime::OnOneFrame(absl::StatusOr<wire::Frame> received) {
  if (received.ok()) {
    if (absl::Status whole = Resolve(*received); !whole.ok()) received = whole;
  }
  if (!received.ok()) {
    return Fail(Coded(ErrorCode::kBadAnswer,
                      absl::InternalError(absl::StrCat(
                          connection_->Daemon(),
                          " sent bytes that are no frame: ", received.status().message()))));
  }
  if (const auto* result = std::get_if<wire::Result>(&received->header)) {
    // TCP's 16-bit checksum misses about one corrupted segment in 65536, and a wrong gradient would
    // spread to the model unnoticed.
    if (sends_digests_ && wire::Digest(received->payload.get()) != result->digest) {
      return Fail(Coded(
          ErrorCode::kDigest,
          absl::DataLossError(absl::StrCat(
              "result ", result->chunk, " of bucket ", result->id.bucket, " in step ",
              result->id.step, " from ", connection_->Daemon(), " does not fit its digest"))));
    }
  } else if (const auto* welcome = std::get_if<wire::Welcome>(&received->header)) {
    MutexLock lock(shared_mutex_);
    if (welcome->resumed) ++metrics_.resumes;
  }
  Effects effects;
  const Clock::time_point before = Clock::now();
  const bool awaits = member_.awaits_welcome();
  if (const auto* result = std::get_if<wire::Result>(&received->header)) {
    times_.Received(*result, before);
    member_.SetWindow(times_.chunks());
    received->payload = device_.OnDevice(std::move(received->payload));
  }
  member_.Receive(*received, effects);
  if (std::holds_alternative<wire::Welcome>(received->header)) {
    MutexLock lock(shared_mutex_);
    metrics_.steps_reduced_again = member_.steps_reduced_again();
  }
  if (const auto* result = std::get_if<wire::Result>(&received->header)) {
    const BucketStats::Seconds spent = Clock::now() - before;
    const std::size_t bytes = WireBytes(*result, received->payload);
    // The result is decoded, so its contribution's block is free for another chunk.
    if (memory_) memory_->Release(SharedMemory::KeyOf(result->id, result->chunk));
    MutexLock lock(shared_mutex_);
    metrics_.bytes_received += bytes;
    metrics_.decompress_seconds += spent.count();
    stats_.Decompressed(result->id.bucket, spent, bytes);
    stats_.Reduced(result->id.bucket, std::chrono::nanoseconds(result->reduce_nanoseconds));
  }
  // Before a call that the effects complete asks for it.
  if (const auto* welcome = std::get_if<wire::Welcome>(&received->header)) {
    TellOthers(*welcome, awaits);
    TakeWeight();
  }
  Apply(std::move(effects));
}

void Runtime::CheckTimers(Clock::time_point now) {
  if (!welcomed_ && !member_.failed() && now > join_deadline_) {
    Fail(Coded(ErrorCode::kMissingMembers,
               absl::DeadlineExceededError(absl::StrCat(
                   connection_->Daemon(), " did not start session \"", options_.session,
                   "\" within ", absl::FormatDuration(options_.join_timeout)))));
  }
  SayAway(now);
  Watch(now);
  if (is_lost_) return;  // there is no connection
  if (absl::Status status = connection_->CheckTimers(now); !status.ok()) {
    if (MayJoinAgain(status)) return JoinAgain();
    Fail(Coded(ErrorCode::kOutcomeUnknown,
               absl::Status(status.code(),
                            absl::StrCat(status.message(), " (", member_.Progress(),
                                         "; outcome of step ", member_.step(), " unknown)"))));
  }
  if (leaving_ || !connection_->WantsStream(now)) return;
  // A new channel connects at once; the old one may wait in gRPC's reconnect backoff.
  OpenStream(NewChannel());
  Effects effects;
  if (welcomed_) member_.Resumed(effects);
  Apply(std::move(effects));
}

Clock::time_point Runtime::NextTimer() const {
  const Clock::time_point now = Clock::now();
  // While a Leave is in progress no new stream is opened, so its timers do not count.
  if (leaving_) return now + kWhileLeaving;
  if (!idle() && !device_.holds()) return now + kDevicePoll;
  const Clock::time_point latest = away_since_ && !said_ ? now + kSays : now + kLongestWait;
  if (is_lost_) return latest;
  Clock::time_point timer = std::min(connection_->NextTimer(), latest);
  if (group_.failed()) timer = std::min(timer, group_.fails_at());
  return welcomed_ || member_.failed() ? timer : std::min(timer, join_deadline_);
}

// A model whose chunks are all small has nothing for a second connection to carry.
bool Runtime::WantsBulk() const {
  std::size_t bytes = 0;
  for (const ParameterSpec& parameter : options_.parameters)
    bytes += parameter.numel() * ByteSize(parameter.dtype);
  return membership_.bulk_lane && connection_->may_have_bulk() &&
         std::min(bytes, membership_.chunk_bytes) > wire::kSmallPayload;
}

std::shared_ptr<grpc::Channel> Runtime::NewChannel() {
  auto channel = dialer_.Dial();
  MutexLock lock(shared_mutex_);
  channel_ = channel;
  access_token_ = dialer_.access_token();
  return channel;
}

// Chunks are encoded here and now: with its next call the core may forget or restart them.
void Runtime::Apply(Effects effects) {
  for (Effect& effect : effects) {
    std::visit([this](auto& e) { On(e); }, effect);
  }
  // After the loop, because Fail asks the core for further effects and applies them.
  if (!hook_error_.ok()) Fail(std::exchange(hook_error_, absl::OkStatus()));
}

// Frames keep the order in which the core asked for them, and chunks wait for the device.
void Runtime::On(SendFrameEffect& effect) {
  device_.queue().InOrder([this, stream = stream_, header = std::move(effect.header),
                           payload = std::move(effect.payload)] {
    if (stream == stream_) connection_->Send(header, payload);
  });
}

void Runtime::On(BucketDoneEffect& effect) {
  if (IsActive(DeviceMutant::kBucketDoneEarly)) return Finish(effect);
  device_.queue().AfterDevice([this, effect] { Finish(effect); });
}

// The device may have failed after the hook gave it the last work on the bucket.
void Runtime::Finish(const BucketDoneEffect& effect) {
  const auto found = buckets_.find(effect.ticket);
  if (found == buckets_.end()) return;
  const absl::Status status = effect.status.ok() ? device_.status() : effect.status;
  OpenBucket& entry = found->second;
  if (status.ok()) entry.alias.Scatter();
  if (status.ok()) SendReport(effect.bucket, effect.norms);
  if (auto done = std::exchange(entry.done, nullptr)) done->Complete(status);
}

// Called before the completion, so that a report which the program requests afterwards includes
// this reduction.
void Runtime::SendReport(std::uint32_t bucket, const std::optional<BucketNorms>& norms) {
  std::optional<wire::BucketReport> report;
  {
    MutexLock lock(shared_mutex_);
    report = stats_.Done(bucket, norms, Clock::now());
  }
  if (report && membership_.rank == 0 && !member_.awaits_welcome()) connection_->Send(*report);
}

// The verdict may precede the program's EndStep: the daemon ends a step as soon as all parameters
// are reduced. It is then kept for that call.
void Runtime::On(StepDoneEffect& effect) {
  if (link_.concluded) link_.concluded(effect);
  device_.queue().AfterDevice([this, effect] { Finish(effect); });
}

void Runtime::Finish(const StepDoneEffect& effect) {
  buckets_.clear();
  group_.EndStep();
  connection_->OnProgress();
  {
    MutexLock lock(shared_mutex_);
    // Buckets that the trainer has not come to are still those of the model.
    const std::int64_t missed = member_.missed_steps();
    if (std::exchange(metrics_.missed_steps, missed) == missed) stats_.EndStep();
    ++(effect.verdict == Verdict::kApply ? metrics_.steps_applied : metrics_.steps_skipped);
  }
  if (end_step_ == nullptr) {
    over_.push_back(effect);
  } else {
    Complete(*std::exchange(end_step_, nullptr), effect);
  }
}

void Runtime::Complete(StepCall& call, const StepDoneEffect& over) {
  step_.store(over.step + 1, std::memory_order_relaxed);
  Tell(over.change, over.ranks, over.reason, over.drift);
  call.verdict = over.verdict;
  call.outcome.Complete(absl::OkStatus());
}

void Runtime::On(WelcomeEffect& effect) {
  welcomed_ = true;
  if (effect.recovery) Outlive(*effect.recovery);
  {
    MutexLock lock(shared_mutex_);
    if (effect.recovery && effect.recovery->roster) ranks_now_ = effect.recovery->roster->ranks;
    // Behind a leaf, which is in a roster at the root.
    if (!effect.recovery && effect.change && !effect.change->ranks.empty()) {
      ranks_now_ = effect.change->ranks;
    }
  }
  if (effect.change) {
    step_.store(member_.step(), std::memory_order_relaxed);
    Tell(effect.change, {}, "", "");
  }
  if (hook_error_.ok()) joined_->Complete(absl::OkStatus());
}

absl::Status Runtime::Open() const {
  if (member_.failed()) return member_.failure();
  if (left()) {
    return Coded(ErrorCode::kClosed,
                 absl::FailedPreconditionError(
                     absl::StrCat("this member has left session \"", options_.session, "\"")));
  }
  if (leaving_ || looks_to_leave_ || hand_over_ != nullptr)
    return Coded(ErrorCode::kClosed,
                 absl::FailedPreconditionError("this member is about to leave"));
  return absl::OkStatus();
}

void Runtime::StartBucket(std::shared_ptr<GradBucket> bucket, std::unique_ptr<DeviceEvent> ready,
                          std::shared_ptr<Outcome> done) {
  device_.CallWithGradients(std::move(ready), [this, bucket = std::move(bucket),
                                               done = std::move(done)] { Begin(bucket, done); });
}

void Runtime::Begin(std::shared_ptr<GradBucket> bucket, std::shared_ptr<Outcome> done) {
  if (absl::Status open = Open(); !open.ok()) return done->Complete(open);
  // The step was lost with its daemon: EndStep will say so, and the gradients are of no use.
  if (!over_.empty() && over_.front().dropped) return done->Complete(absl::OkStatus());
  if (unhealed_) {
    return done->Complete(Coded(ErrorCode::kMembershipChanged,
                                absl::FailedPreconditionError(absl::StrCat(
                                    wire::NewRanks(unhealed_->newcomers), "; before step ", step(),
                                    " all members must take it from rank ", unhealed_->root,
                                    ", with a broadcast (gw.heal_)"))));
  }
  if (!over_.empty()) return done->Complete(TakePast(*bucket));
  const Ticket ticket = next_ticket_++;
  OpenBucket& entry = buckets_[ticket];
  entry = {.bucket = std::move(bucket), .done = std::move(done)};
  entry.alias = BucketAlias(*gradients_, *entry.bucket);
  // With several daemons each has a part of the bucket, and their client does this.
  if (weight() != 1 && shards_ == 1) Weigh(entry.bucket->buffer(), weight());
  // Copied now, because an effect may end the step and destroy the entry.
  const std::uint64_t bytes = entry.bucket->buffer().bytes();
  const Clock::time_point now = Clock::now();
  const std::uint32_t id = member_.BucketId(*entry.bucket).value_or(0);
  bool measure = false;
  {
    MutexLock lock(shared_mutex_);
    measure = !member_.grouped() && stats_.ShouldMeasure(id, now);
  }
  Effects effects;
  if (absl::Status started = member_.StartBucket(ticket, *entry.bucket, effects, measure);
      !started.ok()) {
    const std::shared_ptr<Outcome> refused = std::move(entry.done);
    buckets_.erase(ticket);
    return refused->Complete(started);
  }
  // Results overwrite these contributions, so no window bounds them, and one frame can announce
  // many.
  const bool in_place = !member_.grouped() && LiesInSharedMemory(*entry.bucket);
  if (in_place) member_.SendAhead(id);
  {
    MutexLock lock(shared_mutex_);
    metrics_.gradient_bytes += bytes;
    if (!member_.grouped()) {
      stats_.Begin(id, static_cast<std::uint32_t>(entry.bucket->parameters().size()), bytes, now);
      stats_.LiesInPlace(id, in_place);
    }
  }
  Apply(std::move(effects));
}

void Runtime::EndStep(std::shared_ptr<StepCall> call) {
  device_.Call(nullptr, [this, call = std::move(call)] { End(call); });
}

void Runtime::End(std::shared_ptr<StepCall> call) {
  // The step ended before this call (see StepDoneEffect), also if the session has failed since.
  const bool knows = !over_.empty() && member_.failed();
  if (absl::Status open = Open(); !open.ok() && !knows) return call->outcome.Complete(open);
  if (!over_.empty()) {
    absl::Status ended = member_.EndPast(over_.front().step);
    if (!ended.ok()) return call->outcome.Complete(ended);
    const StepDoneEffect over = std::move(over_.front());
    over_.pop_front();
    return Complete(*call, over);
  }
  Effects effects;
  if (absl::Status ended = member_.EndStep(effects); !ended.ok()) {
    return call->outcome.Complete(ended);
  }
  end_step_ = std::move(call);
  Apply(std::move(effects));
}

}  // namespace gradwire::client
