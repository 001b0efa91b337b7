#include "server/core/session.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::server {
namespace {

// A member that resumes may have frames of the step before in flight; anything older is a fault.
constexpr std::int64_t kStepsBehind = 1;

// What a tick counts for at most, however late it comes. A daemon that stood still has not heard its
// members, but they may have spoken: the streams that resume wait to be read. Where every tick is
// late, silence still ends: after one tick more than there are such parts in the limit.
constexpr absl::Duration kMostOfATick = absl::Milliseconds(250);

template <typename T>
absl::Status Differs(const std::string& field, const T& asked, const T& here) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", asked, " in this request and ", here, " in the session"));
}

absl::Status CompareManifests(const std::vector<ParameterSpec>& asked,
                              const std::vector<ParameterSpec>& here) {
  const std::size_t common = std::min(asked.size(), here.size());
  for (std::size_t i = 0; i < common; ++i) {
    const std::string where = absl::StrCat("manifest parameter ", i);
    if (asked[i].name != here[i].name) {
      return Differs(absl::StrCat(where, ": name"), asked[i].name, here[i].name);
    }
    if (asked[i].shape != here[i].shape) {
      const auto text = [](const ParameterSpec& spec) {
        std::string shape = "[";
        for (std::size_t d = 0; d < spec.shape.size(); ++d) {
          absl::StrAppend(&shape, d == 0 ? "" : ", ", spec.shape[d]);
        }
        return shape + "]";
      };
      return Differs(absl::StrCat(where, " (", here[i].name, "): shape"), text(asked[i]),
                     text(here[i]));
    }
    if (asked[i].dtype != here[i].dtype) {
      return Differs(absl::StrCat(where, " (", here[i].name, "): dtype"), Name(asked[i].dtype),
                     Name(here[i].dtype));
    }
  }
  if (asked.size() != here.size()) {
    return Differs("number of manifest parameters", asked.size(), here.size());
  }
  return absl::OkStatus();
}

}  // namespace

Session::Session(SessionOptions options, std::unique_ptr<CoordinatorHook> hook, absl::Time now)
    : options_(std::move(options)),
      hook_(std::move(hook)),
      created_(now),
      last_tick_(now),
      members_(Index(options_.world_size)),
      owner_(options_.manifest.size()),
      collectives_(options_.world_size, options_.chunk_bytes, options_.window_chunks) {}

Session::~Session() = default;

absl::Status Session::CompareWithSession(const JoinAsk& ask) const {
  if (auto difference = FirstDifference(ask.spec, options_.spec)) {
    return absl::InvalidArgumentError(
        absl::StrCat("this member's hook differs from the session's: ", *difference));
  }
  return CompareManifests(ask.manifest, options_.manifest);
}

absl::StatusOr<int> Session::Join(const JoinAsk& ask, absl::Time now, Effects& effects) {
  if (state_ == State::kFailed) return failure_;
  if (ask.world_size != options_.world_size) {
    return Differs("world_size", ask.world_size, options_.world_size);
  }
  if (ask.rank < -1 || ask.rank >= options_.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank is ", ask.rank, "; allowed are 0 to ",
                                                   options_.world_size - 1,
                                                   ", or -1 for any free rank"));
  }
  if (absl::Status same = CompareWithSession(ask); !same.ok()) {
    // The member that the others wait for: they would wait in vain.
    if (state_ == State::kJoining && ask.rank >= 0 &&
        members_[Index(ask.rank)].state == MemberState::kAbsent) {
      Fail(absl::Status(same.code(),
                        absl::StrCat("rank ", ask.rank, " asked to join with something else: ",
                                     std::string(same.message()))),
           ask.rank, effects);
    }
    return same;
  }

  int rank = ask.rank;
  for (int r = 0; r < options_.world_size; ++r) {
    const Member& member = members_[Index(r)];
    if (member.state == MemberState::kAbsent || member.start_id != ask.start_id) continue;
    if (rank != -1 && rank != r) {
      return absl::AlreadyExistsError(
          absl::StrCat("this process has rank ", r, " already and asks for rank ", rank));
    }
    if (member.state == MemberState::kLeft) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", r, " has left the session"));
    }
    return r;
  }
  if (rank == -1) {
    for (rank = 0; rank < options_.world_size; ++rank) {
      if (members_[Index(rank)].state == MemberState::kAbsent) break;
    }
    if (rank == options_.world_size) {
      return absl::AlreadyExistsError(absl::StrCat(
          "all ", options_.world_size, " ranks of session \"", options_.name, "\" are taken"));
    }
  }
  Member& member = members_[Index(rank)];
  if (member.state != MemberState::kAbsent) {
    return absl::AlreadyExistsError(absl::StrCat("rank ", rank, " of session \"", options_.name,
                                                 "\" is taken by another process"));
  }
  member = Member{.state = MemberState::kJoined,
                  .start_id = ask.start_id,
                  .last_heard = now,
                  .since = now,
                  .epochs = std::vector<std::uint64_t>(options_.manifest.size())};
  effects.push_back(LogEffect{.message = absl::StrCat("rank ", rank, " joined")});
  return rank;
}

