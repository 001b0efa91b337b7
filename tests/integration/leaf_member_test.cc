// A member whose daemon is a leaf: the hook, its state, and what the join says.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/integration/fake_daemon.h"
#include "tests/testing/gradients.h"

namespace gradwire::client {
namespace {

using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LeafMember : public ::testing::Test {
 protected:
  LeafMember() { daemon_.join_response.set_leaf(true); }

  ClientOptions Options(const std::string& hook) const {
    return {.address = daemon_.address(),
            .session = "leaf",
            .rank = 0,
            .world_size = 2,
            .local_rank = 0,
            .local_world_size = 2,
            .parameters = gradients_.parameters(),
            .hook = *HookSpec::Parse(hook),
            .join_timeout = absl::Seconds(5)};
  }
  std::unique_ptr<Client> Join(const std::string& hook) {
    auto client = Client::Join(Options(hook));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static void ExpectRefused(const absl::Status& status, const std::string& call) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << call;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(call + ": this member's daemon is a leaf, which runs the hook for its "
                                 "node; allowed: with a daemon that is no leaf [GW216]"));
  }

  // Of several chunks of 4 KiB. The fake daemon takes float32 only, and gives back what comes.
  Gradients gradients_{{MakeParameter("w", 2500)}};
  FakeDaemon daemon_;
};

TEST_F(LeafMember, SendsItsGradientsWithoutTheHook) {
  auto client = Join("fp16,comm_wrapper=no");
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(client->metrics().leaf);
  EXPECT_EQ(daemon_.join_request.hook().comm_hook(), "fp16") << "the leaf is told the user's hook";
  EXPECT_EQ(daemon_.join_request.node().first_rank(), 0);
  EXPECT_EQ(daemon_.join_request.node().members(), 2);
  gradients_.Fill(0, 0);
  GradBucket bucket = gradients_.Bucket();
  ASSERT_TRUE(client->AllReduce(bucket).Wait(absl::Seconds(10)).ok());
  EXPECT_EQ(client->metrics().bytes_sent, 2500 * sizeof(float)) << "fp16 sends half as much";
  // The daemon gives back the contribution, which is half the gradient: two members' mean.
  const auto* values = reinterpret_cast<const float*>(gradients_.bytes().data());
  for (std::size_t i = 0; i < 2500; ++i) {
    const auto gradient = static_cast<float>(gradwire::testing::GradientValue(0, 0, i));
    ASSERT_EQ(values[i], gradient / 2);
  }
}

TEST_F(LeafMember, NoopStaysNoop) {
  auto client = Join("noop");
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(daemon_.join_request.hook().comm_hook(), "noop");
  gradients_.Fill(0, 0);
  const auto before = gradients_.bytes();
  GradBucket bucket = gradients_.Bucket();
  EXPECT_TRUE(client->AllReduce(bucket).Wait(absl::Seconds(10)).ok());
  EXPECT_EQ(client->metrics().bytes_sent, 0U);
  EXPECT_EQ(gradients_.bytes(), before);
}

TEST_F(LeafMember, HasNoStateOfItsOwn) {
  for (const char* hook : {"power_sgd", "batched_power_sgd"}) {
    auto client = Join(hook);
    ASSERT_NE(client, nullptr);
    ExpectRefused(client->StateDict().status(), "StateDict");
    ExpectRefused(client->LoadStateDict("x"), "LoadStateDict");
    ExpectRefused(client->ExportState().status(), "ExportState");
    ExpectRefused(client->ImportState("x"), "ImportState");
    ExpectRefused(client->SetLossScale(2), "SetLossScale");
  }
}

TEST_F(LeafMember, MayScaleTheLossOfAHookWithoutResiduals) {
  for (const char* hook : {"no", "bf16", "noop"}) {
    auto client = Join(hook);
    ASSERT_NE(client, nullptr);
    EXPECT_TRUE(client->SetLossScale(2).ok()) << hook;
    ExpectRefused(client->StateDict().status(), "StateDict");
  }
}

TEST_F(LeafMember, AnotherDaemonIsNoLeaf) {
  daemon_.join_response.set_leaf(false);
  auto client = Join("no");
  ASSERT_NE(client, nullptr);
  EXPECT_FALSE(client->metrics().leaf);
  EXPECT_TRUE(client->StateDict().ok());
}

TEST_F(LeafMember, ALeafIsItsOnlyDaemon) {
  FakeDaemon other;
  ClientOptions options = Options("no");
  options.address = other.address() + "," + daemon_.address();
  const absl::Status status = Client::Join(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("shard 1 (" + daemon_.address() + ") is a leaf daemon"),
                    HasSubstr("[GW215]")));
}

}  // namespace
}  // namespace gradwire::client
