#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/client.h"
#include "proto/tls/access_token.h"
#include "proto/tls/pem.h"

namespace gradwire {

// Fills empty texts from the environment: `address` from GRADWIRE_ADDRESS, `tls.ca` from
// GRADWIRE_TLS_CA, and session, tls.cert, tls.key, token_file, cuda_library, nccl_library and
// node_group in the same way. Where both are not set, local_rank and local_world_size come from
// LOCAL_RANK and LOCAL_WORLD_SIZE, if these are numbers that fit the rank and the world size: other
// launchers may count otherwise.
ClientOptions WithEnvironment(ClientOptions options);

// The ranks on the member's node.
struct NodeRanks {
  int first = 0;
  int members = 0;
};
// nullopt: they are not known, because the rank or the place on the node is not.
std::optional<NodeRanks> NodeOf(const ClientOptions& options);

tls::Files TlsFiles(const ClientOptions& options);
// With the variable GRADWIRE_TOKEN.
tls::TokenSource TokenOf(const ClientOptions& options);

// What Client::SetDrawPlan takes, from a member of this rank whose model has so many parameters:
// FailedPrecondition for a rank other than 0, InvalidArgument for buckets that are no plan.
absl::Status CheckDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets, int rank,
                           std::size_t parameters);

// Hands a line about a wait to `on_wait`, or, where that is empty, writes it to standard error.
void SayWait(const std::function<void(const std::string& line)>& on_wait, const std::string& line);

}  // namespace gradwire
