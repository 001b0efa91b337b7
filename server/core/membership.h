// A session's members: ranks, the processes that hold them, and when each was last heard.
//
// The process that joined for a rank holds it; its start id identifies it. It must use its token in
// time. If its connection closes it may resume within a grace period; if it is silent for too long
// it is declared lost. Before the session runs, the rank of a lost member becomes free again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gradwire::server {

// kEnded: the session failed, or went on
// with another daemon, which ended the member's stream. kElsewhere: its member has no stream
// here, and nobody waits for it: a leaf daemon stands for it, or this daemon is a leaf and the rank
// is another host's. kGone: the session goes on without the rank.
enum class MemberState : std::uint8_t {
  kAbsent,
  kJoined,
  kConnected,
  kLost,
  kLeft,
  kEnded,
  kElsewhere,
  kGone
};
std::string Name(MemberState state);

// What a member's client knows beyond the protocol's first version; it says so in its Hello.
struct Abilities {
  bool takes_residuals = false;  // of members that leave
  bool may_miss = false;         // buckets that others reduce without it
};

// Not thread-safe; ranks are in [0, world_size) unless a comment says otherwise.
class Membership {
 public:
  struct Limits {
    absl::Duration token_timeout;
    absl::Duration resume_grace;
    absl::Duration silence_timeout;
  };
  Membership(int world_size, const Limits& limits, absl::Time now);

  int world_size() const { return static_cast<int>(members_.size()); }
  bool IsRank(int rank) const { return rank >= 0 && rank < world_size(); }

  struct Place {
    int rank = 0;
    bool fresh = true;  // false: the same start id had it already
  };
  // The ranks from `first` on, which are free, are elsewhere.
  void SetElsewhere(int first, int count);
  // The session goes on without the rank, whatever its state was.
  void SetGone(int rank);
  bool IsGone(int rank) const { return At(rank).state == MemberState::kGone; }

  // Takes `rank`, or the first free rank if that is -1. `session` is for messages.
  absl::StatusOr<Place> Join(int rank, std::uint64_t start_id, const std::string& session,
                             absl::Time now);

  // The process that joined for `rank` is a leaf daemon, and stands for so many ranks from there
  // on: the others are elsewhere until it is gone. AlreadyExists: one of them is taken.
  absl::Status SetLeaf(int rank, int ranks, const std::string& name);
  bool IsLeaf(int rank) const { return At(rank).ranks > 1 || !At(rank).leaf.empty(); }
  bool HasLeaves() const;
  const std::string& leaf_name(int rank) const { return At(rank).leaf; }
  // Members that the process of `rank` stands for.
  int ranks(int rank) const { return At(rank).ranks; }

  // Whether the process has, or had, a rank.
  bool HasPlace(std::uint64_t start_id) const;

  // Whether the process may attach a stream; `rank` may be any.
  absl::Status CheckAttach(int rank, std::uint64_t start_id) const;
  // Makes the stream the member's. Returns the stream that it replaces.
  std::optional<std::uint64_t> Attach(int rank, std::uint64_t connection, absl::Time now);
  // Of its client, as its last stream said.
  void SetAbilities(int rank, const Abilities& abilities) { At(rank).abilities = abilities; }
  const Abilities& abilities(int rank) const { return At(rank).abilities; }
  // Records that the member was heard. False: it is not the member's stream. Any `rank` is allowed.
  bool Hear(int rank, std::uint64_t connection, absl::Time now);
  // The stream closed: the member must resume or is lost. False: it was not the member's stream.
  // Any `rank` is allowed.
  bool Detach(int rank, std::uint64_t connection, absl::Time now);

  // `rank` may be any.
  bool IsHeldBy(int rank, std::uint64_t start_id) const;
  void Leave(int rank, absl::Time now);
  void Free(int rank);
  // The session failed.
  void End();
  void Lose(int rank);

  // Time passes. A tick counts for a quarter of a second at most, however late it comes: a daemon
  // that stood still has not heard its members, but they may have spoken, and streams that resume
  // wait to be read. Where every tick is late, a limit of `t` still ends within 4 t / 1 s + 1
  // ticks.
  void Tick(absl::Time now);
  struct Freed {
    int rank = 0;
    std::string why;
    std::optional<std::uint64_t> connection;  // to close
  };
  // Before the session runs: frees the ranks whose holders are lost.
  std::vector<Freed> FreeGone(absl::Time now);
  struct Loss {
    int rank = 0;
    std::string why;
  };
  // While the session runs: the first member that is lost.
  std::optional<Loss> FindLoss(absl::Time now) const;

  MemberState state(int rank) const { return At(rank).state; }
  std::uint64_t connection(int rank) const { return At(rank).connection; }
  std::uint64_t start_id(int rank) const { return At(rank).start_id; }
  absl::Time last_heard(int rank) const { return At(rank).last_heard; }
  // Or gone.
  bool IsElsewhere(int rank) const { return !IsAwaited(At(rank).state); }
  // Of those that are not elsewhere.
  bool AllConnected() const { return All(MemberState::kConnected); }
  // Connected, or their streams have just broken.
  bool AllThere() const;
  bool AllLeft() const { return All(MemberState::kLeft); }
  // Whether it is so, by rank, of all that are not elsewhere.
  bool AllHere(const std::vector<bool>& is) const;
  std::vector<int> Reachable() const;  // connected
  std::vector<int> Present() const;    // and behind leaves that are
  std::vector<int> Staying() const;    // not left, and not elsewhere
  std::optional<int> FirstLeft() const;

  // "rank 3", or "leaf \"host-b\" with ranks 4 to 7".
  std::string NameOf(int rank) const;
  // "rank 3 (connected, last heard 2s ago)" or "ranks 1, 2".
  std::string Names(const std::vector<int>& ranks, absl::Time now) const;
  // "ranks 1, 2 of 8": those that are not connected.
  std::string MissingNames() const;

 private:
  struct Member {
    MemberState state = MemberState::kAbsent;
    std::uint64_t start_id = 0;
    std::uint64_t connection = 0;
    absl::Time last_heard;
    absl::Time since;    // when it joined or was lost
    int ranks = 1;       // that it stands for
    std::string leaf{};  // its name; empty: it is a trainer
    Abilities abilities{};
  };

  Member& At(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  const Member& At(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  static bool IsAwaited(MemberState state) {
    return state != MemberState::kElsewhere && state != MemberState::kGone;
  }
  bool All(MemberState state) const;
  std::optional<Freed> GoneBeforeStart(int rank, absl::Time now) const;

  const Limits limits_;
  absl::Time last_tick_;
  std::vector<Member> members_;
};

}  // namespace gradwire::server
