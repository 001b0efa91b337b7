// What becomes of a step that is prepared: the daemon's own verdict where it is alone, what the
// root decides where it is a leaf, and otherwise what the session's shards agree on.
//
// Each shard knows the verdict of its own results only, and one shard's APPLY beside another's SKIP
// would leave members without a common state. So a member that holds all results of all shards
// combines their verdicts and says READY to shard 0, which leads: it concludes when all members
// have said so, and the other shards conclude when the first member tells them. A shard that
// decided for itself would conclude a step whose other results a member may never get.
//
// One daemon asks for READY too if the session is to outlive it (Gathering).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/frame.h"

namespace gradwire::server {

// Of the open step. Not thread-safe. Ranks are in [0, world_size). An error blames the sender; the
// step and the generation of the frames were checked before.
class Agreement {
 public:
  // `leaf`: this is one, and its root has the last word.
  Agreement(std::uint32_t shard, std::uint32_t shards, int world_size, bool leaf = false);

  // The rank says nothing here. Before the first step.
  void SetElsewhere(int rank);
  // Before the first step.
  void AskForReady() { asks_ = true; }

  // The daemon has nobody to ask.
  bool alone() const { return shards_ == 1 && !asks_; }
  // Whether members hear from this shard that the step is done.
  bool leads() const { return shard_ == 0; }

  // All results are out; this is what they come to. The first call of a step counts.
  void Prepare(Verdict own);
  std::optional<Verdict> prepared() const { return prepared_; }

  // The root's word for a leaf. Of a prepared step.
  void Decide(Verdict verdict) { decided_ = verdict; }

  // The same again has no effect.
  absl::Status OnReady(int rank, const wire::Ready& ready);
  absl::Status OnConcluded(const wire::Concluded& concluded);
  // Of the step before: it says what was said then, or the members have different states.
  absl::Status CheckRepeated(const wire::Concluded& concluded) const;

  // Members that have not said READY. Only of the lead, and of a prepared step.
  std::vector<int> NotReady() const;

  // nullopt: not yet.
  std::optional<Verdict> decided() const { return decided_; }
  // The digest of all shards' results, as the members agree; the lead's only.
  std::uint64_t digest() const { return digest_; }

  void NextStep();

 private:
  absl::Status CheckVerdict(Verdict verdict) const;

  const std::uint32_t shard_;
  const std::uint32_t shards_;
  const bool leaf_;
  bool asks_ = false;  // members, although it is the only daemon
  std::optional<Verdict> prepared_;
  std::vector<bool> elsewhere_;  // by rank
  std::vector<bool> ready_;      // by rank: or elsewhere
  std::optional<Verdict> said_;  // by the first that was ready
  int first_ready_ = -1;
  std::uint64_t digest_ = 0;
  std::optional<Verdict> decided_;
  std::optional<Verdict> last_;  // of the step before
};

}  // namespace gradwire::server
