#include "server/session/registry.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/random_bytes.h"
#include "gradwire/hooks/registry.h"
#include "hooks/coordinator_hook.h"
#include "server/rpc/rpc_threads.h"
#include "server/session/cpu_reducer.h"
#include "server/session/log_scope.h"
#include "server/session/session_memory.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

// How long members of a failed session can still learn the reason.
constexpr absl::Duration kFailureKept = absl::Seconds(10);
constexpr std::size_t kHistory = 16;
constexpr std::size_t kEndedKeys = 4096;
constexpr std::size_t kSuccessions = 64;  // each has a manifest
constexpr std::size_t kTokenBytes = 16;
// A join is repeated if the session that it found ends meanwhile.
constexpr int kJoinAttempts = 16;

absl::StatusOr<std::string> NewToken() {
  std::string bytes(kTokenBytes, '\0');
  if (absl::Status filled = FillRandom(std::as_writable_bytes(std::span(bytes))); !filled.ok()) {
    return filled;
  }
  return absl::BytesToHexString(bytes);
}

// The memory that the session may occupy in the daemon.
std::size_t NeededBytes(const SessionOptions& options, const CoordinatorHook* hook) {
  std::size_t bytes = options.ReservedBytes();
  if (hook != nullptr) {
    // A factor that exceeds a chunk is gathered whole from every member.
    const auto members = static_cast<std::size_t>(options.world_size);
    bytes += hook->StateBytes() + hook->StateBytes() / 3 * (members + 1);
    bytes += StateCallBytes(StateFileBytes(hook, options.manifest));
  }
  return bytes;
}

absl::Status DrainingError() {
  return Coded(ErrorCode::kDraining, absl::UnavailableError("the daemon is draining"));
}

// Members that go on elsewhere have the memory into which it may still write.
absl::Status StillEndsError(const std::string& name) {
  return Coded(ErrorCode::kEndedBeforeStart,
               absl::UnavailableError(absl::StrCat("session \"", name,
                                                   "\" gathers its members, and still computes "
                                                   "sums; try again")));
}

}  // namespace

absl::Status UnknownSession(const std::string& name) {
  constexpr std::size_t kShown = 200;
  return Coded(
      ErrorCode::kUnknownSession,
      absl::NotFoundError(absl::StrCat("session: the daemon has none named \"",
                                       name.substr(0, kShown), "\", running or recently ended")));
}

Registry::Registry(Limits limits, std::shared_ptr<Reducer> reducer,
                   std::shared_ptr<AuditSink> audit)
    : Registry(
          limits,
          [](const HookSpec& spec, SharedManifest manifest) {
            return MakeCoordinatorHook(spec, std::move(manifest));
          },
          std::move(reducer), std::move(audit)) {}

Registry::Registry(Limits limits, HookMaker make_hook, std::shared_ptr<Reducer> reducer,
                   std::shared_ptr<AuditSink> audit)
    : max_sessions_(limits.max_sessions),
      make_hook_(std::move(make_hook)),
      memory_(std::make_shared<MemoryBudget>(limits.memory_bytes)),
      host_{.reducer = reducer != nullptr
                           ? std::move(reducer)
                           : std::make_shared<CpuReducer>(CpuReducer::ThreadCount(),
                                                          &RpcThreads::YieldLeadership),
            .before_long_work = &RpcThreads::YieldLeadership,
            .work_threads = std::make_shared<WorkThreads>(WorkThreads::ThreadCount()),
            .memory_quotas =
                std::make_shared<MemoryQuotas>(limits.memory_segments, limits.shared_sessions),
            .ledger = QuotaLedger::Make(),
            .audit = std::move(audit)},
      leaf_threads_(std::make_shared<SumThreads>(CpuReducer::ThreadCount())) {}

// Sessions refer to the work threads and may be destroyed on one of them, so the threads end first.
Registry::~Registry() { StopWork(); }

