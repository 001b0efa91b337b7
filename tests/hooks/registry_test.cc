#include "gradwire/hooks/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace gradwire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class EmptyHook : public HookBase {
 public:
  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec>,
                                              std::int64_t) const override {
    return std::vector<RoundPlan>();
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket&, std::int64_t) override {
    return absl::UnimplementedError("not needed");
  }
};

absl::StatusOr<std::unique_ptr<Hook>> MakeEmpty(const HookSpec&) {
  return std::make_unique<EmptyHook>();
}

HookRegistry& Registry() { return HookRegistry::Global(); }

TEST(Registry, KnowsTheBuiltInHooks) {
  for (const std::string name : {"no", "fp16", "bf16", "noop"}) {
    EXPECT_TRUE(HookRegistry::IsBuiltIn(name));
    EXPECT_TRUE(Registry().Make(HookSpec{name, "no", {}}).ok());
    EXPECT_EQ(Registry().Register(name, MakeEmpty).code(), absl::StatusCode::kAlreadyExists);
  }
  EXPECT_FALSE(HookRegistry::IsBuiltIn("top_k"));
}

TEST(Registry, ListsBuiltInNamesThenRegisteredOnesInOrder) {
  ASSERT_TRUE(Registry().Register("zebra_2", MakeEmpty).ok());
  ASSERT_TRUE(Registry().Register("ape", MakeEmpty).ok());
  EXPECT_THAT(Registry().Names(), ElementsAre("no", "fp16", "bf16", "power_sgd",
                                              "batched_power_sgd", "noop", "ape", "zebra_2"));
  EXPECT_EQ(Registry().Register("ape", MakeEmpty).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(HookRegistry::IsBuiltIn("ape"));
}

TEST(Registry, RefusesBadNamesAndEmptyFactories) {
  for (const std::string& name : {std::string(), std::string("Upper"), std::string("a-b"),
                                  std::string("a,b"), std::string(64, 'a')}) {
    EXPECT_EQ(Registry().Register(name, MakeEmpty).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Registry().Register("empty_factory", nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Registry().Register(std::string(63, 'a'), MakeEmpty).ok());
}

TEST(Registry, HandsTheOptionsToTheFactory) {
  const auto factory = [](const HookSpec& spec) -> absl::StatusOr<std::unique_ptr<Hook>> {
    for (const auto& option : spec.comm_state_option) {
      if (option.first != "known") return absl::InvalidArgumentError("only known");
    }
    return std::make_unique<EmptyHook>();
  };
  ASSERT_TRUE(Registry().Register("with_options", factory).ok());
  EXPECT_TRUE(Registry().Make(HookSpec{"with_options", "no", {{"known", true}}}).ok());
  EXPECT_EQ(Registry().Make(HookSpec{"with_options", "fp16", {{"other", true}}}).status().message(),
            "only known");
}

TEST(Registry, MakeRefusesWhatValidateRefuses) {
  const absl::Status status = Registry().Make(HookSpec{"top_k", "no", {}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"top_k\""));
}

TEST(Registry, AFactoryThatMakesNothingIsAnError) {
  ASSERT_TRUE(Registry()
                  .Register("makes_null",
                            [](const HookSpec&) -> absl::StatusOr<std::unique_ptr<Hook>> {
                              return nullptr;
                            })
                  .ok());
  EXPECT_EQ(Registry().Make(HookSpec{"makes_null", "bf16", {}}).status().code(),
            absl::StatusCode::kInternal);
}

TEST(Registry, TakesCallsFromManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      const std::string name = "thread_" + std::to_string(i);
      for (int k = 0; k < 100; ++k) {
        EXPECT_EQ(Registry().Register(name, MakeEmpty).ok(), k == 0);
        EXPECT_TRUE(Registry().Make(HookSpec{name, "fp16", {}}).ok());
        EXPECT_GE(Registry().Names().size(), 5U);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradwire
