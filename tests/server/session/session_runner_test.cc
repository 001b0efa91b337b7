#include "server/session/session_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/hooks/registry.h"
#include "proto/wire/codec.h"
#include "proto/wire/owned_payload.h"
#include "server/session/cpu_reducer.h"
#include "server/session/outgoing.h"
#include "server/session/session_memory.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kNumel = 64;

// Takes what is queued for a member, and gives it to the test when it is pumped.
class FakeStream final : public MemberStream {
 public:
  explicit FakeStream(std::uint64_t id) : id_(id) {}

  std::uint64_t id() const override { return id_; }
  void Queue(Outgoing frame) override {
    MutexLock lock(mutex_);
    queued_.push_back(frame.Serialize(0));
  }
  void EndAfterQueue(const absl::Status& status) override {
    MutexLock lock(mutex_);
    end_ = status;
  }
  void QueueHeartbeats() override {
    MutexLock lock(mutex_);
    queued_.push_back(wire::Serialize(wire::Heartbeat{}, nullptr));
  }
  void Pump(wire::Lane) override {
    MutexLock lock(mutex_);
    for (const grpc::ByteBuffer& bytes : queued_) {
      const auto frame = wire::Parse(bytes, {});
      ASSERT_TRUE(frame.ok()) << frame.status();
      sent_.push_back(*frame);
    }
    queued_.clear();
  }

  template <typename T>
  std::vector<wire::Frame> Sent() const {
    MutexLock lock(mutex_);
    std::vector<wire::Frame> frames;
    std::copy_if(sent_.begin(), sent_.end(), std::back_inserter(frames),
                 [](const wire::Frame& frame) { return std::holds_alternative<T>(frame.header); });
    return frames;
  }
  std::optional<absl::Status> end() const {
    MutexLock lock(mutex_);
    return end_;
  }

 private:
  const std::uint64_t id_;
  mutable Mutex mutex_;
  std::vector<grpc::ByteBuffer> queued_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<wire::Frame> sent_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ GRADWIRE_GUARDED_BY(mutex_);
};

std::vector<float> Floats(const wire::PayloadRef& payload) {
  std::vector<std::byte> bytes;
  for (const auto piece : payload->pieces()) bytes.insert(bytes.end(), piece.begin(), piece.end());
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

wire::PayloadRef Filled(float value) {
  const std::vector<float> floats(kNumel, value);
  std::vector<std::byte> bytes(kNumel * sizeof(float));
  std::memcpy(bytes.data(), floats.data(), bytes.size());
  return wire::OwnedPayload::Make(std::move(bytes));
}

class SessionRunnerTest : public ::testing::Test {
 protected:
  static constexpr int kMembers = 3;

  explicit SessionRunnerTest(std::shared_ptr<Reducer> reducer = std::make_shared<CpuReducer>(1, [] {
                             })) {
    SessionOptions options;
    options.name = "s";
    options.world_size = kMembers;
    options.manifest = {ParameterSpec{.name = "w", .shape = {kNumel}, .dtype = DType::kFloat32}};
    session_ = std::make_shared<SessionRunner>(
        options, MakeCoordinatorHook(options.spec, options.manifest).value(),
        SessionHost{.reducer = std::move(reducer),
                    .before_long_work = [] {},
                    .work_threads = work_threads_,
                    .memory_quotas = std::make_shared<MemoryQuotas>()},
        now_);
    for (int rank = 0; rank < kMembers; ++rank) {
      const JoinAsk ask{.world_size = kMembers,
                        .rank = rank,
                        .start_id = StartId(rank),
                        .spec = options.spec,
                        .manifest = options.manifest};
      EXPECT_EQ(session_->Join(ask, now_).value()->rank, rank);
      streams_.push_back(std::make_shared<FakeStream>(static_cast<std::uint64_t>(rank) + 100));
      EXPECT_TRUE(session_->Attach(rank, StartId(rank), 0, streams_.back(), now_).ok());
    }
  }

  static std::uint64_t StartId(int rank) { return static_cast<std::uint64_t>(rank) + 1; }
  FakeStream& stream(int rank) { return *streams_[static_cast<std::size_t>(rank)]; }
  void Receive(int rank, wire::Header header, wire::PayloadRef payload = nullptr) {
    bool taken = false;
    session_->Receive(rank, stream(rank).id(), {std::move(header), std::move(payload)}, now_,
                      [&] { taken = true; });
    EXPECT_TRUE(taken);
  }
  void Announce(int rank) {
    Receive(rank,
            wire::Announce{
                .step = 0,
                .generation = session_->options().generation,
                .parameters = {0},
                .rounds = {{{{.dtype = DType::kFloat32, .numel = kNumel, .op = ReduceOp::kSum}}}}});
  }
  void Contribute(int rank, float value) {
    Receive(rank,
            wire::Contribution{.id = {.bucket = 0},
                               .generation = session_->options().generation,
                               .rank = rank,
                               .digest = std::nullopt},
            Filled(value));
  }

  const absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  const std::shared_ptr<WorkThreads> work_threads_ = std::make_shared<WorkThreads>(2);
  std::shared_ptr<SessionRunner> session_;
  std::vector<std::shared_ptr<FakeStream>> streams_;
};

TEST_F(SessionRunnerTest, ReducesAndSendsTheSameResultToAll) {
  for (int rank = 0; rank < kMembers; ++rank) Announce(rank);
  for (int rank = kMembers - 1; rank >= 0; --rank) Contribute(rank, static_cast<float>(rank + 1));
  for (int rank = 0; rank < kMembers; ++rank) {
    const auto results = stream(rank).Sent<wire::Result>();
    ASSERT_EQ(results.size(), 1u) << "rank " << rank;
    EXPECT_EQ(Floats(results[0].payload), std::vector<float>(kNumel, 6.0f));
    EXPECT_EQ(std::get<wire::Result>(results[0].header).digest,
              wire::Digest(results[0].payload.get()));
    EXPECT_EQ(stream(rank).Sent<wire::StepDone>().size(), 1u);
  }
  EXPECT_EQ(session_->step(), 1);
  EXPECT_EQ(session_->Status(now_).steps_applied_total(), 1u);
}

// As a leaf's, whose root is lost: there are no results.
class KeepingReducer final : public Reducer {
 public:
  void Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> /*memory*/,
              Answer answer) override {
    asked_ += batch.size();
    answers_.push_back(std::move(answer));
  }
  std::size_t asked() const { return asked_; }

 private:
  std::size_t asked_ = 0;
  std::vector<Answer> answers_;
};

