// The building blocks of the ladder and of the sweep.
#pragma once

#include <cstddef>
#include <string>

#include "tests/bench/ladder/compare.h"

namespace gradwire::bench {

// `what` begins with "one way" or "duplex".
Case CopyCase(const std::string& what, std::size_t block, std::size_t threads);
Case RawCase(const std::string& rung, const std::string& transport, bool duplex);
Case GrpcCase(const std::string& rung, const std::string& transport, const std::string& api,
              bool duplex);
// The hand-written aggregator: rounds of `bytes` per member.
Case AggregatorCase(const std::string& transport, std::size_t members, int send_buffer);
Case TinyAggregatorCase(std::size_t members);
// Each member's messages come back by themselves: nobody waits for the others.
Case TinyGrpcCase(std::size_t members);

// Of the server and the client.
template <typename Change>
Case Both(Case of, Change&& change) {
  change(of.server);
  change(of.client);
  return of;
}

}  // namespace gradwire::bench
