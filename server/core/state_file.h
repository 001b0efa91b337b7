// A member's copy of the hook's state, or a part of it, as it has sent it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace gradwire::server {

struct StateFile {
  int rank = 0;  // who has sent it
  std::shared_ptr<const std::vector<std::byte>> bytes{};
};

}  // namespace gradwire::server
