#include "gradwire/client.h"

#include <chrono>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/addresses.h"
#include "client/client_impl.h"
#include "client/options.h"
#include "client/runtime/join.h"
#include "client/sharded_client.h"

namespace gradwire {

absl::StatusOr<std::unique_ptr<Client>> Client::Join(const ClientOptions& options) {
  if (absl::Status valid = options.Validate(); !valid.ok()) {
    return Coded(ErrorCode::kOption, valid);
  }
  ClientOptions effective = WithEnvironment(options);
  std::vector<std::string> addresses = *client::AddressesOf(effective.address);  // valid
  if (addresses.size() > 1) {
    return Coded(ErrorCode::kJoin, client::JoinShards(std::move(effective), std::move(addresses)));
  }
  effective.address = std::move(addresses.front());
  absl::StatusOr<client::MemberHook> hook = client::MakeMemberHook(effective);
  if (!hook.ok()) return Coded(ErrorCode::kOption, hook.status());
  return Coded(ErrorCode::kJoin, client::JoinWith(std::move(effective), *std::move(hook)));
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
                                                         client::MemberHook hook) {
  const std::uint64_t start_id = DrawStartId();
  client::JoinWish wish;
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
