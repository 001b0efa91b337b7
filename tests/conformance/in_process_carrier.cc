#include <memory>
#include <optional>
#include <utility>

#include "gradwire/hooks/registry.h"
#include "hooks/reduce.h"
#include "tests/conformance/hook_conformance.h"

namespace gradwire::conformance {
namespace {

// A member's bucket with the memory that it views.
struct OwnedBucket {
  std::vector<std::byte> bytes;
  std::unique_ptr<GradBucket> bucket;
  std::unique_ptr<HookRun> run;
};

class InProcessCarrier : public Carrier {
 public:
  InProcessCarrier(std::vector<ParameterSpec> parameters, std::vector<std::unique_ptr<Hook>> hooks)
      : parameters_(std::move(parameters)), hooks_(std::move(hooks)) {}

  absl::StatusOr<StepResult> RunStep(
      const std::vector<MemberGradients>& gradients,
      const std::vector<std::vector<std::size_t>>& buckets) override {
    StepResult result{.gradients = gradients,
                      .verdicts = std::vector<Verdict>(hooks_.size(), Verdict::kApply)};
    std::vector<std::vector<OwnedBucket>> open;
    bool finite = true;
    for (const std::vector<std::size_t>& positions : buckets) {
      auto members = StartBucket(gradients, positions);
      if (!members.ok()) return members.status();
      for (;;) {
        auto more = RunRound(*members, finite);
        if (!more.ok()) return more.status();
        if (!*more) break;
      }
      CopyBack(*members, positions, result);
      open.push_back(*std::move(members));
    }
    for (std::vector<OwnedBucket>& members : open) {
      for (OwnedBucket& member : members) finite ? member.run->Commit() : member.run->Abort();
    }
    if (!finite) result.verdicts.assign(hooks_.size(), Verdict::kSkip);
    ++step_;
    return result;
  }

 private:
  absl::StatusOr<std::vector<OwnedBucket>> StartBucket(
      const std::vector<MemberGradients>& gradients, const std::vector<std::size_t>& positions) {
    std::vector<OwnedBucket> members;
    for (std::size_t rank = 0; rank < hooks_.size(); ++rank) {
      OwnedBucket member;
      std::vector<ParameterSpec> parameters;
      for (std::size_t p : positions) {
        member.bytes.insert(member.bytes.end(), gradients[rank][p].begin(),
                            gradients[rank][p].end());
        parameters.push_back(parameters_[p]);
      }
      const DType dtype = parameters.front().dtype;
      const TensorView view{dtype, member.bytes.data(), member.bytes.size() / ByteSize(dtype)};
      auto bucket = GradBucket::Make(0, view, parameters);
      if (!bucket.ok()) return bucket.status();
      member.bucket = std::make_unique<GradBucket>(*std::move(bucket));
      auto run = hooks_[rank]->Start(*member.bucket, step_);
      if (!run.ok()) return run.status();
      member.run = *std::move(run);
      members.push_back(std::move(member));
    }
    return members;
  }

  absl::StatusOr<bool> RunRound(std::vector<OwnedBucket>& members, bool& finite) {
    std::optional<RoundPlan> plan;
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      auto next = members[rank].run->Next(
          {.world_size = static_cast<int>(members.size()), .rank = static_cast<int>(rank)});
      if (!next.ok()) return next.status();
      if (rank > 0 && *next != plan) return absl::InternalError("members plan different rounds");
      plan = *next;
    }
    if (!plan) return false;
    for (std::size_t s = 0; s < plan->segments.size(); ++s) {
      const Segment& segment = plan->segments[s];
      const ElementRange range{.segment = s, .begin = 0, .end = segment.numel};
      std::vector<std::vector<std::byte>> contributions(members.size());
      for (std::size_t rank = 0; rank < members.size(); ++rank) {
        contributions[rank].resize(segment.bytes());
        absl::Status status = members[rank].run->Encode(range, contributions[rank]);
        if (!status.ok()) return status;
      }
      std::vector<std::span<const std::byte>> pieces(contributions.begin(), contributions.end());
      std::vector<Pieces> inputs;
      for (const auto& piece : pieces) inputs.emplace_back(&piece, 1);
      std::vector<std::byte> sum(segment.bytes());
      finite &= Reduce(segment.dtype, segment.op, segment.numel, inputs, sum).finite;
      for (OwnedBucket& member : members) {
        if (absl::Status status = member.run->Decode(range, sum); !status.ok()) return status;
      }
    }
    return true;
  }

  void CopyBack(const std::vector<OwnedBucket>& members, const std::vector<std::size_t>& positions,
                StepResult& result) const {
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      auto from = members[rank].bytes.begin();
      for (std::size_t p : positions) {
        std::vector<std::byte>& to = result.gradients[rank][p];
        const auto end = from + static_cast<std::ptrdiff_t>(to.size());
        to.assign(from, end);
        from = end;
      }
    }
  }

  std::vector<ParameterSpec> parameters_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  std::int64_t step_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Carrier>> MakeInProcessCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters) {
  std::vector<std::unique_ptr<Hook>> hooks;
  for (int rank = 0; rank < world_size; ++rank) {
    auto hook = HookRegistry::Global().Make(spec);
    if (!hook.ok()) return hook.status();
    hooks.push_back(*std::move(hook));
  }
  return std::unique_ptr<Carrier>(std::make_unique<InProcessCarrier>(parameters, std::move(hooks)));
}

}  // namespace gradwire::conformance
