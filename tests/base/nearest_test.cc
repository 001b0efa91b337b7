#include "base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gradwire {
namespace {

std::string Meant(const std::string& unknown, const std::vector<std::string>& names) {
  Nearest nearest(unknown);
  for (const std::string& name : names) nearest.Consider(name, "<" + name + ">");
  return nearest.meant();
}

TEST(Nearest, IsWhatDiffersLeast) {
  EXPECT_EQ(Meant("listn", {"http-listen", "listen", "lists"}), "<listen>");
  EXPECT_EQ(Meant("log-level", {"log.format", "log.level"}), "<log.level>");
  EXPECT_EQ(Meant("max_sesions", {"max-sessions"}), "<max-sessions>");
  EXPECT_EQ(Meant("ab", {"ac", "ad"}), "<ac>");  // the first of equals
}

TEST(Nearest, IsNothingIfTooMuchDiffers) {
  EXPECT_EQ(Meant("frob", {"listen", "tokens"}), "");
  EXPECT_EQ(Meant("abcdef", {"abcxyz"}), "");
  EXPECT_EQ(Meant("abcdefghi", {"abcdefxyz"}), "<abcdefxyz>");  // a third
  EXPECT_EQ(Meant("", {"a", ""}), "");
  EXPECT_EQ(Meant(std::string(61, 'a'), {std::string(61, 'a')}), "");
}

}  // namespace
}  // namespace gradwire
