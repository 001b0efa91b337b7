// A session's status as operators see it.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "proto/wire/ledger_frames.h"
#include "proto/wire/proto_conversion.h"
#include "server/core/ledger_tolerance.h"
#include "server/core/step.h"
#include "server/core/step_digests.h"
#include "server/session/member_stream.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

void AddCompression(const std::vector<ParameterReport>& report, v1::SessionStatus& status) {
  for (const ParameterReport& line : report) {
    v1::ParameterStatus& parameter = *status.add_compression();
    parameter.set_name(line.name);
    parameter.set_rank(line.rank);
    parameter.set_ratio(line.ratio);
    parameter.set_version(line.version);
  }
}

v1::StepHistogram ToProto(const StepHistogram& histogram) {
  v1::StepHistogram proto;
  for (const std::uint64_t count : histogram.counts()) proto.add_counts(count);
  for (const double bound : StepHistogram::kBounds) proto.add_bounds(bound);
  proto.set_sum(histogram.sum_seconds());
  return proto;
}

void AddWaits(const WaitLog& waits, absl::Time now, v1::SessionStatus& status) {
  if (!waits.recent().empty()) {
    *status.mutable_last_step_ago() = wire::ToProto(now - waits.recent().back().ended);
  }
  *status.mutable_daemon_wait_total() = wire::ToProto(waits.daemon_total());
  *status.mutable_step_duration() = ToProto(waits.durations());
  *status.mutable_straggler_gap() = ToProto(waits.straggler_gaps());
}

void AddPause(const StepGate& gate, absl::Time now, v1::SessionStatus& status) {
  if (!gate.paused() || status.state() != Name(SessionState::kRunning)) return;
  v1::PauseStatus& pause = *status.mutable_pause();
  *pause.mutable_left() = wire::ToProto(gate.Left(now));
  pause.set_reason(gate.reason());
  pause.set_holding(gate.shut());
}

void AddSteps(const WaitLog& waits, absl::Time now, v1::SessionStatus& status) {
  for (const StepRecord& record : waits.recent()) {
    v1::StepStatus& step = *status.add_recent_steps();
    step.set_step(record.step);
    *step.mutable_duration() = wire::ToProto(record.duration());
    *step.mutable_straggler_gap() = wire::ToProto(record.straggler_gap());
    *step.mutable_ended_ago() = wire::ToProto(now - record.ended);
    *step.mutable_daemon_wait() = wire::ToProto(record.daemon);
    *step.mutable_others_wait() = wire::ToProto(record.other_shards);
    const auto since = [&](absl::Time time) { return wire::ToProto(time - record.began); };
    for (const StepRecord::Member& one : record.members) {
      v1::MemberStep& member = *step.add_members();
      if (one.began != absl::InfinitePast()) *member.mutable_began() = since(one.began);
      if (one.announced != absl::InfinitePast()) *member.mutable_announced() = since(one.announced);
      if (one.sent != absl::InfinitePast()) *member.mutable_sent() = since(one.sent);
      *member.mutable_compute_wait() = wire::ToProto(one.caused.compute);
      *member.mutable_link_wait() = wire::ToProto(one.caused.link);
    }
  }
}

void AddShard(const SessionCore& core, v1::SessionStatus& status) {
  v1::ShardStatus& shard = *status.mutable_shard();
  shard.set_prepared(core.progress().agreement().prepared().has_value());
  *shard.mutable_others_wait_total() = wire::ToProto(core.waits().other_shards_total());
}

void AddLedger(const SessionCore& core, v1::SessionStatus& status) {
  const SessionOptions& options = core.options();
  const Ledger& ledger = core.progress().ledger();
  if (!ledger.on()) return;
  v1::LedgerStatus& out = *status.mutable_ledger();
  const LedgerTolerance tolerance = LedgerToleranceOf(options);
  out.set_settled(ledger.settled());
  out.set_tolerance(tolerance.of_balance);
  out.set_members(ledger.members());
  for (const int rank : core.LedgerSilent()) out.add_silent(rank);
  out.set_incomplete(ledger.incomplete().empty() ? tolerance.loses : ledger.incomplete());
  const std::size_t parameters = options.manifest.size();
  for (std::size_t p = 0; p < parameters; ++p) {
    const std::size_t row = LedgerRowOf(p, parameters);
    if (row >= ledger.total().size()) continue;
    if (static_cast<std::size_t>(out.rows_size()) <= row) {
      v1::NamedLedgerRow& line = *out.add_rows();
      line.set_name(options.manifest[p].name);
      wire::Set(ledger.total()[row], *line.mutable_row());
    }
    v1::NamedLedgerRow& line = *out.mutable_rows(static_cast<int>(row));
    line.set_parameters(line.parameters() + 1);
  }
}

