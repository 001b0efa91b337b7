// Residuals of a member that leaves before the others: it gives them, in pieces, to one that stays,
// which adds them to its own between two steps. So what it has not contributed yet is not lost.
//
// The two cores know no clock: the leaving member's owner gives up when it likes, by Cancel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/core/effects.h"
#include "client/core/member_options.h"
#include "proto/wire/byte_pieces.h"

namespace gradwire::client {

// The side that leaves. Not thread-safe. `options` and `hook` outlive it; the generation in the
// options may change.
class ResidualGiving {
 public:
  ResidualGiving(const MemberOptions& options, Hook* hook) : options_(options), hook_(hook) {}

  // `file`: the hook's State, not empty. `heirs`: ranks that are asked one after another until one
  // takes it; then the hook has no residuals any more. A HandedOverEffect follows. Not while one is
  // under way, and no step is opened meanwhile.
  void Begin(std::uint64_t id, std::vector<std::byte> file, std::vector<int> heirs,
             Effects& effects);
  void Cancel() { heirs_.clear(); }
  bool open() const { return !heirs_.empty(); }

  void On(const wire::HandOverAnswer& answer, Effects& effects);
  // A new stream: what was under way may be lost.
  void Resumed(Effects& effects);

 private:
  void SendMore(Effects& effects);
  void End(int rank, const std::string& reason, Effects& effects);

  const MemberOptions& options_;
  Hook* const hook_;
  std::uint64_t id_ = 0;
  std::vector<std::byte> file_;
  std::deque<int> heirs_;  // the first one is being asked
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  bool may_be_taken_ = false;  // it has had the last piece, on this stream or an earlier one
  std::string reasons_;        // why those before it did not
};

// The side that stays. Not thread-safe. `options` and `hook` outlive it.
class ResidualTaking {
 public:
  ResidualTaking(const MemberOptions& options, Hook* hook);

  // `is_between`: no bucket of a step is open here.
  void On(const wire::HandOver& piece, const wire::Payload* payload, bool is_between,
          Effects& effects);
  // No bucket is open: adds what has come meanwhile.
  void Add();
  // This member leaves, too, and takes nothing more; or it stays after all.
  void SetClosed(bool closed) { closed_ = closed; }

 private:
  struct Coming {
    std::uint64_t id = 0;
    wire::PieceReader file{};
  };

  bool HasTaken(std::uint64_t id) const;
  std::string WhyNot(int from, const wire::HandOver& piece) const;
  // Takes the whole file, or says why not.
  absl::Status Take(Coming coming, bool is_between);
  absl::Status AddNow(const HookState& residuals);
  void Answer(wire::HandOverAnswer answer, Effects& effects) const;

  const MemberOptions& options_;
  Hook* const hook_;
  const std::size_t most_bytes_;     // of a file
  std::map<int, Coming> coming_;     // by the rank that leaves
  std::vector<HookState> waiting_;   // until the step is over
  std::deque<std::uint64_t> taken_;  // ids: the last ones
  bool closed_ = false;
};

}  // namespace gradwire::client
