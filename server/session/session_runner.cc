#include "server/session/session_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/merge.h"
#include "proto/wire/proto_conversion.h"
#include "server/record/session_recording.h"
#include "server/rpc/clock.h"
#include "server/session/leaf_session.h"
#include "server/session/log_scope.h"
#include "server/session/outgoing.h"
#include "server/session/session_memory.h"

namespace gradwire::server {
namespace {

std::uint64_t Elements(const SessionOptions& options) {
  std::uint64_t numel = 0;
  for (const ParameterSpec& parameter : options.manifest) numel += parameter.numel();
  return numel;
}

v1::ShardStatus ShardOf(const SessionOptions& options) {
  v1::ShardStatus status;
  const ShardPlace& shard = options.shard;
  if (shard.count() == 1) return status;
  status.set_shard(shard.number);
  for (const std::string& address : shard.addresses) status.add_addresses(address);
  status.set_slices(shard.map->has_slices());
  std::uint64_t bytes = 0;
  for (std::uint32_t p = 0; p < options.manifest.size(); ++p) {
    if (!shard.Owns(p)) continue;
    const ParameterSpec& parameter = options.manifest[p];
    bytes += parameter.numel() * ByteSize(parameter.dtype);
  }
  // A bucket's last slice is a little larger.
  status.set_gradient_bytes(status.slices() ? bytes / shard.count() : bytes);
  if (!status.slices()) status.set_tensors(shard.ParametersOf(options.manifest.size()));
  return status;
}

bool MergeResults(wire::Result& last, const wire::Result& next) {
  wire::Header merged = last;
  if (!wire::Merge(merged, next)) return false;
  last = std::get<wire::Result>(merged);
  return true;
}

// The segment of results, and the limits on members' memory.
SessionMemory::Options MemoryOptions(const SessionOptions& options, std::uint64_t gradient_bytes,
                                     std::shared_ptr<MemoryQuotas> quotas) {
  // A model in flat buffers and once more while they are rebuilt.
  constexpr std::size_t kCopies = 2;
  constexpr std::size_t kMargin = std::size_t{1} << 20;
  return {.block_bytes = options.BlockBytes(),
          .blocks = options.ResultBlocks(),
          .staging_bytes = options.StagingBytes(),
          .gradient_bytes = kCopies * static_cast<std::size_t>(gradient_bytes) + kMargin,
          .claim_timeout = options.token_timeout,
          .quotas = std::move(quotas)};
}

}  // namespace

SessionRunner::SessionRunner(SessionOptions options, std::unique_ptr<CoordinatorHook> hook,
                             SessionHost host, absl::Time now)
    : options_(options),
      parameters_(Elements(options)),
      gradient_bytes_(options.manifest.GradientBytes()),
      shard_(ShardOf(options)),
      state_file_bytes_(StateFileBytes(hook.get(), options.manifest)),
      files_(options.name, options.world_size),
      memory_(std::make_shared<SessionMemory>(
          MemoryOptions(options, gradient_bytes_, host.memory_quotas))),
      host_(std::move(host)),
      recording_(host_.record == nullptr
                     ? nullptr
                     : std::make_shared<SessionRecording>(options_, host_.record)),
      core_(std::move(options), std::move(hook), now),
      current_(static_cast<std::size_t>(options_.world_size)),
      attached_(current_.size()),
      uses_(current_.size()) {}

// Two joins for one rank may return to the registry in any order; `number` says which one the core
// admitted last.
absl::StatusOr<std::optional<SessionRunner::Admission>> SessionRunner::Join(
    const JoinAsk& ask, absl::Time now, const QuotaHolder& holder) {
  Work work;
  absl::StatusOr<int> rank;
  std::uint64_t number = 0;
  const absl::Status same = options_.CheckSame(ask);  // slow, so without the lock
  {
    MutexLock lock(mutex_);
    // The registry then tries again, with a new session of this name.
    if (IsEnd(core_.state())) return std::nullopt;
    // Before the core admits it, so that a refusal leaves nothing behind. Who repeats a join has
    // its use already, and a wrong join is the core's to refuse.
    QuotaLedger::Use use;
    if (host_.ledger != nullptr && same.ok() && !core_.HasPlace(ask.start_id)) {
      absl::StatusOr<QuotaLedger::Use> taken = host_.ledger->AddMember(holder, options_.name);
      if (!taken.ok()) return taken.status();
      use = *std::move(taken);
    }
    Effects effects;
    rank = core_.Join(ask, same, now, effects);
    number = ++admissions_;
    if (rank.ok() && use.held()) {
      uses_[static_cast<std::size_t>(*rank)] = {.member = std::move(use), .lane = {}};
    }
    Execute(std::move(effects), work);
  }
  Finish(std::move(work));
  if (!rank.ok()) return rank.status();
  return Admission{.rank = *rank, .number = number};
}

bool SessionRunner::GrantLane(int rank, std::uint64_t start_id, const QuotaHolder& holder) {
  if (host_.ledger == nullptr) return true;
  MutexLock lock(mutex_);
  MemberUse& use = uses_[static_cast<std::size_t>(rank)];
  // The member is gone, and perhaps another one has its rank: Attach refuses its stream.
  if (!use.member.held() || !core_.HasPlace(start_id)) return true;
  if (use.lane.held()) return true;
  // Members that are still to come need a stream each; a lane is a luxury.
  std::int64_t absent = 0;
  for (int r = 0; r < options_.world_size; ++r) {
    if (!core_.IsElsewhere(r) && !uses_[static_cast<std::size_t>(r)].member.held()) ++absent;
  }
  const std::uint64_t spare =
      core_.state() == SessionCore::State::kJoining ? static_cast<std::uint64_t>(absent) : 0;
  if (auto lane = host_.ledger->AddLane(holder, options_.name, spare)) use.lane = *std::move(lane);
  return use.lane.held();
}

absl::Status SessionRunner::Attach(int rank, std::uint64_t start_id, std::int64_t step,
                                   const std::shared_ptr<MemberStream>& stream, absl::Time now,
                                   const Abilities& abilities) {
  Work work;
  {
    MutexLock lock(mutex_);
    Effects effects;
    absl::Status status = core_.Attach(rank, start_id, step, stream->id(), now, effects, abilities);
    if (!status.ok()) return status;
    streams_[stream->id()] = stream;
    if (attached_[static_cast<std::size_t>(rank)] == start_id) ++resumes_;
    attached_[static_cast<std::size_t>(rank)] = start_id;
    // A replaced stream stays in `streams_` until its call has ended, but is sent nothing more.
    current_[static_cast<std::size_t>(rank)] = stream->id();
    Execute(std::move(effects), work);
  }
  Finish(std::move(work));
  return absl::OkStatus();
}

// The next read of the lane begins in `taken`. A large sum is computed after it, so that the next
// frame arrives meanwhile; a small sum is done sooner than a read.
void SessionRunner::Receive(int rank, std::uint64_t connection, const wire::Frame& frame,
                            absl::Time now, absl::FunctionRef<void()> taken) {
  Work work;
  {
    MutexLock lock(mutex_);
    Effects effects;
    core_.Observe(now);
    if (recording_ != nullptr) recording_->OnFrame(frame.header, core_);
    core_.Receive(rank, connection, frame, now, effects);
    Execute(std::move(effects), work);
  }
  const bool large = std::any_of(
      work.reductions.begin(), work.reductions.end(),
      [](const ReduceEffect& sum) { return sum.segment.bytes() > wire::kSmallPayload; });
  if (large) taken();
  Finish(std::move(work));
  if (!large) taken();
}

// Of a replaced stream too: the core ignores the end of a connection that is not the current one.
void SessionRunner::Detach(int rank, std::uint64_t connection, absl::Time now) {
  Work work;
  {
    MutexLock lock(mutex_);
    if (streams_.erase(connection) == 0) return;
    std::uint64_t& current = current_[static_cast<std::size_t>(rank)];
    if (current == connection) current = 0;
    Effects effects;
    core_.Detach(rank, connection, now, effects);
    Execute(std::move(effects), work);
  }
  Finish(std::move(work));
}

absl::Status SessionRunner::Leave(int rank, std::uint64_t start_id, absl::Time now) {
  absl::Status status;
  Handle([&](SessionCore& core, Effects& effects) {
    status = core.Leave(rank, start_id, now, effects);
  });
  return status;
}

void SessionRunner::Tick(absl::Time now) {
  memory_->Tick(now);
  Handle([&](SessionCore& core, Effects& effects) {
    core.Observe(now);
    core.Tick(now, effects);
  });
}

// QueueHeartbeats adds nothing to a lane on which other frames wait, since those show life as well.
void SessionRunner::SendHeartbeats() {
  Work work;
  {
    MutexLock lock(mutex_);
    for (std::uint64_t connection : current_) {
      const auto found = streams_.find(connection);
      if (found == streams_.end()) continue;
      found->second->QueueHeartbeats();
      work.streams.push_back(found->second);
    }
  }
  Finish(std::move(work));
}

void SessionRunner::Fail(const absl::Status& status, int blamed_rank) {
  Handle([&](SessionCore& core, Effects& effects) { core.Fail(status, blamed_rank, effects); });
}

void SessionRunner::HandOver() {
  Handle([](SessionCore& core, Effects& effects) { core.HandOver(effects); });
}

// Checked again under the lock, because a member may have joined since the registry looked.
void SessionRunner::FailIfAbandoned() {
  Work work;
  {
    MutexLock lock(mutex_);
    if (!IsAbandoned()) return;
    Effects effects;
    const char* const what = options_.gathers
                                 ? " members were back; the others may have left an earlier daemon"
                                 : " members had joined";
    core_.Fail(
        Coded(ErrorCode::kEndedBeforeStart,
              absl::AbortedError(absl::StrCat("nobody is in it any more: ", core_.last_departure(),
                                              " before all ", options_.world_size, what))),
        -1, effects);
    Execute(std::move(effects), work);
  }
  Finish(std::move(work));
}

// A late error of a replaced stream must not end a session that its member has resumed.
void SessionRunner::FailFrom(int rank, std::uint64_t connection, const absl::Status& status) {
  Work work;
  {
    MutexLock lock(mutex_);
    if (current_[static_cast<std::size_t>(rank)] != connection) return;
    Effects effects;
    core_.Fail(status, rank, effects);
    Execute(std::move(effects), work);
  }
  Finish(std::move(work));
}

bool SessionRunner::IsAbandoned() const {
  if (core_.state() != SessionCore::State::kJoining) return false;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const auto member = core_.member_state(rank);
    // Who is elsewhere may still be, when nobody is here.
    if (core_.IsElsewhere(rank)) continue;
    if (member != SessionCore::MemberState::kAbsent) return false;
  }
  return true;
}

