// What an operator reads of a session's ledger.
#include "server/ctl/ledger.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <string>

namespace gradwire::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Rounding explains a balance of 2^-10 * sqrt(4 * 64) = 1/64 in each of its rows.
v1::LedgerStatus Ledger() {
  v1::LedgerStatus ledger;
  ledger.set_settled(41);
  ledger.set_members(4);
  ledger.set_tolerance(1. / 1024);
  v1::NamedLedgerRow& w = *ledger.add_rows();
  w.set_name("w");
  w.set_parameters(1);
  w.mutable_row()->set_contributed(2);
  w.mutable_row()->set_applied(1.5);
  w.mutable_row()->set_residual(0.5);
  w.mutable_row()->set_contributed_squares(400);
  w.mutable_row()->set_residual_squares(0.25);
  w.mutable_row()->set_rounded_squares(64);
  v1::NamedLedgerRow& b = *ledger.add_rows();
  b.set_name("b");
  b.set_parameters(4);
  b.mutable_row()->set_contributed(14);
  b.mutable_row()->set_applied(4);
  b.mutable_row()->set_residual(1);
  b.mutable_row()->set_skipped(2);
  b.mutable_row()->set_dropped(4);
  b.mutable_row()->set_lost(3);
  b.mutable_row()->set_contributed_squares(1e6);
  b.mutable_row()->set_skipped_squares(4);
  b.mutable_row()->set_dropped_squares(16);
  b.mutable_row()->set_lost_squares(1e-4);
  b.mutable_row()->set_rounded_squares(64);
  return ledger;
}

v1::SessionStatus Session() {
  v1::SessionStatus session;
  session.set_name("s");
  *session.mutable_ledger() = Ledger();
  return session;
}

