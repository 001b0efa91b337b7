// How a fresh daemon gets the hook's state of a session whose daemon was lost.
//
// When the members have gathered, they are asked what they hold of it, after they have been told
// how the last step ended: for its digest, and one of them, the donor, for all of it. Of those who
// hold something else one is asked for all of that, too. What copies have in common is compared
// when they are read. So a member whose copy went wrong is found before it can do harm, and no
// store is needed.
//
// Copies may lack something: in a session with node groups a member holds the part that belongs to
// its shares, and a newcomer what has been in steps since it came.
//
// Not thread-safe. No clock, no I/O. Ranks are in [0, world_size).
#pragma once

#include <cstddef>
#include <cstdint>
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
  // `most_bytes`: of a donor's file. At worst each member is one.
  StateRecovery(int world_size, std::size_t most_bytes)
      : most_bytes_(most_bytes), members_(static_cast<std::size_t>(world_size)) {}

  // The rank has a new stream, and is at this step. What it has said on an earlier one is void.
  void OnAttach(int rank, std::int64_t step);

  // All members are here: asks those that were not asked on their streams. Newcomers have nothing.
  // Where the only donor was lost, another one takes its place.
  void Ask(const Gathering::Outcome& gathered, Effects& effects);

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
    bool is_new = false;    // or gone
    bool is_donor = false;  // it sends its file
    int unanswered = 0;     // requests on its stream; a further one makes it a donor
    std::optional<std::uint64_t> digest{};  // none: it has not answered
    wire::PieceReader file{};
  };

  absl::Status Check(Member& member, const wire::StateCopy& copy, const wire::Payload* payload);
  // Its answer is to come, and it sends its file.
  static void MakeDonor(Member& member);
  void Send(int rank, Effects& effects);
  // Whether somebody has given, or is to give, what has this digest.
  bool IsGiven(std::uint64_t digest) const;
  std::vector<int> Missing() const;
  // All have answered.
  void Compare(Effects& effects);

  const std::size_t most_bytes_;
  std::vector<Member> members_;  // by rank
  Stage stage_ = Stage::kGathering;
  std::optional<absl::Time> asked_;
};

}  // namespace gradwire::server