// Readers of these atomics take no lock, so they may see values of two different events.
void SessionRunner::Publish() {
  state_.store(core_.state(), std::memory_order_release);
  step_.store(core_.step(), std::memory_order_release);
  awaits_successor_.store(core_.awaits_successor(), std::memory_order_release);
  sums_up_.store(sums_ > 0, std::memory_order_release);
  open_streams_.store(streams_.size(), std::memory_order_release);
  abandoned_.store(IsAbandoned(), std::memory_order_release);
}

// A result that all members have in place needs no payload, so consecutive ones are merged into one
// frame.
void SessionRunner::Execute(Effects effects, Work& work) {
  Publish();
  if (recording_ != nullptr) work.recorded = recording_->OnEffects(effects, core_);
  ResultEffect* placed = nullptr;  // not queued yet: the next effect may extend it
  for (Effect& effect : effects) {
    auto* const result = std::get_if<ResultEffect>(&effect);
    const bool in_place = result != nullptr && IsPlaced(*result);
    if (in_place) result->header.in_place = true;
    if (in_place && placed != nullptr && placed->ranks == result->ranks &&
        MergeResults(placed->header, result->header)) {
      continue;
    }
    // Before the next effect, so that frames keep the core's order.
    if (placed != nullptr) Queue(*placed, work);
    placed = in_place ? result : nullptr;
    if (in_place) continue;
    if (result != nullptr) {
      Queue(*result, work);
    } else if (auto* send = std::get_if<SendEffect>(&effect)) {
      Queue(send->rank, send->frame, send->keeper, work);
    } else if (auto* fan_out = std::get_if<FanOutEffect>(&effect)) {
      for (const int rank : fan_out->ranks) Queue(rank, fan_out->frame, {}, work);
    } else if (auto* reduce = std::get_if<ReduceEffect>(&effect)) {
      work.reductions.push_back(std::move(*reduce));
      ++sums_;
    } else if (auto* compute = std::get_if<ComputeEffect>(&effect)) {
      work.tasks.emplace_back(
          [self = shared_from_this(), one = std::move(*compute)] { self->Compute(one); });
    } else if (auto* restore = std::get_if<RestoreEffect>(&effect)) {
      work.tasks.emplace_back(
          [self = shared_from_this(), one = std::move(*restore)] { self->Restore(one); });
    } else if (auto* chore = std::get_if<ChoreEffect>(&effect)) {
      work.tasks.emplace_back(
          [self = shared_from_this(), one = std::move(*chore)] { self->DoChore(one); });
    } else if (auto* claim = std::get_if<ClaimRosterEffect>(&effect)) {
      work.tasks.emplace_back(
          [self = shared_from_this(), one = std::move(*claim)] { self->ClaimRoster(one); });
    } else if (auto* forget = std::get_if<ForgetRostersEffect>(&effect)) {
      work.tasks.emplace_back(
          [self = shared_from_this(), one = *forget] { self->ForgetRosters(one); });
    } else if (auto* release = std::get_if<ReleaseEffect>(&effect)) {
      work.tasks.emplace_back([memory = std::move(release->memory)] {});  // with the task
    } else if (auto* upstream = std::get_if<UpstreamEffect>(&effect)) {
      host_.leaf->Queue(std::move(*upstream));
      work.upstream = true;
    } else if (auto* close = std::get_if<CloseEffect>(&effect)) {
      Close(*close, work);
    } else if (auto* departure = std::get_if<DepartureEffect>(&effect)) {
      OnDeparture(*departure);
    } else {
      Log(std::get<LogEffect>(effect));
    }
  }
  if (placed != nullptr) Queue(*placed, work);
  if (IsEnd(core_.state())) OnEnd(work);
}

void SessionRunner::OnDeparture(const DepartureEffect& departure) {
  uses_[static_cast<std::size_t>(departure.rank)] = MemberUse();
  if (departure.lost.empty() || host_.audit == nullptr) return;
  host_.audit->Record({.event = "member_lost",
                       .session = options_.name,
                       .rank = departure.rank,
                       .reason = departure.lost});
}

// Nobody has a place in it any more. Its memory counts until it is free.
void SessionRunner::OnEnd(Work& work) {
  if (std::exchange(end_seen_, true)) return;
  if (host_.leaf != nullptr) {
    host_.leaf->QueueEnd(core_.failure(), core_.blamed_rank());
    work.upstream = true;
  }
  for (MemberUse& use : uses_) use = MemberUse();
  begun_.session = QuotaLedger::Use();
  if (host_.audit == nullptr) return;
  const absl::Status why = core_.failure();
  host_.audit->Record({.event = "session_ended",
                       .session = options_.name,
                       .reason = core_.awaits_successor() ? "all members gather again"
                                 : why.ok()               ? "all members have left"
                                                          : std::string(why.message())});
}

// Null while a member's connection is broken. Nothing is lost: the core sends what was not
// acknowledged when the member resumes.
std::shared_ptr<MemberStream> SessionRunner::StreamOf(int rank) const {
  const auto found = streams_.find(current_[static_cast<std::size_t>(rank)]);
  return found == streams_.end() ? nullptr : found->second;
}

// A member's memory is bound to one stream: if that was replaced, the result must be sent.
bool SessionRunner::IsPlaced(const ResultEffect& result) const {
  return std::all_of(
      result.ranks.begin(), result.ranks.end(), [&](int rank) GRADWIRE_REQUIRES(mutex_) {
        const Receiver to{.rank = rank, .stream = current_[static_cast<std::size_t>(rank)]};
        return std::holds_alternative<InPlace>(result.result->DeliveryTo(to));
      });
}

void SessionRunner::Queue(int rank, const wire::Frame& frame, const Keeper& keeper, Work& work) {
  const std::shared_ptr<MemberStream> stream = StreamOf(rank);
  if (stream == nullptr) return;
  stream->Queue(Outgoing(frame.header, frame.payload, keeper));
  work.streams.push_back(stream);
}

void SessionRunner::Queue(const ResultEffect& result, Work& work) {
  // All members share one result; only the way in which it reaches them differs.
  for (const int rank : result.ranks) {
    const std::shared_ptr<MemberStream> stream = StreamOf(rank);
    if (stream == nullptr) continue;
    const Receiver to{
        .rank = rank, .stream = stream->id(), .shares_memory = stream->shares_memory()};
    stream->Queue(Outgoing(result.header, result.result, result.result->DeliveryTo(to)));
    work.streams.push_back(stream);
  }
}

void SessionRunner::Log(const LogEffect& log) const {
  const auto level =
      log.level == LogEffect::Level::kWarning ? spdlog::level::warn : spdlog::level::info;
  LogFields fields{
      .session = options_.name, .generation = options_.generation, .step = core_.step()};
  if (log.rank >= 0) fields.rank = log.rank;
  const LogScope scope(fields);
  spdlog::log(level, "session {} generation {}: {}", options_.name, options_.generation,
              log.message);
}

void SessionRunner::Handle(absl::FunctionRef<void(SessionCore&, Effects&)> event) {
  Work work;
  {
    MutexLock lock(mutex_);
    Effects effects;
    event(core_, effects);
    Execute(std::move(effects), work);
  }
  Finish(std::move(work));
}

void SessionRunner::Finish(Work work) {
  // Large writes take time, so every member's small frames are written first.
  for (const wire::Lane lane : wire::kAllLanes) {
    for (const auto& stream : work.streams) stream->Pump(lane);
  }
  for (WorkThreads::Task& task : work.tasks) host_.work_threads->Post(this, std::move(task));
  if (work.upstream) host_.leaf->Pump();
  // Sums come last, because nothing else of this event should wait for them.
  if (work.reductions.empty()) return;
  if (work.recorded != nullptr) recording_->Keep(*work.recorded, work.reductions);
  // A leaf's reducer, which belongs to the session, may keep the answer for good: a session that
  // ends in the middle of a step would keep itself.
  host_.reducer->Reduce(std::move(work.reductions), memory_,
                        [weak = weak_from_this()](const std::vector<Reducer::Done>& done) {
                          if (const auto self = weak.lock()) self->OnReduced(done);
                        });
}

// Runs on a work thread. The answer is an event for the core, like any frame.
void SessionRunner::Compute(const ComputeEffect& compute) {
  if (ended()) return;  // the core would drop the answer
  compute.work->Run();
  Handle([&](SessionCore& core, Effects& effects) {
    core.Observe(MonotonicNow());
    core.Computed(compute.id, *compute.work, effects);
  });
}

void SessionRunner::DoChore(const ChoreEffect& chore) {
  chore.chore->Run();
  Handle([](SessionCore& core, Effects& effects) { core.ChoreDone(effects); });
}

std::vector<int> SessionRunner::gone() const {
  MutexLock lock(mutex_);
  return core_.gone();
}

std::vector<int> SessionRunner::node_groups() const {
  MutexLock lock(mutex_);
  return core_.node_groups();
}

absl::Status SessionRunner::failure() const {
  MutexLock lock(mutex_);
  return core_.failure();
}

v1::WatchResponse SessionRunner::Snapshot(absl::Time now) const {
  v1::WatchResponse snapshot;
  snapshot.set_session(options_.name);
  snapshot.set_generation(options_.generation);
  MutexLock lock(mutex_);
  snapshot.set_state(Name(core_.state()));
  snapshot.set_step(core_.step());
  snapshot.set_waiting_for(core_.WaitingFor(now));
  return snapshot;
}

}  // namespace gradwire::server
