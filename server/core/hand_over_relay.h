// Residuals on their way from a member that leaves to one that stays.
//
// The daemon passes pieces and answers on, and keeps none of them: a member that leaves has its
// residuals until the other one has all of them, and sends them again on a new stream. Whoever has
// taken them knows their id, so that they are added once.
//
// Not thread-safe. No clock: the member that leaves waits as long as it likes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "server/core/effects.h"
#include "server/core/failure_policy.h"

namespace gradwire::server {

class HandOverRelay {
 public:
  // `membership` outlives this. `chunk_bytes`: of a piece, at most.
  HandOverRelay(const Membership& membership, std::size_t chunk_bytes)
      : membership_(membership), chunk_bytes_(chunk_bytes) {}

  // A piece from `rank`. `may_not`: why nobody takes residuals in this session; "": somebody may.
  MaybeFailure On(int rank, const wire::HandOver& piece, const wire::PayloadRef& payload,
                  const std::string& may_not, Effects& effects);
  // From the member that takes them.
  MaybeFailure On(int rank, const wire::HandOverAnswer& answer, Effects& effects);

  // The rank has a new stream: what was on its way to it may be lost, and is asked for again.
  void OnAttached(int rank, Effects& effects);
  // The rank takes nothing any more: those that send it something are told.
  void OnGone(int rank, Effects& effects);

 private:
  struct Way {
    std::uint64_t id = 0;
    int to = 0;
    std::uint64_t sent = 0;   // bytes of pieces that were passed on
    int unanswered = 0;       // pieces
    bool lacks_room = false;  // a piece was dropped, until all of these are answered
    bool taken = false;
  };

  // Asks for all pieces again.
  static void BeginAnew(int from, Way& way, Effects& effects);
  std::string WhyNot(int to) const;
  static void Refuse(int from, const Way& way, const std::string& why, Effects& effects);

  const Membership& membership_;
  const std::size_t chunk_bytes_;
  std::map<int, Way> ways_;  // by the rank that leaves; its last one
};

}  // namespace gradwire::server
