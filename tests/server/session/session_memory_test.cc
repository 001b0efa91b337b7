// What one session maps of its members' memory: limits, who waits for whom, and that all of it is
// given back.
#include "server/session/session_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/memory_offers.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::MappedOffers;
using ::gradwire::testing::SealedFd;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kStaging = 16 * kPage;
constexpr std::size_t kGradients = std::size_t{16} << 20;
constexpr absl::Duration kClaimTimeout = absl::Seconds(5);
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

std::shared_ptr<SessionMemory> MakeMemory(
    std::shared_ptr<MemoryQuotas> quotas = std::make_shared<MemoryQuotas>()) {
  return std::make_shared<SessionMemory>(SessionMemory::Options{.block_bytes = kPage,
                                                                .blocks = 2,
                                                                .staging_bytes = kStaging,
                                                                .gradient_bytes = kGradients,
                                                                .claim_timeout = kClaimTimeout,
                                                                .quotas = std::move(quotas)});
}

absl::StatusOr<wire::MemoryReply> Attach(SessionMemory& memory, int rank,
                                         std::uint64_t attachment = 0, std::size_t bytes = kPage,
                                         wire::GoOn go_on = wire::AlwaysGoOn,
                                         absl::Time now = kNow) {
  wire::MemoryRequest request;
  request.attachment = attachment;
  request.segment = SealedFd(bytes);
  return memory.Attach(
      rank, std::move(request), [now] { return now; }, go_on);
}

// A new attachment; 0: refused.
std::uint64_t Begin(SessionMemory& memory, int rank, absl::Time now = kNow) {
  const auto reply = Attach(memory, rank, 0, kPage, wire::AlwaysGoOn, now);
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? reply->attachment : 0;
}

std::string WhyRefused(SessionMemory& memory, int rank, std::uint64_t attachment = 0,
                       std::size_t bytes = kPage) {
  const auto reply = Attach(memory, rank, attachment, bytes);
  return std::string(reply.status().message());
}

// Gives segments until one is refused, and says why.
std::string GiveAll(SessionMemory& memory, int rank, std::uint64_t attachment) {
  constexpr int kMost = 5000;
  for (int i = 0; i < kMost; ++i) {
    if (std::string why = WhyRefused(memory, rank, attachment); !why.empty()) return why;
  }
  return "";
}

