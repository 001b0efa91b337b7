// Shared memory: what is taken from another process and what is not.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/joined_payload.h"
#include "proto/wire/memory_offer.h"
#include "proto/wire/memory_segment.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::wire {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kBytes = 3 * 4096 + 5;

UniqueFd Duplicate(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// A memfd of `bytes`, `allocated` of which are there.
UniqueFd MakeFd(std::size_t bytes, int seals, std::size_t allocated) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (allocated > 0) {
    EXPECT_EQ(fallocate(fd.get(), 0, 0, static_cast<off_t>(allocated)), 0);
  }
  if (seals != 0) {
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

std::string WhyRefused(UniqueFd fd, std::size_t max_bytes = kBytes) {
  const auto mapped = MemorySegment::Map(std::move(fd), max_bytes);
  return mapped.ok() ? "" : std::string(mapped.status().message());
}

TEST(MemorySegment, OneProcessWritesAndTheOtherReads) {
  const auto own = MemorySegment::Create("test", kBytes, MemorySegment::Others::kMayRead);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_TRUE(std::all_of((*own)->content().begin(), (*own)->content().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  const auto other = MemorySegment::Map(Duplicate((*own)->fd()), kBytes);
  ASSERT_TRUE(other.ok()) << other.status();
  (*own)->writable()[kBytes - 1] = std::byte{7};
  EXPECT_EQ((*other)->content()[kBytes - 1], std::byte{7});
  EXPECT_EQ((*other)->bytes(), kBytes);
}

TEST(MemorySegment, NobodyCanChangeItsSizeAndOthersMayOnlyRead) {
  const auto own = MemorySegment::Create("test", kBytes, MemorySegment::Others::kMayRead);
  ASSERT_TRUE(own.ok());
  const UniqueFd other = Duplicate((*own)->fd());
  EXPECT_NE(ftruncate(other.get(), 1), 0);
  EXPECT_NE(ftruncate(other.get(), 1 << 20), 0);
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, other.get(), 0), MAP_FAILED);
  EXPECT_NE(fcntl(other.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);  // no more seals either
}

TEST(MemorySegment, IsWrittenByOthersWhereItsSealsAllowThat) {
  const auto own = MemorySegment::Create("test", kBytes, MemorySegment::Others::kMayWrite);
  ASSERT_TRUE(own.ok());
  constexpr auto kWriteToo = MemorySegment::Access::kWriteToo;
  const auto other = MemorySegment::Map(Duplicate((*own)->fd()), kBytes, kWriteToo);
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_EQ((*other)->writable().size(), kBytes);
  (*other)->writable()[5] = std::byte{9};
  EXPECT_EQ((*own)->content()[5], std::byte{9});
  const auto reader = MemorySegment::Map(Duplicate((*own)->fd()), kBytes);
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE((*reader)->writable().empty());

  const auto closed = MemorySegment::Create("test", kBytes, MemorySegment::Others::kMayRead);
  ASSERT_TRUE(closed.ok());
  const auto may_not = MemorySegment::Map(Duplicate((*closed)->fd()), kBytes, kWriteToo);
  ASSERT_TRUE(may_not.ok()) << may_not.status();
  EXPECT_TRUE((*may_not)->writable().empty());
  EXPECT_EQ((*may_not)->content().size(), kBytes);
}

// What the kernel says of the mapping that begins at `data`: "Rss", for example, in KiB.
std::size_t KibibytesOf(const std::string& what, const std::byte* data) {
  std::ifstream maps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<std::uintptr_t>(data) << "-";
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.rfind(begin.str(), 0) == 0) found = true;
    if (found && line.rfind(what + ":", 0) == 0) return std::stoul(line.substr(what.size() + 1));
  }
  return 0;
}

TEST(MemorySegment, ClosesTheDescriptorOfWhatItMapped) {
  UniqueFd fd = MakeFd(kBytes, F_SEAL_SHRINK | F_SEAL_GROW, kBytes);
  const int number = fd.get();
  const auto mapped = MemorySegment::Map(std::move(fd), kBytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ((*mapped)->fd(), -1);
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
  EXPECT_EQ((*mapped)->content()[kBytes - 1], std::byte{0});
}

TEST(MemorySegment, MapsAllPagesAndAsksInBetween) {
  constexpr std::size_t kLarge = std::size_t{32} << 20;
  const auto own = MemorySegment::Create("test", kLarge, MemorySegment::Others::kMayWrite);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(KibibytesOf("Rss", (*own)->content().data()), kLarge / 1024);
  int asked = 0;
  const auto mapped =
      MemorySegment::Map(Duplicate((*own)->fd()), kLarge, MemorySegment::Access::kWriteToo, [&] {
        ++asked;
        return absl::OkStatus();
      });
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(KibibytesOf("Rss", (*mapped)->content().data()), kLarge / 1024);
  EXPECT_GE(asked, 4);
}

TEST(MemorySegment, EndsWhereItMayNotGoOn) {
  constexpr std::size_t kLarge = std::size_t{32} << 20;
  const auto own = MemorySegment::Create("test", kLarge, MemorySegment::Others::kMayWrite);
  ASSERT_TRUE(own.ok()) << own.status();
  int asked = 0;
  const auto stopped = MemorySegment::Map(
      Duplicate((*own)->fd()), kLarge, MemorySegment::Access::kWriteToo,
      [&] { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("enough"); });
  EXPECT_EQ(stopped.status(), absl::CancelledError("enough"));
  EXPECT_EQ(asked, 3);
}

TEST(MemorySegment, RefusesHugePages) {
  UniqueFd fd(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd.valid()) GTEST_SKIP() << "this kernel has no huge pages: " << std::strerror(errno);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_THAT(WhyRefused(std::move(fd)), HasSubstr("huge pages"));
}

TEST(MemorySegment, RefusesWhatCouldVanishUnderIt) {
  const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_EQ(WhyRefused(MakeFd(kBytes, sealed, kBytes)), "");
  EXPECT_THAT(WhyRefused(MakeFd(kBytes, 0, kBytes)), HasSubstr("size is not sealed"));
  EXPECT_THAT(WhyRefused(MakeFd(kBytes, F_SEAL_GROW, kBytes)), HasSubstr("size is not sealed"));
  EXPECT_THAT(WhyRefused(MakeFd(kBytes, sealed, 0)), HasSubstr("holes"));
  EXPECT_THAT(WhyRefused(MakeFd(kBytes, sealed, 4096)), HasSubstr("holes"));
  EXPECT_THAT(WhyRefused(MakeFd(0, sealed, 0)), HasSubstr("has 0 bytes; allowed: 1 to"));
  EXPECT_THAT(WhyRefused(MakeFd(kBytes, sealed, kBytes), kBytes - 1),
              HasSubstr("has 12293 bytes; allowed: 1 to 12292"));
  EXPECT_THAT(WhyRefused(UniqueFd(open("/dev/zero", O_RDONLY | O_CLOEXEC))),
              HasSubstr("cannot be sealed"));
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  const UniqueFd write_end(pipe_ends[1]);
  EXPECT_THAT(WhyRefused(UniqueFd(pipe_ends[0])), HasSubstr("cannot be sealed"));
  EXPECT_THAT(WhyRefused(UniqueFd()), HasSubstr("cannot be sealed"));
}

TEST(MemorySegment, PartsLieInside) {
  auto own = MemorySegment::Create("test", kBytes, MemorySegment::Others::kMayRead);
  ASSERT_TRUE(own.ok());
  const std::shared_ptr<const MemorySegment> segment = *own;
  const auto refused = [&](std::uint64_t offset, std::uint64_t bytes) {
    const auto part = PartOf(segment, offset, bytes, "shared");
    return part.ok() ? "" : std::string(part.status().message());
  };
  EXPECT_EQ(refused(0, kBytes), "");
  EXPECT_EQ(refused(kBytes, 0), "");
  EXPECT_EQ(refused(17, 100), "");
  EXPECT_THAT(refused(1, kBytes), HasSubstr("shared: bytes 1 and the 12293 that follow; the "
                                            "segment has 12293"));
  EXPECT_THAT(refused(kBytes + 1, 0), HasSubstr("the segment has"));
  // Sums that overflow.
  EXPECT_THAT(refused(~std::uint64_t{0}, 2), HasSubstr("the segment has"));
  EXPECT_THAT(refused(2, ~std::uint64_t{0}), HasSubstr("the segment has"));
  EXPECT_THAT(refused(~std::uint64_t{0}, ~std::uint64_t{0}), HasSubstr("the segment has"));
  const auto part = PartOf(segment, 17, 100, "shared");
  EXPECT_EQ((*part)->pieces()[0].data(), segment->content().data() + 17);
  EXPECT_FALSE((*part)->fixed());
}

// A chunk may be a part of several chunks' bytes in a segment. A digest of it says nothing either.
TEST(MemorySegment, WhatIsMadeOfItsPartsIsNotFixed) {
  auto own = MemorySegment::Create("test", kBytes, MemorySegment::Others::kMayRead);
  ASSERT_TRUE(own.ok());
  const std::shared_ptr<const MemorySegment> segment = *own;
  const PayloadRef shared = *PartOf(segment, 0, 100, "shared");
  const PayloadRef owned = Part(OwnedPayload::Make(std::vector<std::byte>(100)), 4, 8);
  EXPECT_FALSE(Part(shared, 10, 20)->fixed());
  EXPECT_FALSE(Join({owned, shared})->fixed());
  EXPECT_TRUE(owned->fixed());
  EXPECT_TRUE(Join({owned, owned})->fixed());
}

TEST(MemorySegment, FindsMemoryInIt) {
  auto own = MemorySegment::Create("test", kBytes, MemorySegment::Others::kMayRead);
  ASSERT_TRUE(own.ok());
  const std::span<const std::byte> content = (*own)->content();
  EXPECT_EQ((*own)->OffsetOf(content), 0U);
  EXPECT_EQ((*own)->OffsetOf(content.subspan(100, 8)), 100U);
  const std::array<std::byte, 8> elsewhere{};
  EXPECT_EQ((*own)->OffsetOf(elsewhere), std::nullopt);
  EXPECT_EQ((*own)->OffsetOf({content.data() + 1, kBytes}), std::nullopt);
}

class MemoryOffer : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    member_ = UniqueFd(ends[0]);
    daemon_ = UniqueFd(ends[1]);
  }
  // Bytes with `count` descriptors.
  void SendRaw(const std::string& bytes, int count) {
    iovec piece{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    if (count > 0) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(static_cast<std::size_t>(count) * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(static_cast<std::size_t>(count) * sizeof(int));
      const std::array<int, 4> descriptors = {0, 1, 2, 2};
      std::memcpy(CMSG_DATA(rights), descriptors.data(),
                  static_cast<std::size_t>(count) * sizeof(int));
    }
    ASSERT_EQ(sendmsg(member_.get(), &header, 0), static_cast<ssize_t>(bytes.size()));
  }
  std::string WhyRefused() {
    const auto request = ReceiveMemoryRequest(daemon_.get());
    return request.ok() ? "" : std::string(request.status().message());
  }

  UniqueFd member_;
  UniqueFd daemon_;
};

TEST_F(MemoryOffer, GoesThereAndBackWithDescriptors) {
  MemoryRequest request{
      .token = "token", .start_id = 5, .attachment = 6, .segment = MakeFd(1, 0, 1)};
  ASSERT_TRUE(SendMemoryRequest(member_.get(), request).ok());
  const auto got = ReceiveMemoryRequest(daemon_.get());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->token, "token");
  EXPECT_EQ(got->start_id, 5U);
  EXPECT_EQ(got->attachment, 6U);
  EXPECT_TRUE(got->segment.valid());
  MemoryReply reply{.status = absl::NotFoundError("no"),
                    .attachment = 7,
                    .segment = 8,
                    .results = MakeFd(1, 0, 1)};
  ASSERT_TRUE(SendMemoryReply(daemon_.get(), reply).ok());
  const auto answer = ReceiveMemoryReply(
      member_.get(), std::chrono::steady_clock::now() + std::chrono::seconds(10));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, absl::NotFoundError("no"));
  EXPECT_EQ(answer->attachment, 7U);
  EXPECT_EQ(answer->segment, 8U);
  EXPECT_TRUE(answer->results.valid());
}

