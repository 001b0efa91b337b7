#include "client/core/coordinator_copy.h"

#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "proto/wire/digest.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const HookState kHeld = {.metadata = {{"iteration", "3"}},
                         .tensors = {{.name = "q/fc",
                                      .dtype = DType::kFloat32,
                                      .shape = {2},
                                      .data = std::vector<std::byte>(8, std::byte{7})}}};

std::vector<std::byte> Own(const std::string& generator) {
  const std::string file =
      WriteSafetensors({.metadata = {{"generator", generator}}, .tensors = {}});
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  return {bytes.begin(), bytes.end()};
}

class CoordinatorCopyTest : public ::testing::Test {
 protected:
  absl::Status Take(std::vector<std::byte> bytes) {
    absl::Status taken;
    const std::size_t all = bytes.size();
    wire::InPieces(std::move(bytes), 50, [&](std::uint64_t offset, const wire::PayloadRef& piece) {
      taken.Update(copy_.Take({.step = 1, .offset = offset, .bytes = all}, piece.get()));
    });
    return taken;
  }
  std::vector<SendFrameEffect> Answer(bool donor) {
    Effects effects;
    copy_.Answer({.donor = donor}, kHeld, 7, 100, effects);
    std::vector<SendFrameEffect> sent;
    for (Effect& effect : effects) sent.push_back(std::get<SendFrameEffect>(std::move(effect)));
    return sent;
  }
  // What a donor sends, put together.
  HookState Donated() {
    wire::PieceReader reader;
    for (const SendFrameEffect& sent : Answer(true)) {
      const auto& header = std::get<wire::StateCopy>(sent.header);
      EXPECT_EQ(header.generation, 7U);
      EXPECT_TRUE(reader.Add(header.offset, header.bytes, sent.payload.get()).ok());
      digest_ = header.digest;
    }
    EXPECT_TRUE(reader.complete());
    const std::vector<std::byte> whole = reader.Take();
    EXPECT_EQ(wire::DigestOf(whole), digest_);
    HookState state = *ReadSafetensors({reinterpret_cast<const char*>(whole.data()), whole.size()});
    return state;
  }
  CoordinatorCopy copy_{3};
  std::uint64_t digest_ = 0;
};

TEST_F(CoordinatorCopyTest, ADonorSendsWhatTheHookHasAndWhatTheCoordinatorSaid) {
  EXPECT_EQ(Donated().metadata, kHeld.metadata);
  ASSERT_TRUE(Take(Own("a")).ok());
  EXPECT_EQ(Donated().metadata, kHeld.metadata) << "the step is not over";
  copy_.Apply();
  const HookState donated = Donated();
  EXPECT_EQ(donated.metadata.at("generator"), "a");
  EXPECT_EQ(donated.metadata.at("iteration"), "3");
  ASSERT_THAT(donated.tensors, SizeIs(1));
  EXPECT_EQ(donated.tensors[0].data, kHeld.tensors[0].data);
  EXPECT_GT(Answer(true).size(), 1U);
}

TEST_F(CoordinatorCopyTest, OthersSendTheSameDigestAndNoBytes) {
  ASSERT_TRUE(Take(Own("a")).ok());
  copy_.Apply();
  Donated();
  const auto sent = Answer(false);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(std::get<wire::StateCopy>(sent[0].header),
            (wire::StateCopy{.generation = 7, .digest = digest_}));
  EXPECT_EQ(sent[0].payload, nullptr);
}

TEST_F(CoordinatorCopyTest, AStepThatIsSkippedChangesNothing) {
  ASSERT_TRUE(Take(Own("a")).ok());
  copy_.Apply();
  ASSERT_TRUE(Take(Own("b")).ok());
  copy_.Drop();
  copy_.Apply();
  EXPECT_EQ(Donated().metadata.at("generator"), "a");
}

TEST_F(CoordinatorCopyTest, APieceThatAResumeRepeatsBeginsAnew) {
  const std::vector<std::byte> own = Own("a");
  const wire::OwnedPayload half({own.begin(), own.begin() + 30});
  ASSERT_TRUE(copy_.Take({.step = 1, .offset = 0, .bytes = own.size()}, &half).ok());
  ASSERT_TRUE(Take(own).ok());
  copy_.Apply();
  EXPECT_EQ(Donated().metadata.at("generator"), "a");
}

// The member may be READY with it, and lose the daemon in the middle of the repetition.
TEST_F(CoordinatorCopyTest, WhatIsWholeStaysWholeWhileAResumeRepeatsIt) {
  const std::vector<std::byte> own = Own("a");
  ASSERT_TRUE(Take(own).ok());
  const wire::OwnedPayload half({own.begin(), own.begin() + 30});
  ASSERT_TRUE(copy_.Take({.step = 1, .offset = 0, .bytes = own.size()}, &half).ok());
  copy_.Apply();
  EXPECT_EQ(Donated().metadata.at("generator"), "a");
}

TEST_F(CoordinatorCopyTest, AStateFromAFileIsUnknownUntilAStepHasEndedWithIt) {
  copy_.OnReset();
  for (const bool donor : {true, false}) {
    const auto sent = Answer(donor);
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(std::get<wire::StateCopy>(sent[0].header),
              (wire::StateCopy{.generation = 7, .unknown = true}));
  }
  copy_.Drop();
  EXPECT_TRUE(std::get<wire::StateCopy>(Answer(true)[0].header).unknown);
  ASSERT_TRUE(Take(Own("c")).ok());
  copy_.Apply();
  EXPECT_EQ(Donated().metadata.at("generator"), "c");
}

TEST_F(CoordinatorCopyTest, RefusesWhatIsNoState) {
  EXPECT_THAT(std::string(Take(std::vector<std::byte>(40)).message()), HasSubstr("safetensors"));
  const wire::OwnedPayload four(std::vector<std::byte>(4));
  EXPECT_THAT(std::string(copy_.Take({.step = 1, .offset = 8, .bytes = 40}, &four).message()),
              HasSubstr("bytes 8 to 12"));
  EXPECT_THAT(
      std::string(copy_.Take({.step = 1, .offset = 0, .bytes = 1'000'000}, &four).message()),
      HasSubstr("has 1000000 bytes; allowed: 65632 at most"));
}

}  // namespace
}  // namespace gradwire::client
