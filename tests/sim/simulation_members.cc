// The simulation's member processes: a shell around client::Member.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/merge.h"
#include "tests/sim/places.h"
#include "tests/sim/simulation.h"

namespace gradwire::sim {
namespace {

constexpr absl::Duration kBetweenTries = absl::Milliseconds(50);

// An attempt's bytes differ from every other attempt's, so that a mixture shows in the sum.
void StampAttempt(DType dtype, std::uint32_t attempt, int rank, ByteVector& bytes) {
  if (attempt == 0) return;
  for (std::size_t i = 0; i < bytes.size() / ByteSize(dtype); ++i) {
    const double shift = static_cast<double>(attempt) * 4.0 * static_cast<double>(rank + 1);
    PutElement(dtype, bytes, i, GetElement(dtype, bytes, i) + shift);
  }
}

}  // namespace

void Simulation::AskToJoin(Process& process) {
  if (!Awake(process, [this, &process] { AskToJoin(process); })) return;
  const int rank = process.asks_for;
  const server::JoinAsk ask{.world_size = scenario_.options.world_size,
                            .rank = rank,
                            .start_id = process.start_id,
                            .spec = scenario_.options.spec,
                            .manifest = scenario_.options.manifest};
  const auto call = [this, &process, ask](const auto& self) -> void {
    if (DaemonPaused([self] { self(self); }, false)) return;
    server::Effects effects;
    const absl::StatusOr<int> granted =
        session_.Join(ask, session_.options().CheckSame(ask), now_, effects);
    Apply(std::move(effects));
    After(NetworkDelay(), [this, &process, granted] { OnJoined(process, granted); });
  };
  After(NetworkDelay(), [call] { call(call); });
}

void Simulation::OnJoined(Process& process, const absl::StatusOr<int>& rank) {
  if (!Awake(process, [this, &process, rank] { OnJoined(process, rank); })) return;
  if (!rank.ok()) {
    Trace([&] {
      return absl::StrCat("process ", process.index, " may not join: ", rank.status().ToString());
    });
    const bool failed = session_.state() == server::SessionCore::State::kFailed;
    const bool is_taken =
        absl::IsAlreadyExists(rank.status()) || absl::IsUnavailable(rank.status());
    if (!failed && process.is_successor && is_taken) {
      // Until the daemon knows that the one before is gone, and then until its rank is free.
      return After(absl::Milliseconds(200), [this, &process] { AskToJoin(process); });
    }
    if (!failed) checker_.Violate(absl::StrCat("a member may not join: ", rank.status().message()));
    process.left = true;  // it never was one
    return;
  }
  process.rank = *rank;
  if (static_cast<int>(process.index) == scenario_.dies_unattached) {
    Note(Count::kDeaths);
    process.dead = true;
    return AddSuccessor(process);
  }
  const ReportBreach report = [this, r = *rank](const std::string& what) {
    checker_.Violate(absl::StrCat("rank ", r, "'s hook: ", what));
  };
  if (scenario_.user_hook) {
    process.hook = std::make_unique<FeedbackHook>(scenario_.feedback, report);
  } else {
    process.hook = std::make_unique<WatchedHook>(scenario_.MakeHook(), report);
  }
  const server::SessionOptions& options = scenario_.options;
  process.reconnect.emplace(kBetweenTries, options.resume_grace);
  process.member = std::make_unique<client::Member>(
      client::MemberOptions{.rank = *rank,
                            .world_size = options.world_size,
                            .generation = options.generation,
                            .chunk_bytes = options.chunk_bytes,
                            .window_chunks = options.window_chunks,
                            .eager_bytes = options.eager_bytes,
                            .draw_plan = true,
                            .large_chunk_bytes = options.chunk_bytes,
                            .manifest = options.manifest.list()},
      process.hook.get());
  if (scenario_.inbox_frames > 0) process.reading.emplace(scenario_.inbox_frames);
  const bool is_first = !std::exchange(process.has_joined, true);
  const absl::Duration longest = is_first ? scenario_.attach_delay_high : absl::Milliseconds(5);
  After(random_.Between(absl::ZeroDuration(), longest), [this, &process] { Open(process); });
}

// What the client assumes of its own queue: of an attempt no more than the open buckets' windows,
// and few other frames.
void Simulation::CheckSender(const Process& process, const Link& link) {
  const server::SessionOptions& options = scenario_.options;
  // What went eagerly has one chunk, which comes after a restart as the granted ones do.
  const std::size_t eager = options.eager_bytes == 0 ? 0 : options.manifest.size();
  const std::size_t chunks = std::size_t{options.window_chunks} * options.open_buckets + eager;
  if (process.in_place || scenario_.power_sgd || link.up.waiting() <= chunks) return;
  std::uint32_t attempt = 0;  // the last one: chunks of those before may wait in vain
  std::size_t of_windows = 0;
  std::size_t others = 0;
  link.up.ForEachWaiting([&](const wire::Frame& frame) {
    const auto* chunk = std::get_if<wire::Contribution>(&frame.header);
    if (chunk == nullptr) {
      ++others;
      return;
    }
    if (chunk->id.attempt > attempt) of_windows = 0;
    attempt = std::max(attempt, chunk->id.attempt);
    if (chunk->id.attempt == attempt) ++of_windows;
  });
  if (of_windows > chunks || others > client::kSmallFrames) {
    checker_.Violate(absl::StrCat(of_windows, " chunks and ", others, " other frames wait at rank ",
                                  process.rank, "; the windows allow ", chunks, " chunks"));
  }
}

void Simulation::SendUp(Process& process, wire::Frame frame) {
  if (run_.capture) captured_.push_back({process.rank, frame});
  if (process.link == nullptr) return;  // Resumed says it again
  Link& link = *process.link;
  if (link.cut) return Note(Count::kFramesLost);
  const bool background = std::holds_alternative<wire::Heartbeat>(frame.header);
  if (std::holds_alternative<wire::Hello>(frame.header)) {
    const absl::Time arrives = link.up.PutFirst(std::move(frame), now_ + NetworkDelay());
    return At(arrives, [this, &link] { PumpUp(link, wire::Lane::kMain); });
  }
  if (!JoinLast(link, frame)) {
    const wire::SendPriority priority = PriorityOf(frame);
    // Heartbeats are no progress, and so the end of their write is no event.
    link.up.Put(std::move(frame), priority, /*at_once=*/background);
    CheckSender(process, link);
  }
  WriteUp(link, background);
}

void Simulation::WriteUp(Link& link, bool background) {
  while (const auto left = link.up.Depart(
             now_, [this](wire::Lane lane) { return NetworkDelay(lane); },
             [this] { return WriteShare(); })) {
    At(
        left->arrives, [this, &link, lane = left->lane] { PumpUp(link, lane); }, background);
    if (left->writing == absl::ZeroDuration()) continue;
    const auto ended = [this, &link, lane = left->lane](const auto& self) -> void {
      if (!Awake(*processes_[link.process], [self] { self(self); })) return;
      link.up.WriteEnded(lane);
      WriteUp(link, false);
    };
    After(left->writing, [ended] { ended(ended); });
  }
}

// As a member's queue does it. What may be joined takes the main lane: acknowledgements, and
// contributions of those who share memory, who have no other.
bool Simulation::JoinLast(Link& link, const wire::Frame& frame) {
  if (!random_.Percent(70)) return false;
  return link.up.JoinLast([&](wire::Frame& last) {
    if (last.payload == nullptr && frame.payload == nullptr) {
      if (!wire::Merge(last.header, frame.header)) return false;
      Note(Count::kJoinedAcks);
      return true;
    }
    const auto before = std::dynamic_pointer_cast<const GradientPlace>(last.payload);
    const auto after = std::dynamic_pointer_cast<const GradientPlace>(frame.payload);
    if (before == nullptr || after == nullptr) return false;
    if (!wire::Merge(last.header, frame.header)) return false;
    last.payload = before->With(*after);
    Note(Count::kJoinedContributions);
    return true;
  });
}

wire::PayloadRef Simulation::GradientsOf(Process& process, const client::SendChunkEffect& effect) {
  if (!process.in_place || effect.announce || process.link == nullptr) return nullptr;
  const std::span<const std::byte> raw = effect.run->Raw(effect.range);
  for (const auto& [ticket, open] : process.buckets) {
    if (raw.empty() || open.id != effect.header.id.bucket) continue;
    const auto offset = static_cast<std::size_t>(raw.data() - open.buffer->data());
    return std::make_shared<GradientPlace>(open.buffer, offset, raw.size(), process.rank,
                                           process.link->id);
  }
  return nullptr;
}

void Simulation::AllowCommit(Process& process, bool allowed) {
  if (scenario_.user_hook) {
    static_cast<FeedbackHook*>(process.hook.get())->AllowCommit(allowed);
  } else {
    static_cast<WatchedHook*>(process.hook.get())->AllowCommit(allowed);
  }
}

void Simulation::OnFrame(Process& process, const wire::Frame& frame, const PlacedResult* placed) {
  process.reconnect->OnHeard();
  Trace([&] {
    std::string text = absl::StrCat("rank ", process.rank, " < frame ", frame.header.index());
    if (const auto* result = std::get_if<wire::Result>(&frame.header)) {
      absl::StrAppend(&text, " result step ", result->id.step, " attempt ", result->id.attempt,
                      " bucket ", result->id.bucket, " round ", result->id.round, " chunk ",
                      result->chunk);
    } else if (const auto* grant = std::get_if<wire::Grant>(&frame.header)) {
      absl::StrAppend(&text, " grant bucket ", grant->id.bucket, " attempt ", grant->id.attempt);
    } else if (const auto* restart = std::get_if<wire::Restart>(&frame.header)) {
      absl::StrAppend(&text, " restart step ", restart->step, " attempt ", restart->attempt);
    } else if (const auto* done = std::get_if<wire::StepDone>(&frame.header)) {
      absl::StrAppend(&text, " done step ", done->step);
    }
    return text;
  });
  Mark(frame.header.index() * 8 + 64 + static_cast<std::uint64_t>(process.rank));
  bool commits = false;
  if (const auto* result = std::get_if<wire::Result>(&frame.header)) {
    Mark(result->digest);
    if (placed == nullptr) {
      checker_.OnResultFrame(process.rank, *result, frame.payload.get());
    } else {
      Note(Count::kResultsInPlace);
      if (!placed->IsIntact(process.rank)) checker_.Violate("a result in place was overwritten");
      const wire::PayloadRef bytes = MakePayload(placed->content(), random_);
      checker_.OnResultFrame(process.rank, *result, bytes.get());
    }
  } else if (const auto* done = std::get_if<wire::StepDone>(&frame.header)) {
    checker_.OnStepDoneFrame(process.rank, *done, process.member->step());
    commits = done->verdict == Verdict::kApply && done->step == process.member->step();
  } else if (const auto* restart = std::get_if<wire::Restart>(&frame.header)) {
    Note(Count::kRestartedRounds, restart->open.size());
  } else if (std::holds_alternative<wire::SharedState>(frame.header)) {
    Note(Count::kSharedStateFrames);
  }
  if (checker_.violated()) return;
  // As the client does where chunks wait on the way.
  if (random_.Percent(10)) {
    process.member->SetWindow(static_cast<std::uint32_t>(
        random_.Between(1, static_cast<int>(scenario_.options.window_chunks))));
  }
  client::Effects effects;
  AllowCommit(process, commits);
  process.member->Receive(frame, effects);
  AllowCommit(process, false);
  ApplyMember(process, std::move(effects));
}

void Simulation::ApplyMember(Process& process, client::Effects effects) {
  for (client::Effect& effect : effects) {
    std::visit([&](auto& e) { OnMember(process, e); }, effect);
  }
  if (process.encoding || !process.member->has_chunks()) return;
  process.encoding = true;
  After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(2)),
        [this, &process] { SendNext(process); });
}

void Simulation::SendNext(Process& process) {
  if (!Awake(process, [this, &process] { SendNext(process); })) return;
  process.encoding = false;
  if (!process.member->has_chunks()) return;
  client::Effects effects;
  process.member->SendNext(effects);
  ApplyMember(process, std::move(effects));
}

void Simulation::OnMember(Process& process, client::SendFrameEffect& effect) {
  SendUp(process, {.header = std::move(effect.header)});
}

void Simulation::OnMember(Process& process, client::SendChunkEffect& effect) {
  if (process.member->failed()) return;
  const wire::RoundId& id = effect.header.id;
  ByteVector bytes(effect.bytes);
  if (absl::Status status = effect.run->Encode(effect.range, bytes); !status.ok()) {
    return checker_.Violate(absl::StrCat("Encode failed: ", status.message()));
  }
  if (wire::PayloadRef gradients = GradientsOf(process, effect)) {
    // The second time a result may lie there; what counts is what was there first.
    const auto [first, fresh] =
        process.encoded.try_emplace({id.step, id.bucket, effect.header.chunk}, std::move(bytes));
    checker_.OnContribution(effect.header, first->second);
    const auto& place = static_cast<const GradientPlace&>(*gradients);
    effect.header.shared = wire::SharedBytes{
        .offset = place.offset(), .bytes = place.bytes(), .raw = true, .takes_result = true};
    return SendUp(process, {.header = effect.header, .payload = std::move(gradients)});
  }
  const DType dtype = scenario_.power_sgd                        ? checker_.WireDType(effect.header)
                      : effect.bytes == effect.range.numel() * 8 ? DType::kFloat64
                      : effect.bytes == effect.range.numel() * 4 ? DType::kFloat32
                      : scenario_.user_hook                      ? scenario_.feedback.wire
                                                                 : DType::kFloat16;
  // What a process has sent eagerly it may send again, and then in place, where nothing is changed.
  const bool is_known =
      !process.in_place && (scenario_.power_sgd || scenario_.user_hook || ByteSize(dtype) > 2 ||
                            scenario_.options.spec.comm_hook == "fp16");
  // The reference of PowerSGD knows no attempts.
  if (is_known && !scenario_.power_sgd) StampAttempt(dtype, id.attempt, process.rank, bytes);
  const StepPlan& plan = scenario_.steps[static_cast<std::size_t>(id.step)];
  if (is_known && plan.nonfinite_only_at_first && plan.nonfinite_rank == process.rank &&
      id.attempt == 0 && effect.header.chunk == 0) {
    PutElement(dtype, bytes, 0, std::numeric_limits<double>::quiet_NaN());
  }
  checker_.OnContribution(effect.header, bytes);
  wire::PayloadRef payload = MakePayload(std::move(bytes), random_);
  if (random_.Percent(50)) effect.header.digest = wire::Digest(payload.get());
  if (effect.announce) {
    Note(Count::kEagerBuckets);
    effect.announce->digest = effect.header.digest;
    return SendUp(process, {.header = *effect.announce, .payload = std::move(payload)});
  }
  SendUp(process, {.header = effect.header, .payload = std::move(payload)});
}

