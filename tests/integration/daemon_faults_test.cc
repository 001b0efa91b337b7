// The SDK against daemons that fail, fall silent, or send what no daemon should.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "proto/wire/proto_conversion.h"
#include "tests/integration/fake_daemon.h"
#include "tests/testing/gradients.h"

namespace gradwire::client {
namespace {

using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr std::size_t kElements = 2500;  // three chunks of 4 KiB

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class DaemonFaults : public ::testing::Test {
 protected:
  ClientOptions Options() const {
    return {.address = is_far_ ? daemon_.far_address() : daemon_.address(),
            .session = "faults",
            .rank = 0,
            .world_size = 1,
            .parameters = gradients_.parameters(),
            .connect_timeout = absl::Seconds(5),
            .join_timeout = absl::Seconds(5)};
  }

  // Joins, and begins an all-reduce.
  Completion Begin() {
    auto client = Client::Join(Options());
    if (!client.ok()) {
      ADD_FAILURE() << client.status();
      return Completion();
    }
    client_ = *std::move(client);
    gradients_.Fill(0, 0);
    GradBucket bucket = gradients_.Bucket();
    return client_->AllReduce(bucket);
  }

  // The status of an all-reduce against this daemon, which every later call must repeat.
  absl::Status Outcome() {
    const absl::Status status = Begin().Wait(absl::Seconds(10));
    if (client_ == nullptr) return status;
    EXPECT_EQ(client_->EndStep().status(), status);
    EXPECT_EQ(client_->Barrier(), status);
    EXPECT_EQ(client_->Leave(), status);
    return status;
  }

  bool is_far_ = false;
  FakeDaemon daemon_;
  Gradients gradients_{{MakeParameter("w", kElements)}};
  std::unique_ptr<Client> client_;
};

TEST_F(DaemonFaults, NoneOfThem) {
  const Completion reduced = Begin();
  EXPECT_TRUE(reduced.Wait().ok()) << reduced.Wait();
  Gradients original(gradients_.parameters());
  original.Fill(0, 0);
  EXPECT_EQ(gradients_.bytes(), original.bytes());
  EXPECT_EQ(client_->step(), 0);
  const auto verdict = client_->EndStep();
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(*verdict, Verdict::kApply);
  EXPECT_EQ(client_->step(), 1);
  const ClientMetrics metrics = client_->metrics();
  EXPECT_EQ(metrics.steps_applied, 1);
  EXPECT_EQ(metrics.bytes_sent, kElements * 4);
  EXPECT_EQ(metrics.bytes_received, kElements * 4);
  EXPECT_EQ(metrics.gradient_bytes, kElements * 4);
  EXPECT_TRUE(client_->Leave().ok());
  EXPECT_TRUE(client_->Leave().ok());
  EXPECT_EQ(client_->Barrier().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DaemonFaults, AvoidableErrorsLeaveTheSessionAsItWas) {
  EXPECT_TRUE(Begin().Wait().ok());
  // The step is over for the daemon, but not for this member: the parameter is still in it.
  GradBucket bucket = gradients_.Bucket();
  EXPECT_EQ(client_->AllReduce(bucket).Wait().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(client_->EndStep().ok());

  Gradients unknown({MakeParameter("unknown", 4)});
  bucket = unknown.Bucket();
  const absl::Status status = client_->AllReduce(bucket).Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("unknown"), EndsWith(" [GW310]")));
  Gradients shape({MakeParameter("w", 4)});
  bucket = shape.Bucket();
  EXPECT_THAT(Message(client_->AllReduce(bucket).Wait()),
              AllOf(HasSubstr("shape"), EndsWith(" [GW311]")));
  bucket = gradients_.Bucket();
  EXPECT_TRUE(client_->AllReduce(bucket).Wait().ok());
  EXPECT_EQ(client_->Leave().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client_->EndStep().ok());
  EXPECT_TRUE(client_->Leave().ok());
}

TEST_F(DaemonFaults, WaitingInACallbackIsRefused) {
  Completion reduced = Begin();
  std::atomic<int> refused = 0;
  auto seen = std::make_shared<std::atomic<bool>>(false);
  Completion second = reduced;
  second.OnDone([&, seen](const absl::Status&) {
    const bool on_sdk_thread =
        client_->EndStep().status().code() == absl::StatusCode::kFailedPrecondition;
    refused += on_sdk_thread ? 1 : 0;
    *seen = true;
  });
  EXPECT_TRUE(reduced.Wait().ok());
  while (!*seen) std::this_thread::yield();
  // The callback ran on this thread if the outcome was there already.
  EXPECT_EQ(refused, client_->step() == 0 ? 1 : 0);
}

TEST_F(DaemonFaults, NoDaemonIsThere) {
  ClientOptions options = Options();
  options.address = "unix:/nonexistent/daemon.sock";
  options.connect_timeout = absl::Milliseconds(300);
  const auto before = std::chrono::steady_clock::now();
  const absl::Status status = Client::Join(options).status();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      Message(status),
      AllOf(HasSubstr("could not join through unix:/nonexistent/daemon.sock within 300ms: "),
            HasSubstr("; is gradwired running there? [GW101]")));
}

TEST_F(DaemonFaults, JoinIsRefused) {
  daemon_.join_status = {grpc::StatusCode::ALREADY_EXISTS, "rank 0 is taken"};
  const absl::Status status = Client::Join(Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Message(status), "rank 0 is taken [GW200]");
}

// What gRPC answers to calls that reach a server in its last moment.
TEST_F(DaemonFaults, JoinIsCancelledByADaemonThatEnds) {
  daemon_.join_status = {grpc::StatusCode::CANCELLED, "CANCELLED"};
  ClientOptions options = Options();
  options.connect_timeout = absl::Milliseconds(300);
  const absl::Status status = Client::Join(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("within 300ms: the daemon is ending"), EndsWith(" [GW101]")));
}

