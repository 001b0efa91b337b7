// What the executables exit with.
#pragma once

namespace gradwire::server {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnavailable = 69;  // cannot listen; the daemon does not answer
inline constexpr int kExitCut = 75;          // stopped with work under way

}  // namespace gradwire::server
