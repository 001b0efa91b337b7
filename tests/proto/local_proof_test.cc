#include "proto/wire/local_proof.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace gradwire::wire {
namespace {

// Test case 2 of RFC 4231.
TEST(LocalProof, IsHmacSha256) {
  EXPECT_EQ(absl::BytesToHexString(ProofOf("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(LocalProof, IsOfOneSecretMemberAndProbe) {
  const auto secret = ProofSecret::Draw();
  const auto other = ProofSecret::Draw();
  ASSERT_TRUE(secret.ok() && other.ok());
  const std::string probe(kLeastProbeBytes, 'p');
  const std::string key = secret->KeyFor(7);
  EXPECT_TRUE(SameProof(*secret->Answer(7, probe), ProofOf(key, probe)));
  EXPECT_FALSE(SameProof(*secret->Answer(8, probe), ProofOf(key, probe)));
  EXPECT_FALSE(SameProof(*other->Answer(7, probe), ProofOf(key, probe)));
  EXPECT_FALSE(
      SameProof(*secret->Answer(7, std::string(kLeastProbeBytes, 'q')), ProofOf(key, probe)));
}

TEST(LocalProof, RefusesProbesOfOtherSizes) {
  const auto secret = ProofSecret::Draw();
  ASSERT_TRUE(secret.ok());
  for (const std::size_t size : {std::size_t{0}, kLeastProbeBytes - 1, kMostProbeBytes + 1}) {
    EXPECT_EQ(secret->Answer(7, std::string(size, 'p')).status().message(),
              "probe: has " + std::to_string(size) + " bytes; allowed: 16 to 64");
  }
  EXPECT_TRUE(secret->Answer(7, std::string(kMostProbeBytes, 'p')).ok());
}

TEST(LocalProof, NothingIsNoProof) {
  EXPECT_FALSE(SameProof("", ""));
  EXPECT_FALSE(SameProof(std::string(8, 'a'), std::string(8, 'a')));
}

}  // namespace
}  // namespace gradwire::wire
