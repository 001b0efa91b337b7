// What no SDK would say, said by hand. Each ends in a typed error that names the thing, on every
// member, and the daemon serves on.
#include <functional>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/raw_member.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RawMember;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kElements = 1000;  // one chunk

std::string Message(const absl::Status& status) { return std::string(status.message()); }

ClientOptions Options(const TestDaemon& daemon, const std::string& session) {
  return {.address = daemon.address(),
          .session = session,
          .rank = 0,
          .world_size = 2,
          .parameters = {MakeParameter("w", kElements), MakeParameter("v", 10)},
          .join_timeout = absl::Seconds(10)};
}

void ExpectServesOn(const TestDaemon& daemon) {
  ExpectAllOk(RunRanks(Options(daemon, "afterwards"), [](Client& client, int rank) -> absl::Status {
    Gradients gradients({MakeParameter("w", kElements)});
    gradients.Fill(rank, 0);
    GradBucket bucket = gradients.Bucket();
    if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
    return client.EndStep().status();
  }));
}

// A frame by rank 1 that ends the session.
struct Violation {
  const char* name;
  absl::StatusCode code;
  const char* names;  // what the error must name, besides rank 1
  bool after_grant;
  // `frame` holds a correct announcement or contribution.
  std::function<void(v1::Frame& frame)> spoil;
};

class BadFrame : public ::testing::TestWithParam<Violation> {};

v1::Frame GoodContribution(const v1::JoinResponse& joined, const v1::RoundId& id) {
  v1::Frame frame;
  v1::Contribution* contribution = frame.mutable_header()->mutable_contribution();
  *contribution->mutable_id() = id;
  contribution->set_generation(joined.generation());
  contribution->set_rank(1);
  frame.set_payload(std::string(kElements * 4, '\0'));
  return frame;
}

v1::Frame GoodAnnouncement(const v1::JoinResponse& joined) {
  v1::Frame frame;
  v1::Announce* announce = frame.mutable_header()->mutable_announce();
  announce->set_generation(joined.generation());
  announce->add_parameters(0);
  v1::Segment* segment = announce->add_rounds()->add_segments();
  segment->set_dtype(v1::DATA_TYPE_FLOAT32);
  segment->set_numel(kElements);
  segment->set_op(v1::REDUCE_OP_SUM);
  return frame;
}

TEST_P(BadFrame, EndsTheSessionAndNamesTheSender) {
  TestDaemon daemon({.chunk_bytes = 4096, .resume_grace = absl::Milliseconds(300)});
  const ClientOptions options = Options(daemon, "bad-frame");
  absl::Status seen;
  std::thread good([&] {
    const auto client = Client::Join(options);
    ASSERT_TRUE(client.ok()) << client.status();
    Gradients gradients({MakeParameter("w", kElements)});
    GradBucket bucket = gradients.Bucket();
    seen = (*client)->AllReduce(bucket).Wait();
    EXPECT_EQ((*client)->Barrier(), seen);
  });
  RawMember bad(daemon.address());
  ClientOptions second = options;
  second.rank = 1;
  const auto joined = bad.Begin(second);
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_TRUE(bad.ReadUntil(v1::Header::kWelcome).has_value());
  v1::Frame frame = GoodAnnouncement(*joined);
  if (GetParam().after_grant) {
    const auto id = bad.Announce(*joined, {0}, kElements);
    ASSERT_TRUE(id.ok()) << id.status();
    frame = GoodContribution(*joined, *id);
  }
  GetParam().spoil(frame);
  bad.Send(frame);
  bad.AwaitFailure().IgnoreError();
  good.join();
  EXPECT_EQ(seen.code(), GetParam().code) << seen;
  EXPECT_THAT(Message(seen), HasSubstr("rank 1"));
  EXPECT_THAT(Message(seen), HasSubstr(GetParam().names));
  ExpectServesOn(daemon);
}

