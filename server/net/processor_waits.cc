#include "server/net/processor_waits.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace gradwire::server {

std::chrono::nanoseconds ProcessorWaits::Longest() {
  std::map<std::string, std::int64_t> waited;
  std::int64_t longest = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator task(tasks_, error), end; !error && task != end;
       task.increment(error)) {
    // Of a thread that ends meanwhile, there is nothing to read.
    std::ifstream file(task->path() / "schedstat");
    std::int64_t ran = 0;
    std::int64_t waits = 0;
    if (!(file >> ran >> waits)) continue;
    const std::string thread = task->path().filename();
    const auto before = waited_.find(thread);
    longest = std::max(longest, waits - (before == waited_.end() ? 0 : before->second));
    waited.emplace(thread, waits);
  }
  const bool first = waited_.empty();
  waited_ = std::move(waited);
  return std::chrono::nanoseconds(first ? 0 : longest);
}

}  // namespace gradwire::server
