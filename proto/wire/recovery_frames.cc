#include "proto/wire/recovery_frames.h"

#include "proto/wire/shard_frames.h"

namespace gradwire::wire {

namespace {

// `what` names the field.
std::vector<int> GetRanks(const char* what,
                          const google::protobuf::RepeatedField<std::int32_t>& ranks,
                          Checker& check) {
  check.Count(what, static_cast<std::size_t>(ranks.size()), 0, kMaxWorldSize);
  std::vector<int> out;
  if (!check.status().ok()) return out;
  for (const int rank : ranks) {
    const int next = out.empty() ? 0 : out.back() + 1;
    out.push_back(check.Range(what, rank, next, kMaxWorldSize - 1));
    if (!check.status().ok()) return out;  // the next one would be compared with it
  }
  return out;
}

// The next one is higher.
std::uint64_t GetLife(const char* what, std::uint64_t life, Checker& check) {
  return check.Range(what, life, std::uint64_t{0}, std::uint64_t{kMaxInt64});
}

void Set(const Roster& roster, v1::Roster& message) {
  message.set_number(roster.number);
  message.mutable_ranks()->Add(roster.ranks.begin(), roster.ranks.end());
}

Roster Get(const v1::Roster& message, Checker& check) {
  // One more is counted.
  return {.number = check.Range("roster.number", message.number(), std::uint64_t{1},
                                std::uint64_t{kMaxInt64}),
          .ranks = GetRanks("roster.ranks", message.ranks(), check)};
}

}  // namespace

void Set(const Recovery& recovery, v1::Recovery& message) {
  message.set_session_key(recovery.session_key);
  message.set_lineage(recovery.lineage);
  message.set_grace_milliseconds(recovery.grace_milliseconds);
  if (recovery.roster) Set(*recovery.roster, *message.mutable_roster());
  message.set_life(recovery.life);
  message.set_chain(recovery.chain);
  message.set_arbiter(recovery.arbiter);
}

Recovery Get(const v1::Recovery& message, Checker& check) {
  check.Count("recovery.session_key", message.session_key().size(), kSessionKeyBytes,
              kSessionKeyBytes);
  return {
      .session_key = message.session_key(),
      .lineage = message.lineage(),
      .grace_milliseconds = message.grace_milliseconds(),
      .roster = message.has_roster() ? std::optional(Get(message.roster(), check)) : std::nullopt,
      .life = GetLife("recovery.life", message.life(), check),
      .chain = message.chain(),
      .arbiter = message.arbiter()};
}

void Set(const MembershipChange& change, v1::MembershipChange& message) {
  for (const int rank : change.newcomers) message.add_newcomers(rank);
  message.set_root(change.root);
  message.set_collectives(change.collectives);
  message.set_iteration(change.iteration);
  message.mutable_ranks()->Add(change.ranks.begin(), change.ranks.end());
}

MembershipChange Get(const v1::MembershipChange& message, Checker& check) {
  check.Count("change.newcomers", static_cast<std::size_t>(message.newcomers_size()), 0,
              kMaxWorldSize);
  MembershipChange change{.root = check.Range("change.root", message.root(), 0, kMaxWorldSize - 1),
                          .collectives = message.collectives(),
                          .iteration = check.Range("change.iteration", message.iteration(),
                                                   std::int64_t{0}, kMaxInt64)};
  if (!check.status().ok()) return change;
  for (const int rank : message.newcomers()) {
    change.newcomers.push_back(check.Range("change.newcomers", rank, 0, kMaxWorldSize - 1));
  }
  change.ranks = GetRanks("change.ranks", message.ranks(), check);
  return change;
}

void Set(const Heartbeat& heartbeat, v1::Header& out) {
  out.mutable_heartbeat()->set_asks(heartbeat.asks);
  out.mutable_heartbeat()->set_step(heartbeat.step);
}

Heartbeat Get(const v1::Heartbeat& message, Checker& check) {
  return {.asks = message.asks(), .step = check.Step(message.step())};
}

void Set(const CoordinatorState& state, v1::Header& out) {
  v1::CoordinatorState& message = *out.mutable_coordinator_state();
  message.set_step(state.step);
  message.set_offset(state.offset);
  message.set_bytes(state.bytes);
}

CoordinatorState Get(const v1::CoordinatorState& message, Checker& check) {
  const std::uint64_t bytes =
      check.Range("bytes", message.bytes(), std::uint64_t{1}, kMaxManifestBytes);
  return {.step = check.Step(message.step()),
          .offset = check.Range("offset", message.offset(), std::uint64_t{0}, bytes),
          .bytes = bytes};
}

void Set(const StateRequest& request, v1::Header& out) {
  out.mutable_state_request()->set_donor(request.donor);
}

StateRequest Get(const v1::StateRequest& message, Checker& /*check*/) {
  return {.donor = message.donor()};
}

void Set(const StateCopy& copy, v1::Header& out) {
  v1::StateCopy& message = *out.mutable_state_copy();
  message.set_generation(copy.generation);
  message.set_digest(copy.digest);
  message.set_offset(copy.offset);
  message.set_bytes(copy.bytes);
  message.set_unknown(copy.unknown);
}

StateCopy Get(const v1::StateCopy& message, Checker& check) {
  const std::uint64_t bytes =
      check.Range("bytes", message.bytes(), std::uint64_t{0}, kMaxManifestBytes);
  return {.generation = message.generation(),
          .digest = message.digest(),
          .offset = check.Range("offset", message.offset(), std::uint64_t{0}, bytes),
          .bytes = bytes,
          .unknown = message.unknown()};
}

v1::MemberReport ToProto(const MemberReport& report) {
  v1::MemberReport message;
  message.set_session_key(report.session_key);
  message.set_lineage(report.lineage);
  message.set_step(report.step);
  if (report.last) message.set_last(static_cast<v1::StepVerdict>(*report.last));
  if (report.before_last) {
    message.set_before_last(static_cast<v1::StepVerdict>(*report.before_last));
  }
  message.set_has_contributed(report.has_contributed);
  message.set_may_have_results(report.may_have_results);
  if (report.ready) {
    message.mutable_ready()->set_step(report.step);
    message.mutable_ready()->set_verdict(static_cast<v1::StepVerdict>(report.ready->verdict));
    message.mutable_ready()->set_digest(report.ready->digest);
  }
  message.set_collectives(report.collectives);
  message.set_chunk_bytes(report.chunk_bytes);
  message.set_window_chunks(report.window_chunks);
  message.set_eager_bytes(report.eager_bytes);
  message.set_newcomer(report.newcomer);
  message.set_keeps_gradients(report.keeps_gradients);
  if (report.roster) Set(*report.roster, *message.mutable_roster());
  message.mutable_concluded()->Add(report.concluded.begin(), report.concluded.end());
  message.set_has_seen_results(report.has_seen_results);
  message.set_life(report.life);
  message.set_chain(report.chain);
  message.set_arbiter(report.arbiter);
  message.set_skipped(report.skipped);
  message.set_has_leaves(report.has_leaves);
  message.set_shares(report.shares);
  message.set_in_collective(report.in_collective);
  return message;
}

absl::StatusOr<MemberReport> FromProto(const v1::MemberReport& message) {
  Checker check("report");
  check.Count("session_key", message.session_key().size(), kSessionKeyBytes, kSessionKeyBytes);
  MemberReport report{.session_key = message.session_key(),
                      .lineage = message.lineage(),
                      // Two steps more are counted.
                      .step = check.Range("step", message.step(), std::int64_t{0}, kMaxInt64 - 2),
                      .has_contributed = message.has_contributed(),
                      .may_have_results = message.may_have_results(),
                      .collectives = message.collectives(),
                      .chunk_bytes = message.chunk_bytes(),
                      .window_chunks = message.window_chunks(),
                      .eager_bytes = message.eager_bytes(),
                      .newcomer = message.newcomer(),
                      .keeps_gradients = message.keeps_gradients(),
                      .concluded = GetRanks("concluded", message.concluded(), check),
                      .has_seen_results = message.has_seen_results(),
                      .in_collective = message.in_collective(),
                      .life = GetLife("life", message.life(), check),
                      .chain = message.chain(),
                      .skipped = message.skipped(),
                      .has_leaves = message.has_leaves(),
                      .arbiter = message.arbiter(),
                      .shares = check.Range("shares", message.shares(), 0U,
                                            static_cast<std::uint32_t>(kMaxWorldSize))};
  if (message.has_roster()) report.roster = Get(message.roster(), check);
  if (message.last() != v1::STEP_VERDICT_UNSPECIFIED) {
    report.last = GetVerdict(message.last(), check);
  }
  if (message.before_last() != v1::STEP_VERDICT_UNSPECIFIED) {
    report.before_last = GetVerdict(message.before_last(), check);
  }
  if (message.has_ready()) {
    report.ready = {.verdict = GetVerdict(message.ready().verdict(), check),
                    .digest = message.ready().digest()};
  }
  if (!check.status().ok()) return check.status();
  return report;
}

}  // namespace gradwire::wire