class SessionWithoutResults : public SessionRunnerTest {
 protected:
  SessionWithoutResults() : SessionWithoutResults(std::make_shared<KeepingReducer>()) {}
  std::weak_ptr<KeepingReducer> reducer_;

 private:
  explicit SessionWithoutResults(const std::shared_ptr<KeepingReducer>& reducer)
      : SessionRunnerTest(reducer), reducer_(reducer) {}
};

TEST_F(SessionWithoutResults, TheSessionGoesWithItsLastOwner) {
  for (int rank = 0; rank < kMembers; ++rank) Announce(rank);
  for (int rank = 0; rank < kMembers; ++rank) Contribute(rank, 1);
  ASSERT_EQ(reducer_.lock()->asked(), 1u);
  session_->FailFrom(1, stream(1).id(), absl::InvalidArgumentError("rank 1: no frame"));
  const std::weak_ptr<SessionRunner> session = session_;
  session_.reset();
  streams_.clear();
  EXPECT_TRUE(session.expired());
  EXPECT_TRUE(reducer_.expired());
}

TEST_F(SessionRunnerTest, MembersOnDifferentThreadsGetTheSameBits) {
  for (int rank = 0; rank < kMembers; ++rank) Announce(rank);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kMembers; ++rank) {
    threads.emplace_back([this, rank] { Contribute(rank, 0.1f * static_cast<float>(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
  const auto first = Floats(stream(0).Sent<wire::Result>().at(0).payload);
  for (int rank = 1; rank < kMembers; ++rank) {
    EXPECT_EQ(Floats(stream(rank).Sent<wire::Result>().at(0).payload), first);
  }
}

TEST_F(SessionRunnerTest, BadBytesFailTheSessionAndBlameTheSender) {
  session_->FailFrom(1, stream(1).id(), absl::InvalidArgumentError("rank 1: no frame"));
  EXPECT_TRUE(session_->ended());
  for (int rank = 0; rank < kMembers; ++rank) {
    const auto failures = stream(rank).Sent<wire::Failure>();
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_EQ(std::get<wire::Failure>(failures[0].header).blamed_rank, 1);
    ASSERT_TRUE(stream(rank).end().has_value());
    EXPECT_EQ(stream(rank).end()->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(stream(rank).end()->message()), HasSubstr("rank 1: no frame"));
  }
}

TEST_F(SessionRunnerTest, AStreamThatWasReplacedIsEndedAndHeardNoMore) {
  const auto fresh = std::make_shared<FakeStream>(999);
  ASSERT_TRUE(session_->Attach(1, StartId(1), 0, fresh, now_).ok());
  ASSERT_TRUE(stream(1).end().has_value());
  EXPECT_EQ(stream(1).end()->code(), absl::StatusCode::kAborted);
  session_->FailFrom(1, stream(1).id(), absl::InvalidArgumentError("late garbage"));
  EXPECT_FALSE(session_->ended());
  session_->Detach(1, stream(1).id(), now_);
  EXPECT_EQ(session_->Status(now_).members(1).state(), "connected");
  EXPECT_EQ(fresh->Sent<wire::Welcome>().size(), 1u);
}

TEST_F(SessionRunnerTest, LeavingEndsTheStreamInGoodOrder) {
  for (int rank = 0; rank < kMembers; ++rank) {
    EXPECT_TRUE(session_->Leave(rank, StartId(rank), now_).ok());
    EXPECT_EQ(stream(rank).end(), absl::OkStatus());
    session_->Detach(rank, stream(rank).id(), now_);
  }
  EXPECT_EQ(session_->state(), SessionCore::State::kClosed);
  EXPECT_FALSE(session_->has_streams());
}

TEST_F(SessionRunnerTest, NobodyJoinsASessionThatHasEnded) {
  const JoinAsk again{.world_size = kMembers,
                      .rank = 0,
                      .start_id = StartId(0),
                      .spec = session_->options().spec,
                      .manifest = session_->options().manifest};
  const auto before = session_->Join(again, now_);
  ASSERT_TRUE(before.ok() && before->has_value());
  session_->Fail(absl::AbortedError("broken"), 1);
  const auto after = session_->Join(again, now_);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_FALSE(after->has_value());
}

TEST_F(SessionRunnerTest, HeartbeatsGoToEveryMember) {
  session_->SendHeartbeats();
  for (int rank = 0; rank < kMembers; ++rank) {
    EXPECT_EQ(stream(rank).Sent<wire::Heartbeat>().size(), 1u);
  }
}

}  // namespace
}  // namespace gradwire::server
