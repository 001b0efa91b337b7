#include "tests/testing/test_daemon.h"

#include <stdexcept>
#include <utility>

namespace gradwire::testing {

TestDaemon::TestDaemon(server::ServerOptions options) {
  options.listen = {address()};
  auto server = server::Server::Start(options);
  if (!server.ok()) throw std::runtime_error(server.status().ToString());
  server_ = *std::move(server);
}

}  // namespace gradwire::testing
