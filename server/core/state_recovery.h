// How a fresh daemon gets the hook's state of a session whose daemon was lost.
//
// When the members have gathered, they are asked what they hold of it, after they have been told
// how the last step ended. All must hold the same, by digest; one of them, the donor, sends it. So
// a member whose copy went wrong is found before it can do harm, and no store is needed.
//
// In a session with node groups a member holds the part that belongs to its shares. Members with
// the same shares must hold the same, and one of them is the donor of their part. Parts may
// overlap, where groups have different sizes; what they have in common is compared when they are
// read.
//
// Not thread-safe. No clock, no I/O. Ranks are in [0, world_size).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/wire/byte_pieces.h"
#include "server/core/effects.h"
#include "server/core/failure_policy.h"
#include "server/core/gathering.h"

namespace gradwire::server {

class StateRecovery {
 public:
  // `most_bytes`: of the donor's file.
  StateRecovery(int world_size, std::size_t most_bytes)
      : most_bytes_(most_bytes), members_(static_cast<std::size_t>(world_size)) {}

  // The rank has a new stream, and is at this step. What it has said on an earlier one is void.
  void OnAttach(int rank, std::int64_t step);

  // By rank: the first one that holds the same part. Before Ask; members' parts never change.
  void SetParts(std::vector<int> parts);

  // All members are here: asks those that were not asked on their streams. Newcomers have nothing.
  // Where the donor was lost, another one takes its place.
  MaybeFailure Ask(const Gathering::Outcome& gathered, Effects& effects);

  // The last answer brings a RestoreEffect. A violation blames the rank; any other failure nobody.
  MaybeFailure Take(int rank, const wire::StateCopy& copy, const wire::Payload* payload,
                    Effects& effects);

  // The hook has its state.
  void Restored() { stage_ = Stage::kRestored; }
  bool restored() const { return stage_ == Stage::kRestored; }

  // Who has not answered is named.
  std::string WaitingFor() const;
  // Fails if there is no answer within `timeout`, which the first call starts.
  MaybeFailure Tick(absl::Time now, absl::Duration timeout);

 private:
  enum class Stage : std::uint8_t { kGathering, kAsking, kReading, kRestored };

  struct Member {
    std::int64_t step = 0;
    bool asked = false;
    bool is_new = false;  // or gone
    int part = 0;
    int unanswered = 0;  // requests on its stream; a further one makes it the donor
    std::optional<std::uint64_t> digest{};  // none: it has not answered
  };

  struct Part {
    int donor = 0;  // -1: nobody has it any more
    wire::PieceReader file{};
  };

  bool IsDonor(int rank) const;
  Part& PartOf(int rank) { return parts_[members_[static_cast<std::size_t>(rank)].part]; }
  void FindDonor(Part& part, int number);
  absl::Status Check(int rank, const wire::StateCopy& copy, const wire::Payload* payload);
  std::vector<int> Missing() const;
  MaybeFailure Compare(Effects& effects);

  const std::size_t most_bytes_;
  std::vector<Member> members_;  // by rank
  std::map<int, Part> parts_;    // by the first rank that holds it
  Stage stage_ = Stage::kGathering;
  std::optional<absl::Time> asked_;
};

}  // namespace gradwire::server