absl::StatusOr<Registry::Joined> Registry::Join(const SessionOptions& options, const JoinAsk& ask,
                                                absl::Time now, const std::string& identity,
                                                const QuotaHolder& holder) {
  for (int attempt = 0; attempt < kJoinAttempts; ++attempt) {
    std::shared_ptr<Entry> entry;
    std::shared_ptr<SessionRunner> session;
    {
      MutexLock lock(mutex_);
      if (draining_) return DrainingError();
      if (const auto found = sessions_.find(options.name); found != sessions_.end()) {
        entry = found->second;
        session = entry->session;
        if (session->awaits_successor() && session->sums_up()) return StillEndsError(options.name);
      }
    }
    absl::StatusOr<std::optional<Joined>> joined =
        entry == nullptr ? JoinNew(options, ask, now, identity, holder)
                         : JoinExisting(entry, session, ask, now, identity, holder);
    if (!joined.ok()) return joined.status();
    // The session ended, or another join created it first. Sweep removes ended ones before the
    // retry.
    if (*joined) return **std::move(joined);
    Sweep(now);
  }
  return Coded(
      ErrorCode::kEndedBeforeStart,
      absl::AbortedError(absl::StrCat("session \"", options.name, "\" ended ", kJoinAttempts,
                                      " times while this member joined it; try again")));
}

// Other threads cannot see the session until its first member is admitted, so a refused join leaves
// no trace.
absl::StatusOr<std::optional<Registry::Joined>> Registry::JoinNew(const SessionOptions& options,
                                                                  const JoinAsk& ask,
                                                                  absl::Time now,
                                                                  const std::string& identity,
                                                                  const QuotaHolder& holder) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  SessionOptions own = options;  // another one's, if it goes on
  if (absl::Status identified = Identify(ask, own); !identified.ok()) return identified;
  DoubtAfterEnd(own, now);
  absl::StatusOr<std::unique_ptr<CoordinatorHook>> hook =
      make_hook_(own.spec, own.manifest.shared());
  if (!hook.ok()) return hook.status();
  const std::size_t bytes = NeededBytes(own, hook->get());
  // Ended sessions hold memory until the next sweep; a new one need not wait for the ticker.
  if (!HasRoom(options.name, bytes, holder)) Sweep(now);
  {
    MutexLock lock(mutex_);
    // Another join may have created it and used up the quota, which this one does not need then.
    if (sessions_.contains(options.name)) return std::nullopt;
    if (absl::Status room = CheckRoom(options.name, bytes); !room.ok()) return room;
  }
  // Refused here if it can be, before the session takes memory; taken below.
  if (absl::Status quota = host_.ledger->CheckBegin(holder, options.name, bytes); !quota.ok()) {
    return quota;
  }
  const absl::StatusOr<std::string> token = NewToken();
  if (!token.ok()) return token.status();
  own.generation = next_generation_++;
  if (!own.shard.addresses.empty()) {
    absl::StatusOr<ShardMap> map = ShardMap::Make(
        own.spec, own.manifest.list(), static_cast<std::uint32_t>(own.shard.addresses.size()));
    if (!map.ok()) return map.status();
    own.shard.map = std::make_shared<const ShardMap>(*std::move(map));
  }
  {
    const LogFields fields{.session = own.name, .generation = own.generation};
    const LogScope scope(fields);
    spdlog::info("session {} generation {}: created for {} members, {} bytes to reserve", own.name,
                 own.generation, own.world_size, bytes);
  }
  SessionHost host = HostOf(own);
  const auto session =
      std::make_shared<SessionRunner>(std::move(own), *std::move(hook), std::move(host), now);
  session->ConnectLeaf();
  const auto admission = session->Join(ask, now, holder);
  if (!admission.ok()) return admission.status();
  if (!*admission) return std::nullopt;  // does not happen: nobody else could end it
  const auto entry = std::make_shared<Entry>(Entry{.session = session});
  entry->places.resize(static_cast<std::size_t>(session->options().world_size));

  MutexLock lock(mutex_);
  // Checked again, because BeginDrain ends only the sessions that it can see.
  if (draining_) return DrainingError();
  if (sessions_.contains(options.name)) return std::nullopt;  // another join was faster
  // Other joins may have taken the room since the first check: the lock was given back meanwhile.
  if (absl::Status room = CheckRoom(options.name, bytes); !room.ok()) return room;
  std::optional<MemoryBudget::Share> share = memory_->Take(bytes);
  // CheckRoom found room, and only joins take it, under this lock.
  if (!share)
    return Coded(ErrorCode::kInternal, absl::InternalError("the memory budget is inconsistent"));
  auto begun = host_.ledger->BeginSession(holder, options.name, bytes);
  if (!begun.ok()) return begun.status();
  session->Hold(*std::move(share), *std::move(begun));
  if (host_.audit != nullptr) {
    host_.audit->Record({.event = "session_began", .identity = identity, .session = options.name});
  }
  sessions_[options.name] = entry;
  successions_.erase(options.name);
  return Joined{
      .token = TokenFor((*admission)->number,
                        {.entry = entry,
                         .rank = (*admission)->rank,
                         .start_id = ask.start_id,
                         .identity = identity},
                        *token),
      .member = {.session = session, .rank = (*admission)->rank, .start_id = ask.start_id},
      .next_step = session->step()};
}

