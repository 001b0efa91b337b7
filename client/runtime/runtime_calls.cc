// Smaller calls: draw plans and collectives; and metrics, reports, and RPCs to the daemon, which
// any thread may make.
#include <algorithm>
#include <utility>

#include "client/core/member_collectives.h"
#include "client/runtime/runtime.h"
#include "proto/wire/state_calls.h"

namespace gradwire::client {

// A step that is over for the core, and not yet for the user, was lost with its daemon, or had
// nothing of this member: there is nobody to compare with.
absl::Status Runtime::CheckParameters(std::uint64_t digest) {
  if (absl::Status open = Open(); !open.ok()) return open;
  if (!over_.empty()) return absl::OkStatus();
  Effects effects;
  absl::Status told = member_.CheckParameters(digest, effects);
  Apply(std::move(effects));
  return told;
}

// Errors are ignored: if the session has failed, later calls report it.
void Runtime::SetDrawPlan(const DrawBuckets& buckets) {
  device_.Call(nullptr, [this, buckets] {
    Effects effects;
    if (Open().ok()) member_.SetDrawPlan(buckets, effects).IgnoreError();
    Apply(std::move(effects));
  });
}

void Runtime::Enter(std::shared_ptr<CollectiveCall> call) {
  device_.Call(nullptr, [this, call = std::move(call)] { Begin(call); });
}

// Members behind a leaf may be through a broadcast before its client is, which begins it anew with
// another daemon.
void Runtime::Begin(std::shared_ptr<CollectiveCall> call) {
  if (absl::Status open = Open(); !open.ok()) return call->outcome.Complete(open);
  if (collective_ != nullptr && collective_->relay && next_collective_ == nullptr) {
    next_collective_ = std::move(call);
    return;
  }
  const bool has_change = std::any_of(over_.begin(), over_.end(),
                                      [](const auto& over) { return over.change.has_value(); });
  if (has_change) return call->outcome.Complete(VoidCollective(call->kind));
  unhealed_.reset();
  Effects effects;
  const auto number = member_.Enter(call->kind, call->root, call->bytes, effects);
  if (!number.ok()) return call->outcome.Complete(number.status());
  if (call->relay) member_.collectives().BeginRelay(call->relay->room);
  collective_ = std::move(call);
  Apply(std::move(effects));
}

void Runtime::On(CollectiveDoneEffect& effect) {
  device_.queue().InOrder([this, status = effect.status] { EndCollectives(status); });
}

void Runtime::EndCollectives(const absl::Status& status) {
  if (auto call = std::exchange(collective_, nullptr)) call->outcome.Complete(status);
  if (auto next = std::exchange(next_collective_, nullptr)) Begin(std::move(next));
}

// ---- A broadcast that passes through. Where the session has ended, what is left of it is ignored.

void Runtime::Give(wire::PayloadRef bytes) {
  device_.Call(nullptr, [this, bytes = std::move(bytes)] {
    if (collective_ == nullptr || !collective_->relay) return;
    collective_->given.Add(bytes);
    Effects effects;
    member_.collectives().Give(bytes->bytes(), effects);
    Apply(std::move(effects));
  });
}

void Runtime::MakeRoom(std::uint64_t bytes) {
  device_.Call(nullptr, [this, bytes] {
    Effects effects;
    member_.collectives().MakeRoom(bytes, effects);
    Apply(std::move(effects));
  });
}

void Runtime::On(RelayBegunEffect&) {
  if (collective_ != nullptr && collective_->relay) collective_->relay->began();
}

void Runtime::On(RelayTakenEffect& effect) {
  if (collective_ == nullptr || !collective_->relay) return;
  collective_->given.Drop(effect.kept_from);
  collective_->relay->taken(effect.taken);
}

ClientMetrics Runtime::metrics() const {
  MutexLock lock(shared_mutex_);
  return metrics_;
}

std::vector<BucketReport> Runtime::Report() const {
  MutexLock lock(shared_mutex_);
  const std::vector<wire::BucketReport> all = stats_.All();
  std::vector<BucketReport> reports;
  reports.reserve(all.size());
  for (const wire::BucketReport& report : all) {
    reports.push_back({.first_parameter = options_.parameters[report.bucket].name,
                       .parameters = report.parameters,
                       .reductions = report.reductions,
                       .gradient_bytes = report.gradient_bytes,
                       .sent_bytes = report.sent_bytes,
                       .received_bytes = report.received_bytes,
                       .compress_seconds = report.compress_seconds,
                       .wire_seconds = report.wire_seconds,
                       .reduce_seconds = report.reduce_seconds,
                       .decompress_seconds = report.decompress_seconds,
                       .gradient_norm = report.gradient_norm,
                       .residual_norm = report.residual_norm,
                       .in_place = stats_.in_place(report.bucket)});
  }
  return reports;
}

// The SDK's thread replaces the channel when it resumes; a call in flight keeps the old one.
std::shared_ptr<grpc::Channel> Runtime::channel() const {
  MutexLock lock(shared_mutex_);
  return channel_;
}

std::string Runtime::access_token() const {
  MutexLock lock(shared_mutex_);
  return access_token_;
}

std::string Runtime::token() const {
  MutexLock lock(shared_mutex_);
  return token_;
}

absl::Status Runtime::CallLeave(absl::Duration timeout) const {
  return LeaveSession(channel(), token(), start_id_, access_token(), timeout);
}

absl::StatusOr<std::string> Runtime::CallExport(absl::Duration timeout) const {
  const auto stub = v1::AdminService::NewStub(channel());
  return wire::FetchState(*stub, options_.session, access_token(), timeout);
}

absl::Status Runtime::CallImport(const std::string& state, absl::Duration timeout) const {
  const auto stub = v1::AdminService::NewStub(channel());
  return wire::ReplaceState(*stub, options_.session, state, shards_, access_token(), timeout)
      .status();
}

}  // namespace gradwire::client
