#include "server/ctl/several.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/shard_state.h"
#include "server/ctl/shards.h"

namespace gradwire::ctl {
namespace {

// Exports of one step: while a session trains, its daemons are seldom asked in the same step.
constexpr absl::Duration kPatience = absl::Seconds(2);

template <typename Answer>
using Answers = std::vector<absl::StatusOr<Answer>>;

// In the order of the targets, each asked on a thread of its own.
template <typename Answer, typename Ask>
Answers<Answer> AskAll(const Targets& targets, const Ask& ask) {
  Answers<Answer> answers(targets.size(), Answer());
  std::vector<std::thread> threads;
  threads.reserve(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    threads.emplace_back([&, i] { answers[i] = ask(targets[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

// Who does not have the session is no failure if somebody has it.
template <typename Answer>
std::vector<Failure> FailuresOf(const Targets& targets, const Answers<Answer>& answers) {
  const bool anybody =
      std::any_of(answers.begin(), answers.end(), [](const auto& answer) { return answer.ok(); });
  std::vector<Failure> failures;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (answers[i].ok() || (anybody && absl::IsNotFound(answers[i].status()))) continue;
    failures.push_back({.address = targets[i].address, .status = answers[i].status()});
  }
  return failures;
}

std::vector<std::string> AddressesOf(const Targets& targets) {
  std::vector<std::string> addresses;
  for (const Target& target : targets) addresses.push_back(target.address);
  return addresses;
}

void Merge(Servers& all, std::vector<v1::ListSessionsResponse> lists) {
  all.answered = !lists.empty();
  // One daemon's list stays in its order, and has no parts.
  all.sessions = lists.size() == 1 ? std::move(lists.front()) : MergeSessions(lists);
}

bool SameDaemons(const v1::SessionStatus& a, const v1::SessionStatus& b) {
  return a.shard().addresses_size() > 0 &&
         std::equal(a.shard().addresses().begin(), a.shard().addresses().end(),
                    b.shard().addresses().begin(), b.shard().addresses().end()) &&
         a.shard().shard() != b.shard().shard();
}

}  // namespace

Servers AskServers(const Targets& targets) {
  struct Answer {
    v1::GetServerResponse server;
    v1::ListSessionsResponse sessions;
  };
  auto answers = AskAll<Answer>(targets, [](const Target& target) -> absl::StatusOr<Answer> {
    auto server = GetServer(target);
    if (!server.ok()) return server.status();
    auto sessions = ListSessions(target);
    if (!sessions.ok()) return sessions.status();
    return Answer{.server = *std::move(server), .sessions = *std::move(sessions)};
  });
  Servers all{.failures = FailuresOf(targets, answers)};
  std::vector<v1::ListSessionsResponse> lists;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok()) continue;
    all.servers.emplace_back(targets[i].address, std::move(answers[i]->server));
    lists.push_back(std::move(answers[i]->sessions));
  }
  Merge(all, std::move(lists));
  return all;
}

Servers AskSessions(const Targets& targets) {
  auto answers = AskAll<v1::ListSessionsResponse>(targets, ListSessions);
  Servers all{.failures = FailuresOf(targets, answers)};
  std::vector<v1::ListSessionsResponse> lists;
  for (auto& answer : answers) {
    if (answer.ok()) lists.push_back(*std::move(answer));
  }
  Merge(all, std::move(lists));
  return all;
}

AskedSession AskSession(const Targets& targets, const std::string& name) {
  auto answers = AskAll<v1::SessionStatus>(
      targets, [&](const Target& target) { return GetSession(target, name); });
  AskedSession asked{.failures = FailuresOf(targets, answers)};
  std::vector<v1::SessionStatus> parts;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok()) continue;
    ++asked.answers;
    if (!parts.empty() && !SameDaemons(parts.front(), *answers[i])) {
      asked.failures.push_back(
          {.address = targets[i].address,
           .status = Coded(ErrorCode::kCtl,
                           absl::FailedPreconditionError(absl::StrCat(
                               "its session \"", name,
                               "\" is another one than the first daemon's; ask it alone")))});
      continue;
    }
    parts.push_back(*std::move(answers[i]));
  }
  if (parts.empty()) return asked;
  asked.status = targets.size() == 1 ? std::move(parts.front()) : MergeShards(std::move(parts));
  return asked;
}

AskedDigests AskDigests(const Targets& targets, const std::string& name, std::int64_t first,
                        std::int64_t count) {
  auto answers = AskAll<v1::GetDigestsResponse>(
      targets, [&](const Target& target) { return GetDigests(target, name, first, count); });
  for (auto& answer : answers) {
    if (answer.ok()) return {.digests = *std::move(answer)};
  }
  return {.failures = FailuresOf(targets, answers)};
}

Done OnAll(const Targets& targets, const OneCall& call) {
  const auto answers = AskAll<bool>(targets, [&](const Target& target) -> absl::StatusOr<bool> {
    if (absl::Status status = call(target); !status.ok()) return status;
    return true;
  });
  return {.answers = static_cast<int>(std::count_if(
              answers.begin(), answers.end(), [](const auto& answer) { return answer.ok(); })),
          .failures = FailuresOf(targets, answers)};
}

Done PauseAll(const Targets& targets, const std::string& name, absl::Duration length,
              const std::string& reason, v1::PauseSessionResponse& paused) {
  const auto answers = AskAll<v1::PauseSessionResponse>(
      targets, [&](const Target& target) { return PauseSession(target, name, length, reason); });
  Done done{.answers = 0, .failures = FailuresOf(targets, answers)};
  for (const auto& answer : answers) {
    if (!answer.ok()) continue;
    ++done.answers;
    if (answer->step() >= paused.step()) paused = *answer;
  }
  return done;
}

absl::StatusOr<std::string> ExportWhole(const Targets& targets, const std::string& session) {
  return client::FetchWholeState(
      AddressesOf(targets), [&](std::size_t i) { return ExportState(targets[i], session); },
      kPatience);
}

absl::StatusOr<std::int64_t> ImportWhole(const Targets& targets, const std::string& session,
                                         const std::string& state) {
  // One that cannot be reached must not cost the others their session.
  const Done up =
      OnAll(targets, [](const Target& target) { return IsServing(target, "").status(); });
  if (!up.failures.empty() && targets.size() > 1) {
    const Failure& down = up.failures.front();
    return absl::Status(down.status.code(),
                        absl::StrCat(down.address, ": ", down.status.message()));
  }
  std::int64_t iteration = 0;
  const client::LoadedState loaded = client::LoadWholeState(
      AddressesOf(targets),
      [&](std::size_t i) {
        const auto answer =
            ImportState(targets[i], session, state, static_cast<std::uint32_t>(targets.size()));
        if (answer.ok()) iteration = *answer;
        return answer.status();
      },
      kPatience);
  if (loaded.status.ok()) return iteration;
  if (!loaded.is_half()) return loaded.status;
  constexpr std::size_t kMostReason = 256;
  const Done ended = OnAll(targets, [&](const Target& target) {
    return EvictSession(target, session,
                        std::string(loaded.status.message()).substr(0, kMostReason));
  });
  return absl::Status(
      loaded.status.code(),
      absl::StrCat(ended.answers > 0 ? "the session is ended, as " : "end the session, as ",
                   loaded.status.message()));
}

absl::StatusOr<std::vector<Trace>> TraceAll(const Targets& targets, const std::string& session,
                                            int steps, absl::Duration wait) {
  auto answers = AskAll<Trace>(
      targets, [&](const Target& target) { return TraceSession(target, session, steps, wait); });
  const std::vector<Failure> failures = FailuresOf(targets, answers);
  if (!failures.empty()) {
    return absl::Status(
        failures.front().status.code(),
        absl::StrCat(targets.size() == 1 ? "" : failures.front().address,
                     targets.size() == 1 ? "" : ": ", failures.front().status.message()));
  }
  std::vector<Trace> traces;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok()) continue;
    if (targets.size() > 1) answers[i]->daemon = targets[i].address;
    traces.push_back(*std::move(answers[i]));
  }
  return traces;
}

}  // namespace gradwire::ctl