void Simulation::OnMember(Process& process, client::SendCollectiveEffect& effect) {
  const std::byte* data = process.collective_data.data() + effect.offset;
  SendUp(process, {.header = effect.header,
                   .payload = MakePayload(ByteVector(data, data + effect.bytes), random_)});
}

void Simulation::OnMember(Process& process, client::ReceiveCollectiveEffect& effect) {
  const ByteVector bytes = Flatten(effect.payload.get());
  std::copy(bytes.begin(), bytes.end(),
            process.collective_data.begin() + static_cast<std::ptrdiff_t>(effect.offset));
}

void Simulation::OnMember(Process& process, client::BucketDoneEffect& effect) {
  const auto found = process.buckets.find(effect.ticket);
  if (found == process.buckets.end()) return checker_.Violate("a bucket ends twice");
  if (effect.status.ok()) {
    checker_.OnBucketDone(process.rank, process.member->step(), found->second.id,
                          *found->second.buffer);
  }
  process.ended.push_back(std::move(found->second.bucket));
  process.buckets.erase(found);  // the core may not touch the buffer any more
}

void Simulation::OnMember(Process& process, client::StepDoneEffect& effect) {
  checker_.OnStepDone(
      process.rank, effect.step, effect.verdict,
      scenario_.user_hook ? static_cast<const FeedbackHook*>(process.hook.get()) : nullptr);
  if (scenario_.power_sgd && !checker_.violated()) {
    checker_.OnMemberState(process.rank, effect.step, process.hook->State());
  }
  if (!process.buckets.empty()) checker_.Violate("a step ends with a bucket open");
  process.ended.clear();
  process.next_collective = 0;
  After(random_.Between(absl::ZeroDuration(), scenario_.think_high),
        [this, &process] { BeginStep(process); });
}

