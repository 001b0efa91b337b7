// The recordings of a daemon's sessions: a folder for each session, with a file for each of its
// last steps. Of sessions that have ended, the last few stay.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "base/unique_fd.h"
#include "server/record/record_sink.h"
#include "server/record/session_folders.h"

namespace gradwire::server {

// Thread-safe. A thread of its own writes, so that no step waits for the disk: what is not written
// yet is in a queue of limited size, and a step for which there is no room is left out. So is one
// that cannot be written. Both are counted, and the log says so.
class Recorder final : public RecordSink {
 public:
  struct Options {
    std::string directory;
    int steps = 8;     // files of a session
    int sessions = 8;  // that have ended, and whose files stay
    std::size_t queue_bytes = std::size_t{256} << 20;
  };

  // Whether files can be made in the directory. Unavailable names it, and what is allowed.
  static absl::Status Check(const std::string& directory);

  static absl::StatusOr<std::shared_ptr<Recorder>> Open(Options options);
  // Stop.
  ~Recorder() override { Stop(); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void BeginSession(const std::string& folder) override GRADWIRE_EXCLUDES(mutex_);
  void EndSession(const std::string& folder) override GRADWIRE_EXCLUDES(mutex_);
  Ticket Begin(const std::string& folder, std::int64_t step) override GRADWIRE_EXCLUDES(mutex_);
  bool HasRoom(Ticket ticket, std::size_t bytes) override GRADWIRE_EXCLUDES(mutex_);
  void Add(Ticket ticket, OutgoingRecord record) override GRADWIRE_EXCLUDES(mutex_);
  void End(Ticket ticket) override GRADWIRE_EXCLUDES(mutex_);
  void Drop(Ticket ticket) override GRADWIRE_EXCLUDES(mutex_);

  // Writes what is queued, and ends. What comes later is dropped.
  void Stop() GRADWIRE_EXCLUDES(mutex_);

  std::uint64_t left_out() const override GRADWIRE_EXCLUDES(mutex_);
  // Steps that have a file, or had one.
  std::uint64_t recorded() const GRADWIRE_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  // What the writer is to do next, for a step or a session.
  struct Item {
    enum class What : std::uint8_t {
      kBegin,
      kRecord,
      kEnd,
      kDrop,
      kBeginSession,
      kEndSession,
    } what = What::kBegin;
    Ticket ticket = 0;
    OutgoingRecord record{};  // kRecord
    std::string folder{};     // kBegin, kBeginSession, kEndSession
    std::int64_t step = 0;    // kBegin
  };
  // A step that the writer has begun.
  struct File {
    std::string folder;
    std::int64_t step = 0;
    UniqueFd file;  // not valid: it could not be made, or written
  };

  explicit Recorder(Options options)
      : options_(std::move(options)),
        folders_(options_.directory, static_cast<std::size_t>(options_.sessions)) {}

  bool TakeRoom(Ticket ticket, std::size_t bytes) GRADWIRE_REQUIRES(mutex_);
  void LeaveOut(Ticket ticket) GRADWIRE_REQUIRES(mutex_);
  void Push(Item item) GRADWIRE_REQUIRES(mutex_);

  // The writer's.
  void Run();
  void Do(Item item);
  void OnBegin(Item item);
  void OnRecord(File& file, const OutgoingRecord& record);
  void OnEnd(const File& file);
  void Discard(const File& file) const;
  // What the folder has from an earlier daemon counts too.
  std::set<std::int64_t>& StepsOf(const std::string& folder);
  void Fail(File& file, int error);
  void TellLeftOut();
  std::string PathOf(const std::string& folder, std::int64_t step) const;

  const Options options_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::deque<Item> queue_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t queued_bytes_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // with what is being written
  std::set<Ticket> left_out_ GRADWIRE_GUARDED_BY(mutex_);     // that are open
  Ticket last_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t recorded_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t left_out_total_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;

  // The writer's.
  SessionFolders folders_;
  std::map<Ticket, File> files_;
  std::map<std::string, std::set<std::int64_t>> steps_;  // by folder
  std::string last_error_;
  std::uint64_t told_ = 0;  // of those that were left out, in the log
  Clock::time_point next_complaint_{};
  std::thread thread_;
};

}  // namespace gradwire::server