absl::StatusOr<std::optional<Registry::Joined>> Registry::JoinExisting(
    const std::shared_ptr<Entry>& entry, const std::shared_ptr<SessionRunner>& session,
    const JoinAsk& ask, absl::Time now, const std::string& identity, const QuotaHolder& holder) {
  const absl::StatusOr<std::string> fresh = NewToken();
  if (!fresh.ok()) return fresh.status();
  // Compares the manifests here, because it takes time in proportion to them. Under the session's
  // lock a manifest that is the same object needs no comparison; only one that differs is compared
  // again there, to name the difference in the error.
  JoinAsk own = ask;
  const Manifest& here = session->options().manifest;
  if (own.manifest.list() == here.list()) own.manifest = here;
  const auto admission = session->Join(own, now, holder);
  if (!admission.ok()) return admission.status();
  if (!*admission) return std::nullopt;
  MutexLock lock(mutex_);
  std::string token = TokenFor(
      (*admission)->number,
      {.entry = entry, .rank = (*admission)->rank, .start_id = ask.start_id, .identity = identity},
      *fresh);
  if (token.empty()) return std::nullopt;
  return Joined{
      .token = std::move(token),
      .member = {.session = session, .rank = (*admission)->rank, .start_id = ask.start_id},
      .next_step = session->step()};
}

bool Registry::HasRoom(const std::string& name, std::size_t bytes,
                       const QuotaHolder& holder) const {
  if (!host_.ledger->MayBegin(holder, name, bytes)) return false;
  MutexLock lock(mutex_);
  return CheckRoom(name, bytes).ok();
}

absl::Status Registry::CheckRoom(const std::string& name, std::size_t bytes) const {
  if (sessions_.size() >= max_sessions_) {
    return Coded(ErrorCode::kSessionLimit,
                 absl::ResourceExhaustedError(absl::StrCat("the daemon has ", sessions_.size(),
                                                           " sessions, which is its limit")));
  }
  if (const std::size_t taken = memory_->taken(); bytes > memory_->limit() - taken) {
    return Coded(ErrorCode::kMemoryLimit,
                 absl::ResourceExhaustedError(absl::StrCat(
                     "session \"", name, "\" may need ", bytes, " bytes in the daemon; of its ",
                     memory_->limit(), " bytes ", taken, " are reserved by other sessions")));
  }
  return absl::OkStatus();
}

// A member that repeats a join because the response was lost has the same start id and gets the
// same token. A join that a later one of the same rank has overtaken gets none.
std::string Registry::TokenFor(std::uint64_t admission, const Holder& holder,
                               const std::string& fresh) {
  Place& place = holder.entry->places[static_cast<std::size_t>(holder.rank)];
  if (holder.entry->forgotten || admission < place.admission) return "";
  place.admission = admission;
  const auto held = tokens_.find(place.token);
  if (held != tokens_.end() && held->second.start_id == holder.start_id &&
      held->second.identity == holder.identity) {
    return place.token;
  }
  if (held != tokens_.end()) tokens_.erase(held);
  place.token = fresh;
  tokens_[fresh] = holder;
  return fresh;
}

