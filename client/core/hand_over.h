// Residuals of a member that leaves before the others: it gives them, in pieces, to one that stays,
// which adds them to its own between two steps. Then the same with its late gradients, as a file of
// their own, which members of earlier versions refuse. So what it has not contributed yet is not
// lost.
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
#include "client/core/late_gradients.h"
#include "client/core/member_options.h"
#include "proto/wire/byte_pieces.h"

namespace gradwire::client {

// The side that leaves. Not thread-safe. `options`, `hook` and `late` outlive it; the generation in
// the options may change.
class ResidualGiving {
 public:
  ResidualGiving(const MemberOptions& options, Hook* hook, LateGradients& late)
      : options_(options), hook_(hook), late_(late) {}

  // `file`: the hook's State; empty: it has no residuals. `heirs`: ranks that are asked one after
  // another until one takes it; then the hook has no residuals any more. They are asked anew, under
  // the next id, for what `late` keeps. A HandedOverEffect follows. Not while one is under way, and
  // no step is opened meanwhile.
  void Begin(std::uint64_t id, std::vector<std::byte> file, std::vector<int> heirs,
             Effects& effects);
  // Returns who has taken a part of it; -1: nobody.
  int Cancel();
  bool open() const { return !heirs_.empty(); }

  void On(const wire::HandOverAnswer& answer, Effects& effects);
  // A new stream: what was under way may be lost.
  void Resumed(Effects& effects);

 private:
  // The next file, or the end.
  void BeginNext(Effects& effects);
  void SendMore(Effects& effects);
  bool HasSentAll() const;
  void End(int rank, const std::string& reason, Effects& effects);

  const MemberOptions& options_;
  Hook* const hook_;
  LateGradients& late_;
  std::uint64_t id_ = 0;
  std::vector<int> members_;
  struct File {
    bool is_late = false;
    std::vector<std::byte> content{};
  };
  std::deque<File> files_;    // the first one is being given
  HandedOverEffect outcome_;  // of those before it
  std::deque<int> heirs_;     // the first one is being asked
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  // The heir has had the last piece, and the answer may have been lost with a stream.
  bool may_be_taken_ = false;
  // A refusal may be one of pieces that were sent before. Without that, pieces and answers keep
  // their order, so that whoever refuses one has not taken the whole.
  bool has_begun_anew_ = false;
  std::string reasons_;  // why those before it did not
};

// The side that stays. Not thread-safe. `options`, `hook` and `late` outlive it.
class ResidualTaking {
 public:
  ResidualTaking(const MemberOptions& options, Hook* hook, LateGradients& late);

  // `is_between`: no bucket of a step is open here.
  void On(const wire::HandOver& piece, const wire::Payload* payload, bool is_between,
          Effects& effects);
  // No bucket is open: adds what has come meanwhile.
  void Add();
  // The members have gathered: who is still there sends again from the beginning.
  void ForgetParts() { coming_.clear(); }
  // It takes nothing before it has applied a step: others may apply one in which it has a part, and
  // go on without telling it (Gathering). It would contribute what it has taken once more.
  void SetNewcomer(bool newcomer) { is_newcomer_ = newcomer; }
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
  absl::Status TakeLate(const HookState& late);
  absl::Status AddNow(const HookState& residuals);
  void Answer(wire::HandOverAnswer answer, Effects& effects) const;

  const MemberOptions& options_;
  Hook* const hook_;
  LateGradients& late_;
  const std::size_t most_bytes_;     // of a file
  std::map<int, Coming> coming_;     // by the rank that leaves
  std::vector<HookState> waiting_;   // until the step is over
  std::deque<std::uint64_t> taken_;  // ids: the last ones
  bool is_newcomer_ = false;
  bool closed_ = false;
};

}  // namespace gradwire::client