TEST_F(DaemonFaults, JoinResponseMakesNoSense) {
  const v1::JoinResponse good = daemon_.join_response;
  const auto expect = [&](const std::string& named) {
    const absl::Status status = Client::Join(Options()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr(named), HasSubstr(daemon_.address()), EndsWith(" [GW907]")));
    daemon_.join_response = good;
  };
  daemon_.join_response.set_protocol_version(2);
  expect("protocol_version 2");
  daemon_.join_response.set_rank(1);
  expect("rank 1");
  daemon_.join_response.set_chunk_bytes(12);
  expect("chunk_bytes 12");
  daemon_.join_response.set_chunk_bytes(std::uint64_t{1} << 40);
  expect("chunk_bytes 1099511627776");
  daemon_.join_response.set_window_chunks(0);
  expect("window_chunks 0");
  daemon_.join_response.set_open_buckets(1U << 31);
  expect("open_buckets");
  daemon_.join_response.mutable_heartbeat_interval()->set_seconds(-1);
  expect("heartbeat_interval");
  daemon_.join_response.clear_silence_timeout();
  expect("silence_timeout");
  daemon_.join_response.set_next_step(-1);
  expect("next_step -1");
}

TEST_F(DaemonFaults, ResultIsDamagedByTheNetwork) {
  is_far_ = true;
  daemon_.tamper = [](v1::Frame& frame) {
    if (frame.header().has_result()) (*frame.mutable_payload())[0] ^= 1;
  };
  const absl::Status status = Outcome();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("digest"), EndsWith(" [GW313]")));
}

TEST_F(DaemonFaults, FrameIsNoFrame) {
  daemon_.tamper = [](v1::Frame& frame) {
    if (frame.header().has_grant()) frame.clear_header();
  };
  const absl::Status status = Outcome();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(status), HasSubstr(daemon_.address()));
}

TEST_F(DaemonFaults, ResultOfAnUnknownBucket) {
  daemon_.tamper = [](v1::Frame& frame) {
    if (frame.header().has_grant())
      frame.mutable_header()->mutable_grant()->mutable_id()->set_bucket(99);
  };
  EXPECT_EQ(Outcome().code(), absl::StatusCode::kInternal);
}

TEST_F(DaemonFaults, FailureFrameIsTheOutcomeOfEverything) {
  daemon_.tamper = [](v1::Frame& frame) {
    if (!frame.header().has_grant()) return;
    v1::Failure* failure = frame.mutable_header()->mutable_failure();
    failure->set_code(10);
    failure->set_message("rank 3 was lost in step 0");
    failure->set_blamed_rank(3);
  };
  const absl::Status status = Outcome();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  // A daemon of an earlier version, which knows no codes.
  EXPECT_EQ(Message(status), "rank 3 was lost in step 0 [GW300]");
}

TEST_F(DaemonFaults, StreamIsRefused) {
  daemon_.exchange = [](int, FakeDaemon::Stream*, grpc::ServerContext*) {
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "unknown token");
  };
  const absl::Status status = Client::Join(Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("unknown token"), HasSubstr(daemon_.address()),
                                     EndsWith(" [GW300]")));
}

TEST_F(DaemonFaults, WelcomeNeverComes) {
  daemon_.tamper = [](v1::Frame& frame) { frame.mutable_header()->mutable_heartbeat(); };
  ClientOptions options = Options();
  options.join_timeout = absl::Milliseconds(100);
  const absl::Status status = Client::Join(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("faults"), HasSubstr("100ms"), EndsWith(" [GW205]")));
}

