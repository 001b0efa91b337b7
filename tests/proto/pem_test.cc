#include "proto/tls/pem.h"

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace gradwire::tls {
namespace {

using ::gradwire::testing::Authority;
using ::gradwire::testing::CertificateAndKey;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::Validity;
using ::gradwire::testing::WriteFiles;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PemTest : public ::testing::Test {
 protected:
  absl::Status Error(const Files& files) const { return Read(files, absl::Now()).status(); }
  std::string Message(const Files& files) const { return std::string(Error(files).message()); }

  TemporaryFolder folder_;
  const Authority authority_{"the authority"};
  const absl::Time end_ = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()) + 7200);
  const CertificateAndKey own_ = authority_.Issue("daemon", {.end = end_});
  const Files files_ = WriteFiles(folder_ / "tls", own_, authority_.cert());
};

TEST_F(PemTest, ReadsWhatFitsTogether) {
  const auto pems = Read(files_, absl::Now());
  ASSERT_TRUE(pems.ok()) << pems.status();
  EXPECT_EQ(pems->cert, own_.cert);
  EXPECT_EQ(pems->key, own_.key);
  EXPECT_EQ(pems->ca, authority_.cert());
  EXPECT_EQ(pems->expiry, end_);
}

TEST_F(PemTest, TheExpiryIsTheFirstOneOfTheChain) {
  const absl::Time sooner = end_ - absl::Hours(1);
  ReplaceFile(files_.cert, own_.cert + authority_.Issue("between", {.end = sooner}).cert);
  const auto pems = Read(files_, absl::Now());
  ASSERT_TRUE(pems.ok()) << pems.status();
  EXPECT_EQ(pems->expiry, sooner);
}

TEST_F(PemTest, TextAroundTheBlocksIsAllowed) {
  ReplaceFile(files_.ca, "# the first\n" + authority_.cert() + "\n# the second\n" +
                             Authority("another").cert() + "\n");
  EXPECT_TRUE(Error(files_).ok()) << Error(files_);
}

TEST_F(PemTest, NoFilesAreNoError) { EXPECT_TRUE(Error({}).ok()); }

TEST_F(PemTest, ACertificateHasItsKey) {
  EXPECT_EQ(Message({.cert = files_.cert}),
            "tls_key is empty, and tls_cert is not; allowed: both or neither [GW111]");
  EXPECT_EQ(Message({.key = files_.key}),
            "tls_cert is empty, and tls_key is not; allowed: both or neither [GW111]");
}

TEST_F(PemTest, TheKeyOfAnotherCertificateIsRefused) {
  ReplaceFile(files_.key, authority_.Issue("daemon").key);
  EXPECT_THAT(Message(files_), AllOf(HasSubstr("tls_key \"" + files_.key + "\" is not the key of"),
                                     HasSubstr(files_.cert)));
}

TEST_F(PemTest, HalfAKeyIsRefusedWithoutShowingIt) {
  for (std::size_t bytes = 0; bytes + 2 < own_.key.size(); bytes += 7) {
    ReplaceFile(files_.key, own_.key.substr(0, bytes));
    const std::string message = Message(files_);
    ASSERT_THAT(message, HasSubstr("has no complete private key")) << bytes;
    ASSERT_THAT(message, Not(HasSubstr(own_.key.substr(40, 20))));
  }
}

TEST_F(PemTest, HalfACertificateIsRefused) {
  for (std::size_t bytes = 0; bytes + 2 < own_.cert.size(); bytes += 7) {
    ReplaceFile(files_.cert, own_.cert.substr(0, bytes));
    ASSERT_EQ(Error(files_).code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  ReplaceFile(files_.cert, own_.cert + own_.cert.substr(0, own_.cert.size() / 2));
  EXPECT_THAT(Message(files_), HasSubstr("damaged or incomplete"));
}

TEST_F(PemTest, AKeyWithAPassphraseIsRefused) {
  // What OpenSSL writes with -aes256; the block itself need not be read.
  ReplaceFile(files_.key,
              "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n");
  EXPECT_THAT(Message(files_), HasSubstr("has a passphrase"));
}

TEST_F(PemTest, ACertificateOutOfItsTimeIsRefused) {
  const absl::Time now = absl::Now();
  const auto old =
      authority_.Issue("daemon", {.begin = now - absl::Hours(2), .end = now - absl::Hours(1)});
  WriteFiles(folder_ / "tls", old, authority_.cert());
  EXPECT_EQ(Error(files_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(files_), HasSubstr("has expired on "));
  WriteFiles(folder_ / "tls", authority_.Issue("daemon", {.begin = now + absl::Hours(1)}),
             authority_.cert());
  EXPECT_THAT(Message(files_), HasSubstr("is not valid before "));
}

TEST_F(PemTest, WhatIsNoFileIsRefused) {
  Files files = files_;
  files.ca = folder_ / "none.pem";
  EXPECT_THAT(Message(files), HasSubstr("none.pem\" cannot be read: No such file"));
  files.ca = folder_.path();
  EXPECT_THAT(Message(files), HasSubstr("it is no file"));
  files.ca = "/dev/zero";
  EXPECT_THAT(Message(files), HasSubstr("it is no file"));
  files.ca = folder_ / "big.pem";
  ReplaceFile(files.ca, std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(Message(files), HasSubstr("has more than 1048576 bytes"));
  ReplaceFile(files.ca, "not PEM at all");
  EXPECT_THAT(Message(files), HasSubstr("has no certificate"));
}

}  // namespace
}  // namespace gradwire::tls
