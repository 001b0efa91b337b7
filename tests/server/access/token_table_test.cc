#include "server/access/token_table.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "correct-horse-battery-staple";
// Of "0123456789abcdef", by sha256sum.
constexpr char kDigest[] =
    "sha256:9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";

TokenTable Parse(const std::string& text) {
  absl::StatusOr<TokenTable> table = TokenTable::Parse(text);
  EXPECT_TRUE(table.ok()) << table.status();
  return table.ok() ? *std::move(table) : TokenTable();
}

std::string Error(const std::string& text) {
  return std::string(TokenTable::Parse(text).status().message());
}

TEST(TokenTable, FindsWhoHasAToken) {
  const TokenTable table = Parse(absl::StrCat("# comment\n\n  team-a member digits,team-a-*  ",
                                              kToken, "\r\nwatch\tobserver\t*\t", kDigest));
  EXPECT_EQ(table.size(), 2);
  const Caller* const member = table.Find(kToken);
  ASSERT_NE(member, nullptr);
  EXPECT_EQ(member->identity, "team-a");
  EXPECT_EQ(member->role, Role::kMember);
  EXPECT_THAT(member->sessions, ElementsAre("digits", "team-a-*"));
  const Caller* const observer = table.Find("0123456789abcdef");
  ASSERT_NE(observer, nullptr);
  EXPECT_EQ(observer->role, Role::kObserver);
}

