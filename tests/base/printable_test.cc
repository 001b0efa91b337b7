#include "base/printable.h"

#include "gtest/gtest.h"

namespace gradwire {
namespace {

TEST(Printable, LeavesTextAsItIs) {
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(Printable("layer.0 \"weight\" \\ ~"), "layer.0 \"weight\" \\ ~");
  EXPECT_EQ(Printable("\xc3\xa4 \xc2\xa0 \xe2\x82\xac"), "\xc3\xa4 \xc2\xa0 \xe2\x82\xac");
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(Printable("a\nb\x1b[2J\x7f"), "a\\u000ab\\u001b[2J\\u007f");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\u0000");
}

// U+009B alone begins an escape sequence on some terminals.
TEST(Printable, EscapesTheSecondSetOfControlCharacters) {
  EXPECT_EQ(Printable("\xc2\x9b[2J"), "\\u009b[2J");
  EXPECT_EQ(Printable("\xc2\x80\xc2\x9f"), "\\u0080\\u009f");
  EXPECT_EQ(Printable("\xc2"), "\xc2");
}

}  // namespace
}  // namespace gradwire
