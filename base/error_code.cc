#include "base/error_code.h"

#include <algorithm>

namespace gradwire {
namespace {

struct Catalogue {
  static constexpr ErrorEntry kCodes[] = {
      {ErrorCode::kDaemonCall, "a call to the daemon failed"},
      {ErrorCode::kNoDaemon, "no daemon answers"},
      {ErrorCode::kDaemonCertificate, "the daemon's certificate is not accepted"},
      {ErrorCode::kTlsMismatch, "one side uses TLS and the other does not"},
      {ErrorCode::kClientCertificate, "the daemon refuses this certificate"},
      {ErrorCode::kTokenMissing, "the daemon asks for a token"},
      {ErrorCode::kTokenUnknown, "the daemon does not know the token"},
      {ErrorCode::kRole, "the token's role may not do this"},
      {ErrorCode::kSessionDenied, "the token does not cover the session"},
      {ErrorCode::kDraining, "the daemon is draining"},
      {ErrorCode::kToken, "the token cannot be used"},
      {ErrorCode::kTlsFiles, "a TLS file cannot be used"},
      {ErrorCode::kCertificateDate, "a certificate has expired or is not valid yet"},
      {ErrorCode::kAdminAddress, "admin calls have addresses of their own"},
      {ErrorCode::kJoin, "the join failed"},
      {ErrorCode::kHookDiffers, "the members have different hooks"},
      {ErrorCode::kModelDiffers, "the members have different models"},
      {ErrorCode::kWorldSize, "the world size does not fit"},
      {ErrorCode::kRankTaken, "the rank is taken"},
      {ErrorCode::kMissingMembers, "not all members joined in time"},
      {ErrorCode::kSessionLimit, "the daemon has as many sessions as it may have"},
      {ErrorCode::kMemoryLimit, "the daemon has no memory for the session"},
      {ErrorCode::kQuota, "a limit is reached"},
      {ErrorCode::kNotAMember, "the daemon does not take the process for this member"},
      {ErrorCode::kProtocolVersion, "the versions of member and daemon do not fit"},
      {ErrorCode::kModelTooLarge, "the model exceeds a limit"},
      {ErrorCode::kEndedBeforeStart, "the session ended before it began"},
      {ErrorCode::kNodeGroup, "the node group cannot be formed"},
      {ErrorCode::kOwnQuota, "a quota of the team or of the session is reached"},
      {ErrorCode::kShards, "the shards of a session do not fit"},
      {ErrorCode::kLeaf, "a leaf daemon cannot do this"},
      {ErrorCode::kTraining, "training failed"},
      {ErrorCode::kMemberClosed, "a member's connection closed"},
      {ErrorCode::kMemberSilent, "a member was silent"},
      {ErrorCode::kStepTimeout, "the step took too long"},
      {ErrorCode::kProtocolViolation, "a member broke the protocol"},
      {ErrorCode::kMemberLeft, "a member left in the middle"},
      {ErrorCode::kEvicted, "an operator ended the session"},
      {ErrorCode::kDaemonStopped, "the daemon was stopped"},
      {ErrorCode::kOutcomeUnknown, "the connection to the daemon was lost"},
      {ErrorCode::kResume, "the member could not resume"},
      {ErrorCode::kNotOfModel, "the bucket has a parameter that is not the model's"},
      {ErrorCode::kShape, "a parameter has another shape or dtype than at the join"},
      {ErrorCode::kTwiceInStep, "a parameter is in the step already"},
      {ErrorCode::kDigest, "bytes were damaged on the way"},
      {ErrorCode::kCollective, "the members disagree about a broadcast or barrier"},
      {ErrorCode::kWrongMoment, "the call came at the wrong moment"},
      {ErrorCode::kClosed, "the client is closed"},
      {ErrorCode::kBuffer, "the bucket's buffer does not fit"},
      {ErrorCode::kBucketsDiffer, "the members have different buckets"},
      {ErrorCode::kStillWaiting, "the call has not finished yet"},
      {ErrorCode::kMembershipChanged, "a member was lost"},
      {ErrorCode::kParametersDiffer, "members' parameters differ"},
      {ErrorCode::kLeftBehind, "the others went on without this member"},
      {ErrorCode::kOption, "an option is not allowed"},
      {ErrorCode::kUnknownHook, "the hook is not known"},
      {ErrorCode::kHookOption, "an option of the hook is not allowed"},
      {ErrorCode::kNotGiven, "an option is missing"},
      {ErrorCode::kParameter, "a parameter cannot be reduced"},
      {ErrorCode::kOwnHook, "the hook cannot be registered"},
      {ErrorCode::kOwnHookFailed, "a hook of one's own failed"},
      {ErrorCode::kDrawPlan, "the draw plan is not allowed"},
      {ErrorCode::kState, "the state could not be moved"},
      {ErrorCode::kNoState, "the hook keeps no state"},
      {ErrorCode::kStateFile, "the state is damaged"},
      {ErrorCode::kStateDiffers, "the state belongs to another training"},
      {ErrorCode::kStateInStep, "the session is not between two steps"},
      {ErrorCode::kDaemonStart, "the daemon did not start"},
      {ErrorCode::kUsage, "gradwired's command line is wrong"},
      {ErrorCode::kSetting, "a setting of the daemon is not allowed"},
      {ErrorCode::kConfigFile, "the configuration file cannot be read"},
      {ErrorCode::kConfigKey, "the configuration file is wrong"},
      {ErrorCode::kListenAddress, "the address to listen on is not valid"},
      {ErrorCode::kListen, "the daemon cannot listen there"},
      {ErrorCode::kInsecure, "other hosts could reach the daemon without encryption"},
      {ErrorCode::kTokens, "the file of tokens cannot be used"},
      {ErrorCode::kReduce, "the daemon cannot use the GPU"},
      {ErrorCode::kAuditLog, "the audit log cannot be written"},
      {ErrorCode::kCtl, "gradwirectl failed"},
      {ErrorCode::kCtlUsage, "gradwirectl's command line is wrong"},
      {ErrorCode::kCtlFile, "a file of gradwirectl cannot be read or written"},
      {ErrorCode::kUnknownSession, "the daemon has no such session"},
      {ErrorCode::kNotNow, "the session does not take this request now"},
      {ErrorCode::kNoStepTraced, "no step of the session was traced"},
      {ErrorCode::kPython, "the Python package failed"},
      {ErrorCode::kNoModel, "the state does not know the model"},
      {ErrorCode::kGroupDiffers, "the arguments contradict the process group"},
      {ErrorCode::kSparse, "a gradient is sparse"},
      {ErrorCode::kEmbedded, "the embedded daemon did not start"},
      {ErrorCode::kAccelerate, "the accelerator does not fit"},
      {ErrorCode::kNoReachableHost, "no host of the job can be reached by all others"},
      {ErrorCode::kMeeting, "the ranks did not meet in the process group's store"},
      {ErrorCode::kInternal, "an internal error"},
      {ErrorCode::kGpu, "a GPU failed or does not answer"},
      {ErrorCode::kGpuMemory, "a GPU has no memory left"},
      {ErrorCode::kNoGpu, "no GPU can be used"},
      {ErrorCode::kNcclLibrary, "NCCL cannot be used"},
      {ErrorCode::kNodeGroupFailed, "a node group failed"},
      {ErrorCode::kSystem, "the system refused a resource"},
      {ErrorCode::kBadAnswer, "the daemon sent something unexpected"},
  };
};

constexpr std::string_view kPrefix = "GW";
constexpr std::size_t kNameBytes = 5;
constexpr std::string_view kOpen = " [";

bool IsGeneral(ErrorCode code) { return static_cast<int>(code) % 100 == 0; }

// The code whose tag is at the beginning of `text`.
std::optional<ErrorCode> TagAt(std::string_view text) {
  if (text.size() < kCodeBytes || text.substr(0, kOpen.size()) != kOpen ||
      text.substr(kOpen.size(), kPrefix.size()) != kPrefix || text[kCodeBytes - 1] != ']') {
    return std::nullopt;
  }
  return ParseErrorCode(text.substr(kOpen.size(), kNameBytes));
}

// `text` without its codes; the last of them goes into `last`.
std::string WithoutCodes(std::string_view text, std::optional<ErrorCode>& last) {
  std::string out;
  out.reserve(text.size() + kCodeBytes);
  while (true) {
    const std::size_t open = text.find(kOpen);
    out.append(text.substr(0, open));
    if (open == std::string_view::npos) return out;
    text.remove_prefix(open);
    const std::optional<ErrorCode> code = TagAt(text);
    if (code) last = code;
    // Without a code the bracket is text, and another one may begin right behind it.
    if (!code) out.append(text.substr(0, 1));
    text.remove_prefix(code ? kCodeBytes : 1);
  }
}

std::string WithTag(std::string text, ErrorCode code) {
  text.append(kOpen).append(Name(code)).append("]");
  return text;
}

}  // namespace

std::span<const ErrorEntry> ErrorCodes() { return Catalogue::kCodes; }

std::string Name(ErrorCode code) {
  return std::string(kPrefix) + std::to_string(static_cast<int>(code));
}

std::optional<ErrorCode> ParseErrorCode(std::string_view name) {
  const auto is = [](char given, char wanted) {
    return given == wanted || given == wanted - 'A' + 'a';
  };
  if (name.size() != kNameBytes || !is(name[0], kPrefix[0]) || !is(name[1], kPrefix[1])) {
    return std::nullopt;
  }
  int number = 0;
  for (const char digit : name.substr(kPrefix.size())) {
    if (digit < '0' || digit > '9') return std::nullopt;
    number = number * 10 + (digit - '0');
  }
  const auto code = static_cast<ErrorCode>(number);
  const std::span<const ErrorEntry> codes = ErrorCodes();
  const auto found = std::find_if(codes.begin(), codes.end(),
                                  [code](const ErrorEntry& entry) { return entry.code == code; });
  return found == codes.end() ? std::nullopt : std::optional(found->code);
}

std::optional<ErrorCode> FindCode(std::string_view text) {
  if (text.size() < kCodeBytes) return std::nullopt;
  return TagAt(text.substr(text.size() - kCodeBytes));
}

std::string CodedText(ErrorCode code, std::string_view text) {
  std::optional<ErrorCode> inner;
  std::string plain = WithoutCodes(text, inner);
  return WithTag(std::move(plain),
                 inner && (!IsGeneral(*inner) || IsGeneral(code)) ? *inner : code);
}

absl::Status Coded(ErrorCode code, absl::Status status) {
  if (status.ok()) return status;
  const std::string_view before(status.message().data(), status.message().size());
  const std::string after = CodedText(code, before);
  if (after == before) return status;
  return absl::Status(status.code(), after);
}

std::string RecodedText(ErrorCode code, std::string_view text) {
  std::optional<ErrorCode> ignored;
  return WithTag(WithoutCodes(text, ignored), code);
}

}  // namespace gradwire
