#include "proto/tls/channel_credentials.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error_code.h"

namespace gradwire::tls {
bool IsUnixSocket(const std::string& address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

absl::Status CheckClientFiles(const std::string& address, const Files& files) {
  if (IsUnixSocket(address)) return absl::OkStatus();
  if (absl::Status pair = CheckFiles(files); !pair.ok()) return pair;
  if (files.cert.empty() || !files.ca.empty()) return absl::OkStatus();
  return Coded(
      ErrorCode::kTlsFiles,
      absl::InvalidArgumentError(
          "tls_ca is empty, and tls_cert is not; allowed: the authorities that may have signed the "
          "daemon's certificate, such as /etc/ssl/certs/ca-certificates.crt"));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    const std::string& address, const Files& files) {
  if (absl::Status valid = CheckClientFiles(address, files); !valid.ok()) return valid;
  if (files.empty() || IsUnixSocket(address)) return grpc::InsecureChannelCredentials();
  const absl::StatusOr<Pems> pems = Read(files, absl::Now());
  if (!pems.ok()) return pems.status();
  return grpc::SslCredentials(
      {.pem_root_certs = pems->ca, .pem_private_key = pems->key, .pem_cert_chain = pems->cert});
}

void ExpectHost(const std::string& host, grpc::ChannelArguments& arguments) {
  if (!host.empty()) arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, host);
}

ErrorCode UnreachableCode(const std::string& why, bool encrypted) {
  const auto says = [&](const char* text) { return absl::StrContains(why, text); };
  if (says("certificate verify failed") || says("is not in peer certificate")) {
    return ErrorCode::kDaemonCertificate;
  }
  if (says("wrong version number")) return ErrorCode::kTlsMismatch;
  if (!says("Socket closed") && !says("Connection reset")) return ErrorCode::kNoDaemon;
  return encrypted ? ErrorCode::kClientCertificate : ErrorCode::kTlsMismatch;
}

std::string Hint(const std::string& why, bool encrypted) {
  const auto says = [&](const char* text) { return absl::StrContains(why, text); };
  if (says("certificate verify failed")) {
    return "no authority in tls_ca has signed the daemon's certificate, or it has expired";
  }
  if (says("is not in peer certificate")) {
    return "the daemon's certificate is for another host than the one in the address";
  }
  if (says("wrong version number")) return "the daemon there may use no TLS: try without tls_ca";
  // A side that ends the handshake tells the other one nothing.
  if (!says("Socket closed") && !says("Connection reset")) return "";
  return encrypted ? "the daemon may have refused tls_cert, or that there is none: its log says so"
                   : "the daemon there may ask for TLS: give tls_ca (GRADWIRE_TLS_CA)";
}

}  // namespace gradwire::tls
