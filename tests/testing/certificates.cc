#include "tests/testing/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

namespace gradwire::testing {
namespace {

// OpenSSL fails here only if the test is wrong.
void Require(bool ok) {
  if (!ok) std::abort();
}

template <class Write>
std::string Pem(Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> bio(BIO_new(BIO_s_mem()), BIO_free_all);
  Require(write(bio.get()) == 1);
  char* text = nullptr;
  const auto bytes = static_cast<std::size_t>(BIO_get_mem_data(bio.get(), &text));
  return {text, bytes};
}

std::string PemOf(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

void AddExtension(X509* to, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, to, to, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  Require(extension != nullptr && X509_add_ext(to, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

}  // namespace

Authority::Certificate Authority::Make(const std::string& name, EVP_PKEY* key,
                                       const Validity& validity) {
  Certificate made(X509_new(), X509_free);
  X509_set_version(made.get(), 2);
  std::random_device random;
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()), random());
  const auto text = reinterpret_cast<const unsigned char*>(name.c_str());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC, text, -1, -1,
                             0);
  Require(ASN1_TIME_set(X509_getm_notBefore(made.get()), absl::ToTimeT(validity.begin)) != nullptr);
  Require(ASN1_TIME_set(X509_getm_notAfter(made.get()), absl::ToTimeT(validity.end)) != nullptr);
  Require(X509_set_pubkey(made.get(), key) == 1);
  return made;
}

Authority::Authority(const std::string& name) : key_(EVP_EC_gen("P-256"), EVP_PKEY_free) {
  certificate_ = Make(name, key_.get(), {});
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  Require(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
  cert_ = PemOf(certificate_.get());
}

CertificateAndKey Authority::Issue(const std::string& common_name, const Validity& validity,
                                   const std::string& hosts) const {
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Certificate made = Make(common_name, key.get(), validity);
  X509_set_issuer_name(made.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(made.get(), NID_subject_alt_name, hosts.c_str());
  Require(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0);
  const auto write_key = [&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  };
  return {.cert = PemOf(made.get()), .key = Pem(write_key)};
}

void ReplaceFile(const std::string& path, const std::string& text) {
  const std::string other = path + ".new";
  std::ofstream(other) << text;
  std::filesystem::rename(other, path);
}

tls::Files WriteFiles(const std::string& folder, const CertificateAndKey& own,
                      const std::string& ca) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path in(folder);
  tls::Files files = {
      .cert = in / "cert.pem", .key = in / "key.pem", .ca = ca.empty() ? "" : in / "ca.pem"};
  ReplaceFile(files.cert, own.cert);
  ReplaceFile(files.key, own.key);
  if (!ca.empty()) ReplaceFile(files.ca, ca);
  return files;
}

}  // namespace gradwire::testing
