#include "server/access/token_table.h"

#include <openssl/evp.h>
#include <pwd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/limits.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kDigestBytes = 32;
constexpr char kDigestPrefix[] = "sha256:";
constexpr char kIdPrefix[] = "uid:";
constexpr char kUserPrefix[] = "user:";
// (uid_t)-1 is no user's.
constexpr uid_t kMostId = static_cast<uid_t>(-2);

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("._-", c);
}

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxSessionNameBytes &&
         std::all_of(text.begin(), text.end(), IsNameCharacter);
}

bool IsPattern(absl::string_view text) {
  const bool any_rest = absl::ConsumeSuffix(&text, "*");
  return (any_rest && text.empty()) || IsName(text);
}

// "": it is none.
std::string DigestIn(const std::string& token) {
  absl::string_view digits = token;
  if (absl::ConsumePrefix(&digits, kDigestPrefix)) {
    const bool hex = std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit);
    return hex && digits.size() == 2 * kDigestBytes ? absl::HexStringToBytes(digits) : "";
  }
  const bool fits = token.size() >= kLeastTokenBytes && token.size() <= kMostTokenBytes &&
                    std::all_of(token.begin(), token.end(), absl::ascii_isgraph);
  return fits ? Sha256(token) : "";
}

// A refusal of one part of a line.
std::string Allowed(const std::string& what, absl::string_view value, const std::string& allowed) {
  return absl::StrCat(what, " is \"", absl::CHexEscape(value.substr(0, 64)),
                      "\"; allowed: ", allowed);
}

// A line's last part: one of them is set.
struct Key {
  std::string digest = {};  // of a token
  std::optional<uid_t> user = {};
  bool lookup_failed = false;  // the system could not tell whether there is such a user
};

// The error's message, if there is one.
std::string ParseQuotaColumn(const std::string& word, Caller& caller) {
  const absl::StatusOr<QuotaLimits> quota = ParseQuota(word, QuotaOwner::kIdentity);
  if (!quota.ok())
    return absl::StrCat("has a quota that is not valid: ",
                        RecodedText(ErrorCode::kTokens, std::string(quota.status().message())));
  caller.quota = *quota;
  return "";
}

// The error's message, if there is one.
std::string ParseKey(const std::string& word, const TokenTable::FindUserId& find_user, Key& key) {
  absl::string_view rest = word;
  if (absl::ConsumePrefix(&rest, kIdPrefix)) {
    uid_t user = 0;
    if (!absl::SimpleAtoi(rest, &user) || user > kMostId) {
      return Allowed("the user's ID", rest, absl::StrCat("0 to ", kMostId));
    }
    key.user = user;
    return "";
  }
  if (absl::ConsumePrefix(&rest, kUserPrefix)) {
    const absl::StatusOr<uid_t> user = find_user(std::string(rest));
    if (!user.ok()) {
      key.lookup_failed = absl::IsUnavailable(user.status());
      return absl::StrCat(Allowed("the user", rest, "a user of this host, or uid: and its number"),
                          " (", std::string(user.status().message()), ")");
    }
    key.user = *user;
    return "";
  }
  key.digest = DigestIn(word);
  if (!key.digest.empty()) return "";
  return absl::StrCat("has a token that is not valid; allowed: ", kLeastTokenBytes, " to ",
                      kMostTokenBytes,
                      " printable characters, sha256: and 64 digits, or a user of this host: "
                      "uid:NUMBER, user:NAME");
}

