// What every part of Gradwire accepts at most. A size from outside is compared with these before
// memory is taken for it; a test of each part refuses one more.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

inline constexpr int kMaxWorldSize = 4096;
inline constexpr std::uint32_t kMaxShards = 64;                      // of a session
inline constexpr std::size_t kMaxParameters = std::size_t{1} << 20;  // of a manifest
inline constexpr std::size_t kMaxManifestNameBytes = std::size_t{128} << 20;
inline constexpr std::size_t kMaxSessionNameBytes = 128;
// Of sessions in which gradwirectl measures.
inline constexpr char kTrialSessionPrefix[] = "gradwire-bench-";
inline constexpr std::size_t kMaxRounds = 8;  // of a bucket
inline constexpr std::size_t kMaxChunkBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxChunks = std::size_t{1} << 20;  // of a step of the whole model
inline constexpr std::size_t kMaxSegments = 4096;                // of a round
inline constexpr std::size_t kMaxOpenRounds = 4096;              // of a Restart
inline constexpr std::size_t kMaxDrawPlanPiece = std::size_t{1} << 14;  // parameters of a DrawPlan

}  // namespace gradwire