absl::StatusOr<Registry::Holder> Registry::HolderOf(const std::string& token,
                                                    std::uint64_t start_id,
                                                    const std::string& identity) const {
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) {
    return Coded(ErrorCode::kResume,
                 absl::NotFoundError("unknown token: its session has ended; join again"));
  }
  if (found->second.start_id != start_id) {
    return Coded(ErrorCode::kNotAMember,
                 absl::PermissionDeniedError("the token belongs to another start id"));
  }
  if (found->second.identity != identity) {
    return Coded(
        ErrorCode::kNotAMember,
        absl::PermissionDeniedError(
            "the token belongs to a member that joined with another access token or certificate"));
  }
  return found->second;
}

absl::StatusOr<MemberHandle> Registry::Find(const std::string& token, std::uint64_t start_id,
                                            const std::string& identity) const {
  MutexLock lock(mutex_);
  const absl::StatusOr<Holder> holder = HolderOf(token, start_id, identity);
  if (!holder.ok()) return holder.status();
  // ForgetRetired keeps an entry without its session only if the session failed, so this is an
  // error.
  if (holder->entry->session == nullptr) return holder->entry->failure;
  return MemberHandle{
      .session = holder->entry->session, .rank = holder->rank, .start_id = start_id};
}

absl::StatusOr<MemberHandle> Registry::Move(const std::string& token, std::uint64_t start_id,
                                            const std::string& identity,
                                            const SessionCheck& check) {
  MutexLock lock(mutex_);
  const auto found = tokens_.find(token);
  const absl::StatusOr<Holder> holder =
      HolderOf(token, start_id, found == tokens_.end() ? "" : found->second.identity);
  if (!holder.ok()) return holder.status();
  const std::shared_ptr<SessionRunner>& session = holder->entry->session;
  if (session == nullptr) return holder->entry->failure;
  if (absl::Status may = check(session->options().name); !may.ok()) return may;
  found->second.identity = identity;
  return MemberHandle{.session = session, .rank = holder->rank, .start_id = start_id};
}

absl::Status Registry::Leave(const std::string& token, std::uint64_t start_id, absl::Time now,
                             const std::string& identity) {
  std::shared_ptr<SessionRunner> session;
  int rank = 0;
  {
    MutexLock lock(mutex_);
    const absl::StatusOr<Holder> holder = HolderOf(token, start_id, identity);
    if (!holder.ok()) return holder.status();
    session = holder->entry->session;
    rank = holder->rank;
  }
  // An ended session has nobody left to tell.
  return session == nullptr ? absl::OkStatus() : session->Leave(rank, start_id, now);
}

void Registry::Tick(absl::Time now) {
  for (const auto& session : Sessions()) session->Tick(now);
  Sweep(now);
  host_.ledger->Tick(now);
}

void Registry::SendHeartbeats() {
  for (const auto& session : Sessions()) session->SendHeartbeats();
}

// Lists the sessions under the registry's lock and ends them without it, because a session's lock
// is never taken under the registry's.
void Registry::Sweep(absl::Time now) {
  std::vector<std::pair<std::string, std::shared_ptr<SessionRunner>>> over;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : sessions_) {
      const SessionRunner& session = *entry->session;
      if (session.ended() || session.abandoned()) over.emplace_back(name, entry->session);
    }
  }
  for (const auto& [name, session] : over) {
    session->FailIfAbandoned();
    const bool may_write = session->awaits_successor() && session->sums_up();
    if (session->ended() && !may_write) Retire(name, session, now);
  }
  ForgetRetired(now);
}

