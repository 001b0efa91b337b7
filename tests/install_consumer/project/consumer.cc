// A user's program: includes public headers only and links everything behind them.
#include <cstdlib>
#include <iostream>

#include "gradwire/client.h"
#include "gradwire/hooks/hook_spec.h"

int main() {
  const auto hook = gradwire::HookSpec::Parse("fp16");
  if (!hook.ok()) {
    std::cerr << hook.status() << "\n";
    return EXIT_FAILURE;
  }
  std::cout << "hook " << hook->ToString() << "\n";

  // No daemon listens here: the call must come back with an error, not hang or succeed.
  gradwire::ClientOptions options;
  options.address = "unix:/nonexistent/gradwired.sock";
  options.session = "consumer";
  options.world_size = 1;
  options.rank = 0;
  options.hook = *hook;
  options.parameters.push_back({.name = "weight", .shape = {2, 2}});
  options.connect_timeout = absl::Seconds(1);
  options.join_timeout = absl::Seconds(2);
  const auto client = gradwire::Client::Join(options);
  std::cout << "join: " << client.status() << "\n";
  return client.ok() ? EXIT_FAILURE : EXIT_SUCCESS;
}
