// Where the system gives no random bytes, whoever needs them says what failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "server/session/registry.h"
#include "server/session/session_memory.h"
#include "server/session/session_runner.h"
#include "tests/testing/memory_offers.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::SealedFd;
using ::testing::HasSubstr;

std::atomic<int> random_error = 0;  // errno of getrandom in this process; 0: it works

class RandomFailureTest : public ::testing::Test {
 protected:
  void SetUp() override { random_error = EIO; }
  void TearDown() override { random_error = 0; }
};

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

TEST_F(RandomFailureTest, AJoinSaysWhatFailed) {
  Registry registry({.memory_bytes = 1 << 30, .max_sessions = 4});
  SessionOptions options;
  options.name = "a";
  options.manifest = {ParameterSpec{.name = "w", .shape = {10}, .dtype = DType::kFloat32}};
  const JoinAsk ask = {
      .world_size = 1, .rank = 0, .start_id = 7, .spec = {}, .manifest = options.manifest};
  const auto joined = registry.Join(options, ask, kNow);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(joined.status().message()),
              HasSubstr("getrandom failed: Input/output error"));
}

TEST_F(RandomFailureTest, AnOfferOfMemorySaysWhatFailed) {
  const auto memory = std::make_shared<SessionMemory>(SessionMemory::Options{.block_bytes = 4096,
                                                                             .blocks = 1,
                                                                             .staging_bytes = 4096,
                                                                             .gradient_bytes = 4096,
                                                                             .claim_timeout = {}});
  wire::MemoryRequest request;
  request.segment = SealedFd(4096);
  const auto reply = memory->Attach(0, std::move(request), [] { return kNow; });
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(reply.status().message()),
              HasSubstr("getrandom failed: Input/output error"));
}

}  // namespace
}  // namespace gradwire::server

// In the place of the C library's.
extern "C" ssize_t getrandom(void* buffer, std::size_t length, unsigned flags) {
  if (const int error = gradwire::server::random_error; error != 0) {
    errno = error;
    return -1;
  }
  return syscall(SYS_getrandom, buffer, length, flags);
}
