// What takes long of a session's hook keeps nobody from the session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hooks/safetensors.h"
#include "server/session/cpu_reducer.h"
#include "server/session/session_memory.h"
#include "tests/server/session/stuck_session.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);
constexpr std::size_t kNumel = 16;

// Its long work waits at the gate.
class GatedHook final : public CoordinatorHook {
 public:
  struct Gates {
    Gate shared_state;
    Gate state;
    Gate read;
    std::atomic<int> states = 0;
    std::atomic<int> installed = 0;
  };

  explicit GatedHook(std::shared_ptr<Gates> gates) : gates_(std::move(gates)) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(BucketPositions) override {
    return std::vector<RoundPlan>{
        {{{.dtype = DType::kFloat32, .numel = kNumel, .op = ReduceOp::kSum}}}};
  }
  std::uint64_t SharedVersion(BucketPositions) override { return 1; }
  std::shared_ptr<SharedStateWork> SharedState(BucketPositions) override {
    return std::make_shared<Work>(gates_);
  }
  bool HasState() const override { return true; }
  std::size_t StateBytes() const override { return 1 << 10; }
  std::size_t ExportBytes() const override { return 1 << 10; }
  std::shared_ptr<const HookSnapshot> Snapshot() const override {
    return std::make_shared<Shown>(gates_);
  }
  absl::StatusOr<std::shared_ptr<HookImport>> ReadState(const HookState&) const override {
    gates_->read.Pass();
    return std::make_shared<HookImport>();
  }
  void Install(HookImport&) override { ++gates_->installed; }

 private:
  class Work final : public SharedStateWork {
   public:
    explicit Work(std::shared_ptr<Gates> gates) : gates_(std::move(gates)) {}
    void Run() override { gates_->shared_state.Pass(); }
    std::vector<std::byte> TakeBytes() override { return std::vector<std::byte>(8); }

   private:
    const std::shared_ptr<Gates> gates_;
  };
  class Shown final : public HookSnapshot {
   public:
    explicit Shown(std::shared_ptr<Gates> gates) : gates_(std::move(gates)) {}
    absl::StatusOr<HookState> State(const OwnsParameter&) const override {
      ++gates_->states;
      gates_->state.Pass();
      return HookState{};
    }
    std::vector<ParameterReport> Report() const override { return {}; }

   private:
    const std::shared_ptr<Gates> gates_;
  };

  const std::shared_ptr<Gates> gates_;
};

class LongWork : public ::testing::Test {
 protected:
  LongWork() {
    options_.name = "s";
    options_.manifest = {ParameterSpec{.name = "w", .shape = {kNumel}, .dtype = DType::kFloat32}};
    session_ = std::make_shared<SessionRunner>(
        options_, std::make_unique<GatedHook>(gates_),
        SessionHost{.reducer = std::make_shared<CpuReducer>(0, [] {}),
                    .before_long_work = [] {},
                    .work_threads = threads_,
                    .memory_quotas = std::make_shared<MemoryQuotas>()},
        kNow);
    const JoinAsk ask{.world_size = 1,
                      .rank = 0,
                      .start_id = 1,
                      .spec = options_.spec,
                      .manifest = options_.manifest};
    EXPECT_TRUE(session_->Join(ask, kNow).ok());
    EXPECT_TRUE(session_->Attach(0, 1, 0, stream_, kNow).ok());
  }
  ~LongWork() override {
    gates_->shared_state.Open();
    gates_->state.Open();
    gates_->read.Open();
    threads_->Stop();
  }

  bool SessionAnswers() {
    Beside status([&] { session_->Status(kNow, true); });
    return status.InTime();
  }
  void Export() {
    session_->Export([this](absl::StatusOr<std::shared_ptr<const std::string>> file) {
      MutexLock lock(mutex_);
      files_.push_back(std::move(file));
    });
  }
  std::vector<absl::StatusOr<std::shared_ptr<const std::string>>> Files() {
    MutexLock lock(mutex_);
    return files_;
  }
  // The work that was posted before is over.
  void WaitForWork() {
    Gate done;
    threads_->Post(session_.get(), [&] { done.Pass(); });
    EXPECT_TRUE(done.Arrived(1));
    done.Open();
    threads_->Stop();
  }

  const std::shared_ptr<GatedHook::Gates> gates_ = std::make_shared<GatedHook::Gates>();
  const std::shared_ptr<WorkThreads> threads_ = std::make_shared<WorkThreads>(2);
  const std::shared_ptr<QuietStream> stream_ = std::make_shared<QuietStream>();
  SessionOptions options_;
  std::shared_ptr<SessionRunner> session_;
  Mutex mutex_;
  std::vector<absl::StatusOr<std::shared_ptr<const std::string>>> files_
      GRADWIRE_GUARDED_BY(mutex_);
};

