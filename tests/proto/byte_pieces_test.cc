#include "proto/wire/byte_pieces.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::wire {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

TEST(BytePieces, ComeBackWhole) {
  for (const std::size_t bytes : {1U, 9U, 10U, 11U, 35U}) {
    PieceReader reader;
    std::vector<std::uint64_t> offsets;
    InPieces(Bytes(bytes), 10, [&](std::uint64_t offset, const PayloadRef& piece) {
      EXPECT_FALSE(reader.complete());
      EXPECT_LE(piece->bytes(), 10U);
      offsets.push_back(offset);
      EXPECT_TRUE(reader.Add(offset, bytes, piece.get()).ok());
    });
    EXPECT_EQ(offsets.size(), (bytes + 9) / 10);
    EXPECT_TRUE(reader.complete());
    EXPECT_EQ(reader.Take(), Bytes(bytes));
    EXPECT_FALSE(reader.complete());
  }
  InPieces({}, 10, [](std::uint64_t, const PayloadRef&) { ADD_FAILURE() << "a piece of nothing"; });
}

TEST(BytePieces, BeginAnewAtZero) {
  const OwnedPayload four(Bytes(4));
  PieceReader reader;
  ASSERT_TRUE(reader.Add(0, 8, &four).ok());
  ASSERT_TRUE(reader.Add(0, 4, &four).ok());
  EXPECT_TRUE(reader.complete());
  EXPECT_EQ(reader.content(), Bytes(4));
}

TEST(BytePieces, RefuseWhatDoesNotFit) {
  const OwnedPayload four(Bytes(4));
  const auto refusal = [&](std::uint64_t offset, std::uint64_t bytes, const Payload* piece) {
    PieceReader reader;
    EXPECT_TRUE(reader.Add(0, 10, &four).ok());
    const std::string message(reader.Add(offset, bytes, piece).message());
    EXPECT_EQ(reader.content(), Bytes(4));
    return message;
  };
  EXPECT_THAT(refusal(5, 10, &four), HasSubstr("has bytes 5 to 9 of 10; allowed: from 4 to 10"));
  EXPECT_THAT(refusal(3, 10, &four), HasSubstr("has bytes 3 to 7"));
  EXPECT_THAT(refusal(4, 11, &four), HasSubstr("of 11"));
  const OwnedPayload seven(Bytes(7));
  EXPECT_THAT(refusal(4, 10, &seven), HasSubstr("has bytes 4 to 11 of 10"));
  PieceReader reader;
  EXPECT_THAT(std::string(reader.Add(4, 10, &four).message()), HasSubstr("allowed: from 0 to 0"));
  EXPECT_TRUE(reader.Add(0, 2, nullptr).ok());
  EXPECT_FALSE(reader.complete());
}

}  // namespace
}  // namespace gradwire::wire