v1::Announce& Announcement(v1::Frame& frame) { return *frame.mutable_header()->mutable_announce(); }
v1::Contribution& TheContribution(v1::Frame& frame) {
  return *frame.mutable_header()->mutable_contribution();
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

std::vector<Violation> Violations() {
  return {
      {"AnotherSessionsGeneration", kInvalid, "generation", false,
       [](v1::Frame& f) { Announcement(f).set_generation(Announcement(f).generation() + 1); }},
      {"AnotherStep", kPrecondition, "step 5", false,
       [](v1::Frame& f) { Announcement(f).set_step(5); }},
      {"UnknownParameter", kInvalid, "parameter 7", false,
       [](v1::Frame& f) { Announcement(f).set_parameters(0, 7); }},
      {"AnotherBucketThanTheOthers", kInvalid, "bucket", false,
       [](v1::Frame& f) { Announcement(f).add_parameters(1); }},
      {"AnotherLength", kInvalid, "999", false,
       [](v1::Frame& f) {
         Announcement(f).mutable_rounds(0)->mutable_segments(0)->set_numel(999);
       }},
      {"NoHeader", kInvalid, "", false, [](v1::Frame& f) { f.clear_header(); }},
      {"ACoordinatorsFrame", kInvalid, "coordinator", false,
       [](v1::Frame& f) {
         f.mutable_header()->mutable_step_done()->set_verdict(v1::STEP_VERDICT_APPLY);
       }},
      {"ContributionOfAnotherSession", kInvalid, "generation", true,
       [](v1::Frame& f) {
         TheContribution(f).set_generation(TheContribution(f).generation() + 1);
       }},
      {"ContributionOfAnotherStep", kPrecondition, "step 3", true,
       [](v1::Frame& f) { TheContribution(f).mutable_id()->set_step(3); }},
      {"ContributionOfAnotherRank", absl::StatusCode::kPermissionDenied, "rank 0", true,
       [](v1::Frame& f) { TheContribution(f).set_rank(0); }},
      {"PayloadTooShort", kInvalid, "3999", true,
       [](v1::Frame& f) { f.mutable_payload()->resize(3999); }},
      {"PayloadTooLong", kInvalid, "4001", true,
       [](v1::Frame& f) { f.mutable_payload()->resize(4001); }},
      {"NoPayload", kInvalid, "0", true, [](v1::Frame& f) { f.clear_payload(); }},
      {"LongerThanAnnounced", absl::StatusCode::kOutOfRange, "chunk 1", true,
       [](v1::Frame& f) { TheContribution(f).set_chunk(1); }},
      {"UnknownBucket", absl::StatusCode::kFailedPrecondition, "bucket", true,
       [](v1::Frame& f) { TheContribution(f).mutable_id()->set_bucket(1); }},
      {"WrongDigest", absl::StatusCode::kDataLoss, "digest", true,
       [](v1::Frame& f) { TheContribution(f).set_digest(1); }},
      {"OverTheChunkLimit", kInvalid, "payload", true,
       [](v1::Frame& f) { f.mutable_payload()->resize(5000); }},
      {"OverTheMessageLimit", absl::StatusCode::kAborted, "lost", true,
       [](v1::Frame& f) { f.mutable_payload()->resize(std::size_t{64} << 20); }},
  };
}

INSTANTIATE_TEST_SUITE_P(All, BadFrame, ::testing::ValuesIn(Violations()),
                         [](const auto& tested) { return std::string(tested.param.name); });

class BadJoin : public ::testing::Test {
 protected:
  absl::Status Join(const std::function<void(v1::JoinRequest&)>& spoil) {
    ClientOptions options = Options(daemon_, "bad-join");
    options.rank = 1;
    v1::JoinRequest request = RawMember::MakeJoin(options);
    spoil(request);
    return RawMember(daemon_.address()).Join(request).status();
  }
  void Expect(absl::StatusCode code, const std::string& names,
              const std::function<void(v1::JoinRequest&)>& spoil) {
    const absl::Status status = Join(spoil);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(Message(status), HasSubstr(names));
  }

  TestDaemon daemon_;
};

TEST_F(BadJoin, TheFirstMembersOwnMistakes) {
  using Request = v1::JoinRequest;
  Expect(kInvalid, "world_size is 0", [](Request& r) { r.set_world_size(0); });
  Expect(kInvalid, "world_size is -1", [](Request& r) { r.set_world_size(-1); });
  Expect(kInvalid, "rank is 2", [](Request& r) { r.set_rank(2); });
  Expect(kInvalid, "rank is -2", [](Request& r) { r.set_rank(-2); });
  Expect(kInvalid, "session", [](Request& r) { r.set_session("no spaces"); });
  Expect(kInvalid, "start_id", [](Request& r) { r.set_start_id(0); });
  Expect(absl::StatusCode::kUnimplemented, "2 to 3", [](Request& r) {
    r.set_min_protocol_version(2);
    r.set_max_protocol_version(3);
  });
  Expect(kInvalid, "comm_hook", [](Request& r) { r.mutable_hook()->set_comm_hook("No Such!"); });
  Expect(kInvalid, "comm_wrapper", [](Request& r) { r.mutable_hook()->set_comm_wrapper("fp8"); });
  Expect(kInvalid, "rank_of_matrix", [](Request& r) {
    (*r.mutable_hook()->mutable_comm_state_option())["rank_of_matrix"].set_int_value(3);
  });
  Expect(kInvalid, "w", [](Request& r) { r.mutable_manifest(1)->set_name("w"); });
  Expect(kInvalid, "-5", [](Request& r) { r.mutable_manifest(0)->set_shape(0, -5); });
  Expect(kInvalid, "join_timeout", [](Request& r) { r.mutable_join_timeout()->set_seconds(-1); });
  EXPECT_EQ(daemon_.server().sessions(), 0U);
  ExpectServesOn(daemon_);
}

TEST_F(BadJoin, ATakenRank) {
  using Request = v1::JoinRequest;
  ClientOptions options = Options(daemon_, "bad-join");
  RawMember first(daemon_.address());
  ASSERT_TRUE(first.Begin(options).ok());
  Expect(absl::StatusCode::kAlreadyExists, "rank 0", [](Request& r) { r.set_rank(0); });
  first.Cancel();
  ExpectServesOn(daemon_);
}

// Both are told what differs: the one that waited, and the one that it waited for.
TEST_F(BadJoin, AnotherHookModelOrWorldSizeEndsTheWait) {
  using Request = v1::JoinRequest;
  const std::vector<std::pair<std::string, std::function<void(Request&)>>> differences = {
      {"comm_hook", [](Request& r) { r.mutable_hook()->set_comm_hook("fp16"); }},
      {"shape", [](Request& r) { r.mutable_manifest(0)->set_shape(0, 5); }},
      {"other", [](Request& r) { r.mutable_manifest(1)->set_name("other"); }},
      {"dtype", [](Request& r) { r.mutable_manifest(1)->set_dtype(v1::DATA_TYPE_FLOAT64); }},
      {"parameters", [](Request& r) { r.mutable_manifest()->RemoveLast(); }},
      {"world_size is 3", [](Request& r) { r.set_world_size(3); }},
  };
  for (const auto& [names, spoil] : differences) {
    RawMember first(daemon_.address());
    ASSERT_TRUE(first.Begin(Options(daemon_, "bad-join")).ok()) << names;
    Expect(kInvalid, names, spoil);
    const absl::Status told = first.AwaitFailure();
    EXPECT_EQ(told.code(), kInvalid) << told;
    EXPECT_THAT(Message(told), AllOf(HasSubstr("rank 1 asked to join"), HasSubstr(names)));
  }
  ExpectServesOn(daemon_);
}

TEST(BadStream, IsRefusedAndHurtsNobody) {
  TestDaemon daemon({.hello_timeout = absl::Milliseconds(300)});
  const auto refused = [&](const std::function<void(v1::Frame&)>& make, absl::StatusCode code) {
    RawMember member(daemon.address());
    member.OpenStream();
    v1::Frame frame;
    make(frame);
    member.Send(frame);
    const absl::Status status = member.AwaitFailure();
    EXPECT_EQ(status.code(), code) << status;
  };
  ExpectAllOk(RunRanks(Options(daemon, "bystanders"), [&](Client& client, int rank) {
    if (rank == 0) {
      refused([](v1::Frame& f) { f.mutable_header()->mutable_hello()->set_token("unknown"); },
              absl::StatusCode::kNotFound);
      refused([](v1::Frame& f) { f.mutable_header()->mutable_heartbeat(); }, kInvalid);
      refused([](v1::Frame&) {}, kInvalid);
      RawMember silent(daemon.address());
      silent.OpenStream();
      EXPECT_EQ(silent.AwaitFailure().code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_FALSE(silent.Leave("unknown", 1).ok());
    }
    return client.Barrier();
  }));
}

TEST(BadStream, AMemberThatVanishesBeforeTheStartFreesItsRank) {
  TestDaemon daemon({.token_timeout = absl::Milliseconds(200)});
  ClientOptions options = Options(daemon, "vanished");
  RawMember vanished(daemon.address());
  ASSERT_TRUE(vanished.Join(RawMember::MakeJoin(options)).ok());
  EXPECT_EQ(Client::Join(options).status().code(), absl::StatusCode::kAlreadyExists);
  absl::SleepFor(absl::Milliseconds(600));
  ExpectAllOk(RunRanks(options, [](Client& client, int) { return client.Leave(); }));
}

}  // namespace
}  // namespace gradwire
