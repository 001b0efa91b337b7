#include "client/addresses.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string ErrorOf(const std::string& text) {
  const auto addresses = AddressesOf(text);
  if (addresses.ok()) return "none";
  EXPECT_EQ(addresses.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(addresses.status().message());
}

TEST(Addresses, OneIsOneDaemon) {
  EXPECT_THAT(*AddressesOf("host:29610"), ElementsAre("host:29610"));
  EXPECT_THAT(*AddressesOf(" unix:/run/gradwire.sock "), ElementsAre("unix:/run/gradwire.sock"));
  EXPECT_THAT(*AddressesOf("[::1]:29610"), ElementsAre("[::1]:29610"));
}

TEST(Addresses, AListKeepsItsOrder) {
  EXPECT_THAT(*AddressesOf("b:1, a:2,c:3"), ElementsAre("b:1", "a:2", "c:3"));
}

TEST(Addresses, RangesCountUp) {
  EXPECT_THAT(*AddressesOf("host-{0..3}:29610"),
              ElementsAre("host-0:29610", "host-1:29610", "host-2:29610", "host-3:29610"));
  EXPECT_THAT(*AddressesOf("h:{8..10},x:1"), ElementsAre("h:8", "h:9", "h:10", "x:1"));
  EXPECT_THAT(*AddressesOf("h{7..7}"), ElementsAre("h7"));
  EXPECT_THAT(*AddressesOf("h{0..63}:1"), SizeIs(64));
}

TEST(Addresses, NamesWhatIsWrong) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty address"));
  EXPECT_THAT(ErrorOf("a:1,,b:2"), HasSubstr("\"a:1,,b:2\": names an empty address"));
  EXPECT_THAT(ErrorOf("a:1,"), HasSubstr("empty address"));
  EXPECT_THAT(ErrorOf("a:1,b:1,a:1"), HasSubstr("names a:1 twice"));
  EXPECT_THAT(ErrorOf("h{0..2},h1"), HasSubstr("names h1 twice"));
  EXPECT_THAT(ErrorOf("h{0..64}"), HasSubstr("at most 64 numbers"));
  EXPECT_THAT(ErrorOf("h{0..40},g{0..40}"), HasSubstr("more than 64 daemons"));
  for (const char* braces :
       {"h{", "h}", "h}0..1{", "h{}", "h{..}", "h{1}", "h{1..}", "h{..1}", "h{3..1}", "h{a..b}",
        "h{-1..1}", "h{0..1x}", "h{0...2}", "h{0..99999999999999999999}", "h{0..4294967295}"}) {
    EXPECT_THAT(ErrorOf(braces), HasSubstr("allowed: a range such as {0..3}")) << braces;
  }
}

}  // namespace
}  // namespace gradwire::client
