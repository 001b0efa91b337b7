// A SessionCore with members that are played by hand: what each was sent, and reductions on demand.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/hooks/registry.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"
#include "server/core/session_core.h"
#include "server/core/step.h"

namespace gradwire::server {

// Parameters w: 1 chunk, b: 3 chunks, e: none.
inline SessionOptions SmallOptions(int world_size = 2) {
  SessionOptions options;
  options.name = "s";
  options.world_size = world_size;
  options.manifest = {{"w", {16}, DType::kFloat32},
                      {"b", {4, 10}, DType::kFloat32},
                      {"e", {0, 3}, DType::kFloat32}};
  options.generation = 7;
  options.chunk_bytes = 64;
  options.window_chunks = 1;
  options.open_buckets = 2;
  return options;
}

inline RoundPlan SumOf(std::size_t numel) {
  return {{Segment{DType::kFloat32, numel, ReduceOp::kSum}}};
}

inline wire::PayloadRef Floats(std::size_t count, float value) {
  std::vector<std::byte> bytes(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(float));
  }
  return wire::OwnedPayload::Make(std::move(bytes));
}

inline float FirstFloat(const wire::PayloadRef& payload) {
  float value = 0;
  std::memcpy(&value, payload->pieces().front().data(), sizeof(float));
  return value;
}

class SessionHarness {
 public:
  explicit SessionHarness(SessionOptions options = SmallOptions(), bool user_hook = false)
      : session(options, user_hook ? nullptr : *MakeCoordinatorHook(options.spec, options.manifest),
                now) {}

  JoinAsk Ask(int rank) const {
    const SessionOptions& options = session.options();
    return {.world_size = options.world_size,
            .rank = rank,
            .start_id = 100 + static_cast<std::uint64_t>(rank),
            .spec = options.spec,
            .manifest = options.manifest,
            .shard = options.shard.number,
            .addresses = options.shard.addresses};
  }

  absl::StatusOr<int> Join(const JoinAsk& ask) {
    Effects effects;
    absl::StatusOr<int> rank = session.Join(ask, session.options().CheckSame(ask), now, effects);
    Take(std::move(effects));
    return rank;
  }

  absl::Status Attach(int rank) { return Attach(rank, session.step()); }
  absl::Status Attach(int rank, std::int64_t step, const Abilities& abilities = {}) {
    Effects effects;
    absl::Status status = session.Attach(rank, 100 + static_cast<std::uint64_t>(rank), step,
                                         ++connections, now, effects, abilities);
    if (status.ok()) streams[rank] = connections;
    Take(std::move(effects));
    return status;
  }

  void Start() {
    for (int r = 0; r < session.options().world_size; ++r) {
      ASSERT_EQ(*Join(Ask(r)), r);
      ASSERT_TRUE(Attach(r).ok());
    }
    ASSERT_EQ(session.state(), SessionCore::State::kRunning);
  }

  void Receive(int rank, wire::Header header, wire::PayloadRef payload = nullptr) {
    Effects effects;
    session.Receive(rank, streams[rank], {std::move(header), std::move(payload)}, now, effects);
    Take(std::move(effects));
  }

  void Detach(int rank) {
    Effects effects;
    session.Detach(rank, streams[rank], now, effects);
    Take(std::move(effects));
  }

  absl::Status Leave(int rank) {
    Effects effects;
    absl::Status status = session.Leave(rank, 100 + static_cast<std::uint64_t>(rank), now, effects);
    Take(std::move(effects));
    return status;
  }

  absl::Status Pause(absl::Duration length, const std::string& reason = "") {
    Effects effects;
    absl::Status status = session.Pause(length, reason, now, effects);
    Take(std::move(effects));
    return status;
  }
  absl::Status Unpause() {
    Effects effects;
    absl::Status status = session.Unpause(now, effects);
    Take(std::move(effects));
    return status;
  }

  // The arbiter's answer to the only claim.
  void AnswerClaim(const absl::StatusOr<ClaimAnswer>& answer) {
    ASSERT_EQ(claims.size(), 1U);
    claims.clear();
    Effects effects;
    session.RosterClaimed(answer, effects);
    Take(std::move(effects));
  }

  // Time passes as a daemon sees it, tick by tick.
  void Pass(absl::Duration time) {
    for (const absl::Time end = now + time; now < end;) Tick(absl::Milliseconds(100));
  }
  void Tick(absl::Duration step) {
    now += step;
    Effects effects;
    session.Tick(now, effects);
    Take(std::move(effects));
  }

  wire::Announce AnnounceOf(const std::vector<std::uint32_t>& parameters) const {
    std::size_t numel = 0;
    const auto& manifest = session.options().manifest;
    for (std::uint32_t p : parameters) numel += p < manifest.size() ? manifest[p].numel() : 0;
    return {session.step(), session.options().generation, parameters, {SumOf(numel)}};
  }
  void Announce(int rank, const std::vector<std::uint32_t>& parameters) {
    Receive(rank, AnnounceOf(parameters));
  }
  void AnnounceAll(const std::vector<std::uint32_t>& parameters) {
    for (int r = 0; r < session.options().world_size; ++r) Announce(r, parameters);
  }
  void EndStep(int rank) {
    Receive(rank, wire::EndStep{session.step(), session.options().generation});
  }

