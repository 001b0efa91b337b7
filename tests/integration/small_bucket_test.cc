// Where a small bucket's result goes when the chunks of a large one wait for the same member.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/raw_member.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RawMember;
using ::gradwire::testing::TestDaemon;

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
constexpr std::uint32_t kChunks = 32;  // more than gRPC and the socket hold
constexpr std::uint64_t kLarge = kChunks * kChunkBytes / sizeof(float);
constexpr std::uint64_t kSmall = 10;
constexpr std::uint32_t kLargeBucket = 0;
constexpr std::uint32_t kSmallBucket = 1;

void Contribute(RawMember& member, const v1::JoinResponse& joined, int rank,
                const v1::RoundId& id) {
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    v1::Frame frame;
    v1::Contribution& contribution = *frame.mutable_header()->mutable_contribution();
    *contribution.mutable_id() = id;
    contribution.set_generation(joined.generation());
    contribution.set_rank(rank);
    contribution.set_chunk(chunk);
    frame.set_payload(std::string(kChunkBytes, '\0'));
    ASSERT_TRUE(member.Send(frame));
  }
}

void AnnounceEagerly(RawMember& member, const v1::JoinResponse& joined) {
  v1::Frame frame;
  v1::Announce& announce = *frame.mutable_header()->mutable_announce();
  announce.set_generation(joined.generation());
  announce.add_parameters(kSmallBucket);
  v1::Segment& segment = *announce.add_rounds()->add_segments();
  segment.set_dtype(v1::DATA_TYPE_FLOAT32);
  segment.set_numel(kSmall);
  segment.set_op(v1::REDUCE_OP_SUM);
  announce.set_eager(true);
  frame.set_payload(std::string(kSmall * sizeof(float), '\0'));
  ASSERT_TRUE(member.Send(frame));
}

// The buckets of all results, in the order in which they come.
std::vector<std::uint32_t> ReadResults(RawMember& member) {
  std::vector<std::uint32_t> buckets;
  while (buckets.size() < kChunks + 1) {
    const auto frame = member.ReadUntil(v1::Header::kResult);
    if (!frame) break;
    buckets.push_back(frame->header().result().id().bucket());
  }
  return buckets;
}

TEST(SmallBucket, ItsResultPassesTheChunksThatWaitForASlowReader) {
  TestDaemon daemon({.chunk_bytes = kChunkBytes, .window_chunks = kChunks});
  ClientOptions options{
      .address = daemon.address(),
      .session = "s",
      .world_size = 2,
      .parameters = {MakeParameter("large", kLarge), MakeParameter("small", kSmall)}};
  RawMember prompt(daemon.address());
  RawMember slow(daemon.address());
  const auto first = prompt.Begin(options);
  options.rank = 1;
  const auto second = slow.Begin(options);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  ASSERT_TRUE(prompt.ReadUntil(v1::Header::kWelcome).has_value());
  ASSERT_TRUE(slow.ReadUntil(v1::Header::kWelcome).has_value());
  const auto round = prompt.Announce(*first, {kLargeBucket}, kLarge);
  const auto same = slow.Announce(*second, {kLargeBucket}, kLarge);
  ASSERT_TRUE(round.ok() && same.ok()) << round.status() << same.status();
  Contribute(slow, *second, 1, *same);
  AnnounceEagerly(slow, *second);
  Contribute(prompt, *first, 0, *round);
  AnnounceEagerly(prompt, *first);
  // All results are on their way now, and most of them in the daemon's queue for the slow one.
  EXPECT_EQ(ReadResults(prompt).size(), kChunks + 1);
  const std::vector<std::uint32_t> order = ReadResults(slow);
  ASSERT_EQ(order.size(), kChunks + 1);
  EXPECT_EQ(std::count(order.begin(), order.end(), kSmallBucket), 1);
  EXPECT_EQ(order.back(), kLargeBucket) << ::testing::PrintToString(order);
}

}  // namespace
}  // namespace gradwire
