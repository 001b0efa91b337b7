// A session whose lock is held for as long as a test wants.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sync.h"
#include "hooks/coordinator_hook.h"
#include "server/session/member_stream.h"
#include "server/session/outgoing.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

constexpr std::chrono::seconds kPatience(5);

// Closed at first. Whoever waits does so for kPatience at most.
class Gate {
 public:
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }
  // Returns once the gate is open.
  void Pass() {
    MutexLock lock(mutex_);
    ++arrived_;
    changed_.NotifyAll();
    const auto deadline = std::chrono::steady_clock::now() + 2 * kPatience;
    while (!open_ && changed_.WaitUntil(mutex_, deadline)) {
    }
  }
  // Whether so many have come to the gate.
  bool Arrived(int count) {
    MutexLock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (arrived_ < count && changed_.WaitUntil(mutex_, deadline)) {
    }
    return arrived_ >= count;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int arrived_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool open_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

// Takes everything.
class QuietStream final : public MemberStream {
 public:
  std::uint64_t id() const override { return 78; }
  void Queue(Outgoing) override {}
  void QueueHeartbeats() override {}
  void EndAfterQueue(const absl::Status&) override {}
  void Pump(wire::Lane) override {}
};

// Stops at the gate whoever queues a frame; sessions do that under their lock.
class StuckStream final : public MemberStream {
 public:
  explicit StuckStream(Gate& gate) : gate_(gate) {}

  std::uint64_t id() const override { return 77; }
  void Queue(Outgoing) override { gate_.Pass(); }
  void QueueHeartbeats() override {}
  void EndAfterQueue(const absl::Status&) override {}
  void Pump(wire::Lane) override {}

 private:
  Gate& gate_;
};

// Runs a piece of a test beside it; joined when this goes.
class Beside {
 public:
  explicit Beside(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          work();
          done_.Open();
          done_.Pass();
        }) {}
  ~Beside() { thread_.join(); }
  bool InTime() { return done_.Arrived(1); }

 private:
  Gate done_;
  std::thread thread_;
};

// The one-member session "stuck" of a registry. Its lock is held from here until Release.
class StuckSession {
 public:
  StuckSession(Registry& registry, const SessionOptions& like, absl::Time now) {
    SessionOptions options = like;
    options.name = "stuck";
    options.world_size = 1;
    const JoinAsk ask{.world_size = 1,
                      .rank = 0,
                      .start_id = kStartId,
                      .spec = options.spec,
                      .manifest = options.manifest};
    auto joined = registry.Join(options, ask, now);
    EXPECT_TRUE(joined.ok()) << joined.status();
    joined_ = *std::move(joined);
    holder_ = std::make_unique<Beside>([this, now] {
      // Its Welcome is queued under the session's lock.
      EXPECT_TRUE(joined_.member.session->Attach(0, kStartId, 0, stream_, now).ok());
    });
    EXPECT_TRUE(gate_.Arrived(1));
  }
  ~StuckSession() { Release(); }

  static constexpr std::uint64_t kStartId = 4711;
  const std::string& token() const { return joined_.token; }
  void Release() {
    gate_.Open();
    holder_.reset();
  }

 private:
  Gate gate_;
  Registry::Joined joined_;
  const std::shared_ptr<StuckStream> stream_ = std::make_shared<StuckStream>(gate_);
  std::unique_ptr<Beside> holder_;
};

}  // namespace gradwire::server
