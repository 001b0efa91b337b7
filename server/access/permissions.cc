#include "server/access/permissions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/printable.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kShownBytes = 200;

const Permission* PermissionOf(const std::string& method) {
  const auto found =
      std::find_if(Permissions().begin(), Permissions().end(),
                   [&](const Permission& permission) { return permission.method == method; });
  return found == Permissions().end() ? nullptr : &*found;
}

}  // namespace

const std::vector<Permission>& Permissions() {
  static const auto& all = *new std::vector<Permission>{
      {.method = "/gradwire.v1.AggregationService/Join", .roles = {Role::kMember}},
      {.method = "/gradwire.v1.AggregationService/JoinInParts", .roles = {Role::kMember}},
      {.method = "/gradwire.v1.AggregationService/Exchange", .roles = {Role::kMember}},
      {.method = "/gradwire.v1.AggregationService/ExchangeBulk", .roles = {Role::kMember}},
      {.method = "/gradwire.v1.AggregationService/Move", .roles = {Role::kMember}},
      {.method = "/gradwire.v1.AggregationService/Leave", .roles = {Role::kMember}},
      {.method = "/gradwire.v1.AggregationService/Watch",
       .roles = {Role::kMember, Role::kObserver}},
      {.method = "/gradwire.v1.AdminService/GetServer", .roles = {Role::kObserver}, .admin = true},
      {.method = "/gradwire.v1.AdminService/ListSessions",
       .roles = {Role::kMember, Role::kObserver},
       .admin = true},
      {.method = "/gradwire.v1.AdminService/GetSession",
       .roles = {Role::kMember, Role::kObserver},
       .admin = true},
      {.method = "/gradwire.v1.AdminService/GetDigests",
       .roles = {Role::kMember, Role::kObserver},
       .admin = true},
      // The SDK saves and loads a session's state with a checkpoint, where it trains.
      {.method = "/gradwire.v1.AdminService/ExportState", .roles = {Role::kMember}},
      {.method = "/gradwire.v1.AdminService/ImportState", .roles = {Role::kMember}},
      {.method = "/gradwire.v1.AdminService/EvictSession", .roles = {}, .admin = true},
      {.method = "/gradwire.v1.AdminService/PauseSession", .roles = {}, .admin = true},
      {.method = "/gradwire.v1.AdminService/ResumeSession", .roles = {}, .admin = true},
      {.method = "/gradwire.v1.AdminService/GetDiagnostics", .roles = {}, .admin = true},
      {.method = "/gradwire.v1.AdminService/TraceSession",
       .roles = {Role::kObserver},
       .admin = true},
      // Probes have no token.
      {.method = "/grpc.health.v1.Health/Check", .everybody = true, .roles = {}},
      {.method = "/grpc.health.v1.Health/Watch", .everybody = true, .roles = {}},
      {.method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
       .roles = {Role::kMember, Role::kObserver}},
      {.method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
       .roles = {Role::kMember, Role::kObserver}},
  };
  return all;
}

bool IsForEverybody(const std::string& method) {
  const Permission* const permission = PermissionOf(method);
  return permission != nullptr && permission->everybody;
}

bool IsForAdminAddresses(const std::string& method) {
  const Permission* const permission = PermissionOf(method);
  return permission != nullptr && permission->admin;
}

absl::Status CheckMethod(const Caller& caller, const std::string& method) {
  const Permission* const permission = PermissionOf(method);
  if (permission != nullptr) {
    if (permission->everybody || caller.role == Role::kOperator) return absl::OkStatus();
    const auto& roles = permission->roles;
    if (std::find(roles.begin(), roles.end(), caller.role) != roles.end()) return absl::OkStatus();
  }
  return Coded(ErrorCode::kRole,
               absl::PermissionDeniedError(absl::StrCat(caller.shown(), " has the role ",
                                                        Name(caller.role), ", which may not call ",
                                                        Printable(method.substr(0, kShownBytes)))));
}

absl::Status CheckSession(const Caller& caller, const std::string& session) {
  if (caller.Covers(session)) return absl::OkStatus();
  return Coded(ErrorCode::kSessionDenied,
               absl::PermissionDeniedError(
                   absl::StrCat("session: \"", Printable(session.substr(0, kShownBytes)),
                                "\" is not one that ", caller.shown(), " may use")));
}

}  // namespace gradwire::server
