#include "proto/tls/pem.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/unique_fd.h"

namespace gradwire::tls {
namespace {

// A bundle of all public authorities has a quarter of it.
constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

template <auto free>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

// OpenSSL keeps errors for each thread. One that stays would be taken for that of a later call,
// such as gRPC's.
struct ErrorQueue {
  ErrorQueue() { ERR_clear_error(); }
  ~ErrorQueue() { ERR_clear_error(); }
  ErrorQueue(const ErrorQueue&) = delete;
  ErrorQueue& operator=(const ErrorQueue&) = delete;
};

// How errors name a file: "tls_cert \"/etc/tls.crt\"".
std::string Quoted(const std::string& field, const std::string& path) {
  return absl::StrCat(field, " \"", path, "\"");
}

Bio Over(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<std::vector<Certificate>> Certificates(const std::string& name,
                                                      const std::string& text) {
  const Bio bio = Over(text);
  std::vector<Certificate> all;
  while (Certificate one{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) {
    all.push_back(std::move(one));
  }
  // The end of the text is the error PEM_R_NO_START_LINE; any other one is of a broken block.
  const bool broken = ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!broken && !all.empty()) return all;
  return Coded(
      ErrorCode::kTlsFiles,
      absl::InvalidArgumentError(absl::StrCat(
          name, broken ? " has a certificate that is damaged or incomplete" : " has no certificate",
          "; allowed: PEM, with -----BEGIN CERTIFICATE-----")));
}

absl::StatusOr<Key> PrivateKey(const std::string& name, const std::string& text) {
  const Bio bio = Over(text);
  // Without a function of ours OpenSSL would ask for the passphrase on the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  const bool encrypted = text.find("ENCRYPTED") != std::string::npos;
  return Coded(ErrorCode::kTlsFiles,
               absl::InvalidArgumentError(absl::StrCat(
                   name, encrypted ? " has a passphrase" : " has no complete private key",
                   "; allowed: PEM, with -----BEGIN PRIVATE KEY-----, without a passphrase")));
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm civil{};
  if (ASN1_TIME_to_tm(time, &civil) != 1) return absl::InfinitePast();
  return absl::FromTM(civil, absl::UTCTimeZone());
}

absl::Status CheckValid(const std::string& name, const X509& certificate, absl::Time now) {
  const absl::Time begin = ToTime(X509_get0_notBefore(&certificate));
  const absl::Time end = ToTime(X509_get0_notAfter(&certificate));
  const bool early = now < begin;
  if (!early && now < end) return absl::OkStatus();
  return Coded(ErrorCode::kCertificateDate,
               absl::FailedPreconditionError(absl::StrCat(
                   name, early ? " is not valid before " : " has expired on ",
                   absl::FormatTime(absl::RFC3339_sec, early ? begin : end, absl::UTCTimeZone()),
                   "; this machine's clock says ",
                   absl::FormatTime(absl::RFC3339_sec, now, absl::UTCTimeZone()))));
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& name, const std::string& path) {
  const auto failed = [&](const std::string& why) {
    return absl::UnavailableError(absl::StrCat(name, " cannot be read: ", why));
  };
  // Opening a pipe would otherwise wait for its writer.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return failed(std::strerror(errno));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return failed(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return failed("it is no file");
  std::string text;
  std::array<char, 16384> part;
  while (true) {
    const ssize_t bytes = read(fd.get(), part.data(), part.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return failed(std::strerror(errno));
    if (bytes == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(bytes));
    if (text.size() > kMaxBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has more than ", kMaxBytes, " bytes; allowed: files up to that"));
    }
  }
}

absl::Status CheckFiles(const Files& files, const FieldNames& names) {
  if (files.cert.empty() == files.key.empty()) return absl::OkStatus();
  const bool lacks_key = files.key.empty();
  return Coded(ErrorCode::kTlsFiles,
               absl::InvalidArgumentError(absl::StrCat(
                   lacks_key ? names.key : names.cert, " is empty, and ",
                   lacks_key ? names.cert : names.key, " is not; allowed: both or neither")));
}

absl::StatusOr<Pems> Read(const Files& files, absl::Time now, const FieldNames& names) {
  if (absl::Status fit = CheckFiles(files, names); !fit.ok()) return fit;
  const ErrorQueue errors;
  Pems pems;
  if (!files.cert.empty()) {
    const std::string cert_name = Quoted(names.cert, files.cert);
    const std::string key_name = Quoted(names.key, files.key);
    absl::StatusOr<std::string> cert = ReadSmallFile(cert_name, files.cert);
    if (!cert.ok()) return Coded(ErrorCode::kTlsFiles, cert.status());
    absl::StatusOr<std::string> key = ReadSmallFile(key_name, files.key);
    if (!key.ok()) return Coded(ErrorCode::kTlsFiles, key.status());
    const auto chain = Certificates(cert_name, *cert);
    if (!chain.ok()) return chain.status();
    const auto private_key = PrivateKey(key_name, *key);
    if (!private_key.ok()) return private_key.status();
    if (X509_check_private_key(chain->front().get(), private_key->get()) != 1) {
      return Coded(ErrorCode::kTlsFiles,
                   absl::InvalidArgumentError(
                       absl::StrCat(key_name, " is not the key of ", cert_name,
                                    "; allowed: the key that its first certificate was made for")));
    }
    for (const Certificate& one : *chain) {
      if (absl::Status valid = CheckValid(cert_name, *one, now); !valid.ok()) return valid;
      pems.expiry = std::min(pems.expiry, ToTime(X509_get0_notAfter(one.get())));
    }
    pems.cert = *std::move(cert);
    pems.key = *std::move(key);
  }
  if (!files.ca.empty()) {
    const std::string name = Quoted(names.ca, files.ca);
    absl::StatusOr<std::string> ca = ReadSmallFile(name, files.ca);
    if (!ca.ok()) return Coded(ErrorCode::kTlsFiles, ca.status());
    if (const auto all = Certificates(name, *ca); !all.ok()) return all.status();
    pems.ca = *std::move(ca);
  }
  return pems;
}

}  // namespace gradwire::tls
