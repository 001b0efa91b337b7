#include "server/net/peer_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace gradwire::server {
namespace {

std::string Text(const std::string& grpc_peer) {
  const auto peer = ParsePeer(grpc_peer);
  return peer ? ToText(*peer) : "none";
}

TEST(PeerAddressTest, ReadsWhatGrpcWrites) {
  EXPECT_EQ(Text("ipv4:10.0.0.5:41234"), "10.0.0.5:41234");
  EXPECT_EQ(Text("ipv6:%5B::1%5D:41234"), "[::1]:41234");
  EXPECT_EQ(Text("ipv6:[2001:db8::7]:1"), "[2001:db8::7]:1");
  EXPECT_EQ(Text("ipv6:%5Bfe80::1%25eth0%5D:80"), "[fe80::1]:80");
}

TEST(PeerAddressTest, OtherTextsAreNoAddress) {
  for (const char* text :
       {"", ":", "ipv4:", "ipv4:1.2.3:5", "ipv4:1.2.3.4:65536", "ipv4:1.2.3.4:-1", "ipv4:1.2.3.4",
        "ipv6:%5B::1:41234:x", "unix:/tmp/socket", "unix:"}) {
    EXPECT_EQ(Text(text), "none") << text;
  }
}

TEST(PeerAddressTest, AMappedAddressIsTheSameAsIpv4) {
  EXPECT_EQ(ParsePeer("ipv6:[::ffff:10.0.0.5]:7"), ParsePeer("ipv4:10.0.0.5:7"));
}

// A socket that is connected to itself knows its peer.
TEST(PeerAddressTest, AsksTheKernel) {
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(29610);
  EXPECT_FALSE(PeerOf(fd.get()).has_value());
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(PeerOf(fd.get()), ParsePeer("ipv4:127.0.0.1:29610"));

  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_FALSE(PeerOf(pair[0]).has_value());
  close(pair[0]);
  close(pair[1]);
}

}  // namespace
}  // namespace gradwire::server
