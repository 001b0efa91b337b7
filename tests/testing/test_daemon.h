// The daemon inside the test's process, on a unix socket in a private folder.
#pragma once

#include <memory>
#include <string>

#include "server/daemon/options.h"
#include "server/daemon/server.h"
#include "tests/testing/process.h"

namespace gradwire::testing {

class TestDaemon {
 public:
  // `options.listen` is replaced.
  explicit TestDaemon(server::ServerOptions options = {});

  std::string address() const { return "unix:" + socket(); }
  std::string socket() const { return folder_ / "daemon.sock"; }
  // A name in the private folder.
  std::string Path(const std::string& name) const { return folder_ / name; }

  server::Server& server() { return *server_; }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<server::Server> server_;
};

}  // namespace gradwire::testing
