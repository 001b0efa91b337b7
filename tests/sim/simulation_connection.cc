// The simulation's members and their connections: opening a stream, heartbeats, the limit on the
// daemon's silence, and the tries to get through again after a stream has ended.
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/lanes.h"
#include "tests/sim/simulation.h"

namespace gradwire::sim {

void Simulation::Open(Process& process) {
  if (process.left || process.leaving || process.link != nullptr) return;
  if (!Awake(process, [this, &process] { Open(process); })) return;
  if (process.member->failed()) return;
  links_.push_back(std::make_unique<Link>());
  Link& link = *links_.back();
  link.id = links_.size();
  link.process = process.index;
  link.rank = process.rank;
  link.paired = scenario_.lanes && !process.in_place;
  link.up = Direction<wire::Frame>(link.paired);
  link.down = Direction<DownFrame>(link.paired);
  link.down.Begin(now_);
  link.limits.emplace(scenario_.queue);
  process.link = &link;
  SendUp(process, {.header = wire::Hello{
                       .token = {}, .start_id = process.start_id, .step = process.member->step()}});
  if (process.welcomed) {
    client::Effects effects;
    process.member->Resumed(effects);
    ApplyMember(process, std::move(effects));
  }
  Heartbeat(process);
  ListenUntil(process, link, now_ + scenario_.options.silence_timeout);
}

// As the client's timer does it. One that comes late shows that the process stood still: only the
// time that it did so is forgiven.
void Simulation::ListenUntil(Process& process, Link& link, absl::Time due) {
  const auto check = [this, &process, &link, due](const auto& self) -> void {
    if (process.link != &link || link.cut || process.deaf || process.member->failed()) return;
    if (process.leaving || !Awake(
                               process, [self] { self(self); }, true))
      return;
    if (now_ - due > absl::Seconds(wire::kStandstillSeconds)) {
      Note(Count::kPausesForgiven);
      link.down.ForgivePause(now_ - due, now_);
    }
    if (BulkIsSilent(link)) {
      Note(Count::kBulkLanesLost);
      return Cut(process, RandomOutage());
    }
    const absl::Duration limit = scenario_.options.silence_timeout;
    const std::optional<absl::Time> silent = link.down.SilentAt(wire::Lane::kMain, limit);
    if (!silent || now_ <= *silent) {
      const absl::Time next = silent.value_or(now_ + limit / 4);
      return ListenUntil(process, link, next + absl::Microseconds(1));
    }
    Note(Count::kDaemonsLost);
    if (!daemon_paused_long_) {
      checker_.Violate(absl::StrCat("rank ", process.rank, " took a live daemon for lost"));
    }
    process.lost_daemon = true;
    client::Effects effects;
    process.member->Fail(absl::UnavailableError("lost the daemon: nothing was heard"), effects);
    ApplyMember(process, std::move(effects));
  };
  At(
      due, [check] { check(check); }, true);
}

bool Simulation::BulkIsSilent(const Link& link) const {
  if (!link.paired) return false;
  const auto silent = link.down.SilentAt(wire::Lane::kBulk,
                                         wire::kBulkSilences * scenario_.options.silence_timeout);
  return silent && now_ > *silent;
}

void Simulation::Heartbeat(Process& process) {
  const Link* link = process.link;
  After(
      scenario_.options.silence_timeout / 5,
      [this, &process, link] {
        if (process.link != link || process.left || process.dead) return;
        if (Awake(
                process,
                [this, &process, link] {
                  if (process.link == link) Heartbeat(process);
                },
                true)) {
          SendUp(process, {.header = wire::Heartbeat{}});
          Heartbeat(process);
        }
      },
      true);
}

void Simulation::OnStreamEnd(Process& process, Link& link) {
  if (process.link != &link || process.dead) return;
  process.link = nullptr;
  if (process.leaving || process.left || process.member->failed()) return;
  OnConnectionLost(process);
}

void Simulation::OnConnectionLost(Process& process) {
  process.reconnect->OnLost(now_);
  At(process.reconnect->next_try(), [this, &process] { TryAgain(process); });
}

void Simulation::TryAgain(Process& process) {
  if (process.left || process.leaving || process.dead || process.link != nullptr) return;
  if (!Awake(process, [this, &process] { TryAgain(process); })) return;
  if (process.member->failed()) return;
  if (now_ >= process.reconnect->gives_up_at()) {
    Note(Count::kDaemonsGivenUp);
    process.lost_daemon = true;
    client::Effects effects;
    process.member->Fail(absl::UnavailableError("lost the daemon: no stream opens"), effects);
    return ApplyMember(process, std::move(effects));
  }
  if (now_ >= process.unreachable_until) return Open(process);
  Note(Count::kFailedTries);
  After(NetworkDelay(), [this, &process] {
    if (!process.left && !process.leaving && !process.member->failed()) OnConnectionLost(process);
  });
}

void Simulation::OnRefused(Process& process, const absl::Status& status) {
  process.link = nullptr;
  if (absl::StrContains(status.message(), "join again") && !process.welcomed) {
    Note(Count::kTokensExpired);
    return AskToJoin(process);
  }
  client::Effects effects;
  process.member->Fail(status, effects);
  ApplyMember(process, std::move(effects));
}

}  // namespace gradwire::sim
