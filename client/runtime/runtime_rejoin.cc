// After the loss of the daemon: a report to the next one, and the way back into the session.
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/core/leaf_weight.h"
#include "client/options.h"
#include "client/runtime/runtime.h"
#include "client/transport/address_watch.h"
#include "client/transport/rejoin.h"
#include "proto/tls/access_token.h"

namespace gradwire::client {

namespace {

// Most daemons come back at once.
constexpr std::chrono::seconds kSilentAway(2);
// A stream that breaks is mostly there again before.
constexpr std::chrono::seconds kUntilLookup(1);

}  // namespace

// Here, where Rejoin is known.
Runtime::~Runtime() = default;

void Runtime::Outlive(const wire::Recovery& recovery) {
  coordinator_grace_ = std::chrono::milliseconds(recovery.grace_milliseconds);
  connection_->SetGrace(coordinator_grace_);
}

void Runtime::Tell(const std::optional<wire::MembershipChange>& change,
                   const std::vector<int>& ranks, const std::string& skip_reason,
                   const std::string& drift) {
  MutexLock lock(shared_mutex_);
  skip_reason_ = skip_reason;
  drift_ = drift;
  if (!ranks.empty()) ranks_now_ = ranks;
  change_.reset();
  unhealed_.reset();
  if (change) {
    change_ = {.newcomers = change->newcomers, .root = change->root, .members = ranks_now_};
    // Broadcasts are shard 0's.
    if (!change->newcomers.empty() && leads_) unhealed_ = change_;
  } else if (!ranks.empty()) {
    change_ = {.newcomers = {}, .root = ranks.front(), .members = ranks};
  }
}

std::vector<int> Runtime::members() const {
  MutexLock lock(shared_mutex_);
  return ranks_now_;
}

std::optional<MembershipChange> Runtime::membership_change() const {
  MutexLock lock(shared_mutex_);
  return change_;
}

std::string Runtime::skip_reason() const {
  MutexLock lock(shared_mutex_);
  return skip_reason_;
}

std::string Runtime::parameter_drift() const {
  MutexLock lock(shared_mutex_);
  return drift_;
}

// Gradients may have waited for it (HoldGradients).
void Runtime::TakeWeight() {
  device_.Release();
  if (options_.hook.comm_hook == "noop") return;
  const std::uint32_t groups = member_.leaf_groups();
  weight_ = groups > 0 ? LeafWeight(ranks_, groups, member_.members()) : 1;
  if (weight() == 1 || !device_.on_gpu()) return;
  hook_error_ =
      Coded(ErrorCode::kLeaf,
            absl::UnimplementedError(
                "this member has a GPU, and a session with leaf daemons of unequal size; allowed: "
                "gradients on the CPU, or as many ranks behind each leaf"));
}

// Gradients of the next step have another weight if a leaf is lost and the next daemon does not
// wait for it, and members hear of the end of a step before they hear of that.
void Runtime::HoldGradients() {
  if (member_.outlives_daemon() && !member_.grouped() && shards_ == 1) device_.Hold();
}

// All shards are left together: shard 0 speaks for them.
Runtime::Away Runtime::WhereFrom() const {
  if (is_lost_) return leads_ ? Away::kLooks : Away::kQuiet;
  if (member_.awaits_welcome()) return leads_ ? Away::kWaits : Away::kQuiet;
  return connection_->lost() ? Away::kLooks : Away::kNot;
}

void Runtime::Say(const std::string& what) const {
  SayWait({},
          absl::StrCat("rank ", membership_.rank, " of session \"", options_.session, "\" ", what));
}

void Runtime::SayAway(Clock::time_point now) {
  if (!member_.outlives_daemon() || member_.failed() || left()) return;
  const Away away = WhereFrom();
  if (away == Away::kNot) {
    if (said_) Say(absl::StrCat("goes on with ", connection_->Daemon()));
    said_.reset();
    away_since_.reset();
    return;
  }
  if (!away_since_) away_since_ = now;
  if (away == Away::kQuiet || said_ == away || now < *away_since_ + kSilentAway) return;
  said_ = away;
  if (away == Away::kWaits) {
    return Say(absl::StrCat("is back at ", connection_->Daemon(), ", and waits for the others"));
  }
  const std::string lost =
      absl::StrCat("has lost ", connection_->Daemon(), " (", connection_->lost_because(),
                   "), and looks for it or the next one ");
  if (looks_to_leave_) return Say(absl::StrCat(lost, "before it leaves"));
  Say(absl::StrCat(lost, "for at most ",
                   absl::FormatDuration(absl::FromChrono(coordinator_grace_))));
}

// gRPC does not look addresses up that a name was resolved to: a daemon that comes back with
// another one answers on no stream.
void Runtime::Watch(Clock::time_point now) {
  const bool looks = wish_.lookup != nullptr && member_.outlives_daemon() && !member_.failed() &&
                     !leaving_ && !left() && !stopping_ && !is_lost_ && connection_->lost() &&
                     away_since_ && now >= *away_since_ + kUntilLookup;
  if (looks == is_watched_) return;
  is_watched_ = looks;
  if (!looks) return watch_->Stop();
  watch_ =
      std::make_unique<AddressWatch>(wish_.lookup, wish_.shard.number, [this, number = ++watches_] {
        events_->Push(CallEvent{[this, number] { OnMoved(number); }});
      });
}

// Nothing more may come from the address where it was.
void Runtime::OnMoved(std::uint64_t number) {
  const bool is_over = stopping_ || left() || member_.failed();
  if (!is_watched_ || number != watches_ || is_lost_ || is_over) return;
  connection_->Close(Clock::now());
  connection_->CheckTimers(Clock::now()).IgnoreError();
  OnLost();
}

// A daemon that does not know the token is another one: this one's own forgets no session that
// runs. While members gather, the next one may have given up this one's place, or the session.
bool Runtime::MayRejoin(const absl::Status& answer) const {
  if (!member_.outlives_daemon() || member_.failed() || leaving_) return false;
  const auto code = FindCode(std::string(answer.message()));
  if (absl::IsNotFound(answer)) return code == ErrorCode::kResume;
  return member_.awaits_welcome() &&
         (code == ErrorCode::kNotAMember || code == ErrorCode::kEndedBeforeStart);
}

void Runtime::OnEnded(const absl::Status& status) {
  if (MayRejoin(status)) return OnLost();
  if (MayJoinAgain(status)) return JoinAgain();
  // The daemon has let it go, and it has not heard of that.
  const bool has_left = FindCode(std::string(status.message())) == ErrorCode::kNotAMember;
  if (looks_to_leave_ && has_left) {
    Left();
    return;
  }
  Fail(member_.awaits_welcome() ? member_.WithOutcome(status) : status);
}

// With several daemons the others would still hold this member's places: its join fails.
bool Runtime::MayJoinAgain(const absl::Status& lost) const {
  if (welcomed_ || leaving_ || stopping_ || member_.failed() || shards_ > 1) return false;
  const bool is_another =
      absl::IsNotFound(lost) && FindCode(std::string(lost.message())) == ErrorCode::kResume;
  return (absl::IsUnavailable(lost) || is_another) && Clock::now() < join_deadline_;
}

void Runtime::JoinAgain() {
  is_lost_ = true;
  Say(absl::StrCat("has lost ", connection_->Daemon(),
                   " before the session began, and joins again"));
  BeginRejoin(std::nullopt);
}

void Runtime::OnLost(std::optional<std::uint64_t> asked) {
  is_lost_ = true;
  HoldGradients();
  if (!away_since_) away_since_ = Clock::now();
  if (shards_ == 1) return BeginRejoin(member_.Report());
  ShardLoss loss{.asked = asked};
  if (member_.outlives_daemon()) loss.report = member_.Report();
  if (link_.lost) link_.lost(loss);
}

// The report holds until a daemon has taken it: without a daemon no result comes.
void Runtime::BeginRejoin(std::optional<wire::MemberReport> report) {
  ClientOptions options = options_;
  options.address = given_address_;
  options.rank = membership_.rank;
  JoinWish wish = wish_;
  wish.report = std::move(report);
  rejoin_deadline_ = join_deadline_;
  if (wish.report) {
    wish.report->chunk_bytes = membership_.chunk_bytes;
    wish.report->window_chunks = membership_.window_chunks;
    wish.report->eager_bytes = membership_.eager_bytes;
    // Anew after each daemon that took the report: the members may gather for longer than that.
    rejoin_deadline_ = Clock::now() + coordinator_grace_;
  }
  rejoin_ = std::make_unique<Rejoin>(
      std::move(options), std::move(wish), start_id_, rejoin_deadline_,
      [this, number = ++tries_](absl::StatusOr<Rejoined> place) {
        auto shared = std::make_shared<absl::StatusOr<Rejoined>>(std::move(place));
        // Heavy: OnRejoined waits for the thread that pushes this.
        events_->Push(
            CallEvent{.call = [this, number, shared] { OnRejoined(number, std::move(*shared)); },
                      .heavy = true});
      });
}

void Runtime::OnRejoined(std::uint64_t number, absl::StatusOr<Rejoined> place) {
  if (number != tries_) return;  // it was given up
  rejoin_.reset();
  if (stopping_ || left() || member_.failed()) return;
  absl::Status taken = place.ok() ? CheckSameSettings(place->joined.membership) : place.status();
  if (!taken.ok()) {
    return Fail(member_.WithOutcome(absl::Status(
        taken.code(),
        absl::StrCat("rank ", membership_.rank, " lost its daemon ",
                     welcomed_ ? absl::StrCat("in step ", member_.step()) : "before the first step",
                     ", and could not go on with the next one: ", taken.message()))));
  }
  Joined& joined = place->joined;
  membership_ = joined.membership;
  options_.address = place->address;
  dialer_ = std::move(joined.dialer);
  sends_digests_ = !tls::IsThisHost(options_.address) && !dialer_.encrypts();
  {
    MutexLock lock(shared_mutex_);
    channel_ = joined.channel;
    access_token_ = dialer_.access_token();
    token_ = membership_.token;
    ++metrics_.rejoins;
  }
  connection_ = std::make_unique<DaemonConnection>(options_.address, membership_, start_id_,
                                                   events_, poller_);
  if (member_.outlives_daemon()) connection_->SetGrace(coordinator_grace_);
  is_lost_ = false;
  Effects effects;
  member_.Rejoined(membership_.generation, effects);
  Apply(std::move(effects));
  OpenStream(channel());
}

// Buckets are cut into chunks already.
absl::Status Runtime::CheckSameSettings(const JoinResult& membership) const {
  const auto check = [](const char* name, std::size_t now, std::size_t before) {
    if (now == before) return absl::OkStatus();
    return Coded(ErrorCode::kResume,
                 absl::FailedPreconditionError(absl::StrCat("its ", name, " is ", now,
                                                            "; allowed: ", before, ", as before")));
  };
  // It would say that it is in step 0, as if this member had not been there. The session's own
  // daemon, which has not lost it, does not gather.
  if (welcomed_ && !membership.gathers && membership.lineage != member_.lineage()) {
    return Coded(ErrorCode::kResume, absl::FailedPreconditionError(
                                         "it has begun the session anew; allowed: a daemon of "
                                         "this version or a later one, which takes reports"));
  }
  absl::Status same = check("chunk_bytes", membership.chunk_bytes, membership_.chunk_bytes);
  if (same.ok()) {
    same = check("window_chunks", membership.window_chunks, membership_.window_chunks);
  }
  if (same.ok()) same = check("eager_bytes", membership.eager_bytes, membership_.eager_bytes);
  if (same.ok()) same = check("ledger_rows", membership.ledger_rows, membership_.ledger_rows);
  if (!same.ok() || membership.leaf == membership_.leaf) return same;
  return Coded(ErrorCode::kResume,
               absl::FailedPreconditionError("it is a leaf daemon; allowed: one like the last"));
}

}  // namespace gradwire::client