std::string Refusal(const v1::SessionStatus& session) {
  const absl::Status status = LedgerOf(session).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

// ---- LedgerOf

TEST(LedgerOf, IsTheSessionsOwnWhereItHasOneDaemon) {
  const auto ledger = LedgerOf(Session());
  ASSERT_TRUE(ledger.ok()) << ledger.status();
  EXPECT_EQ(ledger->SerializeAsString(), Ledger().SerializeAsString());
}

TEST(LedgerOf, SaysHowToBeginOneWhereThereIsNone) {
  v1::SessionStatus session = Session();
  session.clear_ledger();
  session.set_name("a\nb");
  EXPECT_EQ(
      Refusal(session),
      "session \"a\\u000ab\" has no ledger; gradwired --ledger (ledger: true) begins one [GW700]");
  session = Session();
  session.add_parts()->mutable_ledger();
  session.add_parts();
  *session.mutable_parts(0)->mutable_ledger() = Ledger();
  EXPECT_EQ(Refusal(session),
            "session \"s\" has no ledger; gradwired --ledger (ledger: true) begins one [GW700]");
}

TEST(LedgerOf, SaysWhoSendsNoAccountWhereNothingIsSettled) {
  v1::SessionStatus session = Session();
  session.mutable_ledger()->clear_rows();
  session.mutable_ledger()->set_settled(-1);
  EXPECT_EQ(Refusal(session), "session \"s\": nothing is in its ledger yet [GW700]");
  for (const int rank : {1, 3}) session.mutable_ledger()->add_silent(rank);
  EXPECT_EQ(Refusal(session),
            "session \"s\": nothing is in its ledger yet; these ranks have sent no account: 1, 3 "
            "(they send it with a step's end; gradients on a GPU have none) [GW700]");
}

TEST(LedgerOf, AddsUpWhatTheShardsSay) {
  v1::SessionStatus session;
  session.set_name("s");
  v1::LedgerStatus& first = *session.add_parts()->mutable_ledger();
  first = Ledger();
  first.add_silent(3);
  first.add_silent(5);
  v1::LedgerStatus& second = *session.add_parts()->mutable_ledger();
  second = Ledger();
  second.set_settled(40);
  second.set_members(5);
  second.set_tolerance(1. / 256);
  second.set_incomplete("why");
  second.add_silent(1);
  second.add_silent(3);
  double value = 100;
  v1::LedgerRow& row = *second.mutable_rows(1)->mutable_row();
  row.set_contributed(value++);
  row.set_applied(value++);
  row.set_residual(value++);
  row.set_skipped(value++);
  row.set_dropped(value++);
  row.set_lost(value++);
  row.set_contributed_squares(value++);
  row.set_residual_squares(value++);
  row.set_skipped_squares(value++);
  row.set_dropped_squares(value++);
  row.set_lost_squares(value++);
  row.set_rounded_squares(value++);
  const auto ledger = LedgerOf(session);
  ASSERT_TRUE(ledger.ok()) << ledger.status();
  EXPECT_EQ(ledger->settled(), 40) << "of all shards";
  EXPECT_EQ(ledger->members(), 5);
  EXPECT_EQ(ledger->tolerance(), 1. / 256);
  EXPECT_EQ(ledger->incomplete(), "why");
  EXPECT_THAT(ledger->silent(), ElementsAre(1, 3, 5));
  ASSERT_EQ(ledger->rows_size(), 2);
  EXPECT_EQ(ledger->rows(0).row().contributed(), 2 + 2);
  EXPECT_EQ(ledger->rows(0).row().contributed_squares(), 800);
  const v1::NamedLedgerRow& sum = ledger->rows(1);
  EXPECT_EQ(sum.name(), "b");
  EXPECT_EQ(sum.parameters(), 4U) << "they are the same on all shards";
  EXPECT_EQ(sum.row().contributed(), 14 + 100);
  EXPECT_EQ(sum.row().applied(), 4 + 101);
  EXPECT_EQ(sum.row().residual(), 1 + 102);
  EXPECT_EQ(sum.row().skipped(), 2 + 103);
  EXPECT_EQ(sum.row().dropped(), 4 + 104);
  EXPECT_EQ(sum.row().lost(), 3 + 105);
  EXPECT_EQ(sum.row().contributed_squares(), 1e6 + 106);
  EXPECT_EQ(sum.row().residual_squares(), 107);
  EXPECT_EQ(sum.row().skipped_squares(), 4 + 108);
  EXPECT_EQ(sum.row().dropped_squares(), 16 + 109);
  EXPECT_EQ(sum.row().lost_squares(), 1e-4 + 110);
  EXPECT_EQ(sum.row().rounded_squares(), 64 + 111);
  session.mutable_parts(1)->mutable_ledger()->clear_rows();
  EXPECT_THAT(Refusal(session), HasSubstr("have sent no account: 1, 3, 5 "));
}

// ---- Closes

TEST(Closes, WhereRoundingExplainsEachRow) {
  v1::LedgerStatus ledger = Ledger();
  EXPECT_TRUE(Closes(ledger));
  v1::LedgerRow& row = *ledger.mutable_rows(0)->mutable_row();
  row.set_contributed(2 + 1. / 64);
  EXPECT_TRUE(Closes(ledger));
  row.set_contributed(2 - 1. / 64);
  EXPECT_TRUE(Closes(ledger));
  row.set_contributed(2 + 1.01 / 64);
  EXPECT_FALSE(Closes(ledger));
  row.set_contributed(2 - 1.01 / 64);
  EXPECT_FALSE(Closes(ledger));
  ledger.set_members(5);
  EXPECT_TRUE(Closes(ledger)) << "rounding of five members";
  EXPECT_TRUE(Closes(v1::LedgerStatus())) << "nothing is missing";
}

// Rows that miss the same in other directions are both wrong.
TEST(Closes, NoRowMakesUpForAnother) {
  v1::LedgerStatus ledger = Ledger();
  ledger.mutable_rows(0)->mutable_row()->set_contributed(3);
  ledger.mutable_rows(1)->mutable_row()->set_contributed(13);
  EXPECT_FALSE(Closes(ledger));
}

TEST(Closes, CountsWhatIsLostByNameAsExplained) {
  for (const auto set : {&v1::LedgerRow::set_skipped, &v1::LedgerRow::set_dropped,
                         &v1::LedgerRow::set_lost, &v1::LedgerRow::set_residual}) {
    v1::LedgerStatus ledger = Ledger();
    v1::LedgerRow& row = *ledger.mutable_rows(0)->mutable_row();
    row.set_residual(0);
    EXPECT_FALSE(Closes(ledger));
    (row.*set)(0.5);
    EXPECT_TRUE(Closes(ledger));
  }
}

// ---- What is printed

TEST(LedgerTable, HasALineForEachRowAndTheSum) {
  EXPECT_EQ(
      LedgerTable(Session(), Ledger()),
      "session s up to step 41; norms of all members' gradients\n\n"
      "PARAMETER     CONTRIBUTED  RESIDUALS  SKIPPED  DROPPED  LOST  UNEXPLAINED\n"
      "w             20           0.5        0        0        0     0\n"
      "b and 3 more  1e+03        0          2        4        0.01  0\n"
      "all           1e+03        0.5        2        4        0.01  0\n\n"
      "it closes: what was contributed was applied, is still a residual, or was lost as said, up "
      "to rounding\n");
}

TEST(LedgerTable, MarksRowsThatMissTooMuch) {
  v1::LedgerStatus ledger = Ledger();
  // Of a norm of 20: 0.001 is within 1/64, 4 is not. The sum's norm is 1000.2.
  ledger.mutable_rows(0)->mutable_row()->set_contributed(2.001);
  EXPECT_THAT(LedgerTable(Session(), ledger),
              HasSubstr("w             20           0.5        0        0        0     5.0e-05\n"));
  ledger.mutable_rows(0)->mutable_row()->set_contributed(-2);
  const std::string text = LedgerTable(Session(), ledger);
  EXPECT_THAT(
      text,
      HasSubstr("\nw             20           0.5        0        0        0     2.0e-01      too "
                "much\n"));
  EXPECT_THAT(text,
              HasSubstr("\nb and 3 more  1e+03        0          2        4        0.01  0\n"));
  EXPECT_THAT(
      text,
      HasSubstr("\nall           1e+03        0.5        2        4        0.01  4.0e-03      too "
                "much\n"));
  EXPECT_THAT(text,
              HasSubstr("\n\nit does not close: rounding does not explain what is missing\n"));
  EXPECT_THAT(text, Not(HasSubstr("it closes")));
}

TEST(LedgerTable, SaysWhatIsNotKnownAndShowsNamesAsTheyCanBePrinted) {
  v1::SessionStatus session = Session();
  session.set_name("a\nb");
  v1::LedgerStatus ledger = Ledger();
  ledger.mutable_rows(0)->set_name("w\x1b[2J");
  ledger.set_incomplete("not\tknown");
  const std::string text = LedgerTable(session, ledger);
  EXPECT_THAT(text, StartsWith("session a\\u000ab up to step 41"));
  EXPECT_THAT(text, HasSubstr("\nw\\u001b[2J "));
  EXPECT_THAT(text, HasSubstr("\n\nnot\\u0009known\nit closes: "));
  EXPECT_THAT(text, Not(HasSubstr(" \n"))) << "no trailing spaces";
}

TEST(LedgerJson, HasTheMessageAndWhetherItCloses) {
  v1::LedgerStatus ledger = Ledger();
  ledger.add_silent(2);
  for (const bool closes : {true, false}) {
    if (!closes) ledger.mutable_rows(1)->mutable_row()->set_lost(5);
    const std::string json = LedgerJson(ledger);
    const std::string begin =
        closes ? R"({"closes":true,"ledger":)" : R"({"closes":false,"ledger":)";
    ASSERT_THAT(json, StartsWith(begin));
    ASSERT_EQ(json.substr(json.size() - 2), "}\n");
    v1::LedgerStatus back;
    const auto read = google::protobuf::util::JsonStringToMessage(
        json.substr(begin.size(), json.size() - begin.size() - 2), &back);
    ASSERT_TRUE(read.ok()) << read.ToString();
    EXPECT_EQ(back.SerializeAsString(), ledger.SerializeAsString());
  }
}

}  // namespace
}  // namespace gradwire::ctl
