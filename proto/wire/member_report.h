// What a member tells a fresh daemon after it lost its own. No protobuf here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/hooks/round_plan.h"
#include "proto/wire/roster.h"

namespace gradwire::wire {

inline constexpr std::size_t kSessionKeyBytes = 16;

// Field meanings are in gradwire/v1/aggregation.proto.
struct MemberReport {
  struct Readiness {
    Verdict verdict = Verdict::kApply;
    std::uint64_t digest = 0;
    bool operator==(const Readiness&) const = default;
  };

  std::string session_key;
  std::uint64_t lineage = 0;
  std::int64_t step = 0;  // that is open
  std::optional<Verdict> last{};
  std::optional<Verdict> before_last{};
  bool has_contributed = false;
  bool may_have_results = false;
  std::optional<Readiness> ready{};
  std::uint64_t collectives = 0;
  std::size_t chunk_bytes = 0;
  std::uint32_t window_chunks = 0;
  std::size_t eager_bytes = 0;
  bool newcomer = false;
  bool keeps_gradients = false;
  std::optional<Roster> roster{};  // none: all ranks, always
  std::vector<int> concluded{};    // with a roster
  bool has_seen_results = false;
  bool in_collective = false;
  std::uint64_t life = 0;
  std::uint64_t chain = 0;    // of the digests of all steps before `step`
  std::uint64_t skipped = 0;  // steps in a row, up to `step`
  bool has_leaves = false;    // the session
  std::uint64_t arbiter = 0;  // 0: rosters need a majority
  std::uint32_t shares = 0;   // of node groups

  // How a step before its own ended, as the member has seen it. None: it cannot say.
  std::optional<Verdict> Saw(std::int64_t earlier) const {
    const std::int64_t back = step - earlier;
    if (back == 1) return last;
    if (back == 2 && before_last) return before_last;
    const auto run = static_cast<std::int64_t>(
        std::min(skipped, static_cast<std::uint64_t>(std::max(step, std::int64_t{0}))));
    if (back >= 1 && back <= run) return Verdict::kSkip;
    return run > 0 && back == run + 1 ? std::optional(Verdict::kApply) : std::nullopt;
  }

  bool operator==(const MemberReport&) const = default;
};

}  // namespace gradwire::wire
