#include "client/runtime/buffer_pool.h"

#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

BufferPool::Memory NewMemory(std::size_t bytes) {
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

TEST(BufferPool, MemoryComesBackWithTheLastReference) {
  const auto pool = BufferPool::Make(64, 1, NewMemory);
  auto first = pool->Take(48);
  const std::byte* memory = first->content().data();
  EXPECT_EQ(first->bytes(), 48U);
  ASSERT_EQ(first->pieces().size(), 1U);
  EXPECT_EQ(first->pieces()[0].data(), memory);
  const wire::PayloadRef other = first;
  first.reset();
  EXPECT_NE(pool->Take(8)->content().data(), memory);
}

TEST(BufferPool, ReusesIdleMemory) {
  const auto pool = BufferPool::Make(64, 1, NewMemory);
  auto buffer = pool->Take(64);
  const std::byte* memory = buffer->content().data();
  buffer.reset();
  EXPECT_EQ(pool->Take(1)->content().data(), memory);
}

TEST(BufferPool, GivesMoreThanABufferWhenAsked) {
  const auto pool = BufferPool::Make(64, 1, NewMemory);
  EXPECT_EQ(pool->Take(1000)->content().size(), 1000U);
}

TEST(BufferPool, BuffersOutliveThePoolsOwner) {
  auto pool = BufferPool::Make(64, 1, NewMemory);
  const auto buffer = pool->Take(64);
  pool.reset();
  buffer->content()[63] = std::byte{1};
}

TEST(BufferPool, SaysThatThereIsNoMemory) {
  const auto pool = BufferPool::Make(64, 1, [](std::size_t) { return BufferPool::Memory(); });
  EXPECT_EQ(pool->Take(1), nullptr);
  EXPECT_EQ(pool->Take(1000), nullptr);
}

}  // namespace
}  // namespace gradwire::client
