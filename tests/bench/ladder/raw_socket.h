// TCP and unix sockets for the rungs without gRPC. Failures end the process with a message, as does
// a wait of five minutes: longer than the others' turns. A run that hangs is the parent's to
// notice.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace gradwire::bench {

constexpr int kSocketTimeoutMs = 300'000;

[[noreturn]] void SocketDies(const std::string& what);

// Listens on 127.0.0.1:0 or unix:PATH, prints the address, and accepts so many connections.
// send_buffer 0 leaves the system's.
std::vector<UniqueFd> AcceptAll(const std::string& listen, std::size_t count, int send_buffer);
UniqueFd ConnectTo(const std::string& address, int send_buffer);

void SendAll(int fd, std::span<const std::byte> bytes);
void ReceiveAll(int fd, std::span<std::byte> bytes);
// Bytes moved now, 0 when there is nothing to move. A closed connection ends the process.
std::size_t SendSome(int fd, std::span<const std::byte> bytes);
std::size_t ReceiveSome(int fd, std::span<std::byte> bytes);

}  // namespace gradwire::bench