std::string TransportOf(const MemberStream& stream) {
  if (stream.shares_memory()) return "shared memory";
  return stream.is_local() ? "unix" : "tcp";
}

}  // namespace

// The report is made without the lock.
std::vector<ParameterReport> SessionRunner::CompressionReport() const {
  std::shared_ptr<const HookSnapshot> snapshot;
  {
    MutexLock lock(mutex_);
    snapshot = core_.hook_state().Snapshot();
  }
  if (snapshot == nullptr) return {};
  std::vector<ParameterReport> report = snapshot->Report();
  if (options_.shard.count() == 1 || report.empty()) return report;
  // One line for each parameter, as no hook with other lines has several shards. What this one does
  // not reduce, it knows nothing of.
  std::vector<ParameterReport> own;
  for (std::uint32_t p = 0; p < report.size(); ++p) {
    if (options_.shard.Owns(p)) own.push_back(std::move(report[p]));
  }
  return own;
}

StepDigests SessionRunner::Digests() const {
  MutexLock lock(mutex_);
  return core_.progress().digests();
}

v1::SessionStatus SessionRunner::Status(absl::Time now, bool compression) const {
  v1::SessionStatus status;
  status.set_name(options_.name);
  status.set_generation(options_.generation);
  status.set_lineage(options_.lineage);
  status.set_world_size(options_.world_size);
  *status.mutable_hook() = wire::ToProto(options_.AskedHook());
  if (options_.leaf.is_leaf()) {
    status.mutable_leaf()->set_first_rank(options_.leaf.first);
    status.mutable_leaf()->set_members(options_.leaf.members);
  }
  status.set_parameters(parameters_);
  status.set_gradient_bytes(gradient_bytes_);
  status.set_reserved_bytes(share_.bytes());
  *status.mutable_longest_lock_hold() = wire::ToProto(absl::FromChrono(longest_hold()));
  if (options_.shard.count() > 1) *status.mutable_shard() = shard_;
  // CompressionReport takes the lock itself.
  if (compression) AddCompression(CompressionReport(), status);
  MutexLock lock(mutex_);
  status.set_state(Name(core_.state()));
  status.set_step(core_.step());
  status.set_attempt(core_.progress().attempt());
  status.set_waiting_for(core_.WaitingFor(now));
  const SessionStats& stats = core_.progress().flow().stats();
  status.set_contribution_bytes_total(stats.contribution_bytes);
  status.set_result_bytes_total(stats.result_bytes);
  status.set_duplicate_chunks_total(stats.duplicate_chunks);
  status.set_steps_applied_total(stats.steps_applied);
  status.set_steps_skipped_total(stats.steps_skipped);
  status.set_resumes_total(resumes_);
  status.set_iteration(core_.hook_state().iteration());
  if (options_.shard.count() > 1) AddShard(core_, status);
  AddPause(core_.progress().gate(), now, status);
  status.set_slow(core_.Slow());
  status.set_last_skip(core_.progress().last_skip());
  status.set_last_drift(core_.progress().last_drift());
  AddWaits(core_.waits(), now, status);
  // An ended session's is kept.
  if (compression || core_.state() != SessionCore::State::kRunning) AddLedger(core_, status);
  if (compression) {
    AddSteps(core_.waits(), now, status);
    for (const auto& [bucket, report] : core_.progress().reports().all()) {
      v1::BucketStatus& line = *status.add_buckets();
      line.set_name(options_.manifest[bucket].name);
      *line.mutable_report() = wire::ToProto(report).bucket_report();
    }
  }
  const bool live = core_.state() == SessionCore::State::kJoining ||
                    core_.state() == SessionCore::State::kRunning;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    v1::MemberStatus& member = *status.add_members();
    member.set_rank(rank);
    member.set_state(Name(core_.member_state(rank)));
    if (const std::string& leaf = core_.leaf_name(rank); !leaf.empty()) {
      member.set_leaf(leaf);
      member.set_ranks(core_.ranks(rank));
    }
    if (const auto stream = StreamOf(rank)) member.set_transport(TransportOf(*stream));
    member.set_contribution_bytes_total(core_.progress().flow().member_bytes(rank));
    member.set_missed_steps_total(core_.progress().late().missed_steps(rank));
    const CausedWait& caused = core_.waits().total(rank);
    *member.mutable_compute_wait_total() = wire::ToProto(caused.compute);
    *member.mutable_link_wait_total() = wire::ToProto(caused.link);
    // The status of an ended session may be kept for hours, in which this time would only grow.
    const SessionCore::MemberState state = core_.member_state(rank);
    if (!live || state == SessionCore::MemberState::kAbsent || core_.IsElsewhere(rank)) {
      continue;
    }
    *member.mutable_last_heard() = wire::ToProto(now - core_.last_heard(rank));
  }
  return status;
}

}  // namespace gradwire::server
