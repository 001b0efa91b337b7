// Runs the threads of a block as fibers.
#include "tests/cuda/emulation/block.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define GRADWIRE_ASAN 1
#else
#define GRADWIRE_ASAN 0
#endif

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace gradwire::emulation {
namespace {

namespace context = boost::context;

constexpr unsigned kLanes = 32;
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

// Stacks are handed on: threads that never wait all use the same one.
class StackPool {
 public:
  ~StackPool() {
    for (context::stack_context& stack : free_) allocator_.deallocate(stack);
  }
  context::stack_context allocate() {
    if (free_.empty()) return allocator_.allocate();
    const context::stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void deallocate(context::stack_context& stack) noexcept { free_.push_back(stack); }

 private:
  context::protected_fixedsize_stack allocator_{kStackBytes};
  std::vector<context::stack_context> free_;
};

// What boost::context::fiber takes by value.
struct Stacks {
  StackPool* pool;
  context::stack_context* made;
  context::stack_context allocate() { return *made = pool->allocate(); }
  void deallocate(context::stack_context& stack) noexcept { pool->deallocate(stack); }
};

enum class State { kFresh, kReady, kAtBarrier, kInShuffle, kDone };

struct Thread {
  State state = State::kFresh;
  uint3 index{};
  context::fiber fiber;      // of this thread, while it does not run
  context::fiber scheduler;  // while it runs
  context::stack_context stack;
  void* fake_stack = nullptr;
  bool value = false;          // given to the barrier
  unsigned mask = 0;           // of the shuffle
  std::uint64_t shuffled = 0;  // given to the shuffle
};

class Block {
 public:
  // Threads that will never return keep their stacks: unwinding them would run half a kernel.
  ~Block() {
    static auto& abandoned = *new std::vector<std::vector<Thread>>;
    const bool over = std::all_of(threads_.begin(), threads_.end(),
                                  [](const Thread& t) { return t.state == State::kDone; });
    if (!over) abandoned.push_back(std::move(threads_));
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Block(StackPool& stacks, const std::function<void()>& body, Order order)
      : stacks_(stacks), body_(body), order_(order), threads_(blockDim.x) {
    for (unsigned i = 0; i < blockDim.x; ++i) threads_[i].index = {i, 0, 0};
  }

  // Empty: done; else what is wrong.
  std::string Run() {
    for (;;) {
      for (std::size_t i = 0; i < threads_.size(); ++i) {
        Thread& thread = threads_[order_ == Order::kForward ? i : threads_.size() - 1 - i];
        if (thread.state == State::kFresh || thread.state == State::kReady) Resume(thread);
      }
      const auto count = [&](State state) {
        return std::count_if(threads_.begin(), threads_.end(),
                             [&](const Thread& t) { return t.state == state; });
      };
      const auto waiting = count(State::kAtBarrier);
      const auto shuffling = count(State::kInShuffle);
      if (waiting + shuffling == 0) return "";
      if (shuffling > 0) {
        if (std::string wrong = FinishShuffles(); !wrong.empty()) return wrong;
      } else {
        FinishBarrier();
      }
    }
  }

  bool WaitAtBarrier(bool value) {
    running_->value = value;
    Suspend(State::kAtBarrier);
    return any_;
  }

  std::uint64_t WaitInShuffle(unsigned mask, std::uint64_t value, unsigned from) {
    Thread& self = *running_;
    self.mask = mask;
    self.shuffled = value;
    const std::size_t warp = self.index.x / kLanes * kLanes;
    Suspend(State::kInShuffle);
    // Lanes outside of the block have no value; the mask has been checked.
    return warp + from < threads_.size() ? given_[warp + from] : 0;
  }

 private:
  void Resume(Thread& thread) {
    running_ = &thread;
    threadIdx = thread.index;
    if (thread.state == State::kFresh) {
      thread.fiber = context::fiber(std::allocator_arg, Stacks{&stacks_, &thread.stack},
                                    [this, &thread](context::fiber&& scheduler) {
                                      FinishSwitch(nullptr);
                                      thread.scheduler = std::move(scheduler);
                                      body_();
                                      thread.state = State::kDone;
                                      StartSwitch(nullptr, scheduler_bottom_, scheduler_size_);
                                      return std::move(thread.scheduler);
                                    });
    }
    thread.state = State::kReady;
    void* fake = nullptr;
    // Stacks grow down: `sp` is their upper end.
    StartSwitch(&fake, static_cast<char*>(thread.stack.sp) - thread.stack.size, thread.stack.size);
    thread.fiber = std::move(thread.fiber).resume();
    FinishSwitch(fake);
  }

  void Suspend(State state) {
    Thread& self = *running_;
    self.state = state;
    StartSwitch(&self.fake_stack, scheduler_bottom_, scheduler_size_);
    self.scheduler = std::move(self.scheduler).resume();
    FinishSwitch(self.fake_stack);
  }

#if GRADWIRE_ASAN
  void StartSwitch(void** fake, const void* bottom, std::size_t size) {
    __sanitizer_start_switch_fiber(fake, bottom, size);
  }
  // In a thread's first moments this says where the scheduler's stack is.
  void FinishSwitch(void* fake) {
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(fake, &bottom, &size);
    if (scheduler_bottom_ != nullptr) return;
    scheduler_bottom_ = bottom;
    scheduler_size_ = size;
  }
#else
  void StartSwitch(void** /*fake*/, const void* /*bottom*/, std::size_t /*size*/) {}
  void FinishSwitch(void* /*fake*/) {}
#endif

  // Threads that have returned do not count, as since Volta.
  void FinishBarrier() {
    any_ = false;
    for (const Thread& thread : threads_) {
      any_ = any_ || (thread.state == State::kAtBarrier && thread.value);
    }
    for (Thread& thread : threads_) {
      if (thread.state == State::kAtBarrier) thread.state = State::kReady;
    }
  }

  // Every lane that a mask names must have come with the same mask.
  std::string FinishShuffles() {
    given_.resize(threads_.size());
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      const Thread& thread = threads_[i];
      if (thread.state != State::kInShuffle) continue;
      const std::size_t warp = i / kLanes * kLanes;
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        if ((thread.mask >> lane & 1U) == 0) continue;
        const bool is_here = warp + lane < threads_.size() &&
                             threads_[warp + lane].state == State::kInShuffle &&
                             threads_[warp + lane].mask == thread.mask;
        if (is_here) continue;
        return "thread " + std::to_string(i) + " waits in a shuffle for lane " +
               std::to_string(lane) + ", which does not come";
      }
      given_[i] = thread.shuffled;
    }
    for (Thread& thread : threads_) {
      if (thread.state == State::kInShuffle) thread.state = State::kReady;
    }
    return "";
  }

  StackPool& stacks_;
  const std::function<void()>& body_;
  const Order order_;
  std::vector<Thread> threads_;
  std::vector<std::uint64_t> given_;
  Thread* running_ = nullptr;
  bool any_ = false;
  const void* scheduler_bottom_ = nullptr;
  std::size_t scheduler_size_ = 0;
};

Block* running_block = nullptr;

}  // namespace

bool BlockBarrier(bool value) { return running_block->WaitAtBarrier(value); }

std::uint64_t Shuffle(unsigned mask, std::uint64_t value, unsigned from) {
  return running_block->WaitInShuffle(mask, value, from);
}

std::string RunGrid(dim3 grid, dim3 block, Order order, const std::function<void()>& thread) {
  static StackPool stacks;
  gridDim = grid;
  blockDim = block;
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t number = order == Order::kForward ? i : blocks - 1 - i;
    blockIdx = {static_cast<unsigned>(number % grid.x),
                static_cast<unsigned>(number / grid.x % grid.y),
                static_cast<unsigned>(number / grid.x / grid.y)};
    Block running(stacks, thread, order);
    running_block = &running;
    std::string wrong = running.Run();
    running_block = nullptr;
    if (!wrong.empty()) {
      return "block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) +
             "): " + wrong;
    }
  }
  return "";
}

}  // namespace gradwire::emulation
