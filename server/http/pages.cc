#include "server/http/pages.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/core/session_state.h"
#include "server/http/metrics.h"
#include "server/http/page_files.h"

namespace gradwire::server {
namespace {

constexpr char kJson[] = "application/json";
constexpr char kSessionPath[] = "/api/v1/session/";

HttpResponse Probe(const std::string& name, const std::vector<ProbePart>& parts, bool verbose) {
  const bool well = std::all_of(parts.begin(), parts.end(),
                                [](const ProbePart& part) { return part.problem.empty(); });
  HttpResponse response{.status = static_cast<std::uint16_t>(well ? 200 : 503)};
  for (const ProbePart& part : parts) {
    if (!part.problem.empty()) {
      absl::StrAppend(&response.body, "[-]", part.name, " failed: ", part.problem, "\n");
    } else if (verbose) {
      absl::StrAppend(&response.body, "[+]", part.name, " ok\n");
    }
  }
  if (well && !verbose) return {.body = "ok\n"};
  absl::StrAppend(&response.body, name, " check ", well ? "passed" : "failed", "\n");
  return response;
}

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  return status.ok() ? text : "null";
}

std::string StatusJson(const Figures& figures) {
  std::string text = absl::StrCat("{\"server\":", Json(figures.server), ",\"sessions\":[");
  for (std::size_t i = 0; i < figures.sessions.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ",", Json(figures.sessions[i]));
  }
  return text + "]}\n";
}

// gRPC's callers send "Bearer"; browsers, which ask for a name and a password, send "Basic".
std::string AsBearer(const std::string& authorization) {
  absl::string_view encoded = authorization;
  std::string decoded;
  if (!absl::StartsWithIgnoreCase(encoded, "Basic ")) return authorization;
  encoded.remove_prefix(sizeof "Basic " - 1);
  const bool valid = absl::Base64Unescape(encoded, &decoded);
  const std::size_t colon = decoded.find(':');
  if (!valid || colon == std::string::npos) return authorization;
  return absl::StrCat("Bearer ", decoded.substr(colon + 1));
}

HttpResponse Refuse(const absl::Status& why) {
  const bool unknown = why.code() == absl::StatusCode::kUnauthenticated;
  return {.status = static_cast<std::uint16_t>(unknown ? 401 : 403),
          .body = absl::StrCat(why.message(), "\n")};
}

// Only what the caller may know of; the daemon's own count is of all sessions.
Figures FiguresFor(const StatusSource& source, const Caller& caller) {
  Figures figures = source.figures();
  const std::size_t hidden = std::erase_if(figures.sessions, [&](const v1::SessionStatus& session) {
    return !caller.Covers(session.name());
  });
  if (hidden == 0) return figures;
  const auto runs = [](const v1::SessionStatus& session) {
    return session.state() != Name(SessionState::kFailed) &&
           session.state() != Name(SessionState::kClosed);
  };
  figures.server.set_sessions(static_cast<std::uint32_t>(
      std::count_if(figures.sessions.begin(), figures.sessions.end(), runs)));
  return figures;
}

HttpResponse Session(const StatusSource& source, const Caller& caller, const std::string& name) {
  absl::StatusOr<v1::SessionStatus> session = absl::NotFoundError("");
  if (caller.Covers(name)) session = source.session(name);
  if (!session.ok()) return {.status = 404, .body = "no such session\n"};
  return {.type = kJson, .body = absl::StrCat(Json(*session), "\n")};
}

HttpResponse PageFile(const std::string& path) {
  for (const page::File& file : page::kFiles) {
    if (path == file.path) {
      return {.type = std::string(file.type), .body = std::string(file.content)};
    }
  }
  return {.status = 404, .body = "not found\n"};
}

}  // namespace

HttpResponse Respond(const StatusSource& source, const HttpRequest& request) {
  if (request.path == "/livez") return Probe("livez", source.live(), request.verbose);
  if (request.path == "/readyz") return Probe("readyz", source.ready(), request.verbose);
  const absl::StatusOr<Caller> caller = source.admit(AsBearer(request.authorization), request.peer);
  if (!caller.ok()) return Refuse(caller.status());
  if (request.path == "/metrics") {
    return {.type = "text/plain; version=0.0.4; charset=utf-8",
            .body = MetricsText(FiguresFor(source, *caller), absl::Now())};
  }
  if (request.path == "/api/v1/status") {
    return {.type = kJson, .body = StatusJson(FiguresFor(source, *caller))};
  }
  // The library has decoded the path.
  if (absl::StartsWith(request.path, kSessionPath)) {
    return Session(source, *caller, request.path.substr(sizeof kSessionPath - 1));
  }
  return PageFile(request.path);
}

}  // namespace gradwire::server
