#pragma once

#include <string>
#include <vector>

namespace gradwire::bench {

// Two network namespaces with a pair of veth devices between them, each of which sends no faster
// than the rate. They go when the process ends. Needs root, ip and tc.
class LimitedLink {
 public:
  // `rate` as tc takes it, such as 1gbit.
  explicit LimitedLink(const std::string& rate);

  // Why there is no link; empty when there is.
  const std::string& problem() const { return problem_; }
  std::string server_address() const { return "192.0.2.2"; }
  // Before a command, to run it at one end.
  std::vector<std::string> AtServer() const { return {"ip", "netns", "exec", server_}; }
  std::vector<std::string> AtClient() const { return {"ip", "netns", "exec", client_}; }

 private:
  bool SetUp(const std::string& space, const std::string& address, const std::string& rate) const;

  std::string server_;
  std::string client_;
  std::string problem_;
};

}  // namespace gradwire::bench
