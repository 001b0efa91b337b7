#include "proto/tls/self_signed.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/tls/pem.h"
#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace gradwire::tls {
namespace {

using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::WriteFiles;
using ::testing::AllOf;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()));
const absl::Time kEnd = kNow + absl::Hours(48);

OwnCertificate Make(const std::string& host) {
  absl::StatusOr<OwnCertificate> made = MakeSelfSigned(host, kNow - absl::Hours(24), kEnd);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : OwnCertificate{};
}

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

Certificate Parse(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all);
  return {PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free};
}

// As OpenSSL's own check of a chain, with `trusted` as the only authority. X509_V_OK or why not.
int Verify(X509* certificate, X509* trusted, int purpose) {
  const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(),
                                                                      X509_STORE_free);
  X509_STORE_add_cert(store.get(), trusted);
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> context(
      X509_STORE_CTX_new(), X509_STORE_CTX_free);
  X509_STORE_CTX_init(context.get(), store.get(), certificate, nullptr);
  X509_STORE_CTX_set_purpose(context.get(), purpose);
  X509_verify_cert(context.get());
  return X509_STORE_CTX_get_error(context.get());
}

TEST(SelfSigned, IsForItsAddressAlone) {
  const Certificate made = Parse(Make("192.0.2.7").cert);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(X509_check_ip_asc(made.get(), "192.0.2.7", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(made.get(), "192.0.2.8", 0), 0);
  const Certificate six = Parse(Make("2001:db8::7").cert);
  EXPECT_EQ(X509_check_ip_asc(six.get(), "2001:db8:0::7", 0), 1);
  const Certificate named = Parse(Make("node-3.cluster_a").cert);
  EXPECT_EQ(X509_check_host(named.get(), "node-3.cluster_a", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(named.get(), "node-4.cluster_a", 0, 0, nullptr), 0);
}

TEST(SelfSigned, ServesBothEndsAndSignsNoOther) {
  const Certificate one = Parse(Make("192.0.2.7").cert);
  const Certificate other = Parse(Make("192.0.2.7").cert);
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    EXPECT_EQ(Verify(one.get(), one.get(), purpose), X509_V_OK);
    EXPECT_NE(Verify(one.get(), other.get(), purpose), X509_V_OK);
  }
  EXPECT_EQ(X509_check_ca(one.get()), 0);
  EXPECT_NE(X509_NAME_cmp(X509_get_subject_name(one.get()), X509_get_subject_name(other.get())), 0);
}

TEST(SelfSigned, IsWhatADaemonReads) {
  const TemporaryFolder folder;
  const OwnCertificate made = Make("192.0.2.7");
  const Files files = WriteFiles(folder / "tls", {.cert = made.cert, .key = made.key},
                                 made.cert + Make("192.0.2.8").cert);
  const auto pems = Read(files, kNow);
  ASSERT_TRUE(pems.ok()) << pems.status();
  EXPECT_EQ(pems->expiry, kEnd);
  // Another host's clock may be slow.
  EXPECT_TRUE(Read(files, kNow - absl::Hours(23)).ok());
  EXPECT_FALSE(Read(files, kEnd + absl::Seconds(1)).ok());
}

TEST(SelfSigned, RefusesWhatIsNoHost) {
  for (const char* host : {"", "192.0.2.7,DNS:evil", "192.0.2.7/24", "a b", "a:29610", "[::1]",
                           "IP:1.2.3.4", "a\nb"}) {
    const auto made = MakeSelfSigned(host, kNow, kEnd);
    ASSERT_FALSE(made.ok()) << host;
    EXPECT_THAT(made.status().message(), AllOf(HasSubstr("host is"), HasSubstr("an IP address")));
  }
  EXPECT_FALSE(MakeSelfSigned(std::string(254, 'a'), kNow, kEnd).ok());
  EXPECT_FALSE(MakeSelfSigned("192.0.2.7", kEnd, kNow).ok());
}

}  // namespace
}  // namespace gradwire::tls
