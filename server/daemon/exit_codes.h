// What the executables exit with.
#pragma once

namespace gradwire::server {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnavailable = 69;  // cannot listen; the daemon does not answer
inline constexpr int kExitCut = 75;          // stopped with work under way
inline constexpr int kExitConfig = 78;       // the configuration file is not valid

}  // namespace gradwire::server