TEST_F(MemoryOffer, AProbeNeedsNoDescriptor) {
  ASSERT_TRUE(SendMemoryRequest(member_.get(), {.start_id = 5, .probe = "random bytes"}).ok());
  const auto got = ReceiveMemoryRequest(daemon_.get());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->start_id, 5U);
  EXPECT_EQ(got->probe, "random bytes");
  EXPECT_FALSE(got->segment.valid());
  ASSERT_TRUE(SendMemoryReply(daemon_.get(), {.proof = "the proof"}).ok());
  const auto answer = ReceiveMemoryReply(
      member_.get(), std::chrono::steady_clock::now() + std::chrono::seconds(10));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->status.ok());
  EXPECT_EQ(answer->proof, "the proof");
}

TEST_F(MemoryOffer, ADaemonThatSaysNothingIsNotWaitedForLonger) {
  EXPECT_EQ(ReceiveMemoryReply(member_.get(), std::chrono::steady_clock::now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  daemon_.Reset();
  EXPECT_FALSE(
      ReceiveMemoryReply(member_.get(), std::chrono::steady_clock::now() + std::chrono::seconds(10))
          .ok());
}

TEST_F(MemoryOffer, RefusesBytesThatAreNone) {
  const auto refused = [&](const std::string& bytes, int descriptors) {
    SendRaw(bytes, descriptors);
    return WhyRefused();
  };
  using namespace std::string_literals;
  EXPECT_THAT(refused("G", 1), HasSubstr("1 bytes that do not begin as one"));
  EXPECT_THAT(refused("GWM2\0\0\0\0"s, 1), HasSubstr("do not begin as one"));
  EXPECT_THAT(refused("GWM1\1\0\0\0"s, 1), HasSubstr("says 1 bytes and has 0"));
  EXPECT_THAT(refused("GWM1\xff\xff\xff\xff"s + std::string(10, 'x'), 1),
              HasSubstr("says 4294967295 bytes and has 10; allowed: at most 4096"));
  EXPECT_THAT(refused("GWM1\x88\x13\0\0"s + std::string(5000, 'x'), 1), HasSubstr("says 5000"));
}

TEST_F(MemoryOffer, RefusesAnythingButOneDescriptor) {
  using namespace std::string_literals;
  const std::string empty_message = "GWM1\0\0\0\0"s;
  SendRaw(empty_message, 0);
  EXPECT_THAT(WhyRefused(), HasSubstr("has no descriptor; allowed: 1"));
  SendRaw(empty_message, 3);
  EXPECT_THAT(WhyRefused(), HasSubstr("has 3 descriptors; allowed: at most 1"));
  SendRaw(empty_message, 1);
  EXPECT_EQ(WhyRefused(), "");
  SendRaw("GWM1\2\0\0\0\xff\xff"s, 1);
  EXPECT_THAT(WhyRefused(), HasSubstr("no such message"));
}

TEST_F(MemoryOffer, SaysWhenThisProcessHasNoDescriptorLeft) {
  rlimit original{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &original), 0);
  SendRaw(std::string("GWM1\0\0\0\0", 8), 1);
  // All numbers below the limit are taken.
  const UniqueFd next = Duplicate(0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next.get()), .rlim_max = original.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string why = WhyRefused();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &original), 0);
  EXPECT_THAT(why, HasSubstr("or this process has none left"));
}

}  // namespace
}  // namespace gradwire::wire
