// The yardstick: a plain gRPC stream of byte buffers that comes back as it went, with the channel
// settings that Gradwire uses and nothing of Gradwire in it.
#pragma once

#include <cstddef>
#include <string>

namespace gradwire::bench {

// Serves until standard input ends. Prints the address that it listens on, then nothing.
int ServeEcho(const std::string& listen);

// For each line on standard input sends `bytes` in messages of `message_bytes`, `in_flight` at a
// time, copies what comes back into a buffer, and prints a line when all of it is there.
int RunEchoClient(const std::string& address, std::size_t bytes, std::size_t message_bytes,
                  std::size_t in_flight);

}  // namespace gradwire::bench
