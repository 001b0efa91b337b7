#include "server/access/quota_limits.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Error(const std::string& text, QuotaOwner owner = QuotaOwner::kIdentity) {
  return std::string(ParseQuota(text, owner).status().message());
}

TEST(QuotaLimits, ReadsEveryWord) {
  const auto all =
      ParseQuota("sessions=16,members=256,memory=2GiB,streams=512,joins=50", QuotaOwner::kIdentity);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->values, ElementsAre(16, 256, std::uint64_t{2} << 30, 512, 50));
  const auto some = ParseQuota("joins=1,members=1000000", QuotaOwner::kSession);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(some->values, ElementsAre(kNoQuota, 1'000'000, kNoQuota, kNoQuota, 1));
}

TEST(QuotaLimits, WithoutWordsThereIsNoLimit) {
  const auto none = ParseQuota("", QuotaOwner::kSession);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, QuotaLimits());
}

TEST(QuotaLimits, AnErrorNamesTheWordTheValueAndWhatIsAllowed) {
  EXPECT_EQ(Error("sessions=0"), "sessions is \"0\"; allowed are 1 to 1000000 [GW602]");
  EXPECT_EQ(Error("members=1000001"), "members is \"1000001\"; allowed are 1 to 1000000 [GW602]");
  for (const char* value : {"", " 1", "+1", "-1", "1.5", "1x", "99999999999999999999", "1 "}) {
    EXPECT_EQ(Error(std::string("joins=") + value),
              std::string("joins is \"") + value + "\"; allowed are 1 to 1000000 [GW602]");
  }
  for (const char* value : {"", "0", "80%", "2 apples"}) {
    EXPECT_THAT(Error(std::string("memory=") + value),
                AllOf(HasSubstr(std::string("memory is \"") + value + "\""), HasSubstr("2GiB")));
  }
  EXPECT_EQ(Error("member=1"),
            "it has \"member=1\"; allowed are sessions=, members=, memory=, streams= and joins= "
            "[GW602]");
  EXPECT_EQ(Error("sessions=1", QuotaOwner::kSession),
            "it has \"sessions=1\"; allowed are members=, memory=, streams= and joins= [GW602]");
  for (const char* word : {"members", "", "members=1,", ",members=1", "=1", "members=1, joins=1"}) {
    EXPECT_THAT(Error(std::string(word) == "" ? "," : word), HasSubstr("it has \"")) << word;
  }
  EXPECT_EQ(Error("joins=1,joins=2"), "it has joins= twice; allowed: once [GW602]");
  EXPECT_THAT(Error("a\x1b[31m=1"), HasSubstr("\\u001b"));
}

}  // namespace
}  // namespace gradwire::server