absl::Status Session::Attach(int rank, std::uint64_t start_id, std::int64_t step,
                             std::uint64_t connection, absl::Time now, Effects& effects) {
  if (state_ == State::kFailed) return failure_;
  if (rank < 0 || rank >= options_.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not in the session"));
  }
  Member& member = members_[Index(rank)];
  if (member.state == MemberState::kAbsent || member.state == MemberState::kLeft ||
      member.start_id != start_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " is ", Name(member.state), "; join again"));
  }
  if (step > step_ || step < step_ - kStepsBehind) {
    return absl::FailedPreconditionError(
        absl::StrCat("the member is at step ", step, ", the session at step ", step_));
  }
  if (member.state == MemberState::kConnected && member.connection != connection) {
    effects.push_back(CloseEffect{.rank = rank, .connection = member.connection});
  }
  member.state = MemberState::kConnected;
  member.connection = connection;
  member.last_heard = now;
  if (state_ == State::kRunning) {
    Resume(rank, step, effects);
    return absl::OkStatus();
  }
  const bool complete = std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.state == MemberState::kConnected;
  });
  if (complete) StartRunning(effects);
  return absl::OkStatus();
}

void Session::StartRunning(Effects& effects) {
  state_ = State::kRunning;
  effects.push_back(
      LogEffect{.message = absl::StrCat("all ", options_.world_size, " members are here")});
  FanOut(wire::Welcome{.step = step_, .attempt = attempt_}, nullptr, effects);
}

void Session::Receive(int rank, std::uint64_t connection, const wire::Frame& frame, absl::Time now,
                      Effects& effects) {
  if (rank < 0 || rank >= options_.world_size || state_ == State::kFailed) return;
  Member& member = members_[Index(rank)];
  if (member.state != MemberState::kConnected || member.connection != connection) return;
  member.last_heard = now;
  if (std::holds_alternative<wire::Heartbeat>(frame.header)) return;
  if (state_ != State::kRunning) {
    return Violation(rank, absl::FailedPreconditionError("sent a frame before its Welcome"),
                     effects);
  }
  std::vector<Collectives::Send> sends;
  if (const auto* contribution = std::get_if<wire::Contribution>(&frame.header)) {
    OnContribution(rank, *contribution, frame.payload, effects);
  } else if (const auto* ack = std::get_if<wire::Ack>(&frame.header)) {
    OnAck(rank, ack->id, ack->received, effects);
    GrantBuckets(effects);
    MaybeCommit(effects);
  } else if (const auto* announce = std::get_if<wire::Announce>(&frame.header)) {
    OnAnnounce(rank, *announce, frame.payload, now, effects);
  } else if (const auto* end = std::get_if<wire::EndStep>(&frame.header)) {
    OnEndStep(rank, *end, now, effects);
  } else if (const auto* report = std::get_if<wire::BucketReport>(&frame.header)) {
    OnBucketReport(rank, *report, effects);
  } else if (const auto* enter = std::get_if<wire::Enter>(&frame.header)) {
    if (!IsActive(Mutant::kGenerationNotCompared) && enter->generation != options_.generation) {
      return Violation(rank,
                       absl::InvalidArgumentError(
                           absl::StrCat("entered a collective of generation ", enter->generation,
                                        "; this session is ", options_.generation)),
                       effects);
    }
    if (!collective_began_) collective_began_ = now;
    const std::uint64_t number = collectives_.number();
    RunCollective(rank, collectives_.OnEnter(rank, *enter, sends), sends, effects);
    if (collectives_.number() != number && collective_began_) collective_began_ = now;
  } else if (const auto* chunk = std::get_if<wire::CollectiveChunk>(&frame.header)) {
    RunCollective(rank, collectives_.OnChunk(rank, *chunk, frame.payload, sends), sends, effects);
  } else if (const auto* received = std::get_if<wire::CollectiveAck>(&frame.header)) {
    const std::uint64_t number = collectives_.number();
    RunCollective(rank, collectives_.OnAck(rank, *received, sends), sends, effects);
    if (collectives_.number() != number && collective_began_) collective_began_ = now;
  } else {
    Violation(rank, absl::InvalidArgumentError("sent a frame that only the coordinator may send"),
              effects);
  }
}

