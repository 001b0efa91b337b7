// The daemon's sessions: by name, by token, within the memory budget.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/v1/admin.pb.h"
#include "hooks/coordinator_hook.h"
#include "server/access/caller.h"
#include "server/core/session_options.h"
#include "server/session/memory_budget.h"
#include "server/session/past_session.h"
#include "server/session/session_host.h"
#include "server/session/sum_threads.h"
#include "server/session/upstream.h"
#include "server/session/yielding_mutex.h"

namespace gradwire::server {

class SessionRunner;

// NotFound, with the beginning of a name that a request gave.
absl::Status UnknownSession(const std::string& name);

// The membership that a token identifies.
struct MemberHandle {
  std::shared_ptr<SessionRunner> session;
  int rank = 0;
  std::uint64_t start_id = 0;
};

// Thread-safe. The registry holds its lock only for lookups: it never takes a session's lock under
// it, and never checks, creates or destroys anything whose size a member chooses. Under the lock it
// reads only what sessions publish as atomics. So a busy session delays nobody else.
//
// A session exists from its first member's join on. If all members leave before it begins, it
// fails, so that its status shows why. A session that has ended frees its name at the next join or
// tick; it is kept until its members' streams are closed. A failure is kept for another 10 s, for
// members that reconnect to ask.
class Registry {
 public:
  struct Limits {
    std::size_t memory_bytes = 0;
    std::size_t max_sessions = 0;
    // For all sessions together: see MemoryQuotas.
    std::size_t memory_segments = std::size_t{1} << 15;
    std::size_t shared_sessions = 256;
  };
  struct Joined {
    std::string token;
    MemberHandle member;
    std::int64_t next_step = 0;
  };
  // Makes a session's hook: MakeCoordinatorHook, except in tests.
  using HookMaker = std::function<absl::StatusOr<std::unique_ptr<CoordinatorHook>>(
      const HookSpec& spec, SharedManifest manifest)>;

  // Makes a leaf's session's way to the root's.
  using UpstreamMaker = std::function<std::unique_ptr<Upstream>(const SessionOptions& options)>;

  // `reducer` null: this host's processors. `audit` null: no audit log.
  explicit Registry(Limits limits, std::shared_ptr<Reducer> reducer = nullptr,
                    std::shared_ptr<AuditSink> audit = nullptr);
  Registry(Limits limits, HookMaker make_hook, std::shared_ptr<Reducer> reducer = nullptr,
           std::shared_ptr<AuditSink> audit = nullptr);
  // StopWork.
  ~Registry();

  // Sessions are a leaf's from now on (SessionOptions::leaf). Before the first join.
  void SetUpstream(UpstreamMaker make) { make_upstream_ = std::move(make); }

  // The steps of sessions are recorded from now on. Before the first join.
  void SetRecorder(std::shared_ptr<RecordSink> recorder) { recorder_ = std::move(recorder); }
  // New sessions that shrink claim their rosters there, as do those that come with it. Before the
  // first join.
  void SetArbiter(std::shared_ptr<const FileArbiter> arbiter) { arbiter_ = std::move(arbiter); }
  // Concluded steps of which it has no recording; 0: nothing is recorded.
  std::uint64_t record_left_out() const;

  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Finds or creates the session `options.name` and joins it. A name whose session has ended is
  // free: its next session is a new lineage. `options` are those of a new session; its generation
  // and lineage are filled in here.
  //
  // `identity` is the caller's: with another one, nobody finds or ends the membership. `holder` is
  // whose quota it counts against.
  absl::StatusOr<Joined> Join(const SessionOptions& options, const JoinAsk& ask, absl::Time now,
                              const std::string& identity = "", const QuotaHolder& holder = {});

  // Returns the failure, if the session has failed and its streams are closed.
  absl::StatusOr<MemberHandle> Find(const std::string& token, std::uint64_t start_id,
                                    const std::string& identity = "") const;

  // The membership is `identity`'s from now on, who has shown that it is the one who joined.
  // `check`: whether it may use the session, from its name; it must not call the registry. NotFound
  // for an unknown token, PermissionDenied for another start id.
  using SessionCheck = std::function<absl::Status(const std::string& session)>;
  absl::StatusOr<MemberHandle> Move(const std::string& token, std::uint64_t start_id,
                                    const std::string& identity, const SessionCheck& check);

