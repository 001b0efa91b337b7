#include "server/access/access_control.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "proto/tls/pem.h"
#include "server/access/permissions.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kShownBytes = 64;
constexpr std::size_t kDigestShown = 8;
constexpr char kAnybody[] = "anybody";

absl::StatusOr<TokenTable> ReadTable(const std::string& path) {
  const std::string name = absl::StrCat("tokens \"", path, "\"");
  const absl::StatusOr<std::string> text = tls::ReadSmallFile(name, path);
  if (!text.ok()) return Coded(ErrorCode::kTokens, text.status());
  absl::StatusOr<TokenTable> table = TokenTable::Parse(*text);
  if (table.ok()) return table;
  return absl::Status(table.status().code(), absl::StrCat(name, ": ", table.status().message()));
}

// The same for all connections of one client.
std::string IdentityOf(const Proof& proof) {
  if (proof.user) return LocalIdentity(*proof.user);
  if (proof.certificate.empty()) return kAnybody;
  // Who has another name has another identity, however long the names are.
  const std::string& name = proof.certificate;
  if (name.size() <= kShownBytes) return absl::StrCat("certificate ", Printable(name));
  return absl::StrCat("certificate ", Printable(name.substr(0, kShownBytes)), "… ",
                      absl::BytesToHexString(Sha256(name).substr(0, kDigestShown)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Open(const std::string& path,
                                                                   HostUsers users) {
  std::shared_ptr<const TokenTable> tokens;
  if (!path.empty()) {
    absl::StatusOr<TokenTable> table = ReadTable(path);
    if (!table.ok()) return table.status();
    tokens = std::make_shared<const TokenTable>(*std::move(table));
  }
  return std::unique_ptr<AccessControl>(
      new AccessControl(path, std::move(users), std::move(tokens)));
}

absl::Status AccessControl::CheckFile(const std::string& path) { return ReadTable(path).status(); }

std::optional<Caller> AccessControl::WithoutToken(const Proof& proof,
                                                  const TokenTable* tokens) const {
  Caller caller{.identity = IdentityOf(proof)};
  if (!proof.user) return tokens == nullptr ? std::optional(caller) : std::nullopt;
  if (users_.IsOperator(*proof.user)) return caller;
  if (tokens == nullptr) return users_.sockets_are_private ? std::optional(caller) : std::nullopt;
  // Several users have this ID.
  if (proof.user == users_.unknown) return std::nullopt;
  const Caller* const line = tokens->FindUser(*proof.user);
  if (line == nullptr) return std::nullopt;
  std::string identity = std::move(caller.identity);
  caller = *line;
  caller.token_name = line->identity;
  caller.identity = std::move(identity);
  return caller;
}

std::string AccessControl::WhyTokenIsNeeded(const Proof& proof, bool has_tokens) const {
  if (proof.over_http) {
    return "the daemon asks for a token: send it in the header \"Authorization: Bearer TOKEN\", or "
           "as the password in a browser";
  }
  if (!proof.user) return "the daemon asks for a token: give token_file (GRADWIRE_TOKEN_FILE)";
  if (proof.user == users_.unknown) {
    return absl::StrCat("the daemon cannot tell which user of this host calls: it sees uid ",
                        *proof.user, ", as for all users outside of its user namespace; ",
                        has_tokens ? "give token_file (GRADWIRE_TOKEN_FILE)"
                                   : "allowed are the daemon's own user and root");
  }
  if (!has_tokens) {
    return absl::StrCat("uid ", *proof.user,
                        " may connect (--socket-mode), but the daemon has no "
                        "--tokens with a line for uid:",
                        *proof.user, "; allowed without are the daemon's own user and root");
  }
  return absl::StrCat("the daemon asks uid ", *proof.user,
                      " for a token: give token_file (GRADWIRE_TOKEN_FILE), or ask for a line with "
                      "uid:",
                      *proof.user, " in its --tokens");
}

absl::StatusOr<Caller> AccessControl::Identify(const std::string& method,
                                               const Proof& proof) const {
  absl::StatusOr<Caller> caller = Recognize(method, proof);
  if (!caller.ok()) return caller;
  caller->certificate = proof.certificate;
  caller->peer = proof.peer;
  return caller;
}

absl::StatusOr<Caller> AccessControl::Recognize(const std::string& method,
                                                const Proof& proof) const {
  std::shared_ptr<const TokenTable> tokens;
  {
    MutexLock lock(mutex_);
    tokens = tokens_;
  }
  const std::string connection = IdentityOf(proof);
  if (tokens == nullptr || proof.authorization.empty()) {
    if (auto caller = WithoutToken(proof, tokens.get())) return *std::move(caller);
    if (IsForEverybody(method)) return Caller{.identity = connection, .sessions = {}};
    return Coded(ErrorCode::kTokenMissing,
                 absl::UnauthenticatedError(WhyTokenIsNeeded(proof, tokens != nullptr)));
  }
  absl::string_view token = proof.authorization;
  if (absl::StartsWithIgnoreCase(token, "Bearer ")) {
    token.remove_prefix(sizeof "Bearer " - 1);
    if (const Caller* const found = tokens->Find(std::string(token)); found != nullptr) {
      Caller caller = *found;
      caller.token_name = found->identity;
      // On a unix socket the user is what counts: an offer of memory comes without a token.
      caller.identity = proof.user ? connection
                                   : absl::StrCat("token ", found->identity,
                                                  proof.certificate.empty() ? "" : ", ",
                                                  proof.certificate.empty() ? "" : connection);
      return caller;
    }
  }
  if (IsForEverybody(method)) return Caller{.identity = connection, .sessions = {}};
  return Coded(
      ErrorCode::kTokenUnknown,
      absl::UnauthenticatedError("the daemon does not know this token: it is not in its --tokens"));
}

absl::StatusOr<Caller> AccessControl::Admit(const std::string& method, const Proof& proof) const {
  absl::StatusOr<Caller> caller = Identify(method, proof);
  if (!caller.ok()) return caller;
  if (absl::Status may = CheckMethod(*caller, method); !may.ok()) return may;
  return caller;
}

absl::StatusOr<bool> AccessControl::Reload() {
  if (!has_file()) return false;
  absl::StatusOr<TokenTable> table = ReadTable(path_);
  if (!table.ok()) return table.status();
  MutexLock lock(mutex_);
  if (*table == *tokens_) return false;
  tokens_ = std::make_shared<const TokenTable>(*std::move(table));
  return true;
}

}  // namespace gradwire::server
