#include "client/core/given_bytes.h"

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::client {
namespace {

// The bytes first, first + 1, …
std::vector<std::byte> Count(std::size_t first, std::size_t bytes) {
  std::vector<std::byte> content;
  for (std::size_t i = 0; i < bytes; ++i) content.push_back(static_cast<std::byte>(first + i));
  return content;
}

std::vector<std::byte> Read(const GivenBytes& given, std::uint64_t offset, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  given.Read(offset, out);
  return out;
}

TEST(GivenBytesTest, ReadsAcrossPieces) {
  GivenBytes given;
  given.Add(wire::OwnedPayload::Make(Count(0, 5)));
  given.Add(wire::OwnedPayload::Make(Count(5, 1)));
  given.Add(wire::OwnedPayload::Make(Count(6, 7)));
  EXPECT_EQ(Read(given, 0, 13), Count(0, 13));
  EXPECT_EQ(Read(given, 4, 3), Count(4, 3));
  EXPECT_EQ(Read(given, 6, 2), Count(6, 2));
  EXPECT_EQ(given.kept_bytes(), 13U);
}

TEST(GivenBytesTest, KeepsPiecesOfWhichSomethingIsNeeded) {
  GivenBytes given;
  for (const std::size_t first : {0U, 4U, 8U}) {
    given.Add(wire::OwnedPayload::Make(Count(first, 4)));
  }
  given.Drop(6);
  EXPECT_EQ(given.kept_bytes(), 8U);
  EXPECT_EQ(Read(given, 6, 6), Count(6, 6));
  given.Drop(12);
  EXPECT_EQ(given.kept_bytes(), 0U);
  given.Add(wire::OwnedPayload::Make(Count(12, 2)));
  EXPECT_EQ(Read(given, 12, 2), Count(12, 2));
}

}  // namespace
}  // namespace gradwire::client
