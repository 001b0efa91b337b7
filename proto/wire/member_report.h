// What a member tells a fresh daemon after it lost its own. No protobuf here.
#pragma once

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
  std::uint64_t arbiter = 0;  // 0: rosters need a majority

  bool operator==(const MemberReport&) const = default;
};

}  // namespace gradwire::wire
