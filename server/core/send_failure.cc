#include "server/core/send_failure.h"

#include <string>
#include <vector>

#include "server/core/membership.h"

namespace gradwire::server {

void SendFailure(const absl::Status& failure, int blamed_rank, const Membership& membership,
                 Effects& effects) {
  const std::string message(failure.message());
  effects.push_back(
      LogEffect{.level = LogEffect::Level::kWarning, .message = message, .rank = blamed_rank});
  const std::vector<int> ranks = membership.Reachable();
  effects.push_back(
      FanOutEffect{.ranks = ranks,
                   .frame = {.header = wire::Failure{.code = static_cast<int>(failure.code()),
                                                     .message = message,
                                                     .blamed_rank = blamed_rank}}});
  for (const int r : ranks) {
    effects.push_back(CloseEffect{.rank = r, .connection = membership.connection(r)});
  }
}

}  // namespace gradwire::server
