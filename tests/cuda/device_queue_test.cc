// What waits for a device's work, on the emulated GPU: no sleeps, time is an argument.
#include "client/runtime/device_queue.h"

#include <string>

#include "client/runtime/device_calls.h"
#include "gmock/gmock.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_vector.h"
#include "tests/cuda/emulated_device.h"
#include "tests/cuda/emulation/emulation.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;
using testing::MakeEmulatedDevice;

constexpr std::chrono::seconds kLimit(30);

DeviceQueue::Clock::time_point Soon() { return DeviceQueue::Clock::now(); }
DeviceQueue::Clock::time_point Late() { return Soon() + kLimit + std::chrono::seconds(1); }

class Waiting : public ::testing::Test {
 protected:
  void Work() {
    values_.Resize(100);
    device_->Zero(values_.data(), values_.bytes());
  }
  auto Note(char c) {
    return [this, c] { noted_ += c; };
  }
  // Until the emulation has done what is asked for.
  absl::Status PollAll() {
    absl::Status status;
    for (int i = 0; i < 20 && status.ok() && !queue_.empty(); ++i) status = queue_.Poll(Soon());
    return status;
  }

  emulation::NewGpu gpu_;
  std::shared_ptr<Device> device_ = MakeEmulatedDevice();
  DeviceVector<float> values_{*device_};
  DeviceQueue queue_{*device_, kLimit};
  std::string noted_;
};

TEST_F(Waiting, ActionsRunOnceTheDeviceIsDoneAndInOrder) {
  Work();
  queue_.AfterDevice(Note('a'));
  queue_.InOrder(Note('b'));
  Work();
  queue_.AfterDevice(Note('c'));
  queue_.InOrder(Note('d'));
  EXPECT_EQ(noted_, "");
  EXPECT_EQ(queue_.Poll(Soon()), absl::OkStatus());
  EXPECT_EQ(noted_, "");
  EXPECT_EQ(PollAll(), absl::OkStatus());
  EXPECT_EQ(noted_, "abcd");
  queue_.InOrder(Note('e'));
  EXPECT_EQ(noted_, "abcde");
}

TEST_F(Waiting, NothingWaitsForTheHost) {
  const auto host = MakeHostDevice();
  DeviceQueue queue(*host, kLimit);
  queue.AfterDevice(Note('a'));
  queue.InOrder(Note('b'));
  EXPECT_EQ(noted_, "ab");
}

TEST_F(Waiting, AnActionMayAddOthers) {
  Work();
  queue_.AfterDevice([this] {
    noted_ += 'a';
    queue_.InOrder(Note('b'));
  });
  queue_.InOrder(Note('c'));
  EXPECT_EQ(PollAll(), absl::OkStatus());
  EXPECT_EQ(noted_, "acb");
}

TEST_F(Waiting, AHungDeviceIsAnErrorAndHoldsNothingBack) {
  emulation::settings().stuck = true;
  Work();
  queue_.AfterDevice(Note('a'));
  queue_.InOrder(Note('b'));
  EXPECT_EQ(queue_.Poll(Soon()), absl::OkStatus());
  EXPECT_EQ(noted_, "");
  const absl::Status status = queue_.Poll(Late());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(),
              HasSubstr("cuda:0 did not finish the work of this session within 30 s"));
  EXPECT_EQ(noted_, "ab");
  Work();
  queue_.AfterDevice(Note('c'));
  EXPECT_EQ(noted_, "abc");
}

TEST_F(Waiting, ALostDeviceIsAnErrorAndHoldsNothingBack) {
  Work();
  queue_.AfterDevice(Note('a'));
  emulation::settings().lost = true;
  const absl::Status status = queue_.Poll(Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(),
              HasSubstr("GPU 0 (emulated): waiting failed: cudaErrorIllegalAddress"));
  EXPECT_EQ(noted_, "a");
}

// ---- Calls that wait for gradients

class FakeEvent final : public DeviceEvent {
 public:
  struct State {
    bool complete = false;
    std::string error;
  };
  explicit FakeEvent(State& state) : state_(state) {}
  bool IsComplete(DeviceError& error) override {
    error.text = state_.error;
    return state_.complete;
  }

 private:
  State& state_;
};

TEST_F(Waiting, CallsBeginInTheirOrder) {
  DeviceCalls calls(kLimit);
  FakeEvent::State first;
  FakeEvent::State second{.complete = true, .error = ""};
  calls.Add(std::make_unique<FakeEvent>(first), Note('a'));
  calls.Add(std::make_unique<FakeEvent>(second), Note('b'));
  calls.Add(nullptr, Note('c'));
  EXPECT_EQ(calls.Poll(Soon()), absl::OkStatus());
  EXPECT_EQ(noted_, "");
  first.complete = true;
  EXPECT_EQ(calls.Poll(Soon()), absl::OkStatus());
  EXPECT_EQ(noted_, "abc");
}

TEST_F(Waiting, GradientsThatDoNotComeAreAnError) {
  DeviceCalls calls(kLimit);
  FakeEvent::State never;
  calls.Add(std::make_unique<FakeEvent>(never), Note('a'));
  calls.Add(nullptr, Note('b'));
  EXPECT_EQ(calls.Poll(Late()).message(),
            "the CUDA stream did not compute the gradients of a bucket within 30s after AllReduce "
            "[GW901]");
  EXPECT_EQ(noted_, "");
  calls.RunAll();
  EXPECT_EQ(noted_, "ab");
}

TEST_F(Waiting, AFailedStreamIsAnError) {
  DeviceCalls calls(kLimit);
  FakeEvent::State failed{.complete = true, .error = "the GPU is gone"};
  calls.Add(std::make_unique<FakeEvent>(failed), Note('a'));
  EXPECT_EQ(calls.Poll(Soon()).message(), "the GPU is gone [GW901]");
}

}  // namespace
}  // namespace gradwire::client
