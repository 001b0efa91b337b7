// PowerSGD against the same hooks without a session: results and states, bit for bit.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checker.h"

namespace gradwire::sim {
namespace {

StateImage ImageOf(const HookState& state) {
  StateImage image{.metadata = state.metadata, .tensors = {}};
  image.metadata.erase("step");  // the session's, not the hook's
  for (const StateTensor& tensor : state.tensors) image.tensors[tensor.name] = tensor.data;
  return image;
}

std::string FirstDifference(const StateImage& expected, const StateImage& got) {
  for (const auto& [key, value] : expected.metadata) {
    const auto found = got.metadata.find(key);
    if (found == got.metadata.end()) return absl::StrCat("no ", key);
    if (found->second != value) {
      return absl::StrCat(key, " is ", found->second.substr(0, 40), ", not ", value.substr(0, 40));
    }
  }
  for (const auto& [name, bytes] : expected.tensors) {
    const auto found = got.tensors.find(name);
    if (found == got.tensors.end()) return absl::StrCat("no ", name);
    if (found->second != bytes) return absl::StrCat("other bytes of ", name);
  }
  return "more than it should have";
}

}  // namespace

void Checker::MakeReference() {
  const server::SessionOptions& options = scenario_.options;
  reference_ = *testing::HookWorld::Make(options.world_size, options.spec, options.manifest.list());
  for (std::size_t r = 0; r < scenario_.world(); ++r) {
    member_states_.push_back(ImageOf(reference_->hook(r).State()));
  }
}

DType Checker::WireDType(const wire::Contribution& header) {
  const wire::RoundId& id = header.id;
  return LayoutsOf(id.step).at(id.bucket)[id.round].segment(header.chunk).dtype;
}

void Checker::OnCommitted(std::int64_t step, const HookState& coordinator) {
  committed_[step] = ImageOf(coordinator);
}

// With the first member that ends a step: nobody can be a step further, since all take part.
void Checker::FollowStep(std::int64_t step) {
  if (step < followed_) return;
  followed_ = step + 1;
  if (step == scenario_.draw_plan_step) {
    absl::Status status = reference_->coordinator().SetDrawPlan(scenario_.draw_plan);
    if (!status.ok()) return Violate(std::string(status.message()));
  }
  if (done_.at(step).verdict == Verdict::kApply) RunReference(step);
  const StateImage expected = ImageOf(reference_->Export());
  const auto found = committed_.find(step);
  if (found == committed_.end()) {
    return Violate(absl::StrCat("a member ends step ", step, " before the session does"));
  }
  if (found->second != expected) {
    Violate(absl::StrCat("the coordinator's state after step ", step,
                         " is not the reference's: ", FirstDifference(expected, found->second)));
  }
}

void Checker::RunReference(std::int64_t step) {
  const StepPlan& plan = scenario_.steps[static_cast<std::size_t>(step)];
  const std::size_t parameters = scenario_.options.manifest.size();
  std::vector<testing::MemberGradients> gradients(scenario_.world());
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    for (std::uint32_t p = 0; p < parameters; ++p) {
      gradients[r].push_back(GradientBytes(static_cast<int>(r), step, {p}));
    }
  }
  testing::Buckets buckets;
  bool low_rank = false;
  for (const auto& bucket : plan.buckets) {
    buckets.emplace_back(bucket.begin(), bucket.end());
    if (!reference_->coordinator().Plan(bucket).ok()) continue;
    low_rank |= reference_->coordinator().SharedVersion(bucket) != 0;
  }
  if (low_rank) ++low_rank_steps_;
  const absl::StatusOr<Verdict> verdict = reference_->RunStep(gradients, buckets);
  if (!verdict.ok() || *verdict != Verdict::kApply) {
    return Violate(absl::StrCat("step ", step, " was applied; in the reference it is ",
                                verdict.ok() ? "skipped" : verdict.status().ToString()));
  }
  for (const auto& bucket : plan.buckets) {
    const ByteVector& got = buffers_.at({step, bucket.front()});
    for (std::size_t r = 0; r < gradients.size(); ++r) {
      ByteVector expected;
      for (std::uint32_t p : bucket) {
        expected.insert(expected.end(), gradients[r][p].begin(), gradients[r][p].end());
      }
      if (expected == got) continue;
      return Violate(absl::StrCat("bucket ", bucket.front(), " of step ", step,
                                  " is not what the reference gives rank ", r));
    }
  }
}

void Checker::OnMemberState(int rank, std::int64_t step, const HookState& state) {
  const StateImage expected = ImageOf(reference_->hook(static_cast<std::size_t>(rank)).State());
  StateImage& got = member_states_[static_cast<std::size_t>(rank)] = ImageOf(state);
  if (got != expected) {
    Violate(absl::StrCat("rank ", rank, "'s state after step ", step,
                         " is not the reference's: ", FirstDifference(expected, got)));
  }
}

void Checker::OnFailed(int rank, const HookState& state) {
  const StateImage& before = member_states_[static_cast<std::size_t>(rank)];
  const StateImage after = ImageOf(state);
  if (after != before) {
    Violate(absl::StrCat("rank ", rank, "'s state was touched by a step that failed: ",
                         FirstDifference(before, after)));
  }
}

}  // namespace gradwire::sim