  // Ends the token's membership. OK if the session has failed: there is nothing left to end.
  absl::Status Leave(const std::string& token, std::uint64_t start_id, absl::Time now,
                     const std::string& identity = "");

  // Runs the sessions' timeouts and forgets ended sessions.
  void Tick(absl::Time now);
  void SendHeartbeats();

  // Refuses joins from now on. Sessions that still wait for members end at once, and those that
  // outlive their daemon leave it.
  void BeginDrain();
  bool draining() const;
  // Whether no session runs and no member's stream is open.
  bool idle() const;
  void FailAll(const absl::Status& status);
  // Long work of sessions that is under way ends; what waits is dropped. Sessions get no further.
  void StopWork() { host_.work_threads->Stop(); }

  std::size_t sessions() const { return SessionsOf(Caller()); }  // that have not ended
  std::size_t SessionsOf(const Caller& caller) const;            // of those, what it may know of
  // That have ended since the daemon began: regularly, and with an error.
  std::uint64_t closed_total() const { return closed_.load(std::memory_order_relaxed); }
  std::uint64_t failed_total() const { return failed_.load(std::memory_order_relaxed); }
  std::size_t reserved_bytes() const { return memory_->taken(); }
  std::size_t memory_limit() const { return memory_->limit(); }
  // A lower limit ends no session; further ones begin once fewer are left.
  void SetMaxSessions(std::size_t max_sessions) { max_sessions_ = max_sessions; }
  // What identities use; its limits can change at any time.
  QuotaLedger& ledger() const { return *host_.ledger; }
  // Null: there is no audit log.
  AuditSink* audit() const { return host_.audit.get(); }
  // How long its lock was held at most.
  std::chrono::nanoseconds longest_hold() const { return mutex_.longest_hold(); }

  // Running sessions first, then the last few that ended.
  std::vector<v1::SessionStatus> List(absl::Time now) const;
  // Includes the compression of each parameter. NotFound: no recent session has that name.
  absl::StatusOr<v1::SessionStatus> Status(const std::string& name, absl::Time now) const;
  // As AdminService::GetDigests, also of a session that has ended. FailedPrecondition: it is
  // another shard's to tell.
  absl::StatusOr<v1::GetDigestsResponse> Digests(const v1::GetDigestsRequest& request,
                                                 absl::Time now) const;
  std::shared_ptr<SessionRunner> Get(const std::string& name) const;
  // Why Get gives none of this name: it has ended, and how, or it is unknown.
  absl::Status NotThere(const std::string& name) const;

 private:
  struct Place {
    std::string token;            // "": nobody joined
    std::uint64_t admission = 0;  // of the join that has the token
  };
  // The registry's lock guards all fields.
  struct Entry {
    std::shared_ptr<SessionRunner> session;  // null: only `failure` is left
    absl::Status failure{};                  // once it has ended; OK: ended regularly
    absl::Time ended = absl::InfiniteFuture();
    std::vector<Place> places{};  // by rank
    bool forgotten = false;       // its tokens are gone
  };
  struct Holder {
    std::shared_ptr<Entry> entry;
    int rank = 0;
    std::uint64_t start_id = 0;
    std::string identity;
  };
  using Past = std::shared_ptr<const PastSession>;

