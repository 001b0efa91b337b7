// One bucket of one step: who announced it, who may send it, and its rounds.
//
// Every member announces the bucket with the same parameters and rounds, is granted it, and sends
// its contributions round by round. The bucket is over when every member has acknowledged all
// results. Its key in the step is the manifest position of its first parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/manifest.h"
#include "server/core/round.h"

namespace gradwire::server {

// The part of the hook's shared state that members need for a bucket, in pieces.
using SharedBlock = std::vector<wire::PayloadRef>;

class Bucket {
 public:
  // What all buckets of a session have in common.
  struct Common {
    Manifest manifest;
    std::size_t chunk_bytes = 0;
    std::uint32_t window_chunks = 0;
  };

  // What a bucket is from its first announcement on.
  struct Announced {
    std::int64_t step = 0;
    std::vector<std::uint32_t> parameters;
    std::vector<RoundPlan> plans;
    std::uint32_t share = 0;
    Slice slice{};            // that this daemon reduces
    std::uint64_t order = 0;  // its place among the session's buckets, by first announcement
    std::uint64_t state_version = 0;
  };

  // Who does not contribute counts as one that has done everything.
  Bucket(std::shared_ptr<const Common> common, std::shared_ptr<const Contributors> contributors,
         Announced announced, std::uint32_t attempt);

  std::int64_t step() const { return what_.step; }
  std::uint32_t id() const { return parameters().front(); }
  const std::vector<std::uint32_t>& parameters() const { return *parameters_; }
  const std::shared_ptr<const std::vector<std::uint32_t>>& shared_parameters() const {
    return parameters_;
  }
  const std::vector<RoundPlan>& plans() const { return what_.plans; }
  std::uint32_t share() const { return what_.share; }
  std::uint64_t order() const { return what_.order; }
  const Manifest& manifest() const { return common_->manifest; }
  const Contributors& contributors() const { return *contributors_; }
  // "[w, b]"
  std::string name() const { return common_->manifest.BucketName(parameters()); }
  DType gradient_type() const { return common_->manifest[id()].dtype; }

  int world_size() const { return static_cast<int>(announced_.size()); }

  // ---- Announcements and grants

  void Announce(int rank) { announced_[Index(rank)] = true; }
  bool IsAnnouncedBy(int rank) const { return announced_[Index(rank)]; }
  bool IsAnnouncedByAll() const;
  std::vector<int> Unannounced() const;
  void Grant(int rank) { granted_[Index(rank)] = true; }
  // Takes back a grant that was not sent to the member.
  void Revoke(int rank) { granted_[Index(rank)] = false; }
  bool IsGrantedTo(int rank) const { return granted_[Index(rank)]; }
  bool IsGrantedToAll() const;
  // ---- Members that are late, and do not contribute (LateMembers)

  // The member was told that the bucket goes on without it. Until it says that it knows, it may
  // still announce the bucket, and contributes then as if nothing had been said.
  void TellMissed(int rank);
  bool IsToldMissed(int rank) const { return !told_.empty() && told_[Index(rank)]; }
  // The member knows, and will not announce the bucket. It gets the results, once it is granted the
  // bucket.
  void Miss(int rank);
  bool IsMissedBy(int rank) const { return !missed_.empty() && missed_[Index(rank)]; }
  std::vector<int> Missed() const;
  // Some member that misses it was not sent what it needs to take results.
  bool HasMissedUngranted() const;
  // Members that contribute.
  std::size_t ContributorsLeft() const { return contributors_->count() - Missed().size(); }

  // Some member announced it and has no grant.
  bool WaitsForGrant() const;
  // Whether it occupies one of the `open_buckets` places: from its grant until every member has
  // acknowledged all results.
  bool is_open() const { return open_; }
  void set_open(bool open) { open_ = open; }
  // The bytes that came with the member's announcement; Acknowledge returns them once.
  void SetEagerBytes(int rank, std::size_t bytes) { eager_[Index(rank)] = bytes; }

