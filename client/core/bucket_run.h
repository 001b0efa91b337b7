// One bucket in one step: the hook's run, the rounds that it goes through, and which chunks of the
// open round have been handed out and taken.
//
// It knows no frames. The caller decides who sends a chunk and where a result comes from, because
// several daemons may share one bucket.
//
// Not thread-safe. It calls the hook's run inline.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/hook.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

class BucketRun {
 public:
  struct Options {
    std::vector<std::uint32_t> parameters;  // manifest positions; not empty
    std::int64_t step = 0;
    std::size_t chunk_bytes = 0;
    bool measure = false;     // it should have norms()
    std::uint32_t share = 0;  // of its node group's
    Slice slice{};            // of every segment: what travels to this daemon
    bool again = false;       // an earlier run of it has imported the state that the hook lacked
    bool missed = false;      // others reduce it without this member, which takes results only
  };
  // What to encode: `run` writes `range`, which takes `bytes`.
  struct Chunk {
    std::uint32_t number = 0;
    HookRun* run = nullptr;
    ElementRange range;
    std::size_t bytes = 0;
  };

  // Opens the first round. `bucket` outlives the run, and `hook` too.
  static absl::StatusOr<std::unique_ptr<BucketRun>> Start(Hook& hook, GradBucket& bucket,
                                                          Options options,
                                                          const RoundContext& context);

  BucketRun(const BucketRun&) = delete;
  BucketRun& operator=(const BucketRun&) = delete;

  // The bucket's id in frames: the manifest position of its first parameter.
  std::uint32_t id() const { return options_.parameters.front(); }
  const std::vector<std::uint32_t>& parameters() const { return options_.parameters; }
  const std::vector<RoundPlan>& plans() const { return plans_; }
  std::uint32_t share() const { return options_.share; }
  const Options& options() const { return options_; }

  // All results of all rounds are in the buffer; the run waits for the step's verdict. No round is
  // open then.
  bool holds_result() const { return holds_result_; }
  std::optional<BucketNorms> norms() const { return run_->norms(); }

  // ---- The open round
  std::uint32_t round() const { return round_; }
  const wire::ChunkLayout& layout() const { return layout_; }
  std::uint32_t sent() const { return sent_; }          // chunks handed out
  std::uint32_t received() const { return received_; }  // results taken, in chunk order
  bool is_round_complete() const { return received_ == layout_.chunk_count(); }

  // Only for a complete round; may open one without elements, which is complete at once.
  absl::Status NextRound(const RoundContext& context);

  // ---- Sending
  bool has_unsent() const { return sent_ < layout_.chunk_count(); }
  // Only while has_unsent().
  Chunk HandOut();
  // Chunks that were handed out may not have arrived: hands out again those without a result.
  // Chunks with a result are excluded because the buffer then no longer holds their gradient.
  void Rewind() { sent_ = received_; }

  // ---- Results: of chunk received(), the round not complete. An error leaves the run unusable.
  // `payload` has exactly the chunk's bytes.
  absl::Status TakeResult(const wire::Payload& payload);
  // The coordinator has written it over the gradients (HookRun::DecodeInPlace).
  absl::Status TakeResultInPlace();

  // ---- State that the coordinator shares, in pieces and before the first round's first chunk
  bool wants_shared() const { return !has_shared_ && !holds_result_ && round_ == 0; }
  std::size_t shared_bytes() const { return run_->shared_bytes(); }
  std::size_t shared_received() const { return shared_.size(); }
  void ForgetShared() { shared_.clear(); }
  // Adds a piece, not more than is missing; the hook gets the whole. Null: an empty one.
  absl::Status TakeShared(const wire::Payload* piece);

  // ---- The step's end
  void Commit();
  void Abort() { run_->Abort(); }

 private:
  BucketRun(Options options, std::vector<RoundPlan> plans, std::unique_ptr<HookRun> run)
      : options_(std::move(options)), plans_(std::move(plans)), run_(std::move(run)) {}

  // Hooks take the result of what they have encoded: of zero, which nobody is sent.
  absl::Status EncodeForNobody();
  absl::Status OpenRound(std::uint32_t round, const RoundContext& context);
  absl::Status Decode(const wire::Payload& payload);
  void Taken();

  const Options options_;
  const std::vector<RoundPlan> plans_;
  const std::unique_ptr<HookRun> run_;
  std::uint32_t round_ = 0;
  wire::ChunkLayout layout_;
  std::uint32_t sent_ = 0;
  std::uint32_t received_ = 0;
  std::vector<std::byte> shared_;
  bool has_shared_ = false;  // the run has it, or had it
  bool holds_result_ = false;
};

}  // namespace gradwire::client