TEST_F(DaemonFaults, Silence) {
  daemon_.exchange = [](int, FakeDaemon::Stream* stream, grpc::ServerContext*) {
    v1::Frame welcome;
    welcome.mutable_header()->mutable_welcome();
    stream->Write(welcome);
    v1::Frame in;
    while (stream->Read(&in)) {
    }
    return grpc::Status::OK;
  };
  const absl::Status status = Outcome();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), AllOf(HasSubstr(daemon_.address()), HasSubstr("nothing was heard"),
                                     HasSubstr("outcome of step 0 unknown) [GW308]")));
}

TEST_F(DaemonFaults, HeartbeatsKeepAQuietSessionAlive) {
  const Completion reduced = Begin();
  EXPECT_TRUE(reduced.Wait().ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_TRUE(client_->EndStep().ok());
}

TEST_F(DaemonFaults, DaemonGoesAway) {
  std::atomic<bool> granted = false;
  daemon_.tamper = [&](v1::Frame& frame) {
    if (!frame.header().has_grant()) return;
    frame.mutable_header()->mutable_heartbeat();
    granted = true;
  };
  const Completion reduced = Begin();
  while (!granted) std::this_thread::yield();
  const auto before = std::chrono::steady_clock::now();
  daemon_.Shutdown();
  const absl::Status status = reduced.Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(3));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("lost the daemon at " + daemon_.address()),
                                     HasSubstr("outcome of step 0 unknown) [GW308]")));
  EXPECT_EQ(client_->EndStep().status(), status);
}

TEST_F(DaemonFaults, BrokenStreamIsResumed) {
  for (int frames = 2; frames <= 6; ++frames) {
    std::atomic<int> streams = 0;
    daemon_.exchange = [&](int, FakeDaemon::Stream* stream, grpc::ServerContext*) {
      const int number = streams++;
      return daemon_.Serve(stream, number > 0, number == 0 ? frames : -1);
    };
    const Completion reduced = Begin();
    EXPECT_TRUE(reduced.Wait().ok()) << reduced.Wait();
    Gradients original(gradients_.parameters());
    original.Fill(0, 0);
    EXPECT_EQ(gradients_.bytes(), original.bytes());
    client_.reset();
  }
}

// Its connection gets a GOAWAY while the step waits for a grant. A stream that is open stays open;
// where the connection is then closed, the member resumes.
TEST_F(DaemonFaults, AGoawayInAStepCostsNothing) {
  for (const absl::Duration grace : {absl::InfiniteDuration(), absl::Milliseconds(300)}) {
    FakeDaemon aging(absl::Milliseconds(300), grace);
    *aging.join_response.mutable_silence_timeout() = wire::ToProto(absl::Seconds(15));
    *aging.join_response.mutable_resume_grace() = wire::ToProto(absl::Seconds(10));
    aging.exchange = [&](int number, FakeDaemon::Stream* stream, grpc::ServerContext*) {
      return aging.Serve(stream, /*resumed=*/number > 0);
    };
    std::atomic<bool> first = true;
    aging.tamper = [&](v1::Frame& frame) {
      if (frame.header().has_grant() && first.exchange(false)) absl::SleepFor(absl::Seconds(2));
    };
    ClientOptions options = Options();
    options.address = aging.far_address();
    auto client = Client::Join(options);
    ASSERT_TRUE(client.ok()) << client.status();
    gradients_.Fill(0, 0);
    GradBucket bucket = gradients_.Bucket();
    const absl::Status reduced = (*client)->AllReduce(bucket).Wait();
    EXPECT_TRUE(reduced.ok()) << reduced;
    Gradients original(gradients_.parameters());
    original.Fill(0, 0);
    EXPECT_EQ(gradients_.bytes(), original.bytes());
    const auto verdict = (*client)->EndStep();
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_EQ(*verdict, Verdict::kApply);
    EXPECT_EQ((*client)->metrics().resumes > 0, grace != absl::InfiniteDuration());
    // A new call, which takes another connection.
    const absl::Status left = (*client)->Leave();
    EXPECT_TRUE(left.ok()) << left;
  }
}

