// The audit log: a file with a JSON object a line for each AuditEvent.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/sync.h"
#include "base/unique_fd.h"
#include "server/access/audit.h"

namespace gradwire::server {

// Thread-safe. A thread of its own writes, so that nobody waits for the disk. What does not fit
// into the queue, or onto the disk, is counted; a line has the number once lines fit again.
class AuditLog final : public AuditSink {
 public:
  struct Options {
    std::size_t queue = 4096;  // events
    // Further ones in the same second are left out, and counted in a line.
    int refusals_per_second = 20;
  };

  // Whether the file could be opened now, without creating it. Unavailable: it could not.
  static absl::Status Check(const std::string& path);

  // Appends to the file, and creates it with mode 0600. Unavailable: it cannot be opened.
  static absl::StatusOr<std::shared_ptr<AuditLog>> Open(const std::string& path,
                                                        const Options& options);
  static absl::StatusOr<std::shared_ptr<AuditLog>> Open(const std::string& path) {
    return Open(path, Options());
  }
  // Stop.
  ~AuditLog() override { Stop(); }
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  // After Stop: does nothing.
  void Record(AuditEvent event) override GRADWIRE_EXCLUDES(mutex_);

  // Opens the path again, after what was recorded before is written: a tool has moved the file
  // away. If that fails, the log says so and goes on in the old file.
  void Reopen() GRADWIRE_EXCLUDES(mutex_);

  // Writes what was recorded before, and ends. Later calls do nothing.
  void Stop() GRADWIRE_EXCLUDES(mutex_);

  // Events that did not fit. Those that were left out on purpose do not count.
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    absl::Time time;
    AuditEvent event;
  };
  // What the writer takes at a time.
  struct Batch {
    std::deque<Entry> entries{};
    std::uint64_t left_out = 0;
    bool reopen = false;
    bool stop = false;
  };

  AuditLog(std::string path, const Options& options, UniqueFd file)
      : path_(std::move(path)), options_(options), file_(std::move(file)) {}

  bool AllowRefusal(Clock::time_point now) GRADWIRE_REQUIRES(mutex_);
  Batch Next() GRADWIRE_EXCLUDES(mutex_);
  void Run();
  void Write(const Batch& batch);
  void OnFailure(int error, Clock::time_point now);
  void ReopenFile();

  const std::string path_;
  const Options options_;
  std::atomic<std::uint64_t> dropped_ = 0;

  Mutex mutex_;
  CondVar wake_;
  std::deque<Entry> queue_ GRADWIRE_GUARDED_BY(mutex_);
  Clock::time_point second_ GRADWIRE_GUARDED_BY(mutex_){};  // that refusals_ counts in
  int refusals_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t left_out_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool reopen_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;

  // The writer's.
  UniqueFd file_;
  std::uint64_t told_ = 0;  // of the dropped events, in a line
  bool torn_ = false;       // the last line is not complete
  Clock::time_point next_complaint_{};
  std::thread thread_;
};

}  // namespace gradwire::server
