#include "server/core/joined_chunks.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::size_t kChunk = 8;

// The bytes first, first + 1, …
wire::PayloadRef Count(std::size_t first, std::size_t bytes) {
  std::vector<std::byte> content;
  for (std::size_t i = 0; i < bytes; ++i) content.push_back(static_cast<std::byte>(first + i));
  return wire::OwnedPayload::Make(std::move(content));
}

// The chunks' sizes; their bytes must go on from `next`.
std::vector<std::size_t> SizesOf(const std::vector<wire::PayloadRef>& chunks, std::size_t& next) {
  std::vector<std::size_t> sizes;
  for (const wire::PayloadRef& chunk : chunks) {
    sizes.push_back(chunk->bytes());
    for (const auto& piece : chunk->pieces()) {
      for (const std::byte byte : piece) EXPECT_EQ(byte, static_cast<std::byte>(next++));
    }
  }
  return sizes;
}

TEST(JoinedChunks, PassesOnWhatIsAChunkAlready) {
  JoinedChunks joined(kChunk);
  joined.Begin(13);
  const wire::PayloadRef whole = Count(0, 8);
  EXPECT_THAT(joined.Add(whole), ElementsAre(whole));
  const wire::PayloadRef last = Count(8, 5);
  EXPECT_THAT(joined.Add(last), ElementsAre(last));
  EXPECT_THAT(joined.Add(Count(13, 8)), IsEmpty()) << "more than was announced";
}

TEST(JoinedChunks, PutsSmallPiecesTogether) {
  JoinedChunks joined(kChunk);
  joined.Begin(13);
  std::size_t next = 0;
  EXPECT_THAT(joined.Add(Count(0, 3)), IsEmpty());
  EXPECT_EQ(joined.held_bytes(), 3U);
  EXPECT_THAT(SizesOf(joined.Add(Count(3, 6)), next), ElementsAre(8));
  EXPECT_EQ(joined.held_bytes(), 1U);
  EXPECT_THAT(SizesOf(joined.Add(Count(9, 4)), next), ElementsAre(5));
  EXPECT_EQ(joined.held_bytes(), 0U);
}

TEST(JoinedChunks, CutsLargePieces) {
  JoinedChunks joined(kChunk);
  joined.Begin(40);
  std::size_t next = 0;
  EXPECT_THAT(SizesOf(joined.Add(Count(0, 20)), next), ElementsAre(8, 8));
  EXPECT_THAT(SizesOf(joined.Add(Count(20, 20)), next), ElementsAre(8, 8, 8));
}

TEST(JoinedChunks, BeginsANewBroadcastWithoutTheLast) {
  JoinedChunks joined(kChunk);
  joined.Begin(16);
  EXPECT_THAT(joined.Add(Count(0, 3)), IsEmpty());
  joined.Begin(4);
  std::size_t next = 7;
  EXPECT_THAT(SizesOf(joined.Add(Count(7, 4)), next), ElementsAre(4));
  joined.Begin(0);
  EXPECT_THAT(joined.Add(Count(0, 1)), IsEmpty());
}

}  // namespace
}  // namespace gradwire::server