// The error's message, if there is one.
std::string ParseLine(const std::string& line, const TokenTable::FindUserId& find_user,
                      Caller& caller, Key& key) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.size() != 4 && words.size() != 5) {
    return absl::StrCat("has ", words.size(),
                        " words; allowed are 4 or 5: name, role, sessions, token, quota");
  }
  if (!IsName(words[0])) {
    return Allowed("the name", words[0], "1 to 128 of A-Z, a-z, 0-9, '.', '_', '-'");
  }
  caller.identity = words[0];
  if (words[1] == "member") {
    caller.role = Role::kMember;
  } else if (words[1] == "observer") {
    caller.role = Role::kObserver;
  } else if (words[1] == "operator") {
    caller.role = Role::kOperator;
  } else {
    return Allowed("the role", words[1], "member, observer, operator");
  }
  caller.sessions = absl::StrSplit(words[2], ',');
  for (const std::string& pattern : caller.sessions) {
    if (IsPattern(pattern)) continue;
    return Allowed("a session", pattern, "a name, a beginning with '*' after it, or \"*\"");
  }
  if (std::string wrong = ParseKey(words[3], find_user, key); !wrong.empty()) return wrong;
  return words.size() == 5 ? ParseQuotaColumn(words[4], caller) : "";
}

}  // namespace

std::string Sha256(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  // Fails only without memory; then nothing matches.
  if (EVP_Digest(text.data(), text.size(), digest.data(), &bytes, EVP_sha256(), nullptr) != 1) {
    return "";
  }
  return {reinterpret_cast<const char*>(digest.data()), bytes};
}

absl::StatusOr<uid_t> UserIdOf(const std::string& name) {
  // Entries of a directory service may be long.
  std::vector<char> buffer(std::size_t{64} << 10);
  passwd entry{};
  passwd* found = nullptr;
  const int error = getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return entry.pw_uid;
  if (error == 0) return Coded(ErrorCode::kTokens, absl::NotFoundError("there is no such user"));
  return Coded(ErrorCode::kTokens, absl::UnavailableError(std::strerror(error)));
}

absl::StatusOr<TokenTable> TokenTable::Parse(const std::string& text, const FindUserId& find_user) {
  TokenTable table;
  table.text_ = Sha256(text);
  std::map<std::string, Caller> by_name;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const auto bad = [&](const std::string& why,
                         absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
      return Coded(ErrorCode::kTokens, absl::Status(code, absl::StrCat("line ", number, " ", why)));
    };
    const absl::string_view stripped = absl::StripAsciiWhitespace(line);
    if (stripped.empty() || stripped.front() == '#') continue;
    Caller caller;
    Key key;
    if (std::string error = ParseLine(std::string(stripped), find_user, caller, key);
        !error.empty()) {
      return bad(error, key.lookup_failed ? absl::StatusCode::kUnavailable
                                          : absl::StatusCode::kInvalidArgument);
    }
    const auto [first, is_new] = by_name.emplace(caller.identity, caller);
    if (!is_new &&
        (first->second.role != caller.role || first->second.sessions != caller.sessions ||
         first->second.quota != caller.quota)) {
      return bad(absl::StrCat("gives \"", caller.identity,
                              "\" another role, sessions or quota than a line before; allowed: "
                              "the same, while a token is replaced"));
    }
    const bool fresh =
        key.user ? table.users_.emplace(*key.user, std::move(caller)).second
                 : table.callers_.emplace(std::move(key.digest), std::move(caller)).second;
    if (!fresh) {
      return bad(absl::StrCat("has the ", key.user ? "user" : "token",
                              " of a line before; allowed: one line for each"));
    }
    if (table.size() > kMostTokens) {
      return bad(absl::StrCat("is too much; allowed are ", kMostTokens, " tokens"));
    }
  }
  if (table.size() == 0) {
    return Coded(ErrorCode::kTokens,
                 absl::InvalidArgumentError("has no token; allowed: one line for each token"));
  }
  return table;
}

const Caller* TokenTable::FindUser(uid_t user) const {
  const auto found = users_.find(user);
  return found == users_.end() ? nullptr : &found->second;
}

const Caller* TokenTable::Find(const std::string& token) const {
  if (token.size() < kLeastTokenBytes || token.size() > kMostTokenBytes) return nullptr;
  const auto found = callers_.find(Sha256(token));
  return found == callers_.end() ? nullptr : &found->second;
}

}  // namespace gradwire::server
