#include "server/net/certificate_store.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Authority;
using ::gradwire::testing::CertificateAndKey;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::WriteFiles;
using ::testing::HasSubstr;

class CertificateStoreTest : public ::testing::Test {
 protected:
  CertificateStoreTest() {
    auto opened = CertificateStore::Open(files_, absl::Now());
    if (opened.ok()) store_ = *std::move(opened);
  }
  void SetUp() override { ASSERT_NE(store_, nullptr); }

  // Of the certificate that the next connection gets.
  std::string Current() const { return store_->Current(number_).cert; }

  TemporaryFolder folder_;
  const Authority authority_{"the authority"};
  const CertificateAndKey first_ = authority_.Issue("first");
  const CertificateAndKey second_ = authority_.Issue("second");
  const tls::Files files_ = WriteFiles(folder_ / "tls", first_, authority_.cert());
  std::shared_ptr<CertificateStore> store_;
  mutable std::uint64_t number_ = 0;
};

TEST_F(CertificateStoreTest, FilesThatStayTheSameChangeNothing) {
  EXPECT_EQ(Current(), first_.cert);
  const std::uint64_t number = number_;
  const auto changed = store_->Reload(absl::Now());
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_FALSE(*changed);
  Current();
  EXPECT_EQ(number_, number);
}

TEST_F(CertificateStoreTest, OneFileAfterTheOtherIsReplaced) {
  Current();
  const std::uint64_t number = number_;
  ReplaceFile(files_.key, second_.key.substr(0, second_.key.size() / 2));
  EXPECT_FALSE(store_->Reload(absl::Now()).ok());
  ReplaceFile(files_.key, second_.key);
  const absl::Status unfit = store_->Reload(absl::Now()).status();
  EXPECT_THAT(std::string(unfit.message()), HasSubstr("is not the key of"));
  EXPECT_EQ(Current(), first_.cert);
  EXPECT_EQ(number_, number);
  ReplaceFile(files_.cert, second_.cert);
  const auto changed = store_->Reload(absl::Now());
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_TRUE(*changed);
  EXPECT_EQ(Current(), second_.cert);
  EXPECT_EQ(number_, number + 1);
}

TEST_F(CertificateStoreTest, AnAuthorityAloneMayChange) {
  const Authority other("another");
  ReplaceFile(files_.ca, authority_.cert() + other.cert());
  const auto changed = store_->Reload(absl::Now());
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_TRUE(*changed);
  EXPECT_EQ(store_->Current(number_).ca, authority_.cert() + other.cert());
}

TEST_F(CertificateStoreTest, AnExpiredReplacementIsRefused) {
  const absl::Time now = absl::Now();
  WriteFiles(folder_ / "tls", authority_.Issue("old", {.begin = now - absl::Hours(2), .end = now}),
             authority_.cert());
  EXPECT_THAT(std::string(store_->Reload(now).status().message()), HasSubstr("has expired"));
  EXPECT_EQ(Current(), first_.cert);
}

}  // namespace
}  // namespace gradwire::server
