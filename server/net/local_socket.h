// The unix socket to which members on this host are invited when they join over TCP.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/local_proof.h"

namespace gradwire::server {

struct LocalSocket {
  std::string path;  // absolute
  wire::ProofSecret secret;

  // The first unix socket among the addresses; null: there is none. An error is getrandom's.
  static absl::StatusOr<std::shared_ptr<const LocalSocket>> Of(
      const std::vector<std::string>& addresses);
};

}  // namespace gradwire::server