  absl::StatusOr<Holder> HolderOf(const std::string& token, std::uint64_t start_id,
                                  const std::string& identity) const GRADWIRE_REQUIRES(mutex_);
  // Whose session it is to be: key and lineage. FailedPrecondition: this daemon takes none over.
  absl::Status Identify(const JoinAsk& ask, SessionOptions& own) const GRADWIRE_EXCLUDES(mutex_);
  // Whether it is one that has lost a member: with its settings then.
  bool Succeed(SessionOptions& own) const GRADWIRE_EXCLUDES(mutex_);
  // A session has ended well that waits for lost members. Whoever joins it now is alone, unless all
  // begin again.
  void NoteEnd(const SessionOptions& options, absl::Time now) GRADWIRE_REQUIRES(mutex_);
  // The error says so, if the others do not come.
  void DoubtAfterEnd(SessionOptions& own, absl::Time now) const GRADWIRE_EXCLUDES(mutex_);
  // Its arbiter: the daemon's, or what the session began with.
  void Arbitrate(const JoinAsk& ask, SessionOptions& own) const;
  // Of one that gathers, and has several shards.
  static absl::Status SetLife(const JoinAsk& ask, SessionOptions& own);
  // nullopt: that session has ended, or another join has created one of this name; look again.
  absl::StatusOr<std::optional<Joined>> JoinNew(const SessionOptions& options, const JoinAsk& ask,
                                                absl::Time now, const std::string& identity,
                                                const QuotaHolder& holder)
      GRADWIRE_EXCLUDES(mutex_);
  absl::StatusOr<std::optional<Joined>> JoinExisting(const std::shared_ptr<Entry>& entry,
                                                     const std::shared_ptr<SessionRunner>& session,
                                                     const JoinAsk& ask, absl::Time now,
                                                     const std::string& identity,
                                                     const QuotaHolder& holder)
      GRADWIRE_EXCLUDES(mutex_);
  // The session's: with a leaf of its own, if it is a leaf's.
  SessionHost HostOf(const SessionOptions& options) const;
  bool HasRoom(const std::string& name, std::size_t bytes, const QuotaHolder& holder) const
      GRADWIRE_EXCLUDES(mutex_);
  absl::Status CheckRoom(const std::string& name, std::size_t bytes) const
      GRADWIRE_REQUIRES(mutex_);
  // For the place that the join number `admission` gave; "" if a later join has it.
  std::string TokenFor(std::uint64_t admission, const Holder& holder, const std::string& fresh)
      GRADWIRE_REQUIRES(mutex_);
  // Moves ended sessions into the history, and forgets those whose time is over.
  void Sweep(absl::Time now) GRADWIRE_EXCLUDES(mutex_);
  // The session and those that it has succeeded here, newest first. NotFound: as Status.
  absl::StatusOr<std::vector<Past>> LivesOf(const std::string& name, absl::Time now) const
      GRADWIRE_EXCLUDES(mutex_);
  void Retire(const std::string& name, const std::shared_ptr<SessionRunner>& session,
              absl::Time now) GRADWIRE_EXCLUDES(mutex_);
  void ForgetRetired(absl::Time now) GRADWIRE_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<SessionRunner>> Sessions() const GRADWIRE_EXCLUDES(mutex_);

  std::atomic<std::size_t> max_sessions_;
  const HookMaker make_hook_;
  const std::shared_ptr<MemoryBudget> memory_;
  const SessionHost host_;
  UpstreamMaker make_upstream_;                 // null: the daemon is no leaf
  std::shared_ptr<RecordSink> recorder_;        // null: nothing is recorded
  std::shared_ptr<const FileArbiter> arbiter_;  // null: there is none
  const std::shared_ptr<SumThreads> leaf_threads_;
  std::atomic<std::uint64_t> next_generation_ = 1;
  std::atomic<std::uint64_t> closed_ = 0;
  std::atomic<std::uint64_t> failed_ = 0;

  mutable YieldingMutex mutex_{host_.before_long_work};
  std::map<std::string, std::shared_ptr<Entry>> sessions_
      GRADWIRE_GUARDED_BY(mutex_);  // an ended one until the next Sweep
  // Ended, but their streams still close, or members may still ask what happened.
  std::vector<std::shared_ptr<Entry>> retired_ GRADWIRE_GUARDED_BY(mutex_);
  std::deque<Past> history_ GRADWIRE_GUARDED_BY(mutex_);  // newest first
  struct Ended {
    std::string session_key;
    absl::Status failure;
  };
  std::deque<Ended> ended_ GRADWIRE_GUARDED_BY(mutex_);  // newest first
  // Sessions that lost a member and wait for its successor, until anybody joins.
  struct Succession {
    SessionOptions options;
    absl::Time until;
  };
  std::map<std::string, Succession> successions_ GRADWIRE_GUARDED_BY(mutex_);  // by name
  struct Finished {
    int world_size = 0;
    absl::Time at;
  };
  std::map<std::string, Finished> finished_ GRADWIRE_GUARDED_BY(mutex_);  // by name; see NoteEnd
  std::unordered_map<std::string, Holder> tokens_ GRADWIRE_GUARDED_BY(mutex_);
  bool draining_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::server