  wire::Contribution Chunk(int rank, std::uint32_t bucket, std::uint32_t chunk = 0) const {
    return {
        .id = {.step = session.step(), .attempt = session.progress().attempt(), .bucket = bucket},
        .generation = session.options().generation,
        .rank = rank,
        .chunk = chunk,
        .received = chunk,
        .digest = std::nullopt};
  }
  void Contribute(int rank, std::uint32_t bucket, float value, std::uint32_t chunk = 0) {
    Receive(rank, Chunk(rank, bucket, chunk), Floats(16, value));
  }

  // Answers the reductions that the session asked for.
  void Reduce(bool finite = true) {
    while (!reductions.empty()) {
      const ReduceEffect reduce = std::move(reductions.front());
      reductions.pop_front();
      float sum = 0;
      for (const wire::PayloadRef& input : reduce.inputs) sum += FirstFloat(input);
      Effects effects;
      session.Reduced(reduce.id, reduce.chunk, KeptResult::Make(Floats(reduce.segment.numel, sum)),
                      {.finite = finite}, absl::Microseconds(3), effects);
      Take(std::move(effects));
    }
  }

  // Answers the oldest computation that the session asked for, and the oldest chore.
  void Compute() {
    const ComputeEffect compute = std::move(computations.front());
    computations.pop_front();
    compute.work->Run();
    Effects effects;
    session.Computed(compute.id, *compute.work, effects);
    Take(std::move(effects));
  }
  void DoChore() {
    const ChoreEffect chore = std::move(chores.front());
    chores.pop_front();
    chore.chore->Run();
    Effects effects;
    session.ChoreDone(effects);
    Take(std::move(effects));
  }

  void Restore() {
    const RestoreEffect restore = std::move(restores.front());
    restores.pop_front();
    Effects effects;
    session.Restored(session.ReadCopy(restore), effects);
    Take(std::move(effects));
  }

  // The effects of a call that this class does not know.
  void TakeAll(Effects effects) { Take(std::move(effects)); }

  // The frames of one kind that the rank was sent.
  template <class T>
  std::vector<T> Sent(int rank) {
    std::vector<T> found;
    for (const wire::Frame& frame : frames[rank]) {
      if (const T* header = std::get_if<T>(&frame.header)) found.push_back(*header);
    }
    return found;
  }

  std::string Message() const { return std::string(session.failure().message()); }
  std::string Waiting() const { return session.WaitingFor(now); }

  absl::Time now = absl::FromUnixSeconds(1'000'000);
  SessionCore session;
  std::map<int, std::uint64_t> streams;
  std::map<int, std::vector<wire::Frame>> frames;
  std::vector<CloseEffect> closed;
  std::vector<DepartureEffect> departed;
  std::vector<std::string> logged;
  std::deque<ReduceEffect> reductions;
  std::vector<UpstreamEffect> upstream;  // of a leaf
  bool answers_at_once = true;           // what follows
  std::deque<ComputeEffect> computations;
  std::deque<ChoreEffect> chores;
  std::deque<RestoreEffect> restores;
  std::vector<ClaimRosterEffect> claims;  // that wait for an answer
  std::vector<std::uint64_t> forgotten;   // lineages
  std::uint64_t connections = 0;

 private:
  void Take(Effects effects) {
    for (Effect& effect : effects) {
      if (auto* send = std::get_if<SendEffect>(&effect)) {
        frames[send->rank].push_back(send->frame);
      } else if (auto* fan_out = std::get_if<FanOutEffect>(&effect)) {
        for (int rank : fan_out->ranks) frames[rank].push_back(fan_out->frame);
      } else if (auto* result = std::get_if<ResultEffect>(&effect)) {
        for (int rank : result->ranks) {
          frames[rank].push_back({.header = result->header, .payload = result->result->kept()});
        }
      } else if (auto* reduce = std::get_if<ReduceEffect>(&effect)) {
        reductions.push_back(std::move(*reduce));
      } else if (auto* compute = std::get_if<ComputeEffect>(&effect)) {
        computations.push_back(std::move(*compute));
        if (answers_at_once) Compute();
      } else if (auto* chore = std::get_if<ChoreEffect>(&effect)) {
        chores.push_back(std::move(*chore));
        if (answers_at_once) DoChore();
      } else if (auto* restore = std::get_if<RestoreEffect>(&effect)) {
        restores.push_back(std::move(*restore));
        if (answers_at_once) Restore();
      } else if (auto* wish = std::get_if<UpstreamEffect>(&effect)) {
        upstream.push_back(std::move(*wish));
      } else if (auto* claim = std::get_if<ClaimRosterEffect>(&effect)) {
        claims.push_back(std::move(*claim));
      } else if (const auto* forget = std::get_if<ForgetRostersEffect>(&effect)) {
        forgotten.push_back(forget->lineage);
      } else if (std::holds_alternative<ReleaseEffect>(effect)) {
        continue;
      } else if (auto* close = std::get_if<CloseEffect>(&effect)) {
        closed.push_back(*close);
      } else if (auto* departure = std::get_if<DepartureEffect>(&effect)) {
        departed.push_back(std::move(*departure));
      } else {
        logged.push_back(std::get<LogEffect>(effect).message);
      }
    }
    EXPECT_LE(session.held_bytes(), session.options().PayloadBytes());
    EXPECT_NE(session.WaitingFor(now), "");
  }
};

}  // namespace gradwire::server
