// What the registry tells of its sessions.
#include <algorithm>

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
  for (const Past& past : history) list.push_back(*past);
  return list;
}

absl::StatusOr<v1::SessionStatus> Registry::Status(const std::string& name, absl::Time now) const {
  if (const auto session = Get(name)) return session->Status(now, /*compression=*/true);
  Past past;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(history_.begin(), history_.end(),
                                    [&](const Past& one) { return one->name() == name; });
    if (found != history_.end()) past = *found;
  }
  if (past == nullptr) return UnknownSession(name);
  return *past;
}

absl::Status Registry::NotThere(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = std::find_if(history_.begin(), history_.end(),
                                  [&](const Past& one) { return one->name() == name; });
  if (found == history_.end()) return UnknownSession(name);
  return Coded(ErrorCode::kNotNow,
               absl::FailedPreconditionError(
                   absl::StrCat("session \"", name, "\" has ended: ", (*found)->waiting_for())));
}

std::shared_ptr<SessionRunner> Registry::Get(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(name);
  return found == sessions_.end() ? nullptr : found->second->session;
}

}  // namespace gradwire::server
