// One local member asks for as much of the daemon as it can get by offering memory; nobody else
// notices.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/sync.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/memory_offers.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"
#include "tests/testing/raw_member.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::MappedOffers;
using ::gradwire::testing::OfferMemory;
using ::gradwire::testing::OpenDescriptors;
using ::gradwire::testing::RawMember;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::SealedFd;
using ::gradwire::testing::TestDaemon;
using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSegmentsOfAnAttachment = 1024;  // proto/README.md
constexpr std::size_t kAttachmentsOfAMember = 4;       // server/README.md

// A filesystem that does not answer, for the daemon in this process: it looks at every memfd that
// it is offered before it maps it.
class StuckFilesystem {
 public:
  static StuckFilesystem& Get() {
    static StuckFilesystem one;
    return one;
  }
  void Stick(bool on) {
    MutexLock lock(mutex_);
    stuck_ = on;
    changed_.NotifyAll();
  }
  void Pass() {
    MutexLock lock(mutex_);
    if (stuck_) ++met_;
    while (stuck_) changed_.Wait(mutex_);
  }
  int met() {
    MutexLock lock(mutex_);
    return met_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool stuck_ GRADWIRE_GUARDED_BY(mutex_) = false;
  int met_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

bool Serves(const TestDaemon& daemon) {
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::GetServerResponse response;
  return stub->GetServer(&context, {}, &response).ok();
}

class HostileMember : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kStartId = 77;
  static constexpr std::size_t kElements = 1 << 20;

  static ClientOptions Options(const TestDaemon& daemon, const std::string& session) {
    return {.address = daemon.address(),
            .session = session,
            .rank = 0,
            .world_size = 2,
            .parameters = {MakeParameter("w", kElements, DType::kFloat32)},
            .hook = *HookSpec::Parse("no"),
            .join_timeout = absl::Seconds(20)};
  }

  void SetUp() override {
    v1::JoinRequest request = RawMember::MakeJoin(Options(daemon_, "hostile"));
    request.set_start_id(kStartId);
    const auto joined = member_.Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    token_ = joined->token();
  }

  wire::MemoryReply Offer(std::uint64_t attachment = 0) {
    return OfferMemory(daemon_.socket(), token_, kStartId, SealedFd(kPage), attachment);
  }

  // A session of others, whose members share memory with the daemon.
  void ExpectOthersAttach() {
    ExpectAllOk(RunRanks(Options(daemon_, "others"), [](Client& client, int rank) -> absl::Status {
      EXPECT_TRUE(client.metrics().shared_memory) << "rank " << rank;
      Gradients gradients({MakeParameter("w", kElements, DType::kFloat32)});
      GradBucket bucket = gradients.Bucket();
      if (absl::Status done = client.AllReduce(bucket).Wait(); !done.ok()) return done;
      if (auto verdict = client.EndStep(); !verdict.ok()) return verdict.status();
      return client.Leave();
    }));
  }

  // The token stays valid without a stream for as long as a test takes.
  TestDaemon daemon_{{.chunk_bytes = 16 << 10, .token_timeout = absl::Minutes(10)}};
  RawMember member_{daemon_.address()};
  std::string token_;
};

TEST_F(HostileMember, SegmentsKeepNoDescriptor) {
  const wire::MemoryReply first = Offer();
  ASSERT_TRUE(first.status.ok()) << first.status;
  const std::size_t before = OpenDescriptors(getpid());
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Offer(first.attachment).status.ok());
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors(getpid()) <= before; }))
      << OpenDescriptors(getpid()) - before << " more descriptors for 200 segments";
  EXPECT_EQ(MappedOffers(), 201U);
}

TEST_F(HostileMember, AttachmentsThatNoStreamClaimsAreReplaced) {
  for (int i = 0; i < 50; ++i) {
    const wire::MemoryReply reply = Offer();
    ASSERT_TRUE(reply.status.ok()) << reply.status;
  }
  EXPECT_EQ(MappedOffers(), kAttachmentsOfAMember);
  ExpectOthersAttach();
}

TEST_F(HostileMember, SegmentsOfAMemberAreBounded) {
  wire::MemoryReply reply = Offer();
  std::set<std::string> refusals;
  std::size_t given = 1;
  for (int attachment = 0; attachment < 3; ++attachment) {
    absl::Status last = reply.status;
    while (last.ok()) {
      last = Offer(reply.attachment).status;
      if (last.ok()) ++given;
    }
    refusals.insert(std::string(last.message()));
    reply = Offer();
    if (reply.status.ok()) ++given;
  }
  EXPECT_EQ(MappedOffers(), given);
  EXPECT_GE(given, kSegmentsOfAnAttachment);
  EXPECT_LE(given, 2 * kSegmentsOfAnAttachment);
  EXPECT_THAT(refusals, ::testing::Contains(HasSubstr("the attachment has 1024 segments")));
  EXPECT_THAT(refusals, ::testing::Contains(HasSubstr("the member has")));
  ExpectOthersAttach();
}

TEST_F(HostileMember, ConnectionsAreAcceptedWhileAnOfferIsMapped) {
  StuckFilesystem::Get().Stick(true);
  wire::MemoryReply reply;
  std::thread offerer([&] { reply = Offer(); });
  EXPECT_TRUE(Eventually([] { return StuckFilesystem::Get().met() > 0; }));
  EXPECT_TRUE(Serves(daemon_));
  StuckFilesystem::Get().Stick(false);
  offerer.join();
  EXPECT_TRUE(reply.status.ok()) << reply.status;
}

}  // namespace
}  // namespace gradwire

// In the place of the C library's.
extern "C" int fstatfs(int fd, struct statfs* out) noexcept {
  gradwire::StuckFilesystem::Get().Pass();
  return static_cast<int>(syscall(SYS_fstatfs, fd, out));
}
