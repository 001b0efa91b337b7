#include "server/daemon/log_ring.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(LogRing, KeepsTheLastLines) {
  LogRing ring;
  for (int i = 0; i < 1500; ++i) ring.Add(absl::StrCat("line ", i));
  const auto lines = ring.Lines();
  ASSERT_THAT(lines, SizeIs(1000));
  EXPECT_EQ(lines.front(), "line 500");
  EXPECT_EQ(lines.back(), "line 1499");
}

TEST(LogRing, KeepsAtMost256KiB) {
  LogRing ring;
  for (int i = 0; i < 1000; ++i) ring.Add(std::string(1000, static_cast<char>('a' + i % 26)));
  EXPECT_THAT(ring.Lines(), SizeIs((256 << 10) / 1000));
}

TEST(LogRing, CutsLongLines) {
  LogRing ring;
  const std::string whole(1024, 'a');
  const std::string longer(1025, 'b');
  ring.Add(whole);
  ring.Add(longer);
  EXPECT_THAT(ring.Lines(), ElementsAre(whole, absl::StrCat(longer.substr(0, 1021), "...")));
}

// A string field of protobuf has to be UTF-8.
TEST(LogRing, ReplacesWhatIsNoUtf8) {
  LogRing ring;
  ring.Add("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80");                     // whole characters
  ring.Add("\xc3 \xff \xe2\x82 \xc0\x80 \xed\xa0\x80 \xf5\x80\x80\x80");  // none
  // The cut is between two characters: 340 of them have 1020 bytes.
  std::string euros;
  for (int i = 0; i < 400; ++i) euros += "\xe2\x82\xac";
  ring.Add(euros);
  EXPECT_THAT(ring.Lines(),
              ElementsAre("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "? ? ?? ?? ??? ????",
                          absl::StrCat(euros.substr(0, 1020), "...")));
}

}  // namespace
}  // namespace gradwire::server
