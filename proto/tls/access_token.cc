#include "proto/tls/access_token.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "proto/tls/pem.h"

namespace gradwire::tls {
namespace {

constexpr std::size_t kMostBytes = 512;

}  // namespace

absl::StatusOr<std::string> ReadAccessToken(const TokenSource& source) {
  if (source.file.empty() && source.value.empty()) return "";
  std::string name = "the variable GRADWIRE_TOKEN";
  std::string text = source.value;
  if (!source.file.empty()) {
    name = absl::StrCat("token_file \"", source.file, "\"");
    absl::StatusOr<std::string> read = ReadSmallFile(name, source.file);
    if (!read.ok()) return Coded(ErrorCode::kToken, read.status());
    text = *std::move(read);
  }
  std::string token(absl::StripAsciiWhitespace(text));
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (!token.empty() && token.size() <= kMostBytes && printable) return token;
  return Coded(ErrorCode::kToken, absl::InvalidArgumentError(absl::StrCat(
                                      name, " has no token; allowed: one line of up to ",
                                      kMostBytes, " printable characters")));
}

void AddAccessToken(const std::string& token, grpc::ClientContext& context) {
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
}

absl::Status CheckTokenTravelsSafely(bool has_token, bool encrypted, const std::string& address) {
  if (!has_token || encrypted || IsThisHost(address)) return absl::OkStatus();
  return Coded(ErrorCode::kToken,
               absl::InvalidArgumentError(
                   absl::StrCat("there is a token, which would travel to ", address,
                                " without encryption; allowed: with tls_ca (GRADWIRE_TLS_CA)")));
}

bool IsThisHost(const std::string& address) {
  for (const char* prefix : {"unix:", "unix-abstract:", "localhost:", "127.", "[::1]:",
                             "dns:///localhost:", "dns:///127.", "ipv4:127.", "ipv6:[::1]:"}) {
    if (address.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

}  // namespace gradwire::tls
