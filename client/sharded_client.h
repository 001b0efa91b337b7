// The SDK's client of a session with several daemons.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/member_client.h"
#include "gradwire/client.h"
#include "hooks/shard_map.h"

namespace gradwire {
class ClientImpl;
}  // namespace gradwire

namespace gradwire::client {

class GradientMemory;
class ShardExchange;

// By shard, where there are several.
struct ShardedParts {
  ClientOptions options;
  std::vector<std::string> addresses;
  std::shared_ptr<const ShardMap> map;
  std::shared_ptr<const GradientMemory> gradients;
  std::unique_ptr<ShardExchange> exchange;
  std::vector<std::unique_ptr<ClientImpl>> shards;
  // Of shard 0, if it has been started: a newcomer joins the others later.
  std::shared_ptr<Outcome> lead_started = {};
};

std::unique_ptr<MemberClient> MakeShardedClient(ShardedParts parts);

}  // namespace gradwire::client
