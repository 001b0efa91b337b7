// Sessions that go on: those that members bring along, which have lost their daemon, and those that
// have lost a member here.
#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/random_bytes.h"
#include "server/arbiter/file_arbiter.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {

namespace {

// They are added up, one for each loss: 2^31 of them fit into a report.
constexpr std::uint64_t kMostBetweenLives = std::uint64_t{1} << 32;

// A launcher starts a lost process again within this time.
constexpr absl::Duration kSuccessorComes = absl::Minutes(1);
constexpr std::size_t kMostFinished = 256;

}  // namespace

// A new session, or one that members bring along which have lost its daemon.
absl::Status Registry::Identify(const JoinAsk& ask, SessionOptions& own) const {
  if (own.follows() && ask.life > 0 && !ask.report) {
    return Coded(
        ErrorCode::kResume,
        absl::UnavailableError(absl::StrCat(
            "session \"", own.name, "\": its members have not come to this shard yet; try again")));
  }
  if (Succeed(own)) return SetLife(ask, own);
  Arbitrate(ask, own);
  if (!ask.report) {
    const absl::StatusOr<std::uint64_t> lineage = RandomNumber();
    if (!lineage.ok()) return lineage.status();
    own.lineage = *lineage;
    own.session_key.resize(wire::kSessionKeyBytes);
    return FillRandom(std::as_writable_bytes(std::span(own.session_key)));
  }
  const auto refuse = [&](const std::string& why) {
    return Coded(ErrorCode::kResume,
                 absl::FailedPreconditionError(absl::StrCat("session \"", own.name, "\" ", why)));
  };
  if (own.coordinator_grace == absl::ZeroDuration()) {
    return refuse("had another daemon; to take it over is allowed with on_coordinator_loss=resume");
  }
  // What members of such sessions are not told (SessionCore::NewRecovery).
  if (own.leaf.is_leaf()) {
    return refuse("ended with its daemon; join again as a new member");
  }
  // Members that were lost here, and not by the loss of a daemon, have nothing to go on with.
  MutexLock lock(mutex_);
  const auto ended = std::ranges::find(ended_, ask.report->session_key, &Ended::session_key);
  if (ended != ended_.end()) {
    // It may have come too late to hear it.
    if (!ended->failure.ok()) return absl::FailedPreconditionError(ended->failure.message());
    return refuse("has ended at this daemon; join again as a new member");
  }
  own.lineage = ask.report->lineage;
  own.session_key = ask.report->session_key;
  own.gathers = true;
  own.join_timeout = std::max(own.coordinator_grace, own.member_grace);
  return SetLife(ask, own);
}

// A session that began without one needs majorities, wherever it goes on: a roster of these is
// claimed nowhere. One that began with another one is refused (Gathering::Check).
void Registry::Arbitrate(const JoinAsk& ask, SessionOptions& own) const {
  const bool began_without = ask.report && ask.report->arbiter == 0;
  if (own.follows() && ask.report) {
    own.arbiter = ask.report->arbiter;  // it claims none itself
  } else {
    own.arbiter = arbiter_ == nullptr || !own.shrinks() || began_without ? 0 : arbiter_->id();
  }
}

absl::Status Registry::SetLife(const JoinAsk& ask, SessionOptions& own) {
  if (own.shard.addresses.empty()) return absl::OkStatus();
  own.life = ask.life;
  if (own.follows()) return absl::OkStatus();
  const absl::StatusOr<std::uint64_t> drawn = RandomNumber();
  if (!drawn.ok()) return drawn.status();
  own.life = *drawn % kMostBetweenLives;
  return absl::OkStatus();
}

// Whoever comes first: one of its members, or the successor, which does not know the key. Reports
// are compared with it, and processes of other jobs are refused as in any session.
bool Registry::Succeed(SessionOptions& own) const {
  MutexLock lock(mutex_);
  const auto found = successions_.find(own.name);
  if (found == successions_.end()) return false;
  own = found->second.options;
  own.gathers = true;
  own.join_timeout = own.member_grace;
  return true;
}

void Registry::NoteEnd(const SessionOptions& options, absl::Time now) {
  std::erase_if(finished_, [&](const auto& one) { return now > one.second.at + kSuccessorComes; });
  const bool waits = options.member_grace > absl::ZeroDuration() && !options.shrinks();
  if (!waits || options.is_trial() || finished_.size() >= kMostFinished) return;
  finished_[options.name] = {.world_size = options.world_size, .at = now};
}

// A member that is killed when all steps are done gets a successor that cannot be told from the
// first process of a new job, which has all the time that it asks for.
void Registry::DoubtAfterEnd(SessionOptions& own, absl::Time now) const {
  if (own.gathers) return;
  MutexLock lock(mutex_);
  const auto found = finished_.find(own.name);
  if (found == finished_.end() || found->second.world_size != own.world_size ||
      now > found->second.at + kSuccessorComes) {
    return;
  }
  own.join_doubt = absl::StrCat("a session of this name ended here less than ",
                                absl::FormatDuration(kSuccessorComes),
                                " before, when its members had left; a process that takes the "
                                "place of one of them comes too late");
}

}  // namespace gradwire::server
