#include "server/registry.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/hooks/registry.h"
#include "proto/wire/random_bytes.h"

namespace gradwire::server {
namespace {

// How long a failed session's members can learn what happened to it.
constexpr absl::Duration kFailureKept = absl::Seconds(10);
constexpr std::size_t kHistory = 16;
constexpr std::size_t kTokenBytes = 16;

absl::StatusOr<std::string> NewToken() {
  std::string bytes(kTokenBytes, '\0');
  if (absl::Status filled = wire::FillRandom(std::as_writable_bytes(std::span(bytes)));
      !filled.ok()) {
    return filled;
  }
  return absl::BytesToHexString(bytes);
}

absl::Status DrainingError() { return absl::UnavailableError("the daemon is draining"); }

}  // namespace

Registry::Registry(Limits limits)
    : limits_(limits),
      memory_quotas_(
          std::make_shared<MemoryQuotas>(limits.memory_segments, limits.shared_sessions)) {}

absl::StatusOr<Registry::Joined> Registry::Join(SessionOptions options, const JoinAsk& ask,
                                                absl::Time now) {
  MutexLock lock(mutex_);
  if (draining_) return DrainingError();
  auto found = sessions_.find(options.name);
  if (found != sessions_.end() && found->second.session->ended()) {
    Sweep(now);
    found = sessions_.end();
  }
  const bool created = found == sessions_.end();
  Entry* entry = created ? nullptr : &found->second;
  const std::string name = options.name;
  if (created) {
    absl::StatusOr<Entry*> made = Create(std::move(options), now);
    if (!made.ok()) return made.status();
    entry = *made;
  }
  const absl::StatusOr<int> rank = entry->session->Join(ask, now);
  if (!rank.ok()) {
    if (created) {
      reserved_bytes_ -= entry->reserved;
      sessions_.erase(name);
    }
    return rank.status();
  }
  absl::StatusOr<std::string> token = TokenFor(*entry, *rank, ask.start_id);
  if (!token.ok()) return token.status();
  return Joined{.token = *std::move(token),
                .seat = {.session = entry->session, .rank = *rank, .start_id = ask.start_id},
                .next_step = entry->session->step()};
}

std::size_t Registry::SumThreadCount() {
  constexpr unsigned kMost = 8;
  return std::clamp(std::thread::hardware_concurrency(), 1U, kMost) - 1;
}

absl::StatusOr<Registry::Entry*> Registry::Create(SessionOptions options, absl::Time now) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<CoordinatorHook>> made = MakeCoordinatorHook(
      options.spec, std::make_shared<const std::vector<ParameterSpec>>(options.manifest));
  if (!made.ok()) return made.status();
  std::unique_ptr<CoordinatorHook> hook = *std::move(made);
  std::size_t reserved = options.ReservedBytes();
  if (hook != nullptr) {
    // A factor that exceeds a chunk is gathered whole from every member.
    const auto members = static_cast<std::size_t>(options.world_size);
    reserved += hook->StateBytes() + hook->StateBytes() / 3 * (members + 1);
  }
  const auto full = [&]() GRADWIRE_REQUIRES(mutex_) {
    return sessions_.size() >= limits_.max_sessions || reserved > limits_.memory_bytes ||
           reserved_bytes_ > limits_.memory_bytes - reserved;
  };
  if (full()) Sweep(now);
  if (sessions_.size() >= limits_.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the daemon has ", sessions_.size(), " sessions, which is its limit"));
  }
  if (full()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "session \"", options.name, "\" may need ", reserved, " bytes in the daemon; of its ",
        limits_.memory_bytes, " bytes ", reserved_bytes_, " are reserved by other sessions"));
  }
  const absl::StatusOr<std::uint64_t> lineage = wire::RandomNumber();
  if (!lineage.ok()) return lineage.status();
  options.lineage = *lineage;
  options.generation = next_generation_++;
  const std::string name = options.name;
  const auto world_size = static_cast<std::size_t>(options.world_size);
  spdlog::info("session {} generation {}: created for {} members, {} bytes reserved", name,
               options.generation, world_size, reserved);
  Entry& entry = sessions_[name];
  entry.session = std::make_shared<HostedSession>(std::move(options), std::move(hook), sum_threads_,
                                                  memory_quotas_, now);
  entry.reserved = reserved;
  entry.tokens.resize(world_size);
  reserved_bytes_ += reserved;
  return &entry;
}

absl::StatusOr<std::string> Registry::TokenFor(Entry& entry, int rank, std::uint64_t start_id) {
  std::string& token = entry.tokens[static_cast<std::size_t>(rank)];
  const auto seat = seats_.find(token);
  if (seat != seats_.end() && seat->second.start_id == start_id) return token;
  absl::StatusOr<std::string> fresh = NewToken();
  if (!fresh.ok()) return fresh.status();
  if (seat != seats_.end()) seats_.erase(seat);
  token = *fresh;
  seats_[token] = Seat{.session = entry.session, .rank = rank, .start_id = start_id};
  return token;
}

