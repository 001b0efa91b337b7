#include "tests/cuda/nccl/members.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda/emulated_device.h"
#include "tests/cuda/emulation/emulation.h"

namespace gradwire::testing {

bool Await(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

Member::Member(int index, int size, Shared& shared)
    : index_(index),
      size_(size),
      shared_(shared),
      device_(MakeEmulatedDevice(std::chrono::milliseconds(kLimit).count())) {}

void Member::Connect() {
  const auto communicators = client::OpenNccl(STAND_IN, device_);
  ASSERT_TRUE(communicators.ok()) << communicators.status();
  if (index_ == 0) {
    const auto id = (*communicators)->NewId();
    ASSERT_TRUE(id.ok()) << id.status();
    ASSERT_EQ(id->size(), sizeof(shared_.id));
    std::memcpy(shared_.id, id->data(), id->size());
    shared_.has_id = true;
  }
  ASSERT_TRUE(Await([&] { return shared_.has_id.load(); }));
  auto group =
      (*communicators)->Connect(std::string(shared_.id, sizeof(shared_.id)), size_, index_);
  ASSERT_TRUE(group.ok()) << group.status();
  group_ = *std::move(group);
  AwaitOrder();
}

void Member::AwaitOrder() {
  absl::StatusOr<bool> ordered = false;
  EXPECT_TRUE(Await([&] {
    ordered = group_->Poll();
    return !ordered.ok() || *ordered;
  }));
  EXPECT_TRUE(ordered.ok()) << ordered.status();
}

void Member::AwaitDevice() {
  const DeviceMark mark = device_->Record();
  EXPECT_TRUE(Await([&] { return device_->IsComplete(mark) || !group_->Poll().ok(); }));
  EXPECT_EQ(group_->Poll().status(), absl::OkStatus());
  EXPECT_EQ(device_->error().text, "");
}

void Member::Meet(int point, int members) {
  ++shared_.arrived[point];
  EXPECT_TRUE(Await([&] { return shared_.arrived[point] == members; }));
}

std::byte* Member::Upload(const std::string& bytes) {
  std::byte* memory = device_->Allocate(bytes.size());
  device_->Upload(memory, bytes.data(), bytes.size());
  return memory;
}

std::string Member::Download(const std::byte* memory, std::size_t bytes) {
  std::string there(bytes, '\0');
  EXPECT_TRUE(device_->Download(there.data(), memory, bytes));
  return there;
}

namespace {

[[noreturn]] void BeMember(int index, int size, Shared& shared,
                           const std::function<void(Member&)>& body) {
  alarm(2 * kLimit.count());  // ends a process whose waits do not end
  emulation::Reset();
  {
    Member member(index, size, shared);
    member.Connect();
    if (!::testing::Test::HasFailure()) body(member);
  }
  EXPECT_THAT(emulation::violations(), ::testing::IsEmpty());
  std::fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

// Its wait status, after a kill if it does not end.
int StatusOfProcess(pid_t process) {
  int status = 0;
  if (!Await([&] { return waitpid(process, &status, WNOHANG) == process; }, 2 * kLimit)) {
    kill(process, SIGTERM);
    waitpid(process, &status, 0);
  }
  return status;
}

}  // namespace

void RunMembers(int size, const std::function<void(Member&)>& body) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* shared = new (memory) Shared;
  std::fflush(nullptr);  // or each process writes it
  std::vector<pid_t> processes;
  for (int index = 0; index < size; ++index) {
    const pid_t process = fork();
    ASSERT_GE(process, 0);
    if (process == 0) BeMember(index, size, *shared, body);
    processes.push_back(process);
  }
  for (int index = 0; index < size; ++index) {
    const int status = StatusOfProcess(processes[static_cast<std::size_t>(index)]);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT_TRUE(killed || status == 0) << "member " << index << ": wait status " << status;
  }
  munmap(memory, sizeof(Shared));
}

}  // namespace gradwire::testing
