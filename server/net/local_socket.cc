#include "server/net/local_socket.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "server/net/listener.h"

namespace gradwire::server {
namespace {

// Members have other working directories.
std::string PathOf(const std::string& address) {
  std::string path = address.substr(sizeof "unix:" - 1);
  if (path.rfind("///", 0) == 0) path.erase(0, 2);
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? "" : absolute.lexically_normal().string();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LocalSocket>> LocalSocket::Of(
    const std::vector<std::string>& addresses) {
  const auto found = std::find_if(addresses.begin(), addresses.end(), IsUnixAddress);
  std::string path = found == addresses.end() ? "" : PathOf(*found);
  if (path.empty()) return nullptr;
  absl::StatusOr<wire::ProofSecret> secret = wire::ProofSecret::Draw();
  if (!secret.ok()) return secret.status();
  return std::make_shared<const LocalSocket>(
      LocalSocket{.path = std::move(path), .secret = *std::move(secret)});
}

}  // namespace gradwire::server
