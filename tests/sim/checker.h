// What must hold in every run, whatever the faults. Sees only what crosses a member's edge: bytes
// sent, frames delivered, hook state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/sim/bytes.h"
#include "tests/sim/scenario.h"
#include "tests/testing/hook_world.h"

namespace gradwire::sim {

// A hook's state, whatever the order of its tensors.
struct StateImage {
  std::map<std::string, std::string> metadata;
  std::map<std::string, ByteVector> tensors;
  bool operator==(const StateImage&) const = default;
};

class Checker {
 public:
  explicit Checker(const Scenario& scenario);

  // Keeps the first violation only: the others follow from it.
  void Violate(const std::string& what);
  bool violated() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }

  // The member's gradients of a bucket, in the bucket's dtype.
  ByteVector GradientBytes(int rank, std::int64_t step,
                           const std::vector<std::uint32_t>& bucket) const;

  void OnContribution(const wire::Contribution& header, const ByteVector& bytes);
  // Frames as they are handed to a member that is in `member_step`.
  void OnResultFrame(int rank, const wire::Result& result, const wire::Payload* payload);
  void OnStepDoneFrame(int rank, const wire::StepDone& done, std::int64_t member_step);
  // The session heard that the member has so many results of the round, and reduces a chunk whose
  // result it keeps: every member's window must reach it.
  void OnAcknowledged(int rank, const wire::RoundId& id, std::uint32_t received);
  void OnReduction(const wire::RoundId& id, std::uint32_t chunk);
  // What the member says.
  void OnBucketDone(int rank, std::int64_t step, std::uint32_t bucket, const ByteVector& buffer);
  void OnStepDone(int rank, std::int64_t step, Verdict verdict, const FeedbackHook* hook);

  // PowerSGD: the coordinator's state when the session has committed `step`, a member's when it has
  // ended it, and a member's when it failed.
  void OnCommitted(std::int64_t step, const HookState& coordinator);
  void OnMemberState(int rank, std::int64_t step, const HookState& state);
  void OnFailed(int rank, const HookState& state);

  // Of a chunk that a member is about to send.
  DType WireDType(const wire::Contribution& header);
  // Steps whose reference had at least one compressed matrix.
  std::uint64_t low_rank_steps() const { return low_rank_steps_; }

 private:
  struct ChunkKey {
    std::int64_t step = 0;
    std::uint32_t bucket = 0;
    std::uint32_t round = 0;
    std::uint32_t chunk = 0;
    auto operator<=>(const ChunkKey&) const = default;
  };
  struct SentKey {
    ChunkKey chunk;
    std::uint32_t attempt = 0;
    int rank = 0;
    auto operator<=>(const SentKey&) const = default;
  };
  using Layouts = std::vector<wire::ChunkLayout>;  // by round
  using Residuals = std::map<std::string, std::vector<double>>;

  const Layouts* FindLayouts(const ChunkKey& key);
  const std::map<std::uint32_t, Layouts>& LayoutsOf(std::int64_t step);
  std::optional<ByteVector> Recompute(const ChunkKey& key, std::uint32_t attempt,
                                      const wire::ChunkLayout& layout);
  std::optional<ByteVector> SentUnit(ChunkKey key, std::uint32_t attempt, int rank,
                                     const wire::ChunkLayout::Unit& unit);
  void MakeReference();
  void FollowStep(std::int64_t step);
  void RunReference(std::int64_t step);
  std::vector<double> TotalOf(std::int64_t step, std::uint32_t bucket, const Layouts& layouts,
                              std::size_t numel) const;
  void CheckResiduals(int rank, std::int64_t step, Verdict verdict, const FeedbackHook& hook);

  const Scenario& scenario_;
  std::unique_ptr<Hook> hook_;
  std::string violation_;
  std::map<std::int64_t, std::map<std::uint32_t, Layouts>> layouts_;
  std::map<SentKey, ByteVector> sent_;
  std::map<ChunkKey, ByteVector> results_;
  std::map<std::pair<int, std::int64_t>, std::set<ChunkKey>> delivered_;
  // Results of a round that the session knows a member to have.
  std::map<std::tuple<int, std::int64_t, std::uint32_t, std::uint32_t>, std::uint32_t> received_;
  std::set<std::int64_t> nonfinite_steps_;
  std::map<std::int64_t, wire::StepDone> done_;
  std::map<std::pair<std::int64_t, std::uint32_t>, ByteVector> buffers_;
  std::vector<Residuals> residuals_;  // the model, by rank

  // PowerSGD: the same hooks in a plain loop, given the steps that were applied and no others.
  std::unique_ptr<testing::HookWorld> reference_;
  std::int64_t followed_ = 0;  // steps that the reference knows the end of
  std::map<std::int64_t, StateImage> committed_;
  std::vector<StateImage> member_states_;  // by rank, at the end of its last step
  std::uint64_t low_rank_steps_ = 0;
};

}  // namespace gradwire::sim
