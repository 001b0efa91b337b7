#include "gradwire/client.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/addresses.h"
#include "client/client_impl.h"
#include "client/member_client.h"
#include "client/options.h"
#include "client/runtime/join.h"
#include "client/shard_places.h"
#include "client/transport/dns.h"
#include "proto/wire/digest.h"

namespace gradwire {
namespace {

// What the daemon's address was resolved from.
absl::Status InName(const client::Daemons& daemons, const absl::Status& status) {
  if (daemons.host.empty() || daemons.addresses.size() > 1) return status;
  return absl::Status(status.code(), absl::StrCat(NameOf(daemons, 0), ": ", status.message()));
}

absl::Status StartAndWait(client::MemberClient& placed, const ClientOptions& options) {
  const std::shared_ptr<client::Outcome> outcome = placed.Start();
  outcome->WaitUntil(std::chrono::steady_clock::now() + client::kSilentWaitForMembers)
      .IgnoreError();
  if (!outcome->done()) {
    SayWait(options.on_wait, client::WaitsForMembers(placed.rank(), options));
  }
  return outcome->Wait();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Join(const ClientOptions& options) {
  const auto say = [&options](const std::string& line) {
    const std::string who = options.rank < 0 ? "a member" : absl::StrCat("rank ", options.rank);
    SayWait(options.on_wait, absl::StrCat(who, " ", line));
  };
  return client::JoinThrough(options, client::SystemDns(options.connect_timeout, say));
}

absl::StatusOr<std::unique_ptr<Client>> client::JoinThrough(const ClientOptions& options,
                                                            const Dns& dns) {
  if (absl::Status valid = options.Validate(); !valid.ok()) {
    return Coded(ErrorCode::kOption, valid);
  }
  ClientOptions effective = WithEnvironment(options);
  const absl::StatusOr<Daemons> daemons = Resolve(effective.address, dns);
  if (!daemons.ok()) {
    return Coded(ErrorCode::kJoin,
                 absl::Status(daemons.status().code(),
                              absl::StrCat("could not join through ", effective.address, " within ",
                                           absl::FormatDuration(options.connect_timeout), ": ",
                                           daemons.status().message())));
  }
  auto placed = Place(effective, *daemons);
  if (!placed.ok()) return Coded(ErrorCode::kJoin, placed.status());
  if (absl::Status started = StartAndWait(**placed, effective); !started.ok()) {
    return Coded(ErrorCode::kJoin, InName(*daemons, started));
  }
  return *std::move(placed);
}

std::uint64_t client::DrawStartId() {
  std::random_device device;
  std::uniform_int_distribution<std::uint64_t> any(1);
  return any(device);
}

std::string client::WaitsForMembers(int rank, const ClientOptions& options) {
  return absl::StrCat("rank ", rank, " waits up to ", absl::FormatDuration(options.join_timeout),
                      " for all ", options.world_size, " members of session \"", options.session,
                      "\" to join; gradwirectl status names the missing ones");
}

absl::StatusOr<std::unique_ptr<client::MemberClient>> client::PlaceAt(ClientOptions effective,
                                                                      client::MemberHook hook,
                                                                      const Daemons& daemons,
                                                                      const Leaf& leaf) {
  const std::uint64_t start_id = DrawStartId();
  JoinWish wish{.leaf = leaf.wish, .host = daemons.host, .lookup = daemons.lookup};
  if (hook.communicators != nullptr) {
    wish.group = {.name = hook.node_group, .communicator = hook.communicators->name()};
  }
  absl::StatusOr<Joined> place = JoinNearest(effective, wish, start_id);
  if (!place.ok()) return place.status();
  if (place->membership.leaf) {
    if (absl::Status given = GiveHookToLeaf(effective, hook); !given.ok()) return given;
  }
  KeepAccount(place->membership.ledger_rows, effective, hook);
  // Removed from the options, because the function may refer to objects that live only until Join
  // returns.
  effective.on_wait = nullptr;
  ShardPlace alone;
  if (leaf.wish.ranks > 0) {
    alone.ranks = leaf.wish.ranks;
    alone.link.failed = [failed = leaf.failed](const FailedEffect& effect) {
      failed(effect.status, effect.blamed_rank);
    };
  }
  return std::make_unique<ClientImpl>(std::move(effective), *std::move(place), start_id,
                                      std::move(hook), std::move(alone));
}

absl::StatusOr<std::unique_ptr<Client>> client::JoinWith(ClientOptions effective,
                                                         client::MemberHook hook) {
  const ClientOptions options = effective;
  auto placed = PlaceAt(std::move(effective), std::move(hook), {}, {});
  if (!placed.ok()) return placed.status();
  if (absl::Status started = StartAndWait(**placed, options); !started.ok()) return started;
  return *std::move(placed);
}

absl::StatusOr<std::unique_ptr<client::MemberClient>> client::Place(const ClientOptions& options,
                                                                    const Daemons& daemons,
                                                                    const Leaf& leaf) {
  if (daemons.addresses.size() > 1) return PlaceAtShards(options, daemons, leaf);
  ClientOptions own = options;
  own.address = daemons.addresses.front();
  absl::StatusOr<MemberHook> hook = MakeMemberHook(own);
  if (!hook.ok()) return Coded(ErrorCode::kOption, hook.status());
  auto placed = PlaceAt(std::move(own), *std::move(hook), daemons, leaf);
  if (!placed.ok()) return InName(daemons, placed.status());
  return placed;
}

absl::StatusOr<std::unique_ptr<client::MemberClient>> client::PlaceLeaf(
    const ClientOptions& options, const Leaf& leaf) {
  const auto say = [&options](const std::string& line) {
    SayWait(options.on_wait, absl::StrCat("the leaf ", line));
  };
  const absl::StatusOr<Daemons> daemons =
      Resolve(options.address, SystemDns(options.connect_timeout, say));
  if (!daemons.ok()) return Coded(ErrorCode::kJoin, daemons.status());
  auto placed = Place(options, *daemons, leaf);
  if (!placed.ok()) return Coded(ErrorCode::kJoin, placed.status());
  return placed;
}

std::uint64_t ParameterDigest(const std::vector<std::span<const std::byte>>& parameters) {
  wire::Digester digester;
  for (const std::span<const std::byte> one : parameters) digester.Update(one);
  return digester.Finish();
}

}  // namespace gradwire
