#include "server/net/address_rates.h"

#include <gtest/gtest.h>

#include <chrono>

namespace gradwire::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr AddressRateLimits kLimits = {.burst = 10,
                                       .per_second = 2,
                                       .first_pause = milliseconds(500),
                                       .longest_pause = milliseconds(1500),
                                       .trial = milliseconds(200),
                                       .forgotten_after = seconds(60),
                                       .burst_after_offence = 3,
                                       .addresses = 4};

PeerAddress Ipv4(unsigned char last, std::uint16_t port = 0) {
  PeerAddress peer = *ParsePeer("ipv4:10.0.0.0:0");
  peer.ip[15] = last;
  peer.port = port;
  return peer;
}

class AddressRatesTest : public ::testing::Test {
 protected:
  int TakeAll(const PeerAddress& from) {
    int taken = 0;
    while (rates.Take(from, now)) ++taken;
    return taken;
  }

  AddressRates rates{kLimits};
  AddressRates::Clock::time_point now{seconds(1000)};
  const PeerAddress a = Ipv4(1);
  const PeerAddress b = Ipv4(2);
};

TEST_F(AddressRatesTest, EachAddressHasABurstAndARate) {
  EXPECT_EQ(TakeAll(a), 10);
  EXPECT_EQ(TakeAll(b), 10);
  now += seconds(2);
  EXPECT_EQ(TakeAll(a), 4);
  now += seconds(3600);
  EXPECT_EQ(TakeAll(a), 10);
}

TEST_F(AddressRatesTest, APortIsNoAddressAndAnIpv6HostHasManyAddresses) {
  EXPECT_EQ(AddressRates::Origin(Ipv4(1, 5)), AddressRates::Origin(Ipv4(1, 6)));
  EXPECT_NE(AddressRates::Origin(Ipv4(1)), AddressRates::Origin(Ipv4(2)));
  const auto ipv6 = [](const char* text) { return AddressRates::Origin(*ParsePeer(text)); };
  EXPECT_EQ(ipv6("ipv6:[2001:db8:1:2::1]:7"), ipv6("ipv6:[2001:db8:1:2:ffff::2]:8"));
  EXPECT_NE(ipv6("ipv6:[2001:db8:1:2::1]:7"), ipv6("ipv6:[2001:db8:1:3::1]:7"));
}

TEST_F(AddressRatesTest, AfterAnOffenceOneIsOnTrial) {
  rates.OnOffence(a, now);
  EXPECT_EQ(TakeAll(b), 10) << "it is another address's offence";
  now += milliseconds(499);
  EXPECT_EQ(TakeAll(a), 0);
  now += milliseconds(1);
  EXPECT_EQ(TakeAll(a), 1);
  now += milliseconds(199);
  EXPECT_EQ(TakeAll(a), 0);
  now += milliseconds(1);
  EXPECT_EQ(TakeAll(a), 2) << "the rest of the smaller burst";
}

TEST_F(AddressRatesTest, PausesGrowUpToTheLongest) {
  for (const int pause_ms : {500, 1000, 1500, 1500}) {
    rates.OnOffence(a, now);
    rates.OnOffence(a, now + milliseconds(1));  // cut together with the first one
    now += milliseconds(pause_ms - 1);
    EXPECT_FALSE(rates.Take(a, now)) << pause_ms;
    now += milliseconds(1);
    EXPECT_TRUE(rates.Take(a, now)) << pause_ms;
  }
  now += seconds(61);
  EXPECT_EQ(TakeAll(a), 10) << "forgotten";
  rates.OnOffence(a, now);
  now += milliseconds(500);
  EXPECT_TRUE(rates.Take(a, now)) << "the first pause again";
}

TEST_F(AddressRatesTest, RemembersNotMoreThanItsNumberOfAddresses) {
  rates.OnOffence(a, now + seconds(1));
  for (unsigned char i = 2; i < 100; ++i) EXPECT_TRUE(rates.Take(Ipv4(i), now += milliseconds(1)));
  EXPECT_EQ(rates.size(), 4U);
  EXPECT_FALSE(rates.Take(a, now)) << "whose pause lasts is not forgotten first";
}

}  // namespace
}  // namespace gradwire::server