void Registry::Retire(const std::string& name, const std::shared_ptr<SessionRunner>& session,
                      absl::Time now) {
  PastSession last{.status = session->Status(now), .digests = session->Digests()};
  last.status.set_reserved_bytes(0);
  Past past = std::make_shared<const PastSession>(std::move(last));
  Past oldest;  // destroyed without the lock
  absl::Status failure = session->failure();
  std::vector<int> gone = session->gone();
  std::vector<int> node_groups = session->node_groups();
  MutexLock lock(mutex_);
  const auto found = sessions_.find(name);
  if (found == sessions_.end() || found->second->session != session) return;  // already retired
  std::shared_ptr<Entry> entry = std::move(found->second);
  sessions_.erase(found);
  // A gathering that nobody was in any more may begin again.
  const bool gave_up = session->options().gathers &&
                       FindCode(std::string(failure.message())) == ErrorCode::kEndedBeforeStart;
  // One whose members have all gone while they gathered waits on, too.
  const SessionOptions& options = session->options();
  const bool waits =
      session->awaits_successor() || (gave_up && options.member_grace > absl::ZeroDuration());
  // Without a policy for lost members, their reports are all that the next one needs.
  const bool may_have_successors = options.member_grace > absl::ZeroDuration();
  const bool has_room = successions_.size() < kSuccessions || successions_.contains(name);
  if (waits && may_have_successors && has_room) {
    Succession& next = successions_[name] = {
        .options = options,
        .until = now + std::max(options.member_grace, options.coordinator_grace)};
    next.options.node_groups = std::move(node_groups);
    if (session->awaits_successor()) next.options.gone = std::move(gone);
  } else if (!gave_up && !session->awaits_successor()) {
    ended_.push_front({.session_key = options.session_key, .failure = failure});
    if (ended_.size() > kEndedKeys) ended_.pop_back();
  }
  const bool closed = failure.ok();
  if (closed && !waits) NoteEnd(options, now);
  (closed ? closed_ : failed_).fetch_add(1, std::memory_order_relaxed);
  entry->failure = std::move(failure);
  entry->ended = now;
  retired_.push_back(std::move(entry));
  // What gradwirectl has tried out would push out what somebody looks for.
  if (closed && session->options().is_trial()) return;
  history_.push_front(std::move(past));
  if (history_.size() <= kHistory) return;
  oldest = std::move(history_.back());
  history_.pop_back();
}

// A failed session's tokens stay valid for kFailureKept, so that members which reconnect learn the
// reason instead of "unknown token". Its memory is freed as soon as its last stream has ended.
void Registry::ForgetRetired(absl::Time now) {
  std::vector<std::shared_ptr<SessionRunner>> gone;  // destroyed without the lock
  MutexLock lock(mutex_);
  std::erase_if(successions_, [&](const auto& one) { return now > one.second.until; });
  std::erase_if(retired_, [&](const std::shared_ptr<Entry>& entry) GRADWIRE_REQUIRES(mutex_) {
    if (entry->session != nullptr) {
      if (entry->session->has_streams()) return false;
      gone.push_back(std::move(entry->session));
    }
    if (!entry->failure.ok() && now < entry->ended + kFailureKept) return false;
    entry->forgotten = true;
    for (const Place& place : entry->places) tokens_.erase(place.token);
    return true;
  });
}

// Sessions that still wait for members can never start now, because joins are refused: members join
// the next daemon. A session with several daemons has no place at the others any more.
void Registry::BeginDrain() {
  {
    MutexLock lock(mutex_);
    draining_ = true;
  }
  for (const auto& session : Sessions()) {
    const SessionOptions& options = session->options();
    const bool joins = session->state() == SessionCore::State::kJoining && !options.gathers;
    if (joins && options.shard.count() > 1) {
      session->Fail(DrainingError(), -1);
    } else if (joins) {
      session->HandOver();
    } else if (options.coordinator_grace > absl::ZeroDuration()) {
      // Elsewhere, because it needs the session's lock, which may be held for long.
      host_.work_threads->Post(session.get(), [session] { session->HandOver(); });
    }
  }
}

bool Registry::draining() const {
  MutexLock lock(mutex_);
  return draining_;
}

bool Registry::idle() const {
  MutexLock lock(mutex_);
  // An ended session counts until its last stream has closed, because its last frames may still be
  // on their way to members.
  const bool running = std::any_of(sessions_.begin(), sessions_.end(), [](const auto& one) {
    return !one.second->session->ended() || one.second->session->has_streams();
  });
  return !running && std::none_of(retired_.begin(), retired_.end(), [](const auto& entry) {
    return entry->session != nullptr && entry->session->has_streams();
  });
}

void Registry::FailAll(const absl::Status& status) {
  for (const auto& session : Sessions())
    session->Fail(Coded(ErrorCode::kDaemonStopped, status), -1);
}

std::vector<std::shared_ptr<SessionRunner>> Registry::Sessions() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<SessionRunner>> sessions;
  sessions.reserve(sessions_.size());
  for (const auto& [name, entry] : sessions_) sessions.push_back(entry->session);
  return sessions;
}

}  // namespace gradwire::server
