#include "base/error_code.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire {
namespace {

TEST(ErrorCodes, AreInOrderAndNamed) {
  int last = 99;
  for (const ErrorEntry& entry : ErrorCodes()) {
    EXPECT_GT(static_cast<int>(entry.code), last);
    last = static_cast<int>(entry.code);
    EXPECT_EQ(ParseErrorCode(Name(entry.code)), entry.code);
    EXPECT_FALSE(entry.title.empty()) << Name(entry.code);
  }
  EXPECT_LT(last, 1000);
  EXPECT_EQ(Name(ErrorCode::kWorldSize), "GW203");
}

TEST(ErrorCodes, ParsesOnlyNamesThatExist) {
  EXPECT_EQ(ParseErrorCode("gw203"), ErrorCode::kWorldSize);
  for (const char* none :
       {"", "GW", "GW2", "GW20", "GW2031", "XW203", "GW999", "GW-01", "203", "GW 03"}) {
    EXPECT_EQ(ParseErrorCode(none), std::nullopt) << none;
  }
}

TEST(FindCode, LooksAtTheEndOnly) {
  EXPECT_EQ(FindCode("rank is taken [GW204]"), ErrorCode::kRankTaken);
  for (const char* none : {"", "[GW204]", "x[GW204]", "x [GW204] ", "x [GW204]; y", "x [GW999]",
                           "x [gw20", "x [GW204", "x (GW204)"}) {
    EXPECT_EQ(FindCode(none), std::nullopt) << none;
  }
}

TEST(CodedText, AppendsOnce) {
  EXPECT_EQ(CodedText(ErrorCode::kRankTaken, "taken"), "taken [GW204]");
  EXPECT_EQ(CodedText(ErrorCode::kRankTaken, "taken [GW204]"), "taken [GW204]");
  EXPECT_EQ(CodedText(ErrorCode::kJoin, ""), " [GW200]");
}

// A message that quotes another one keeps the code of the cause, and at its end.
TEST(CodedText, MovesAnInnerCodeToTheEnd) {
  EXPECT_EQ(CodedText(ErrorCode::kJoin, "rank 1: taken [GW204]"), "rank 1: taken [GW204]");
  EXPECT_EQ(CodedText(ErrorCode::kNoDaemon, "no answer: it drains [GW109]; is it there?"),
            "no answer: it drains; is it there? [GW109]");
  EXPECT_EQ(CodedText(ErrorCode::kJoin, "a [GW204]; b [GW205]"), "a; b [GW205]");
}

TEST(CodedText, PutsASpecificCodeInPlaceOfAGeneralOne) {
  EXPECT_EQ(CodedText(ErrorCode::kResume, "x ended: y [GW300]"), "x ended: y [GW309]");
  EXPECT_EQ(CodedText(ErrorCode::kPython, "y [GW300]"), "y [GW300]");
}

TEST(CodedText, LeavesWhatIsNoCode) {
  EXPECT_EQ(CodedText(ErrorCode::kJoin, "a [GW999] [ [GWx03] [["),
            "a [GW999] [ [GWx03] [[ [GW200]");
  EXPECT_EQ(CodedText(ErrorCode::kJoin, std::string(3, '\0')), std::string(3, '\0') + " [GW200]");
  EXPECT_EQ(CodedText(ErrorCode::kJoin, "x [GW2"), "x [GW2 [GW200]");
  EXPECT_EQ(CodedText(ErrorCode::kJoin, "x [ [GW203]"), "x [ [GW203]");
}

TEST(RecodedText, TakesNoCodeFromTheText) {
  EXPECT_EQ(RecodedText(ErrorCode::kEvicted, "ended: see [GW101]"), "ended: see [GW306]");
  EXPECT_EQ(RecodedText(ErrorCode::kEvicted, "ended [GW306]"), "ended [GW306]");
}

TEST(Coded, KeepsWhatElseAStatusHas) {
  EXPECT_TRUE(Coded(ErrorCode::kJoin, absl::OkStatus()).ok());
  EXPECT_EQ(Coded(ErrorCode::kRankTaken, absl::AlreadyExistsError("taken")),
            absl::AlreadyExistsError("taken [GW204]"));
  EXPECT_EQ(*Coded(ErrorCode::kJoin, absl::StatusOr<int>(7)), 7);
  EXPECT_EQ(Coded(ErrorCode::kJoin, absl::StatusOr<int>(absl::AbortedError("no"))).status(),
            absl::AbortedError("no [GW200]"));
}

}  // namespace
}  // namespace gradwire