void Session::RunCollective(int rank, const absl::Status& status,
                            std::vector<Collectives::Send>& sends, Effects& effects) {
  if (!status.ok()) return Violation(rank, status, effects);
  for (Collectives::Send& send : sends) {
    effects.push_back(FanOutEffect{.ranks = std::move(send.ranks), .frame = std::move(send.frame)});
  }
  if (collectives_.WaitingFor().empty()) {
    collective_began_.reset();
    return;
  }
  for (int r = 0; r < options_.world_size; ++r) {
    if (members_[Index(r)].state != MemberState::kLeft || collectives_.IsThrough(r)) continue;
    return Fail(absl::AbortedError(absl::StrCat("rank ", rank, " entered a collective, but rank ",
                                                r, " has left the session")),
                r, effects);
  }
}

void Session::Detach(int rank, std::uint64_t connection, absl::Time now, Effects& effects) {
  if (rank < 0 || rank >= options_.world_size) return;
  Member& member = members_[Index(rank)];
  if (member.state != MemberState::kConnected || member.connection != connection) return;
  member.state = MemberState::kLost;
  member.since = now;
  if (state_ == State::kFailed || state_ == State::kClosed) return;
  effects.push_back(LogEffect{
      .level = LogEffect::Level::kWarning,
      .message = absl::StrCat("rank ", rank, "'s stream ended; it has ",
                              absl::FormatDuration(options_.resume_grace), " to resume")});
  if (IsActive(Mutant::kMemberDroppedPerBucket)) {
    for (auto& [key, bucket] : buckets_) {
      if (bucket.rounds.empty()) continue;
      const auto chunks = static_cast<std::uint32_t>(bucket.rounds.back().chunks.size());
      for (std::uint32_t c = 0; c < chunks; ++c) MaybeReduce(bucket, c, effects);
    }
  }
}

absl::Status Session::Leave(int rank, std::uint64_t start_id, absl::Time now, Effects& effects) {
  if (rank < 0 || rank >= options_.world_size || members_[Index(rank)].start_id != start_id) {
    return absl::NotFoundError(absl::StrCat("rank ", rank, " is not held by this process"));
  }
  Member& member = members_[Index(rank)];
  if (member.state == MemberState::kLeft || state_ == State::kFailed) return absl::OkStatus();
  member.last_heard = now;
  if (state_ == State::kJoining) {
    effects.push_back(CloseEffect{.rank = rank, .connection = member.connection});
    last_departure_ = absl::StrCat("rank ", rank, " left");
    member = Member{};
    return absl::OkStatus();
  }
  if (step_began_) {
    Fail(absl::AbortedError(absl::StrCat("rank ", rank, " left in the middle of step ", step_)),
         rank, effects);
    return absl::OkStatus();
  }
  std::vector<Collectives::Send> sends;
  if (!collectives_.OnLeave(rank, sends)) {
    Fail(absl::AbortedError(absl::StrCat("rank ", rank, " left in the middle of a collective")),
         rank, effects);
    return absl::OkStatus();
  }
  RunCollective(rank, absl::OkStatus(), sends, effects);
  member.state = MemberState::kLeft;
  effects.push_back(
      LogEffect{.message = absl::StrCat("rank ", rank, " left after ", step_, " steps")});
  effects.push_back(CloseEffect{.rank = rank, .connection = member.connection});
  CloseAcknowledged();
  if (std::all_of(members_.begin(), members_.end(),
                  [](const Member& m) { return m.state == MemberState::kLeft; })) {
    state_ = State::kClosed;
    buckets_.clear();
  }
  return absl::OkStatus();
}

void Session::Tick(absl::Time now, Effects& effects) {
  if (const absl::Duration late = now - last_tick_ - kMostOfATick; late > absl::ZeroDuration()) {
    for (Member& member : members_) {
      member.last_heard = std::min(member.last_heard + late, now);
      member.since = std::min(member.since + late, now);
    }
  }
  last_tick_ = now;
  if (state_ == State::kJoining) TickJoining(now, effects);
  if (state_ == State::kRunning) TickRunning(now, effects);
}