void Simulation::OnMember(Process& process, client::CollectiveDoneEffect& effect) {
  Note(Count::kCollectives);
  const auto& plans = scenario_.steps[static_cast<std::size_t>(process.member->step())].collectives;
  if (plans[process.next_collective].kind == wire::CollectiveKind::kBroadcast) {
    for (std::size_t i = 0; i < process.collective_data.size(); ++i) {
      if (process.collective_data[i] == CollectiveByte(scenario_.data_seed, effect.number, i))
        continue;
      checker_.Violate(absl::StrCat("rank ", process.rank, " got other bytes than the root's in ",
                                    "broadcast ", effect.number));
      break;
    }
  }
  ++process.next_collective;
  After(random_.Between(absl::ZeroDuration(), scenario_.think_high),
        [this, &process] { BeginStep(process); });
}

void Simulation::OnMember(Process& process, client::WelcomeEffect&) {
  if (process.welcomed) return checker_.Violate("welcomed twice");
  process.welcomed = true;
  BeginStep(process);
}

void Simulation::OnMember(Process& process, client::FailedEffect& effect) {
  if (process.reported_failure) checker_.Violate("a member fails twice");
  process.reported_failure = true;
  if (scenario_.power_sgd) checker_.OnFailed(process.rank, process.hook->State());
  if (!process.buckets.empty()) checker_.Violate("a member failed and left a bucket open");
  Trace([&] { return absl::StrCat("rank ", process.rank, " fails: ", effect.status.ToString()); });
  const bool session_failed = session_.state() == server::SessionCore::State::kFailed;
  if (!session_failed && !process.hostile && !process.lost_daemon) {
    checker_.Violate(
        absl::StrCat("rank ", process.rank, " failed on its own: ", effect.status.message()));
  }
  if (process.link != nullptr && !process.link->cut) Cut(process, std::nullopt);
}

}  // namespace gradwire::sim
