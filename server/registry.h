// The daemon's sessions: by name, by token, within the memory budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "proto/wire/sync.h"
#include "server/core/session.h"
#include "server/hosted_session.h"
#include "server/sum_threads.h"

namespace gradwire::server {

// What a token stands for.
struct Seat {
  std::shared_ptr<HostedSession> session;
  int rank = 0;
  std::uint64_t start_id = 0;
};

// Thread-safe. Its lock is taken before a session's.
class Registry {
 public:
  struct Limits {
    std::size_t memory_bytes = 0;
    std::size_t max_sessions = 0;
    // Of all sessions together: MemoryQuotas.
    std::size_t memory_segments = std::size_t{1} << 15;
    std::size_t shared_sessions = 256;
  };
  struct Joined {
    std::string token;
    Seat seat;
    std::int64_t next_step = 0;
  };

  explicit Registry(Limits limits);

  // Finds or creates the session `options.name` and joins it. A name whose session has ended is
  // free: its next session is a new lineage. `options` are those of a new session; its generation
  // and lineage are filled in here.
  absl::StatusOr<Joined> Join(SessionOptions options, const JoinAsk& ask, absl::Time now);

  absl::StatusOr<Seat> Find(const std::string& token, std::uint64_t start_id) const;

  // Timeouts; forgets what has ended.
  void Tick(absl::Time now);
  void SendHeartbeats();

  // No joins from here on. Sessions that are not complete yet end at once.
  void BeginDrain();
  bool draining() const;
  // No session runs and no member's stream is left.
  bool idle() const;
  void FailAll(const absl::Status& status);

  std::size_t sessions() const;  // that have not ended
  std::size_t reserved_bytes() const;
  const Limits& limits() const { return limits_; }

  // Those that have not ended, then the last few that have.
  std::vector<v1::SessionStatus> List(absl::Time now) const;
  // With its compression. NotFound: none of that name lately.
  absl::StatusOr<v1::SessionStatus> Status(const std::string& name, absl::Time now) const;
  std::shared_ptr<HostedSession> Get(const std::string& name) const;

 private:
  struct Entry {
    std::shared_ptr<HostedSession> session;
    std::size_t reserved = 0;
    std::vector<std::string> tokens;  // by rank; "" where nobody joined
  };
  struct Ended {
    Entry entry;
    absl::Time since;
  };

  absl::StatusOr<Entry*> Create(SessionOptions options, absl::Time now) GRADWIRE_REQUIRES(mutex_);
  absl::StatusOr<std::string> TokenFor(Entry& entry, int rank, std::uint64_t start_id)
      GRADWIRE_REQUIRES(mutex_);
  void Sweep(absl::Time now) GRADWIRE_REQUIRES(mutex_);
  void Retire(Entry entry, absl::Time now) GRADWIRE_REQUIRES(mutex_);
  void DropTokens(const Entry& entry) GRADWIRE_REQUIRES(mutex_);
  std::vector<std::shared_ptr<HostedSession>> Sessions() const;

  // Beside the caller's. More than a few are not needed: memory is not that fast.
  static std::size_t SumThreadCount();

  const Limits limits_;
  const std::shared_ptr<MemoryQuotas> memory_quotas_;
  const std::shared_ptr<SumThreads> sum_threads_ = std::make_shared<SumThreads>(SumThreadCount());
  mutable Mutex mutex_;
  std::map<std::string, Entry> sessions_
      GRADWIRE_GUARDED_BY(mutex_);  // an ended one until the next Sweep
  // Ended, but with streams that still close, or so lately that a member may ask what happened.
  std::vector<Ended> ended_ GRADWIRE_GUARDED_BY(mutex_);
  std::deque<v1::SessionStatus> history_ GRADWIRE_GUARDED_BY(mutex_);  // newest first
  std::unordered_map<std::string, Seat> seats_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t reserved_bytes_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_generation_ GRADWIRE_GUARDED_BY(mutex_) = 1;
  bool draining_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::server
