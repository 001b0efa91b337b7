#include "tests/bench/ladder/limited_link.h"

#include <unistd.h>

#include "tests/bench/ladder/leftovers.h"

namespace gradwire::bench {
namespace {

constexpr const char* kDevice = "veth0";  // in both namespaces

}  // namespace

LimitedLink::LimitedLink(const std::string& rate)
    : server_("gradwire-bench-s" + std::to_string(getpid())),
      client_("gradwire-bench-c" + std::to_string(getpid())) {
  if (geteuid() != 0) {
    problem_ = "only root can make network namespaces";
    return;
  }
  for (const std::string& space : {server_, client_}) {
    if (!RunCommand({"ip", "netns", "add", space})) {
      problem_ = "ip netns makes no namespace";
      return;
    }
    AtExit([space] { RunCommand({"ip", "netns", "del", space}); });
  }
  if (!RunCommand({"ip", "link", "add", kDevice, "netns", server_, "type", "veth", "peer", "name",
                   kDevice, "netns", client_})) {
    problem_ = "ip link makes no veth devices";
  } else if (!SetUp(server_, server_address(), rate) || !SetUp(client_, "192.0.2.1", rate)) {
    problem_ = "tc does not limit the rate with tbf";
  }
}

bool LimitedLink::SetUp(const std::string& space, const std::string& address,
                        const std::string& rate) const {
  return RunCommand({"ip", "-n", space, "address", "add", address + "/30", "dev", kDevice}) &&
         RunCommand({"ip", "-n", space, "link", "set", kDevice, "up"}) &&
         RunCommand({"tc", "-n", space, "qdisc", "add", "dev", kDevice, "root", "tbf", "rate", rate,
                     "burst", "256kb", "latency", "20ms"});
}

}  // namespace gradwire::bench
