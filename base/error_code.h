// The codes that end error messages, such as [GW203]. deploy/errors has a page for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradwire {

// A code never changes its meaning, and one that is no longer used is not used again. Codes that
// end in 00 are general: a boundary adds them to messages that have no other.
enum class ErrorCode : std::uint16_t {
  // reaching the daemon
  kDaemonCall = 100,
  kNoDaemon = 101,
  kDaemonCertificate = 102,
  kTlsMismatch = 103,
  kClientCertificate = 104,
  kTokenMissing = 105,
  kTokenUnknown = 106,
  kRole = 107,
  kSessionDenied = 108,
  kDraining = 109,
  kToken = 110,
  kTlsFiles = 111,
  kCertificateDate = 112,
  kAdminAddress = 113,
  // joining a session
  kJoin = 200,
  kHookDiffers = 201,
  kModelDiffers = 202,
  kWorldSize = 203,
  kRankTaken = 204,
  kMissingMembers = 205,
  kSessionLimit = 206,
  kMemoryLimit = 207,
  kQuota = 208,
  kNotAMember = 209,
  kProtocolVersion = 210,
  kModelTooLarge = 211,
  kEndedBeforeStart = 212,
  kNodeGroup = 213,
  kOwnQuota = 214,
  kShards = 215,
  kLeaf = 216,
  // training
  kTraining = 300,
  kMemberClosed = 301,
  kMemberSilent = 302,
  kStepTimeout = 303,
  kProtocolViolation = 304,
  kMemberLeft = 305,
  kEvicted = 306,
  kDaemonStopped = 307,
  kOutcomeUnknown = 308,
  kResume = 309,
  kNotOfModel = 310,
  kShape = 311,
  kTwiceInStep = 312,
  kDigest = 313,
  kCollective = 314,
  kWrongMoment = 315,
  kClosed = 316,
  kBuffer = 317,
  kBucketsDiffer = 318,
  kStillWaiting = 319,
  kMembershipChanged = 320,
  kParametersDiffer = 321,
  kLeftBehind = 322,
  // options of hooks and clients
  kOption = 400,
  kUnknownHook = 401,
  kHookOption = 402,
  kNotGiven = 403,
  kParameter = 404,
  kOwnHook = 405,
  kOwnHookFailed = 406,
  kDrawPlan = 407,
  // state
  kState = 500,
  kNoState = 501,
  kStateFile = 502,
  kStateDiffers = 503,
  kStateInStep = 504,
  // starting and configuring the daemon
  kDaemonStart = 600,
  kUsage = 601,
  kSetting = 602,
  kConfigFile = 603,
  kConfigKey = 604,
  kListenAddress = 605,
  kListen = 606,
  kInsecure = 607,
  kTokens = 608,
  kReduce = 609,
  kAuditLog = 610,
  // gradwirectl and its files
  kCtl = 700,
  kCtlUsage = 701,
  kCtlFile = 702,
  kUnknownSession = 703,
  kNotNow = 704,
  kNoStepTraced = 705,
  // Python and its frameworks
  kPython = 800,
  kNoModel = 801,
  kGroupDiffers = 802,
  kSparse = 803,
  kEmbedded = 804,
  kAccelerate = 805,
  kNoReachableHost = 806,
  kMeeting = 807,
  // devices, NCCL, the system, and internal errors
  kInternal = 900,
  kGpu = 901,
  kGpuMemory = 902,
  kNoGpu = 903,
  kNcclLibrary = 904,
  kNodeGroupFailed = 905,
  kSystem = 906,
  kBadAnswer = 907,
};

struct ErrorEntry {
  ErrorCode code;
  std::string_view title;
};

// All codes, in ascending order.
std::span<const ErrorEntry> ErrorCodes();

// "GW203".
std::string Name(ErrorCode code);
// The code with this name, in capitals or not. nullopt: there is none.
std::optional<ErrorCode> ParseErrorCode(std::string_view name);

// What a code takes at the end of a message: " [GW203]".
inline constexpr std::size_t kCodeBytes = 8;

// The code at the end of a message. nullopt: there is none, or none that exists.
std::optional<ErrorCode> FindCode(std::string_view text);

// The message with exactly one code, at its end. A message that quotes another one, which had a
// code, keeps that code, because the cause is more specific; it is moved to the end. Of several the
// last counts. But a `code` that is not general replaces a general one. Texts from outside may
// contain anything: what is not the name of a code stays where it is.
std::string CodedText(ErrorCode code, std::string_view text);
// The same for the message of an error; OK stays OK.
absl::Status Coded(ErrorCode code, absl::Status status);
template <class T>
absl::StatusOr<T> Coded(ErrorCode code, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return Coded(code, result.status());
}

// `code` replaces whatever code the text has: for messages with words of somebody else.
std::string RecodedText(ErrorCode code, std::string_view text);

}  // namespace gradwire