void Session::TickJoining(absl::Time now, Effects& effects) {
  for (int r = 0; r < options_.world_size; ++r) {
    Member& member = members_[Index(r)];
    const bool unused =
        member.state == MemberState::kJoined && now - member.since > options_.token_timeout;
    const bool lost =
        member.state == MemberState::kLost && now - member.since > options_.resume_grace;
    const bool silent = member.state == MemberState::kConnected &&
                        now - member.last_heard > options_.silence_timeout;
    if (!unused && !lost && !silent) continue;
    last_departure_ = unused ? absl::StrCat("rank ", r, " opened no stream")
                      : lost ? absl::StrCat("rank ", r, "'s stream ended")
                             : absl::StrCat("nothing was heard from rank ", r);
    effects.push_back(LogEffect{
        .level = LogEffect::Level::kWarning,
        .message = absl::StrCat("rank ", r, " is free again: ", last_departure_, " before all ",
                                options_.world_size, " members had joined")});
    if (silent) effects.push_back(CloseEffect{.rank = r, .connection = member.connection});
    member = Member{};
  }
  if (now - created_ > options_.join_timeout) {
    Fail(absl::DeadlineExceededError(absl::StrCat("waited ",
                                                  absl::FormatDuration(options_.join_timeout),
                                                  " for ", MissingMembers(), " to join")),
         -1, effects);
  }
}

void Session::TickRunning(absl::Time now, Effects& effects) {
  for (int r = 0; r < options_.world_size && state_ == State::kRunning; ++r) {
    const Member& member = members_[Index(r)];
    if (member.state == MemberState::kLost && now - member.since > options_.resume_grace) {
      LoseMember(r, "its connection closed and did not resume", effects);
    } else if (member.state == MemberState::kConnected &&
               now - member.last_heard > options_.silence_timeout) {
      LoseMember(r,
                 absl::StrCat("nothing was heard from it for ",
                              absl::FormatDuration(options_.silence_timeout)),
                 effects);
    }
  }
  if (state_ != State::kRunning) return;
  const auto overdue = [&](const std::optional<absl::Time>& began) {
    return began && now - *began > options_.step_timeout;
  };
  if (overdue(step_began_) || overdue(collective_began_)) {
    Fail(absl::DeadlineExceededError(absl::StrCat("no result after ",
                                                  absl::FormatDuration(options_.step_timeout), ": ",
                                                  WaitingFor(now))),
         -1, effects);
  }
}

void Session::LoseMember(int rank, const std::string& why, Effects& effects) {
  const std::string where =
      step_began_ ? absl::StrCat("in step ", step_) : absl::StrCat("before step ", step_);
  Fail(absl::AbortedError(absl::StrCat("rank ", rank, " was lost ", where, ": ", why)), rank,
       effects);
  members_[Index(rank)].state = MemberState::kLost;
}

void Session::Violation(int rank, const absl::Status& status, Effects& effects) {
  Fail(absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message())), rank,
       effects);
}

void Session::Fail(const absl::Status& status, int blamed_rank, Effects& effects) {
  if (state_ == State::kFailed || state_ == State::kClosed) return;
  failure_ = absl::Status(
      status.code(), absl::StrCat("session \"", options_.name, "\" failed: ", status.message()));
  effects.push_back(
      LogEffect{.level = LogEffect::Level::kWarning, .message = std::string(failure_.message())});
  FanOut(wire::Failure{.code = static_cast<int>(failure_.code()),
                       .message = std::string(failure_.message()),
                       .blamed_rank = blamed_rank},
         nullptr, effects);
  state_ = State::kFailed;
  for (int r : ReachableRanks()) {
    effects.push_back(CloseEffect{.rank = r, .connection = members_[Index(r)].connection});
  }
  for (Member& member : members_) {
    if (member.state == MemberState::kConnected || member.state == MemberState::kJoined) {
      member.state = MemberState::kEnded;
    }
  }
  for (const auto& [key, bucket] : buckets_) {
    for (const Round& round : bucket.rounds) {
      for (const Chunk& chunk : round.chunks) {
        if (chunk.result != nullptr) unread_.push_back(chunk.result);
      }
    }
  }
  buckets_.clear();
  collectives_ = Collectives(options_.world_size, options_.chunk_bytes, options_.window_chunks);
}

std::vector<int> Session::ReachableRanks() const {
  std::vector<int> ranks;
  for (int r = 0; r < options_.world_size; ++r) {
    if (members_[Index(r)].state == MemberState::kConnected) ranks.push_back(r);
  }
  return ranks;
}

void Session::FanOut(wire::Header header, wire::PayloadRef payload, Effects& effects) const {
  effects.push_back(FanOutEffect{
      .ranks = ReachableRanks(),
      .frame = wire::Frame{.header = std::move(header), .payload = std::move(payload)}});
}

}  // namespace gradwire::server
