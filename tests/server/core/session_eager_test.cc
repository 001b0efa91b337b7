// Buckets whose contribution comes with their announcement.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/session_harness.h"

namespace gradwire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SessionOptions EagerOptions() {
  SessionOptions options = SmallOptions();
  options.eager_bytes = 80;
  return options;
}

wire::Announce Eager(std::vector<std::uint32_t> parameters, std::size_t numel) {
  return {.generation = 7,
          .parameters = std::move(parameters),
          .rounds = {SumOf(numel)},
          .eager = true};
}

TEST(SessionEager, NeedsNoGrantAndNoAcknowledgementOfItsOwn) {
  SessionHarness harness(EagerOptions());
  harness.Start();
  harness.Receive(0, Eager({0}, 16), Floats(16, 1));
  harness.Receive(1, Eager({0}, 16), Floats(16, 2));
  harness.Reduce();
  for (const int rank : {0, 1}) {
    EXPECT_THAT(harness.Sent<wire::Grant>(rank), IsEmpty());
    EXPECT_THAT(harness.Sent<wire::Result>(rank), SizeIs(1));
  }
  EXPECT_GT(harness.session.held_bytes(), 0U);
  wire::Announce next{.generation = 7, .parameters = {2}, .rounds = {SumOf(0)}};
  next.acknowledged = {0};
  harness.Receive(0, next);
  harness.Receive(1, next);
  EXPECT_EQ(harness.session.held_bytes(), 0U);
  EXPECT_EQ(harness.session.state(), SessionCore::State::kRunning);
}

TEST(SessionEager, MixesWithMembersThatWaitForTheirGrant) {
  SessionHarness harness(EagerOptions());
  harness.Start();
  harness.Receive(0, Eager({0}, 16), Floats(16, 1));
  harness.Announce(1, {0});
  EXPECT_THAT(harness.Sent<wire::Grant>(0), IsEmpty());
  ASSERT_THAT(harness.Sent<wire::Grant>(1), SizeIs(1));
}

struct BadEager {
  const char* name;
  wire::Announce announce;
  std::size_t numel;
  const char* says;
};

class SessionBadEager : public ::testing::TestWithParam<BadEager> {};

TEST_P(SessionBadEager, EndsTheSession) {
  SessionHarness harness(EagerOptions());
  harness.Start();
  harness.Receive(1, GetParam().announce,
                  GetParam().numel == 0 ? nullptr : Floats(GetParam().numel, 1));
  EXPECT_EQ(harness.session.state(), SessionCore::State::kFailed);
  EXPECT_THAT(std::string(harness.session.failure().message()),
              AllOf(HasSubstr("rank 1: announced bucket"), HasSubstr(GetParam().says)));
}

wire::Announce OfAttempt(std::uint32_t attempt) {
  wire::Announce announce = Eager({0}, 16);
  announce.attempt = attempt;
  return announce;
}

INSTANTIATE_TEST_SUITE_P(
    All, SessionBadEager,
    ::testing::Values(
        BadEager{"NoPayload", Eager({0}, 16), 0, "eagerly with 0 bytes; it has 64"},
        BadEager{"WrongSize", Eager({0}, 16), 15, "eagerly with 60 bytes; it has 64"},
        BadEager{"SeveralChunks", Eager({1}, 40), 40, "allowed: one round of one chunk"},
        BadEager{"NoChunk", Eager({2}, 0), 0, "allowed: one round of one chunk"},
        BadEager{"LaterAttempt", OfAttempt(3), 16, "eagerly in attempt 3; it is in attempt 0"}),
    [](const auto& test) { return test.param.name; });

TEST(SessionEager, TheBudgetIsKept) {
  SessionOptions options = EagerOptions();
  options.eager_bytes = 60;
  SessionHarness harness(options);
  harness.Start();
  harness.Receive(1, Eager({0}, 16), Floats(16, 1));
  EXPECT_THAT(std::string(harness.session.failure().message()),
              HasSubstr("eagerly with 64 bytes after 0 without results; allowed: 60 together"));
}

}  // namespace
}  // namespace gradwire::server
