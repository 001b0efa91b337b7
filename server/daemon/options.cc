#include "server/daemon/options.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "server/core/session_options.h"
#include "server/daemon/memory_limit.h"
#include "server/daemon/settings.h"
#include "server/net/listener.h"

namespace gradwire::server {
namespace {

absl::Status CheckDuration(const std::string& name, absl::Duration value) {
  if (value > absl::ZeroDuration() && value <= absl::Hours(24 * 365)) return absl::OkStatus();
  return Coded(ErrorCode::kSetting,
               absl::InvalidArgumentError(absl::StrCat(name, " is ", absl::FormatDuration(value),
                                                       "; allowed: more than 0, at most a year")));
}

// Applies the sessions' own rules, so that a wrong flag is refused at the start of the daemon and
// not at the first join.
absl::Status CheckSession(const ServerOptions& options) {
  SessionOptions session;
  session.name = "check";
  session.chunk_bytes = options.chunk_bytes;
  session.window_chunks = options.window_chunks;
  session.open_buckets = options.open_buckets;
  return session.Validate();
}

using Problem = ServerOptions::Problem;

std::optional<Problem> FindTlsConflict(const tls::Files& files) {
  if (absl::Status pair = tls::CheckFiles(files); !pair.ok()) {
    return Problem{.setting = files.cert.empty() ? "tls-key" : "tls-cert", .status = pair};
  }
  if (files.ca.empty() || !files.cert.empty()) return std::nullopt;
  return Problem{
      .setting = "tls-client-ca",
      .status = Coded(
          ErrorCode::kSetting,
          absl::InvalidArgumentError(
              "tls_client_ca is set, and tls_cert is not; allowed: with tls_cert and tls_key"))};
}

// An address that members have too would not be one of their own.
std::optional<Problem> FindSharedAddress(const ServerOptions& options) {
  for (const std::string& address : options.admin_listen) {
    // Port 0 is another one each time.
    if (absl::EndsWith(address, ":0")) continue;
    const auto& listen = options.listen;
    if (std::find(listen.begin(), listen.end(), address) == listen.end()) continue;
    return Problem{.setting = "admin-listen",
                   .status = Coded(
                       ErrorCode::kListenAddress,
                       absl::InvalidArgumentError(absl::StrCat(
                           "admin_listen has ", address,
                           ", and listen has it too; allowed are addresses that listen has not")))};
  }
  return std::nullopt;
}

std::optional<Problem> FindOwnUpstream(const ServerOptions& options) {
  const auto& listen = options.listen;
  if (std::find(listen.begin(), listen.end(), options.upstream) == listen.end()) {
    return std::nullopt;
  }
  return Problem{.setting = "upstream",
                 .status = Coded(ErrorCode::kLeaf,
                                 absl::InvalidArgumentError(absl::StrCat(
                                     "upstream is ", options.upstream,
                                     ", which is this daemon's own address; allowed: a root's")))};
}

// A leaf's results are the root's, and do not follow from its members' contributions alone.
std::optional<Problem> FindRecordingLeaf(const ServerOptions& options) {
  if (options.record.empty() || !options.is_leaf()) return std::nullopt;
  return Problem{
      .setting = "record",
      .status = Coded(ErrorCode::kSetting,
                      absl::InvalidArgumentError(absl::StrCat(
                          "record is \"", options.record, "\", and upstream is ", options.upstream,
                          "; allowed with upstream: \"\"; record at the root")))};
}

// A successor comes in on the same way as members that have lost their daemon.
std::optional<Problem> FindLonelyWait(const ServerOptions& options) {
  if (options.on_member_loss == "fail" || options.on_coordinator_loss == "resume") {
    return std::nullopt;
  }
  return Problem{.setting = "on-member-loss",
                 .status = Coded(ErrorCode::kSetting,
                                 absl::InvalidArgumentError(absl::StrCat(
                                     "on_member_loss is ", options.on_member_loss,
                                     ", and on_coordinator_loss is ", options.on_coordinator_loss,
                                     "; allowed: ", options.on_member_loss,
                                     " with on_coordinator_loss resume")))};
}

// Whoever may be gone is waited for before the others end.
std::optional<Problem> FindLateShrink(const ServerOptions& options) {
  if (options.on_member_loss != "shrink" || options.shrink_after < options.member_grace) {
    return std::nullopt;
  }
  return Problem{.setting = "shrink-after",
                 .status = Coded(ErrorCode::kSetting,
                                 absl::InvalidArgumentError(absl::StrCat(
                                     "shrink_after is ", absl::FormatDuration(options.shrink_after),
                                     "; allowed: less than member_grace, which is ",
                                     absl::FormatDuration(options.member_grace))))};
}

absl::Status CheckHttp(const ServerOptions& options) {
  if (options.http_listen == "off" || options.http_listen == "auto") return absl::OkStatus();
  if (IsUnixAddress(options.http_listen)) {
    return Coded(ErrorCode::kListenAddress, absl::InvalidArgumentError(absl::StrCat(
                                                "http_listen is \"", options.http_listen,
                                                "\"; allowed are host:port, off and auto")));
  }
  const absl::Status status = CheckListenAddress(options.http_listen, options.insecure_http);
  if (status.code() != absl::StatusCode::kFailedPrecondition) return status;
  return Coded(ErrorCode::kInsecure,
               absl::FailedPreconditionError(absl::StrCat(
                   "http_listen is \"", options.http_listen,
                   "\", which other hosts can reach; names of sessions can be read there without "
                   "encryption: allow that with --insecure-http")));
}

}  // namespace

// Settings() allows octal numbers only.
mode_t ServerOptions::SocketMode() const {
  return static_cast<mode_t>(std::strtoul(socket_mode.c_str(), nullptr, 8));
}

bool ServerOptions::ListensOnUnixSocket() const {
  return std::any_of(listen.begin(), listen.end(), IsUnixAddress);
}

absl::StatusOr<std::size_t> ServerOptions::MemoryBytes() const {
  return ParseMemoryLimit(memory_limit, AvailableMemory());
}

absl::StatusOr<std::vector<int>> ServerOptions::Gpus() const {
  if (reduce == "cpu" || reduce == "cuda") return std::vector<int>();
  std::vector<int> gpus;
  absl::string_view list = reduce;
  bool valid = absl::ConsumePrefix(&list, "cuda:");
  for (const absl::string_view number : absl::StrSplit(list, ',')) {
    int gpu = 0;
    valid = valid && number.size() <= 3 && absl::SimpleAtoi(number, &gpu) && gpu >= 0 &&
            std::find(gpus.begin(), gpus.end(), gpu) == gpus.end();
    gpus.push_back(gpu);
  }
  if (valid) return gpus;
  return Coded(
      ErrorCode::kSetting,
      absl::InvalidArgumentError(absl::StrCat(
          "reduce is \"", reduce, "\"; allowed are cpu, cuda, and cuda:0,2 with each GPU once")));
}

std::optional<Problem> ServerOptions::FindConflict() const {
  if (auto problem = FindTlsConflict(tls)) return problem;
  for (const auto& [setting, addresses] :
       {std::pair("listen", &listen), std::pair("admin-listen", &admin_listen)}) {
    for (const std::string& address : *addresses) {
      if (absl::Status status = CheckListenAddress(address, insecure || !tls.cert.empty());
          !status.ok()) {
        return Problem{.setting = setting, .status = status};
      }
    }
  }
  if (auto problem = FindSharedAddress(*this)) return problem;
  if (auto problem = FindOwnUpstream(*this)) return problem;
  if (auto problem = FindRecordingLeaf(*this)) return problem;
  if (auto problem = FindLonelyWait(*this)) return problem;
  if (auto problem = FindLateShrink(*this)) return problem;
  if (absl::Status status = CheckHttp(*this); !status.ok()) {
    return Problem{.setting = "http-listen", .status = status};
  }
  return std::nullopt;
}

absl::Status ServerOptions::Validate() const {
  for (const Setting& setting : Settings()) {
    if (absl::Status status = Check(setting, setting.member(), *this); !status.ok()) return status;
  }
  if (const auto problem = FindConflict()) return problem->status;
  const std::pair<const char*, absl::Duration> durations[] = {
      {"join_timeout", join_timeout},       {"step_timeout", step_timeout},
      {"token_timeout", token_timeout},     {"hello_timeout", hello_timeout},
      {"resume_grace", resume_grace},       {"heartbeat_interval", heartbeat_interval},
      {"silence_timeout", silence_timeout}, {"handshake_timeout", handshake_timeout},
      {"close_timeout", close_timeout},
  };
  for (const auto& [name, value] : durations) {
    if (absl::Status status = CheckDuration(name, value); !status.ok()) return status;
  }
  // Otherwise a member that only sends heartbeats would count as silent between two of them.
  if (heartbeat_interval >= silence_timeout) {
    return Coded(
        ErrorCode::kSetting,
        absl::InvalidArgumentError("heartbeat_interval must be shorter than silence_timeout"));
  }
  return CheckSession(*this);
}

}  // namespace gradwire::server