// Its last frame waits for the other lane, so that nothing more is read, not even the end.
TEST_F(DaemonFaults, AStreamThatEndsWhileItWaitsForItsBulkLaneIsResumed) {
  gradients_ = Gradients({MakeParameter("w", 50'000)});
  daemon_.join_response.set_chunk_bytes(1 << 20);
  daemon_.join_response.set_bulk_lane(true);
  daemon_.exchange = [&](int number, FakeDaemon::Stream* stream, grpc::ServerContext*) {
    if (number > 0) return daemon_.Serve(stream, true);
    v1::Frame frame;
    EXPECT_TRUE(stream->Read(&frame) && frame.header().hello().pair() != 0);
    frame.Clear();
    frame.mutable_header()->mutable_welcome();
    stream->Write(frame);
    frame.mutable_header()->mutable_heartbeat();
    frame.set_after(1);
    stream->Write(frame);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "unheard");
  };
  daemon_.exchange_bulk = [](int number, FakeDaemon::Stream* stream) {
    v1::Frame frame;
    while (number == 0 && stream->Read(&frame)) {
    }
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no second one");
  };
  const Completion reduced = Begin();
  const absl::Status status = reduced.Wait(absl::Seconds(10));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GE(client_->metrics().resumes, 1U);
}

// The session gathers elsewhere before it has heard that this member leaves.
TEST_F(DaemonFaults, AMemberWhoseLeaveIsRefusedLooksForItsSession) {
  std::atomic<bool> leaves = false;
  daemon_.tamper = [](v1::Frame& frame) {
    if (!frame.header().has_welcome()) return;
    v1::Recovery& recovery = *frame.mutable_header()->mutable_welcome()->mutable_recovery();
    recovery.set_session_key(std::string(16, 'k'));
    recovery.set_grace_milliseconds(5000);
  };
  daemon_.exchange = [&](int number, FakeDaemon::Stream* stream, grpc::ServerContext*) {
    if (number > 0) return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "the next one");
    daemon_.Serve(stream, /*resumed=*/false, /*frames=*/1);
    for (int i = 0; i < 1000 && !leaves; ++i) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "it has ended here [GW309]");
  };
  daemon_.leave = [&] {
    leaves = true;
    absl::SleepFor(absl::Milliseconds(300));  // until the member has heard that the stream ended
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "it has ended here [GW309]");
  };
  auto client = Client::Join(Options());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(absl::IsNotFound((*client)->Leave()));
  EXPECT_THAT(Message((*client)->Barrier()), HasSubstr("the next one"));
}

// What it has heard holds.
TEST_F(DaemonFaults, AStepThatEndedBeforeTheErrorHasEnded) {
  std::atomic<bool> has_ended = false;
  daemon_.tamper = [&](v1::Frame& frame) {
    has_ended = has_ended || frame.header().has_step_done();
  };
  daemon_.exchange = [&](int, FakeDaemon::Stream* stream, grpc::ServerContext*) {
    daemon_.Serve(stream, /*resumed=*/false, /*frames=*/5);  // Hello, Announce, three chunks
    return grpc::Status(grpc::StatusCode::ABORTED, "rank 1 was lost [GW301]");
  };
  const Completion reduced = Begin();
  ASSERT_TRUE(reduced.Wait(absl::Seconds(10)).ok());
  for (int i = 0; i < 1000 && client_->Barrier().ok(); ++i) absl::SleepFor(absl::Milliseconds(5));
  ASSERT_TRUE(has_ended);
  const auto verdict = client_->EndStep();
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(*verdict, Verdict::kApply);
  EXPECT_THAT(Message(client_->EndStep().status()), HasSubstr("rank 1 was lost"));
}

// It knows nothing of reports, and would count from step 0.
TEST_F(DaemonFaults, ADaemonThatBeginsAnewIsNotTheNextOne) {
  daemon_.tamper = [](v1::Frame& frame) {
    if (!frame.header().has_welcome()) return;
    v1::Recovery& recovery = *frame.mutable_header()->mutable_welcome()->mutable_recovery();
    recovery.set_session_key(std::string(16, 'k'));
    recovery.set_grace_milliseconds(5000);
    recovery.set_lineage(7);  // and 0 in the next join's answer
  };
  daemon_.exchange = [&](int number, FakeDaemon::Stream* stream, grpc::ServerContext*) {
    if (number == 0) daemon_.Serve(stream, /*resumed=*/false, /*frames=*/1);
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "it has ended here [GW309]");
  };
  auto client = Client::Join(Options());
  ASSERT_TRUE(client.ok()) << client.status();
  const std::string message = Message((*client)->Barrier());
  EXPECT_THAT(message, HasSubstr("rank 0 lost its daemon in step 0"));
  EXPECT_THAT(message, HasSubstr("it has begun the session anew"));
  EXPECT_THAT(message, EndsWith("[GW309]"));
  EXPECT_TRUE(daemon_.join_request.has_report());
}

TEST_F(DaemonFaults, DestructionEndsOpenCalls) {
  daemon_.tamper = [](v1::Frame& frame) {
    if (frame.header().has_grant()) frame.mutable_header()->mutable_heartbeat();
  };
  const Completion reduced = Begin();
  const auto before = std::chrono::steady_clock::now();
  client_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
  ASSERT_TRUE(reduced.done());
  EXPECT_EQ(reduced.Wait().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace gradwire::client