TEST_F(LongWork, ADrawKeepsNobodyFromTheSession) {
  const wire::Announce announce{
      .generation = options_.generation,
      .parameters = {0},
      .rounds = {{{{.dtype = DType::kFloat32, .numel = kNumel, .op = ReduceOp::kSum}}}}};
  Beside member([&] { session_->Receive(0, stream_->id(), {.header = announce}, kNow, [] {}); });
  ASSERT_TRUE(gates_->shared_state.Arrived(1));
  EXPECT_TRUE(SessionAnswers());
  EXPECT_TRUE(member.InTime());
  EXPECT_THAT(session_->Snapshot(kNow).waiting_for(), HasSubstr("computes the factors"));
  gates_->shared_state.Open();
  WaitForWork();
  EXPECT_THAT(session_->Snapshot(kNow).waiting_for(), HasSubstr("waits for rank 0"));
}

TEST_F(LongWork, AnExportKeepsNobodyFromTheSessionAndIsMadeOnceForAll) {
  for (int i = 0; i < 3; ++i) Export();
  ASSERT_TRUE(gates_->state.Arrived(1));
  EXPECT_TRUE(SessionAnswers());
  EXPECT_TRUE(Files().empty());
  gates_->state.Open();
  WaitForWork();
  Export();  // while others still read
  const auto files = Files();
  ASSERT_EQ(files.size(), 4U);
  for (const auto& file : files) {
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->get(), files[0]->get());
  }
  EXPECT_TRUE(ReadSafetensors(**files[0]).ok());
  EXPECT_EQ(gates_->states, 1);
}

TEST_F(LongWork, MoreExportsThanMembersNeedAreRefused) {
  constexpr std::size_t kAllowed = 5;
  for (std::size_t i = 0; i <= kAllowed; ++i) Export();
  ASSERT_EQ(Files().size(), 1U);
  EXPECT_EQ(Files()[0].status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Files()[0].status().message()), HasSubstr("allowed at a time: 5"));
  gates_->state.Open();
  WaitForWork();
  EXPECT_EQ(Files().size(), kAllowed + 1);
  Export();
  EXPECT_FALSE(Files().back().ok());
  {
    MutexLock lock(mutex_);
    files_.clear();  // the readers are gone
  }
  Export();  // nobody makes it any more, but the call has begun
  EXPECT_TRUE(Files().empty());
}

TEST_F(LongWork, AnImportIsReadWithoutTheLockAndCountsAsACall) {
  auto first = session_->BeginImport();
  auto second = session_->BeginImport();
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = session_->BeginImport().status();
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.message()), HasSubstr("allowed at a time: 2"));
  second = third;
  EXPECT_TRUE(session_->BeginImport().ok());

  std::optional<absl::StatusOr<std::int64_t>> imported;
  session_->Import(WriteSafetensors(HookState{}), 1, [&](absl::StatusOr<std::int64_t> iteration) {
    imported = std::move(iteration);
  });
  ASSERT_TRUE(gates_->read.Arrived(1));
  EXPECT_TRUE(SessionAnswers());
  EXPECT_EQ(gates_->installed, 0);
  gates_->read.Open();
  WaitForWork();
  ASSERT_TRUE(imported.has_value() && imported->ok());
  EXPECT_EQ(gates_->installed, 1);
}

TEST(WorkThreads, OwnersTakeTurns) {
  WorkThreads threads(1);
  Gate first;
  Mutex mutex;
  std::string order;
  const auto note = [&](char what) {
    MutexLock lock(mutex);
    order += what;
  };
  const int a = 0;
  const int b = 0;
  Gate done;
  threads.Post(&a, [&] { first.Pass(); });
  ASSERT_TRUE(first.Arrived(1));
  threads.Post(&a, [&] { note('1'); });
  threads.Post(&a, [&] { note('2'); });
  threads.Post(&b, [&] { note('b'); });
  threads.Post(&a, [&] { done.Pass(); });
  first.Open();
  ASSERT_TRUE(done.Arrived(1));
  done.Open();
  threads.Stop();
  EXPECT_EQ(order, "b12");
}

TEST(WorkThreads, WhatWaitsWhenTheyStopIsDropped) {
  WorkThreads threads(1);
  Gate gate;
  const int owner = 0;
  const auto held = std::make_shared<int>(0);
  threads.Post(&owner, [&] { gate.Pass(); });
  ASSERT_TRUE(gate.Arrived(1));
  threads.Post(&owner, [&held, kept = held] { ++*held; });
  Beside stop([&] { threads.Stop(); });
  gate.Open();
  EXPECT_TRUE(stop.InTime());
  threads.Post(&owner, [&held] { ++*held; });
  EXPECT_EQ(held.use_count(), 1);
}

// A call may hold the last reference to the registry, and a task the last one to the call.
TEST(WorkThreads, ATaskMayDestroyThem) {
  auto threads = std::make_shared<WorkThreads>(2);
  WorkThreads* const post = threads.get();
  // Shared, because the task's thread outlives the threads, and perhaps this test.
  const auto held = std::make_shared<Gate>();
  const auto destroyed = std::make_shared<Gate>();
  const int owner = 0;
  post->Post(&owner, [held, destroyed, last = std::move(threads)]() mutable {
    held->Pass();
    last.reset();
    destroyed->Pass();
  });
  EXPECT_TRUE(held->Arrived(1));
  held->Open();
  EXPECT_TRUE(destroyed->Arrived(1));
  destroyed->Open();
}

}  // namespace
}  // namespace gradwire::server
