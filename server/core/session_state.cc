// The hook's state: what members are given of it, and how it follows the results.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/wire/joined_payload.h"
#include "proto/wire/owned_payload.h"
#include "server/core/session.h"

namespace gradwire::server {

// Gives a member what it lacks before it encodes the bucket's first bytes.
void Session::SendShared(Bucket& bucket, int rank, Effects& effects) {
  if (bucket.epoch == 0 || bucket.round > 0) return;
  const std::vector<std::uint64_t>& epochs = members_[Index(rank)].epochs;
  if (std::all_of(bucket.parameters.begin(), bucket.parameters.end(),
                  [&](std::uint32_t p) { return epochs[p] == bucket.epoch; })) {
    return;
  }
  if (bucket.shared == nullptr) {
    SharedBlock pieces;
    const std::shared_ptr<SharedStateWork> work = hook_->SharedState(bucket.parameters);
    work->Run();
    std::vector<std::byte> state = work->TakeBytes();
    const std::size_t total = state.size();
    const wire::PayloadRef whole = wire::OwnedPayload::Make(std::move(state));
    for (std::size_t at = 0; at < total; at += options_.chunk_bytes) {
      pieces.push_back(wire::Part(whole, at, std::min(options_.chunk_bytes, total - at)));
    }
    bucket.shared = std::make_shared<const SharedBlock>(std::move(pieces));
  }
  std::uint64_t total = 0;
  for (const wire::PayloadRef& piece : *bucket.shared) total += piece->bytes();
  std::uint64_t offset = 0;
  for (const wire::PayloadRef& piece : *bucket.shared) {
    effects.push_back(SendEffect{
        .rank = rank,
        .frame = {.header =
                      wire::SharedState{.id = CurrentId(bucket), .offset = offset, .bytes = total},
                  .payload = piece},
        .keeper = bucket.shared});
    offset += piece->bytes();
  }
}

void Session::Observe(const Bucket& bucket, std::uint32_t chunk, const ReducedResult& result) {
  if (hook_ == nullptr) return;
  const wire::ChunkLayout& layout = bucket.rounds.back().layout;
  if (!hook_->Observes(bucket.round, layout.segment(chunk))) return;
  const wire::PayloadRef kept = result.kept();
  if (kept->pieces().size() == 1) {
    return hook_->Observe(bucket.parameters, bucket.round, layout.Range(chunk),
                          kept->pieces().front());
  }
  std::vector<std::byte> bytes;
  for (const auto& piece : kept->pieces()) bytes.insert(bytes.end(), piece.begin(), piece.end());
  hook_->Observe(bucket.parameters, bucket.round, layout.Range(chunk), bytes);
}

absl::Status Session::CheckHasState() const {
  if (state_ == State::kFailed) return failure_;
  if (hook_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("session \"", options_.name,
                     "\" has a hook of its members' own, which keeps no "
                     "state on the coordinator"));
  }
  return absl::OkStatus();
}

absl::StatusOr<HookState> Session::ExportState() const {
  if (absl::Status status = CheckHasState(); !status.ok()) return status;
  absl::StatusOr<HookState> state = hook_->Snapshot()->State();
  if (state.ok()) state->metadata["step"] = absl::StrCat(step_);
  return state;
}

absl::Status Session::ImportState(const HookState& state, Effects& effects) {
  if (absl::Status status = CheckHasState(); !status.ok()) return status;
  if (step_began_) {
    return absl::FailedPreconditionError(absl::StrCat("session \"", options_.name,
                                                      "\" is in the middle of step ", step_,
                                                      "; try between two steps"));
  }
  if (state_ != State::kRunning) {  // members that join later would not hear of it
    return absl::FailedPreconditionError(absl::StrCat(
        "session \"", options_.name, "\" is ", Name(state_), "; a state goes into a running one"));
  }
  const auto import = hook_->ReadState(state);
  if (!import.ok()) return import.status();
  hook_->Install(**import);
  for (Member& member : members_) {
    std::fill(member.epochs.begin(), member.epochs.end(), 0);
    member.reset_sent = true;
  }
  FanOut(wire::StateReset{.iteration = hook_->iteration()}, nullptr, effects);
  return absl::OkStatus();
}

// Rank 0 measures for all, as it does in torch's log. What others send is of no use yet, and no
// sin.
void Session::OnBucketReport(int rank, const wire::BucketReport& report, Effects& effects) {
  if (report.bucket >= options_.manifest.size() || report.parameters > options_.manifest.size()) {
    return Violation(rank,
                     absl::InvalidArgumentError(absl::StrCat(
                         "reported on bucket ", report.bucket, " of ", report.parameters,
                         " parameters; the manifest has ", options_.manifest.size())),
                     effects);
  }
  if (rank == 0) reports_[report.bucket] = report;
}

void Session::LogCompression(Effects& effects) const {
  const std::int64_t interval = hook_ == nullptr ? 0 : hook_->log_interval();
  if (interval == 0 || hook_->iteration() % interval != 0) return;
  std::size_t before = 0;
  std::size_t after = 0;
  for (const auto& [key, bucket] : buckets_) {
    if (bucket.step != step_) continue;
    for (std::uint32_t p : bucket.parameters) {
      before += options_.manifest[p].numel() * ByteSize(options_.manifest[p].dtype);
    }
    for (const RoundPlan& plan : bucket.plans) after += plan.bytes();
  }
  std::string text = absl::StrFormat(
      "after %d applied steps: %d bytes of gradients went as %d bytes, 1/%.1f", hook_->iteration(),
      before, after,
      static_cast<double>(before) / static_cast<double>(std::max<std::size_t>(after, 1)));
  double gradient = 0;
  double residual = 0;
  for (const auto& [id, report] : reports_) {
    gradient += report.gradient_norm * report.gradient_norm;
    residual += report.residual_norm * report.residual_norm;
  }
  if (gradient > 0) {
    absl::StrAppendFormat(&text, "; rank 0's residual has %.3f of its gradient's norm",
                          std::sqrt(residual / gradient));
  }
  effects.push_back(LogEffect{.message = text});
}

std::vector<ParameterReport> Session::Report() const {
  return hook_ == nullptr ? std::vector<ParameterReport>() : hook_->Snapshot()->Report();
}

}  // namespace gradwire::server
