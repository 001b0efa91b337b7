#include "proto/tls/self_signed.h"

#include <openssl/asn1.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::tls {
namespace {

constexpr std::size_t kMaxHostBytes = 253;  // of a DNS name
constexpr std::size_t kSerialBytes = 16;
constexpr int kVersion3 = 2;

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
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using Number = std::unique_ptr<BIGNUM, Free<BN_free>>;
using Octets = std::unique_ptr<ASN1_OCTET_STRING, Free<ASN1_OCTET_STRING_free>>;

// gRPC uses the same queue of this thread, and would take an old error for its own.
absl::Status Failed(const char* what) {
  ERR_clear_error();
  return Coded(ErrorCode::kInternal, absl::InternalError(absl::StrCat("OpenSSL could not ", what)));
}

// Only letters that have no meaning in OpenSSL's notation of extensions.
absl::StatusOr<std::string> SubjectAltName(const std::string& host) {
  const Octets address(a2i_IPADDRESS(host.c_str()));
  ERR_clear_error();  // it is no address
  if (address != nullptr && host.find('/') == std::string::npos) return absl::StrCat("IP:", host);
  const bool is_name = !host.empty() && host.size() <= kMaxHostBytes &&
                       std::all_of(host.begin(), host.end(), [](char c) {
                         return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
                                c == '-' || c == '_';
                       });
  if (is_name) return absl::StrCat("DNS:", host);
  return Coded(ErrorCode::kOption,
               absl::InvalidArgumentError(absl::StrCat(
                   "host is \"", host.substr(0, 100), "\"; allowed: an IP address or a DNS name")));
}

bool Add(X509* to, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, to, to, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  return extension != nullptr && X509_add_ext(to, extension.get(), -1) == 1;
}

bool SetNames(X509* certificate, const std::array<unsigned char, kSerialBytes>& random) {
  const Number serial(BN_bin2bn(random.data(), static_cast<int>(random.size()), nullptr));
  if (serial == nullptr ||
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return false;
  }
  const std::string name = absl::StrCat(
      "gradwire-job-", absl::BytesToHexString({reinterpret_cast<const char*>(random.data()), 8}));
  X509_NAME* const subject = X509_get_subject_name(certificate);
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  return X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, text, -1, -1, 0) == 1 &&
         X509_set_issuer_name(certificate, subject) == 1;
}

template <class Write>
std::string Pem(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return "";
  char* text = nullptr;
  const auto bytes = BIO_get_mem_data(bio.get(), &text);
  return bytes > 0 ? std::string(text, static_cast<std::size_t>(bytes)) : "";
}

}  // namespace

absl::StatusOr<OwnCertificate> MakeSelfSigned(const std::string& host, absl::Time begin,
                                              absl::Time end) {
  const absl::StatusOr<std::string> names = SubjectAltName(host);
  if (!names.ok()) return names.status();
  if (end <= begin) {
    return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                         "end is ", absl::FormatTime(end), "; allowed: after ",
                                         absl::FormatTime(begin))));
  }
  std::array<unsigned char, kSerialBytes> random;
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1)
    return Failed("give random numbers");
  random.front() = static_cast<unsigned char>((random.front() & 0x7F) | 0x40);  // positive, not 0
  const Key key(EVP_EC_gen("P-256"));
  const Certificate made(X509_new());
  if (key == nullptr || made == nullptr) return Failed("make a key");
  const bool filled =
      X509_set_version(made.get(), kVersion3) == 1 && SetNames(made.get(), random) &&
      ASN1_TIME_set(X509_getm_notBefore(made.get()), absl::ToTimeT(begin)) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(made.get()), absl::ToTimeT(end)) != nullptr &&
      X509_set_pubkey(made.get(), key.get()) == 1 &&
      Add(made.get(), NID_basic_constraints, "critical,CA:FALSE") &&
      Add(made.get(), NID_ext_key_usage, "serverAuth,clientAuth") &&
      Add(made.get(), NID_subject_alt_name, names->c_str());
  if (!filled || X509_sign(made.get(), key.get(), EVP_sha256()) == 0) {
    return Failed("make a certificate");
  }
  OwnCertificate own;
  own.cert = Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, made.get()); });
  own.key = Pem([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  if (own.cert.empty() || own.key.empty()) return Failed("write a certificate");
  return own;
}

}  // namespace gradwire::tls