// Work that waits in its first piece until it is let go.
class Pause {
 public:
  absl::Status GoOn() {
    MutexLock lock(mutex_);
    reached_ = true;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mutex_);
    return absl::OkStatus();
  }
  void AwaitReached() {
    MutexLock lock(mutex_);
    while (!reached_) changed_.Wait(mutex_);
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool reached_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool open_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

TEST(SessionMemoryTest, AMemberLeavesRoomForOthersOfItsSession) {
  const auto quotas = std::make_shared<MemoryQuotas>(1600);  // 800 for a session, 100 for a member
  const auto memory = MakeMemory(quotas);
  EXPECT_EQ(GiveAll(*memory, 0, Begin(*memory, 0)),
            "the member has 75 segments of shared memory mapped; allowed: 75 [GW208]");
  EXPECT_EQ(MappedOffers(), 75U);
  const std::uint64_t other = Begin(*memory, 1);
  EXPECT_EQ(WhyRefused(*memory, 1, other), "");
  // The quarter is for attachments.
  EXPECT_NE(Begin(*memory, 0), 0U);
}

TEST(SessionMemoryTest, ASessionLeavesRoomForOthers) {
  const auto quotas = std::make_shared<MemoryQuotas>(320);  // 160 for a session, 20 for a member
  const auto memory = MakeMemory(quotas);
  std::string why;
  // Eight members have 15 each; the others find the quarter that is left for attachments.
  for (int rank = 0; rank < 20; ++rank) why = GiveAll(*memory, rank, Begin(*memory, rank));
  EXPECT_EQ(why, "the session has 132 segments of shared memory mapped; allowed: 120 [GW208]");
  const auto other = MakeMemory(quotas);
  const std::uint64_t attachment = Begin(*other, 0);
  EXPECT_EQ(WhyRefused(*other, 0, attachment), "");
}

TEST(SessionMemoryTest, TheDaemonHasALimit) {
  const auto quotas = std::make_shared<MemoryQuotas>(64);  // 32 for a session, 4 for a member
  std::vector<std::shared_ptr<SessionMemory>> sessions;
  std::string why;
  for (int s = 0; s < 8; ++s) {
    sessions.push_back(MakeMemory(quotas));
    for (int rank = 0; rank < 8; ++rank) {
      const auto reply = Attach(*sessions.back(), rank);
      why = reply.ok() ? GiveAll(*sessions.back(), rank, reply->attachment)
                       : std::string(reply.status().message());
    }
  }
  EXPECT_EQ(why, "the daemon has 64 segments of shared memory mapped; allowed: 64 [GW208]");
  EXPECT_EQ(MappedOffers(), 64U);
  sessions.clear();
  EXPECT_EQ(MappedOffers(), 0U);
  EXPECT_EQ(quotas->segments->taken(), 0U);
}

TEST(SessionMemoryTest, AnAttachmentHasItsOwnLimits) {
  const auto memory = MakeMemory();
  EXPECT_EQ(GiveAll(*memory, 0, Begin(*memory, 0)),
            "the attachment has 1024 segments of shared memory; allowed: 1024");
  const std::uint64_t attachment = Begin(*memory, 1);
  EXPECT_EQ(WhyRefused(*memory, 1, attachment, kGradients - kPage), "");
  EXPECT_EQ(WhyRefused(*memory, 1, attachment, 2 * kPage),
            "shared memory: has 8192 bytes; allowed: 1 to 4096");
  EXPECT_EQ(WhyRefused(*memory, 1, attachment, kPage), "");
  EXPECT_EQ(WhyRefused(*memory, 1, attachment, kPage),
            "the attachment's segments after the first have 16777216 bytes; allowed: 16777216");
}

TEST(SessionMemoryTest, SegmentsAtTheSameTimeKeepTheLimitToo) {
  const auto memory = MakeMemory();
  const std::uint64_t attachment = Begin(*memory, 0);
  Pause pause;
  absl::Status late;
  std::thread slow([&] {
    late = Attach(*memory, 0, attachment, kGradients / 2, [&] { return pause.GoOn(); }).status();
  });
  pause.AwaitReached();
  EXPECT_EQ(WhyRefused(*memory, 0, attachment, kGradients), "");
  pause.Open();
  slow.join();
  EXPECT_EQ(std::string(late.message()),
            "the attachment's segments after the first would have 25165824 bytes; allowed: "
            "16777216");
  EXPECT_EQ(MappedOffers(), 2U);
}

TEST(SessionMemoryTest, NobodyWaitsForAMemberWhoseMemoryIsMapped) {
  const auto memory = MakeMemory();
  Pause pause;
  absl::StatusOr<wire::MemoryReply> late;
  std::thread slow([&] { late = Attach(*memory, 0, 0, kStaging, [&] { return pause.GoOn(); }); });
  pause.AwaitReached();
  const std::uint64_t attachment = Begin(*memory, 1);
  EXPECT_TRUE(memory->Claim(1, attachment).ok());
  memory->Tick(kNow);
  EXPECT_NE(memory->Take(kPage), nullptr);
  pause.Open();
  slow.join();
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_TRUE(late->results.valid());
}

TEST(SessionMemoryTest, WorkThatMayNotGoOnLeavesNothing) {
  const auto quotas = std::make_shared<MemoryQuotas>();
  const auto memory = MakeMemory(quotas);
  const auto stopped = [] { return absl::CancelledError("nobody waits"); };
  EXPECT_EQ(Attach(*memory, 0, 0, kPage, stopped).status(), absl::CancelledError("nobody waits"));
  EXPECT_EQ(MappedOffers(), 0U);
  EXPECT_EQ(quotas->segments->taken(), 0U);
}

TEST(SessionMemoryTest, AnAttachmentThatNobodyClaimsGoesAfterItsTime) {
  const auto quotas = std::make_shared<MemoryQuotas>();
  const auto memory = MakeMemory(quotas);
  const std::uint64_t attachment = Begin(*memory, 0);
  EXPECT_EQ(WhyRefused(*memory, 0, attachment), "");
  memory->Tick(kNow + kClaimTimeout);
  EXPECT_EQ(MappedOffers(), 2U);
  memory->Tick(kNow + kClaimTimeout + absl::Milliseconds(1));
  EXPECT_EQ(MappedOffers(), 0U);
  EXPECT_EQ(quotas->segments->taken(), 0U);
  EXPECT_FALSE(memory->Claim(0, attachment).ok());
}

TEST(SessionMemoryTest, TheTimeToClaimBeginsWhenTheMemoryIsMapped) {
  const auto memory = MakeMemory();
  absl::Time now = kNow;
  wire::MemoryRequest request;
  request.segment = SealedFd(kPage);
  const auto reply = memory->Attach(
      0, std::move(request), [&] { return now; },
      [&] {
        now += 2 * kClaimTimeout;
        return absl::OkStatus();
      });
  ASSERT_TRUE(reply.ok()) << reply.status();
  memory->Tick(now);
  EXPECT_TRUE(memory->Claim(0, reply->attachment).ok());
}

TEST(SessionMemoryTest, ANewAttachmentReplacesTheOldestThatNobodyClaimed) {
  const auto memory = MakeMemory();
  const std::uint64_t claimed = Begin(*memory, 0, kNow);
  const auto stream = memory->Claim(0, claimed);
  ASSERT_TRUE(stream.ok());
  std::vector<std::uint64_t> others;
  for (int i = 1; i <= 4; ++i) others.push_back(Begin(*memory, 0, kNow + absl::Milliseconds(i)));
  EXPECT_EQ(MappedOffers(), 4U);
  EXPECT_FALSE(memory->Claim(0, others[0]).ok());
  EXPECT_EQ(WhyRefused(*memory, 0, claimed), "");
  std::vector<std::shared_ptr<MemberMemory>> streams;
  for (int i = 1; i < 4; ++i) {
    auto its = memory->Claim(0, others[static_cast<std::size_t>(i)]);
    ASSERT_TRUE(its.ok()) << its.status();
    streams.push_back(*std::move(its));
  }
  EXPECT_EQ(WhyRefused(*memory, 0),
            "the member has 4 attachments of shared memory whose streams have not ended; "
            "allowed: 4");
  EXPECT_NE(Begin(*memory, 1), 0U);
  streams.pop_back();
  EXPECT_NE(Begin(*memory, 0), 0U);
}

TEST(SessionMemoryTest, ASegmentCountsAsLongAsAPayloadLiesInIt) {
  const auto quotas = std::make_shared<MemoryQuotas>();
  const auto memory = MakeMemory(quotas);
  auto stream = memory->Claim(0, Begin(*memory, 0));
  ASSERT_TRUE(stream.ok());
  const wire::SharedBytes where = {.segment = 0, .offset = 0, .bytes = 64};
  auto payload = (*stream)->Resolve(where, 0, 1);
  ASSERT_TRUE(payload.ok()) << payload.status();
  stream->reset();
  EXPECT_EQ(quotas->segments->taken(), 1U);
  payload->reset();
  EXPECT_EQ(quotas->segments->taken(), 0U);
}

TEST(SessionMemoryTest, SoManySessionsShareMemory) {
  const auto quotas = std::make_shared<MemoryQuotas>(1600, 1);
  auto first = MakeMemory(quotas);
  const auto second = MakeMemory(quotas);
  EXPECT_NE(Begin(*first, 0), 0U);
  EXPECT_EQ(WhyRefused(*second, 0),
            "the daemon has 1 sessions that share memory; allowed: 1 [GW208]");
  EXPECT_NE(Begin(*first, 1), 0U);
  first.reset();
  EXPECT_NE(Begin(*second, 0), 0U);
}

}  // namespace
}  // namespace gradwire::server
