// What the registry tells of its sessions.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

std::size_t Registry::SessionsOf(const Caller& caller) const {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      sessions_.begin(), sessions_.end(),
      [&](const auto& one) { return !one.second->session->ended() && caller.Covers(one.first); }));
}

std::vector<v1::SessionStatus> Registry::List(absl::Time now) const {
  std::vector<std::shared_ptr<SessionRunner>> sessions;
  std::vector<Past> history;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : sessions_) sessions.push_back(entry->session);
    history.assign(history_.begin(), history_.end());
  }
  std::vector<v1::SessionStatus> list;
  for (const auto& session : sessions) list.push_back(session->Status(now));
  for (const Past& past : history) list.push_back(past->status);
  return list;
}

absl::StatusOr<v1::SessionStatus> Registry::Status(const std::string& name, absl::Time now) const {
  if (const auto session = Get(name)) return session->Status(now, /*compression=*/true);
  Past past;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(history_.begin(), history_.end(),
                                    [&](const Past& one) { return one->status.name() == name; });
    if (found != history_.end()) past = *found;
  }
  if (past == nullptr) return UnknownSession(name);
  return past->status;
}

// Where members gather again after a loss, each gathering is a session of its own with the same
// lineage.
absl::StatusOr<std::vector<Registry::Past>> Registry::LivesOf(const std::string& name,
                                                              absl::Time now) const {
  std::vector<Past> lives;
  if (const auto session = Get(name)) {
    lives.push_back(std::make_shared<const PastSession>(
        PastSession{.status = session->Status(now), .digests = session->Digests()}));
  }
  MutexLock lock(mutex_);
  for (const Past& past : history_) {
    if (past->status.name() != name) continue;
    if (lives.empty() || lives.front()->status.lineage() == past->status.lineage()) {
      lives.push_back(past);
    }
  }
  if (lives.empty()) return UnknownSession(name);
  return lives;
}

absl::StatusOr<v1::GetDigestsResponse> Registry::Digests(const v1::GetDigestsRequest& request,
                                                         absl::Time now) const {
  constexpr std::int32_t kMost = StepDigests::kRecent;
  if (request.first() < 0) {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(
                     absl::StrCat("first is ", request.first(), "; allowed are 0 and more")));
  }
  if (request.count() < 0 || request.count() > kMost) {
    return Coded(ErrorCode::kCtlUsage,
                 absl::InvalidArgumentError(
                     absl::StrCat("count is ", request.count(), "; allowed are 0 to ", kMost)));
  }
  const absl::StatusOr<std::vector<Past>> lives = LivesOf(request.session(), now);
  if (!lives.ok()) return lives.status();
  const v1::SessionStatus& latest = lives->front()->status;
  if (latest.shard().shard() > 0) {
    return Coded(ErrorCode::kNotNow,
                 absl::FailedPreconditionError(absl::StrCat(
                     "session \"", request.session(), "\" is shard ", latest.shard().shard(),
                     " here; ask shard 0 at ", latest.shard().addresses(0), " for its digests")));
  }
  const auto count = static_cast<std::size_t>(request.count() > 0 ? request.count() : kMost);
  std::vector<StepDigests::Entry> all;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
  for (const Past& life : *lives) {
    std::vector<StepDigests::Entry> own =
        life->digests.Range(request.first(), StepDigests::kEarlier + StepDigests::kRecent);
    std::erase_if(own, [end](const auto& entry) { return entry.step >= end; });
    all.insert(all.begin(), own.begin(), own.end());
    // It may have begun anew, if all of its members are new.
    const auto begin = life->digests.Range(0, 1);
    if (!begin.empty()) end = std::min(end, begin.front().step);
    if (life->status.state() == Name(SessionState::kRunning)) {
      end = std::min(end, life->status.step());
    }
  }
  if (all.size() > count) all.resize(count);
  v1::GetDigestsResponse response;
  response.set_step(latest.step());
  for (const StepDigests::Entry& entry : all) {
    v1::StepDigest& digest = *response.add_digests();
    digest.set_step(entry.step);
    digest.set_chain(entry.chain);
  }
  return response;
}

absl::Status Registry::NotThere(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = std::find_if(history_.begin(), history_.end(),
                                  [&](const Past& one) { return one->status.name() == name; });
  if (found == history_.end()) return UnknownSession(name);
  return Coded(ErrorCode::kNotNow,
               absl::FailedPreconditionError(absl::StrCat(
                   "session \"", name, "\" has ended: ", (*found)->status.waiting_for())));
}

std::shared_ptr<SessionRunner> Registry::Get(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(name);
  return found == sessions_.end() ? nullptr : found->second->session;
}

}  // namespace gradwire::server
