#include "tests/testing/memory_offers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

namespace gradwire::testing {
namespace {

constexpr const char* kName = "offered-by-a-test";
constexpr std::chrono::seconds kAnswerTimeout(10);

}  // namespace

UniqueFd SealedFd(std::size_t bytes) {
  UniqueFd fd(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  return fd;
}

UniqueFd ConnectTo(const std::string& path) {
  UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  std::memcpy(where.sun_path, path.c_str(), path.size() + 1);
  EXPECT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  return connection;
}

wire::MemoryReply OfferMemory(const std::string& socket, const std::string& token,
                              std::uint64_t start_id, UniqueFd segment, std::uint64_t attachment) {
  return OfferMemoryOver(ConnectTo(socket), token, start_id, std::move(segment), attachment);
}

wire::MemoryReply OfferMemoryOver(const UniqueFd& connection, const std::string& token,
                                  std::uint64_t start_id, UniqueFd segment,
                                  std::uint64_t attachment) {
  const absl::Status sent =
      wire::SendMemoryRequest(connection.get(), {.token = token,
                                                 .start_id = start_id,
                                                 .attachment = attachment,
                                                 .segment = std::move(segment)});
  EXPECT_TRUE(sent.ok()) << sent;
  auto reply =
      wire::ReceiveMemoryReply(connection.get(), std::chrono::steady_clock::now() + kAnswerTimeout);
  EXPECT_TRUE(reply.ok()) << reply.status();
  if (!reply.ok()) return {.status = reply.status()};
  return *std::move(reply);
}

std::size_t MappedOffers() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(kName) != std::string::npos) ++count;
  }
  return count;
}

}  // namespace gradwire::testing
