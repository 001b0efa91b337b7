// Polls for the completions of a client's gRPC operations.
//
// gRPC has at least two callback threads, and each event that one of them takes wakes the other.
// For small buckets these context switches cost more than anything else; a queue that one thread at
// a time polls avoids them. Usually that is the poller's own thread. If a program waits for small
// results again and again, the waiting thread polls itself, so no thread has to wake it.
#pragma once

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "base/sync.h"

namespace gradwire::client {

// Thread-safe. Streams refer to it while they have an operation in flight, and calls until they
// end. The last reference ends the thread.
class Poller {
 public:
  using Clock = std::chrono::steady_clock;

  // An operation of a stream, in flight at most once. It must live until it completes; `done` may
  // destroy it.
  struct Operation {
    void (*done)(void* owner, bool ok);
    void* owner;
  };

  struct Settings {
    // After a waiting thread got its result, the poller's own thread stays off the queue this long.
    Clock::duration poll_while_idle = std::chrono::milliseconds(2);
    // A waiting thread polls for at most this long.
    Clock::duration help = std::chrono::milliseconds(10);
    // Outside a loop of small calls with quick results, waiting threads do not poll for this long:
    // while there is more to read, handing the queue over costs more than it saves.
    Clock::duration no_waiting_poll = std::chrono::milliseconds(100);
  };
  static std::shared_ptr<Poller> Start(const Settings& settings) {
    return std::shared_ptr<Poller>(new Poller(settings));
  }
  static std::shared_ptr<Poller> Start() { return Start(Settings()); }
  ~Poller();

  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::CompletionQueue* queue() { return &shared_->queue; }

  // Returns the tag for starting the operation in gRPC. `done` sees all memory written before.
  void* Begin(Operation& operation);

  // Count the program's open calls. While a call is open some thread polls. Only if a waiting
  // thread is expected at once (`may_help`) and no other call is open, the poller's own thread may
  // stay off the queue.
  void CallBegins(bool may_help);
  void CallEnds();
  // The poller's own thread polls from now on, for a while, because no thread will wait.
  void PollNow();

  // Polls on this thread until `done` returns true or `until` has passed, but at most for
  // Settings::help. Returns at once while another thread polls, or while or soon after other calls
  // are open; the caller then waits in another way. The caller holds a reference meanwhile.
  // `came_at_once`: the thread waits right after its call, and will probably do so again.
  void PollWhileWaiting(const std::function<bool()>& done, Clock::time_point until,
                        bool came_at_once);
  // Whether the queue is free, and will be for a while, for a thread that waits.
  bool stands_by() const;
  // Makes a thread in PollWhileWaiting call `done` again.
  void Interrupt();

 private:
  // Shared with the thread, which may hold the last reference.
  struct Shared {
    explicit Shared(const Settings& of) : settings(of) {}

    const Settings settings;
    grpc::CompletionQueue queue;
    // gRPC orders an operation's start before its completion, but ThreadSanitizer cannot see that.
    std::atomic<std::uint64_t> begun = 0;

    Mutex mutex;
    CondVar wake;  // of the poller's own thread
    // A thread polls, or handles the event that it found.
    bool polling GRADWIRE_GUARDED_BY(mutex) = false;
    bool ending GRADWIRE_GUARDED_BY(mutex) = false;
    // A thread with `came_at_once` found the queue taken.
    bool turned_one_away GRADWIRE_GUARDED_BY(mutex) = false;
    int calls GRADWIRE_GUARDED_BY(mutex) = 0;  // that are open
    Clock::time_point polls_until GRADWIRE_GUARDED_BY(mutex);
    Clock::time_point no_help_until GRADWIRE_GUARDED_BY(mutex);
  };

  explicit Poller(const Settings& settings);
  static void Poll(Shared& shared);
  // The poller's own thread waits for the queue. False: the poller ends, and the queue must be
  // drained.
  static bool Take(Shared& shared) GRADWIRE_EXCLUDES(shared.mutex);
  static void GiveBack(Shared& shared) GRADWIRE_EXCLUDES(shared.mutex);
  static void Do(Shared& shared, void* tag, bool ok) noexcept;

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace gradwire::client
