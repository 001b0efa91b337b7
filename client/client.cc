#include "gradwire/client.h"

#include <chrono>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/addresses.h"
#include "client/client_impl.h"
#include "client/options.h"
#include "client/runtime/join.h"
#include "client/sharded_client.h"
#include "client/transport/dns.h"

namespace gradwire {

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
  if (daemons->addresses.size() > 1) {
    return Coded(ErrorCode::kJoin, JoinShards(std::move(effective), *daemons));
  }
  effective.address = daemons->addresses.front();
  absl::StatusOr<MemberHook> hook = MakeMemberHook(effective);
  if (!hook.ok()) return Coded(ErrorCode::kOption, hook.status());
  auto joined = JoinWith(std::move(effective), *std::move(hook), daemons->host);
  if (!joined.ok() && !daemons->host.empty()) {
    return Coded(ErrorCode::kJoin,
                 absl::Status(joined.status().code(),
                              absl::StrCat(NameOf(*daemons, 0), ": ", joined.status().message())));
  }
  return Coded(ErrorCode::kJoin, std::move(joined));
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

absl::StatusOr<std::unique_ptr<Client>> client::JoinWith(ClientOptions effective,
                                                         client::MemberHook hook,
                                                         std::string host) {
  const std::uint64_t start_id = DrawStartId();
  client::JoinWish wish;
  wish.host = std::move(host);
  if (hook.communicators != nullptr) {
    wish.group = {.name = hook.node_group, .communicator = hook.communicators->name()};
  }
  absl::StatusOr<client::Joined> place = client::JoinNearest(effective, wish, start_id);
  if (!place.ok()) return place.status();
  const std::string waiting = client::WaitsForMembers(place->membership.rank, effective);
  // Removed from the options, because the function may refer to objects that live only until Join
  // returns.
  const auto on_wait = std::exchange(effective.on_wait, nullptr);
  auto joined = std::make_unique<ClientImpl>(std::move(effective), *std::move(place), start_id,
                                             std::move(hook));
  const std::shared_ptr<client::Outcome> outcome = joined->Start();
  outcome->WaitUntil(std::chrono::steady_clock::now() + client::kSilentWaitForMembers)
      .IgnoreError();
  if (!outcome->done()) SayWait(on_wait, waiting);
  if (absl::Status started = outcome->Wait(); !started.ok()) return started;
  return joined;
}

}  // namespace gradwire