  // ---- Rounds

  bool has_rounds() const { return !rounds_.empty(); }
  // A round's number is its index; the last one is the current round.
  std::vector<Round>& rounds() { return rounds_; }
  const std::vector<Round>& rounds() const { return rounds_; }
  Round& round() { return rounds_.back(); }
  const Round& round() const { return rounds_.back(); }
  std::uint32_t round_number() const { return static_cast<std::uint32_t>(rounds_.size()) - 1; }
  wire::RoundId IdOf(std::uint32_t round) const;
  wire::RoundId CurrentId() const { return IdOf(round_number()); }
  // Of all rounds together.
  std::size_t ChunkCount() const;
  // Bytes of a chunk that is sent raw, in the gradients' dtype.
  std::size_t RawBytes(std::uint32_t chunk) const;

  // Begins the rounds that can begin, and notes when all are over.
  void Advance(std::uint32_t attempt);
  // Announced by all, all rounds finished.
  bool reduced() const { return reduced_; }
  // Every chunk of the last round is being reduced or is reduced.
  bool IsReducingAll() const;
  // The current round starts over, unless a reduction of it has begun.
  void Restart(std::uint32_t attempt);

  // Returns the eager bytes that the member has its results for.
  std::size_t Acknowledge(int rank, Round& round, std::uint32_t received);
  // All results that were released.
  std::size_t AcknowledgeAll(int rank);
  bool HasAll(int rank) const;
  // Reduced, and every member has all results.
  bool IsAcknowledged() const;

  // ---- The whole bucket

  // Chains the digests of the released results.
  std::uint64_t digest() const { return digest_; }
  void AddDigest(std::uint64_t digest);

  // The version of the shared state that its runs need; 0: they need none.
  std::uint64_t state_version() const { return what_.state_version; }
  void set_state_version(std::uint64_t version) { what_.state_version = version; }
  // It needs a state that is not drawn yet, and may be granted only afterwards.
  static constexpr std::uint64_t kAwaitsDrawPlan = UINT64_MAX;
  bool awaits_draw_plan() const { return what_.state_version == kAwaitsDrawPlan; }
  // Null: no member has needed it so far, or it is being computed.
  const std::shared_ptr<const SharedBlock>& shared() const { return shared_; }
  bool is_computing() const { return computing_; }
  void BeginComputing() { computing_ = true; }
  void SetShared(std::shared_ptr<const SharedBlock> shared) {
    computing_ = false;
    shared_ = std::move(shared);
  }
  std::shared_ptr<const SharedBlock> TakeShared() { return std::exchange(shared_, nullptr); }

  // The step is over: repeated chunks are no longer compared.
  void ForgetContributions();
  std::size_t held_bytes() const;
  void TakeResults(std::vector<ResultRef>& results);

  // Upper bound of what a bucket with this many parameters takes besides its rounds.
  static std::size_t BytesFor(std::size_t parameters, std::size_t members);

 private:
  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }
  void BeginRound(std::uint32_t number, std::uint32_t attempt);

  std::shared_ptr<const Common> common_;  // nothing is const: buckets move
  std::shared_ptr<const Contributors> contributors_;
  std::shared_ptr<const std::vector<std::uint32_t>> parameters_;
  Announced what_;                  // without its parameters
  std::vector<bool> announced_;     // by rank
  std::vector<bool> granted_;       // by rank
  std::vector<bool> told_;          // by rank; empty: nobody
  std::vector<bool> missed_;        // by rank; empty: nobody
  std::vector<std::size_t> eager_;  // by rank: bytes that came with the announcement
  bool open_ = false;
  std::vector<Round> rounds_;  // those begun
  bool reduced_ = false;
  std::uint64_t digest_ = 0;
  bool computing_ = false;
  std::shared_ptr<const SharedBlock> shared_;
};

}  // namespace gradwire::server
