#include "client/core/bucket_run.h"

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"

namespace gradwire::client {

absl::StatusOr<std::unique_ptr<BucketRun>> BucketRun::Start(Hook& hook, GradBucket& bucket,
                                                            Options options,
                                                            const RoundContext& context) {
  absl::StatusOr<std::vector<RoundPlan>> plans = hook.Plan(bucket.parameters(), options.step);
  if (!plans.ok()) return plans.status();
  absl::StatusOr<std::unique_ptr<HookRun>> run = hook.Start(bucket, options.step);
  if (!run.ok()) return run.status();
  if (options.measure) (*run)->Measure();
  std::unique_ptr<BucketRun> started(
      new BucketRun(std::move(options), *std::move(plans), *std::move(run)));
  if (absl::Status status = started->OpenRound(0, context); !status.ok()) return status;
  // A fresh daemon sends it again.
  started->has_shared_ = started->options_.again && started->run_->shared_bytes() == 0;
  return started;
}

// The coordinator computes sizes from the announced plans, so that another round than the planned
// one would be reduced as what it is not.
absl::Status BucketRun::OpenRound(std::uint32_t round, const RoundContext& context) {
  RoundContext own = context;
  own.slice = options_.slice;
  absl::StatusOr<std::optional<RoundPlan>> plan = run_->Next(own);
  if (!plan.ok()) return plan.status();
  if (plan->has_value() != (round < plans_.size()) ||
      (plan->has_value() && **plan != plans_[round])) {
    return Coded(ErrorCode::kOwnHookFailed,
                 absl::InternalError(
                     absl::StrCat("round ", round, " of the hook is not the one that it planned")));
  }
  if (!plan->has_value()) {
    if (IsActive(Mutant::kStateTouchedBeforeCommit)) run_->Commit();
    holds_result_ = true;
    return absl::OkStatus();
  }
  round_ = round;
  layout_ = wire::ChunkLayout(**plan, options_.chunk_bytes, options_.slice);
  sent_ = 0;
  received_ = 0;
  return absl::OkStatus();
}

absl::Status BucketRun::NextRound(const RoundContext& context) {
  return OpenRound(round_ + 1, context);
}

BucketRun::Chunk BucketRun::HandOut() {
  has_shared_ = true;  // what is encoded needs no state; a fresh daemon sends it again
  const std::uint32_t number = sent_++;
  return {.number = number,
          .run = run_.get(),
          .range = layout_.Range(number),
          .bytes = layout_.ChunkBytes(number)};
}

void BucketRun::Taken() {
  ++received_;
  sent_ = std::max(sent_, received_);  // repeated after a resume: it was sent before
}

absl::Status BucketRun::EncodeForNobody() {
  const Chunk chunk = HandOut();
  std::vector<std::byte> bytes(chunk.bytes);
  return run_->Encode(chunk.range, bytes);
}

absl::Status BucketRun::TakeResult(const wire::Payload& payload) {
  if (options_.missed) {
    if (absl::Status status = EncodeForNobody(); !status.ok()) return status;
  }
  if (absl::Status status = Decode(payload); !status.ok()) return status;
  Taken();
  return absl::OkStatus();
}

absl::Status BucketRun::TakeResultInPlace() {
  if (absl::Status status = run_->DecodeInPlace(layout_.Range(received_)); !status.ok()) {
    return status;
  }
  Taken();
  return absl::OkStatus();
}

// gRPC cuts a message into slices at any byte, and hooks take whole elements: one that lies in two
// pieces is put together here.
absl::Status BucketRun::Decode(const wire::Payload& payload) {
  ElementRange rest = layout_.Range(received_);
  const std::size_t width = ByteSize(layout_.segment(received_).dtype);
  std::array<std::byte, 8> straddling{};
  std::size_t held = 0;
  const auto decode = [&](std::span<const std::byte> bytes) {
    ElementRange range = rest;
    range.end = range.begin + bytes.size() / width;
    rest.begin = range.end;
    return run_->Decode(range, bytes);
  };
  for (std::span<const std::byte> piece : payload.pieces()) {
    if (held > 0) {
      const std::size_t take = std::min(width - held, piece.size());
      std::memcpy(straddling.data() + held, piece.data(), take);
      held += take;
      piece = piece.subspan(take);
      if (held < width) continue;
      held = 0;
      if (absl::Status status = decode(std::span(straddling).first(width)); !status.ok())
        return status;
    }
    const std::size_t whole = piece.size() / width * width;
    if (whole > 0) {
      if (absl::Status status = decode(piece.first(whole)); !status.ok()) return status;
    }
    held = piece.size() - whole;
    std::memcpy(straddling.data(), piece.data() + whole, held);
  }
  return absl::OkStatus();
}

absl::Status BucketRun::TakeShared(const wire::Payload* piece) {
  if (piece != nullptr) {
    for (const std::span<const std::byte> bytes : piece->pieces()) {
      shared_.insert(shared_.end(), bytes.begin(), bytes.end());
    }
  }
  if (shared_.size() < run_->shared_bytes()) return absl::OkStatus();
  // A resume may repeat the state; wants_shared() then refuses it.
  has_shared_ = true;
  const std::vector<std::byte> whole = std::move(shared_);
  shared_.clear();
  return run_->Import(whole);
}

void BucketRun::Commit() {
  if (!IsActive(Mutant::kStateTouchedBeforeCommit)) run_->Commit();
}

}  // namespace gradwire::client