TEST(TokenTable, OtherTokensAreNobodys) {
  const TokenTable table = Parse(absl::StrCat("a operator * ", kToken));
  const std::string digest = std::string(kDigest).substr(7);
  for (const std::string& token :
       {std::string(), std::string("guess"), absl::StrCat(kToken, "x"), absl::StrCat(" ", kToken),
        std::string(kDigest), digest, std::string(10'000, 'a'),
        std::string(kToken).substr(0, sizeof kToken - 2), std::string(kToken) + '\0'}) {
    EXPECT_EQ(table.Find(token), nullptr) << token;
  }
}

TEST(TokenTable, ACallerCoversItsSessions) {
  const Caller caller{.sessions = {"digits", "team-a-*"}};
  for (const char* name : {"digits", "team-a-", "team-a-7"}) EXPECT_TRUE(caller.Covers(name));
  for (const char* name : {"", "digit", "digits2", "team-a", "xteam-a-1", "*"}) {
    EXPECT_FALSE(caller.Covers(name)) << name;
  }
  EXPECT_TRUE(Caller{}.Covers("anything"));
  EXPECT_FALSE(Caller{.sessions = {}}.Covers("anything"));
}

TEST(TokenTable, ATokenMayBeReplaced) {
  const std::string line = "a member s ";
  const TokenTable table = Parse(absl::StrCat(line, kToken, "\n", line, kDigest, "\n"));
  EXPECT_EQ(table.Find(kToken)->identity, table.Find("0123456789abcdef")->identity);
  EXPECT_THAT(Error(absl::StrCat(line, kToken, "\na operator s ", kDigest)),
              HasSubstr("line 2 gives \"a\" another role, sessions or quota"));
}

TEST(TokenTable, AFifthColumnIsTheQuotaOfTheName) {
  const std::string line = absl::StrCat("a member s ", kToken);
  EXPECT_FALSE(Parse(line).Find(kToken)->quota.has_value());
  const TokenTable table =
      Parse(absl::StrCat(line, " sessions=4,memory=1MiB\na member s ", kDigest,
                         "\tmemory=1MiB,sessions=4\nb member s another-long-random-text"));
  ASSERT_TRUE(table.Find(kToken)->quota.has_value());
  EXPECT_EQ(table.Find(kToken)->quota->of(QuotaKind::kSessions), 4);
  EXPECT_EQ(table.Find(kToken)->quota->of(QuotaKind::kMemory), 1 << 20);
  EXPECT_EQ(table.Find(kToken)->quota->of(QuotaKind::kJoins), kNoQuota);
  EXPECT_FALSE(table.Find("another-long-random-text")->quota.has_value());
  EXPECT_EQ(
      Error(absl::StrCat("\n", line, " members=0")),
      "line 2 has a quota that is not valid: members is \"0\"; allowed are 1 to 1000000 [GW608]");
  EXPECT_THAT(Error(absl::StrCat(line, " sessions=4\na member s ", kDigest)),
              HasSubstr("line 2 gives \"a\" another role, sessions or quota"));
  EXPECT_THAT(Error(line + " joins=1 x"), HasSubstr("has 6 words; allowed are 4 or 5"));
}

// Knows one user, so that no test depends on this host's.
absl::StatusOr<uid_t> FindJenkins(const std::string& name) {
  if (name == "jenkins") return uid_t{117};
  return absl::NotFoundError("there is no such user");
}

TEST(TokenTable, AUserOfTheHostStandsForAToken) {
  const auto table = TokenTable::Parse(
      absl::StrCat("night member nightly-* uid:1000\nbuild operator * user:jenkins\n",
                   "last observer * uid:4294967294\nteam-a member a ", kToken),
      FindJenkins);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->size(), 4);
  const Caller* const night = table->FindUser(1000);
  ASSERT_NE(night, nullptr);
  EXPECT_EQ(night->role, Role::kMember);
  EXPECT_THAT(night->sessions, ElementsAre("nightly-*"));
  ASSERT_NE(table->FindUser(117), nullptr);
  EXPECT_EQ(table->FindUser(117)->role, Role::kOperator);
  ASSERT_NE(table->FindUser(4294967294), nullptr);
  for (const uid_t user : {0U, 1U, 10'000U, 4294967295U}) EXPECT_EQ(table->FindUser(user), nullptr);
  EXPECT_NE(table->Find(kToken), nullptr);
  // Nobody sends these as tokens.
  for (const char* word : {"uid:1000", "user:jenkins", "uid:4294967294"}) {
    EXPECT_EQ(table->Find(word), nullptr) << word;
  }
}

TEST(TokenTable, TheSystemKnowsItsUsers) {
  EXPECT_NE(Parse("a operator * user:root").FindUser(0), nullptr);
}

TEST(TokenTable, SaysWhatIsWrongWithAUser) {
  const auto error = [](const std::string& text) {
    return std::string(TokenTable::Parse(text, FindJenkins).status().message());
  };
  for (const char* id : {"", "-1", "x", "1000x", "4294967295", "99999999999"}) {
    EXPECT_THAT(
        error(absl::StrCat("a member s uid:", id)),
        HasSubstr(absl::StrCat("line 1 the user's ID is \"", id, "\"; allowed: 0 to 4294967294")));
  }
  EXPECT_THAT(error("a member s user:jenkin"),
              HasSubstr("line 1 the user is \"jenkin\"; allowed: a user of this host, or uid: and "
                        "its number (there is no such user)"));
  EXPECT_THAT(error("a member s uid:117\nb member t user:jenkins"),
              HasSubstr("line 2 has the user of a line before"));
  EXPECT_THAT(error("a member s uid:1\na operator s uid:2"),
              HasSubstr("line 2 gives \"a\" another role"));
}

// A directory service that does not answer may answer later, so it is no mistake of the file.
TEST(TokenTable, TellsAMistakeFromALookupThatFailed) {
  const auto code = [](absl::StatusCode of_lookup) {
    return TokenTable::Parse("a member s user:jenkins",
                             [&](const std::string&) { return absl::Status(of_lookup, "why"); })
        .status()
        .code();
  };
  EXPECT_EQ(code(absl::StatusCode::kNotFound), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(absl::StatusCode::kUnavailable), absl::StatusCode::kUnavailable);
}

TEST(TokenTable, NamesTheLineAndShowsNoToken) {
  const std::string good = absl::StrCat("a member s ", kToken, "\n");
  EXPECT_EQ(Error(""), "has no token; allowed: one line for each token [GW608]");
  EXPECT_THAT(Error(good + "b member s"), HasSubstr("line 2 has 3 words"));
  EXPECT_THAT(Error("a/b member s x"), HasSubstr("line 1 the name is \"a/b\""));
  EXPECT_THAT(Error("a root s x"), HasSubstr("the role is \"root\"; allowed: member, observer"));
  EXPECT_THAT(Error("a member s,,t x"), HasSubstr("a session is \"\""));
  EXPECT_THAT(Error("a member *s x"), HasSubstr("a session is \"*s\""));
  EXPECT_THAT(Error(good + "b member t " + kToken), HasSubstr("line 2 has the token of a line"));
  for (const std::string& token : {std::string("tooshortsecret"), std::string("sha256:abcd"),
                                   std::string(kDigest) + "0", std::string(513, 's')}) {
    const std::string error = Error("a member s " + token);
    EXPECT_THAT(error,
                HasSubstr("line 1 has a token that is not valid; allowed: 16 to 512 printable"));
    EXPECT_THAT(error, Not(HasSubstr(token)));
  }
  // A word too many may be a token.
  EXPECT_THAT(Error(absl::StrCat("a member s x ", kToken)), Not(HasSubstr(kToken)));
}

}  // namespace
}  // namespace gradwire::server
