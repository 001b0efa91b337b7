// The threads to which gRPC tells that what a client's streams began is over.
//
// gRPC's own callback threads are two at least, and each event that one of them takes wakes the
// other. For small buckets those switches cost more than anything else; a queue that one thread at
// a time polls has none. As a rule that is the poller's own thread. Where a program waits for small
// results again and again, it is the thread that waits: nobody has to wake it up.
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

// Thread-safe. Streams refer to it for as long as anything of theirs is in flight, and calls until
// they are over; the last reference ends the thread.
class Poller {
 public:
  using Clock = std::chrono::steady_clock;

  // What a stream begins, one at a time. Lives until it is over; `done` may destroy it.
  struct Operation {
    void (*done)(void* owner, bool ok);
    void* owner;
  };

  struct Settings {
    // So long nobody polls after a thread that waited has got what it waited for.
    Clock::duration poll_while_idle = std::chrono::milliseconds(2);
    // A thread that waits begins nothing more after so long.
    Clock::duration help = std::chrono::milliseconds(10);
    // After anything but a loop of small calls, each waited for, whose results come quickly, none
    // polls for so long: while there is more to read, the queue had better stay where it is.
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

  // The tag with which gRPC is to begin it. `done` sees what was written before.
  void* Begin(Operation& operation);

  // The program's open calls, from their beginning to their outcome. While one is open somebody
  // polls; only where a thread that waits is to be expected at once (`may_help`), and no other call
  // is open, the poller's own thread may still stand by.
  void CallBegins(bool may_help);
  void CallEnds();
  // The poller's own thread polls, now and for a while: nobody comes to wait.
  void PollNow();

  // Polls on this thread until `done` says so or `until`, but not for long; not at all while
  // another thread does, or while or soon after there are other calls. The caller goes on waiting
  // then. Needs a reference for as long. `came_at_once`: the thread may be expected back likewise.
  void PollWhileWaiting(const std::function<bool()>& done, Clock::time_point until,
                        bool came_at_once);
  // Whether a thread that waits finds the queue free, and for a while will.
  bool stands_by() const;
  // A thread in Help asks `done` again.
  void Interrupt();

 private:
  // With the thread, which may be the last to have it.
  struct Shared {
    explicit Shared(const Settings& of) : settings(of) {}

    const Settings settings;
    grpc::CompletionQueue queue;
    // gRPC orders an operation's beginning and its end, but not where ThreadSanitizer sees it.
    std::atomic<std::uint64_t> begun = 0;

    Mutex mutex;
    CondVar wake;  // of the poller's own thread
    // A thread is in the queue, or deals with what it found there.
    bool polling GRADWIRE_GUARDED_BY(mutex) = false;
    bool ending GRADWIRE_GUARDED_BY(mutex) = false;
    // A thread that came at once found the queue taken.
    bool turned_one_away GRADWIRE_GUARDED_BY(mutex) = false;
    int calls GRADWIRE_GUARDED_BY(mutex) = 0;  // that are open
    Clock::time_point polls_until GRADWIRE_GUARDED_BY(mutex);
    Clock::time_point no_help_until GRADWIRE_GUARDED_BY(mutex);
  };

  explicit Poller(const Settings& settings);
  static void Poll(Shared& shared);
  // The poller's own thread waits until the queue is its own. False: it is to be emptied for good.
  static bool Take(Shared& shared) GRADWIRE_EXCLUDES(shared.mutex);
  static void GiveBack(Shared& shared) GRADWIRE_EXCLUDES(shared.mutex);
  static void Do(Shared& shared, void* tag, bool ok) noexcept;

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace gradwire::client