absl::StatusOr<Seat> Registry::Find(const std::string& token, std::uint64_t start_id) const {
  MutexLock lock(mutex_);
  const auto found = seats_.find(token);
  if (found == seats_.end()) {
    return absl::NotFoundError(
        "this daemon does not know the token; its session is gone, join again");
  }
  if (found->second.start_id != start_id) {
    return absl::PermissionDeniedError("the token belongs to another start id");
  }
  return found->second;
}

void Registry::Tick(absl::Time now) {
  for (const auto& session : Sessions()) session->Tick(now);
  MutexLock lock(mutex_);
  Sweep(now);
}

void Registry::SendHeartbeats() {
  for (const auto& session : Sessions()) session->SendHeartbeats();
}

void Registry::Sweep(absl::Time now) {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const HostedSession& session = *it->second.session;
    if (session.abandoned()) {
      spdlog::info("session {} generation {}: dropped, nobody is in it", session.options().name,
                   session.options().generation);
      DropTokens(it->second);
      reserved_bytes_ -= it->second.reserved;
    } else if (session.ended()) {
      Retire(std::move(it->second), now);
    } else {
      ++it;
      continue;
    }
    it = sessions_.erase(it);
  }
  std::erase_if(ended_, [&](Ended& ended) GRADWIRE_REQUIRES(mutex_) {
    if (ended.entry.session->has_streams()) return false;
    reserved_bytes_ -= std::exchange(ended.entry.reserved, 0);
    if (ended.entry.session->state() == Session::State::kFailed &&
        now < ended.since + kFailureKept) {
      return false;
    }
    DropTokens(ended.entry);
    return true;
  });
}

void Registry::Retire(Entry entry, absl::Time now) {
  history_.push_front(entry.session->Status(now));
  history_.front().set_reserved_bytes(0);
  if (history_.size() > kHistory) history_.pop_back();
  ended_.push_back({.entry = std::move(entry), .since = now});
}

void Registry::DropTokens(const Entry& entry) {
  for (const std::string& token : entry.tokens) seats_.erase(token);
}

void Registry::BeginDrain() {
  std::vector<std::shared_ptr<HostedSession>> incomplete;
  {
    MutexLock lock(mutex_);
    draining_ = true;
    for (const auto& [name, entry] : sessions_) {
      if (entry.session->state() == Session::State::kJoining) incomplete.push_back(entry.session);
    }
  }
  for (const auto& session : incomplete) session->Fail(DrainingError(), -1);
}

bool Registry::draining() const {
  MutexLock lock(mutex_);
  return draining_;
}

bool Registry::idle() const {
  MutexLock lock(mutex_);
  const bool running = std::any_of(sessions_.begin(), sessions_.end(), [](const auto& one) {
    return !one.second.session->ended() || one.second.session->has_streams();
  });
  return !running && std::none_of(ended_.begin(), ended_.end(), [](const Ended& ended) {
    return ended.entry.session->has_streams();
  });
}

void Registry::FailAll(const absl::Status& status) {
  for (const auto& session : Sessions()) session->Fail(status, -1);
}

std::vector<std::shared_ptr<HostedSession>> Registry::Sessions() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<HostedSession>> sessions;
  sessions.reserve(sessions_.size());
  for (const auto& [name, entry] : sessions_) sessions.push_back(entry.session);
  return sessions;
}

std::size_t Registry::sessions() const {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [](const auto& one) { return !one.second.session->ended(); }));
}

std::size_t Registry::reserved_bytes() const {
  MutexLock lock(mutex_);
  return reserved_bytes_;
}

std::vector<v1::SessionStatus> Registry::List(absl::Time now) const {
  MutexLock lock(mutex_);
  std::vector<v1::SessionStatus> list;
  for (const auto& [name, entry] : sessions_) list.push_back(entry.session->Status(now));
  list.insert(list.end(), history_.begin(), history_.end());
  return list;
}

absl::StatusOr<v1::SessionStatus> Registry::Status(const std::string& name, absl::Time now) const {
  if (const auto session = Get(name)) return session->Status(now, /*compression=*/true);
  MutexLock lock(mutex_);
  const auto found = std::find_if(history_.begin(), history_.end(),
                                  [&](const v1::SessionStatus& one) { return one.name() == name; });
  if (found == history_.end())
    return absl::NotFoundError("the daemon knows no session of that name");
  return *found;
}

std::shared_ptr<HostedSession> Registry::Get(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(name);
  return found == sessions_.end() ? nullptr : found->second.session;
}

}  // namespace gradwire::server
