// Residuals between two members' cores, where frames are lost and members refuse.
#include "client/core/hand_over.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kNumel = 100;
constexpr std::uint64_t kId = 4711;

// Keeps a residual of one parameter, and nothing else.
class KeepingHook final : public HookBase {
 public:
  explicit KeepingHook(float value) : values_(kNumel, value) {}

  const std::vector<float>& values() const { return values_; }

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec>,
                                              std::int64_t) const override {
    return absl::UnimplementedError("no step is run");
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket&, std::int64_t) override {
    return absl::UnimplementedError("no step is run");
  }
  HookState State() const override {
    HookState state{.metadata = {{"format", "kept"}}};
    if (values_.empty()) return state;
    state.tensors.push_back({.name = "residual/w",
                             .dtype = DType::kFloat32,
                             .shape = {kNumel},
                             .data = std::vector<std::byte>(kNumel * sizeof(float))});
    std::memcpy(state.tensors[0].data.data(), values_.data(), kNumel * sizeof(float));
    return state;
  }
  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec>) override {
    values_.clear();
    if (state.tensors.empty()) return absl::OkStatus();
    values_.resize(kNumel);
    std::memcpy(values_.data(), state.tensors[0].data.data(), kNumel * sizeof(float));
    return absl::OkStatus();
  }

 private:
  std::vector<float> values_;
};

MemberOptions Options(int rank) {
  return {.rank = rank,
          .world_size = 3,
          .generation = 9,
          .chunk_bytes = 64,
          .manifest = {{.name = "w", .shape = {kNumel}, .dtype = DType::kFloat32}}};
}

std::vector<std::byte> FileOf(const HookState& state) {
  const std::string file = WriteSafetensors(state);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  return {bytes.begin(), bytes.end()};
}

class HandOverTest : public ::testing::Test {
 protected:
  static constexpr int kFrom = 2;

  HandOverTest() {
    for (const int rank : {0, 1}) {
      hooks_[rank] = std::make_unique<KeepingHook>(static_cast<float>(rank + 1));
      options_[rank] = Options(rank);
      takers_[rank] =
          std::make_unique<ResidualTaking>(options_[rank], hooks_[rank].get(), late_[rank]);
    }
  }

  void Begin(std::vector<int> heirs = {0, 1}) {
    Effects effects;
    giving_.Begin(kId, FileOf(own_.State()), std::move(heirs), effects);
    Take(effects);
  }
  // So many of its only parameter.
  static void Keep(float value, LateGradients& late) {
    std::vector<float> values(kNumel, value);
    const GradBucket bucket =
        *GradBucket::Make(0, {DType::kFloat32, values.data(), kNumel}, Options(kFrom).manifest);
    late.Keep(std::vector<std::uint32_t>{0}, bucket);
  }
  static std::vector<float> Kept(const LateGradients& late) {
    if (late.kept().empty()) return {};
    std::vector<float> values(kNumel);
    std::memcpy(values.data(), late.kept().at(0).values.data(), kNumel * sizeof(float));
    return values;
  }
  // What the member that leaves has to say; the daemon would pass it on.
  void Take(Effects& effects) {
    for (Effect& effect : effects) {
      if (auto* send = std::get_if<SendFrameEffect>(&effect)) {
        pieces_.emplace_back(std::get<wire::HandOver>(send->header), send->payload);
      } else {
        outcome_ = std::get<HandedOverEffect>(effect);
      }
    }
  }
  // The oldest piece arrives; returns the answer, which is still on its way.
  std::optional<wire::HandOverAnswer> Arrive(bool is_between = true) {
    auto [piece, payload] = pieces_.front();
    pieces_.erase(pieces_.begin());
    EXPECT_EQ(piece.generation, 9U);
    const int to = std::exchange(piece.rank, kFrom);
    Effects effects;
    takers_.at(to)->On(piece, payload.get(), is_between, effects);
    if (effects.empty()) return std::nullopt;
    auto answer = std::get<wire::HandOverAnswer>(std::get<SendFrameEffect>(effects[0]).header);
    EXPECT_EQ(answer.rank, kFrom);
    answer.rank = to;
    return answer;
  }
  void Answer(const wire::HandOverAnswer& answer) {
    Effects effects;
    giving_.On(answer, effects);
    Take(effects);
  }
  void Refuse(int rank) { Answer({.id = kId, .rank = rank, .refusal = "no"}); }
  static int RankOf(const std::pair<wire::HandOver, wire::PayloadRef>& piece) {
    return piece.first.rank;
  }
  // Until nothing is under way.
  void Run(bool is_between = true) {
    while (!pieces_.empty()) {
      EXPECT_LE(std::ranges::count(pieces_, pieces_.back().first.rank, RankOf), 4);
      if (const auto answer = Arrive(is_between)) Answer(*answer);
    }
  }

  MemberOptions own_options_ = Options(kFrom);
  KeepingHook own_{10};
  LateGradients own_late_;
  ResidualGiving giving_{own_options_, &own_, own_late_};
  std::map<int, LateGradients> late_;
  std::map<int, std::unique_ptr<KeepingHook>> hooks_;
  std::map<int, MemberOptions> options_;
  std::map<int, std::unique_ptr<ResidualTaking>> takers_;
  std::vector<std::pair<wire::HandOver, wire::PayloadRef>> pieces_;  // on their way
  std::optional<HandedOverEffect> outcome_;
};

TEST_F(HandOverTest, TheFirstOneAddsAll) {
  Begin();
  ASSERT_THAT(pieces_, SizeIs(4));
  Run();
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, 0);
  EXPECT_EQ(outcome_->reason, "");
  EXPECT_THAT(hooks_[0]->values(), ::testing::Each(11.0F));
  EXPECT_THAT(hooks_[1]->values(), ::testing::Each(2.0F));
  EXPECT_THAT(own_.values(), IsEmpty());
  EXPECT_FALSE(giving_.open());
}

TEST_F(HandOverTest, InAStepTheyWaitForItsEnd) {
  Begin();
  Run(/*is_between=*/false);
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, 0);
  EXPECT_THAT(hooks_[0]->values(), ::testing::Each(1.0F));
  takers_[0]->Add();
  takers_[0]->Add();
  EXPECT_THAT(hooks_[0]->values(), ::testing::Each(11.0F));
}

TEST_F(HandOverTest, AnotherOneIsAskedAfterARefusal) {
  Begin();
  pieces_.clear();
  Refuse(0);
  Run();
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, 1);
  EXPECT_THAT(hooks_[0]->values(), ::testing::Each(1.0F));
  EXPECT_THAT(hooks_[1]->values(), ::testing::Each(12.0F));
}

TEST_F(HandOverTest, NobodyTakesThem) {
  takers_[0]->SetClosed(true);
  takers_[1]->SetClosed(true);
  Begin();
  Run();
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, -1);
  EXPECT_EQ(outcome_->reason, "rank 0 leaves, too; rank 1 leaves, too");
  EXPECT_THAT(own_.values(), ::testing::Each(10.0F));
  Begin({});
  EXPECT_EQ(outcome_->reason, "no other member is there");
}

// Each answer may be lost, and then the stream is replaced: what arrives twice is added once.
TEST_F(HandOverTest, ALostAnswerAddsNothingTwice) {
  for (int lost = 0; lost < 12; ++lost) {
    hooks_[0] = std::make_unique<KeepingHook>(1);
    takers_[0] = std::make_unique<ResidualTaking>(options_[0], hooks_[0].get(), late_[0]);
    own_ = KeepingHook(10);
    outcome_.reset();
    Begin();
    for (int answers = 0; !pieces_.empty(); ++answers) {
      const auto answer = Arrive();
      if (answers != lost) {
        if (answer) Answer(*answer);
        continue;
      }
      pieces_.clear();
      Effects effects;
      giving_.Resumed(effects);
      Take(effects);
    }
    ASSERT_TRUE(outcome_.has_value()) << lost;
    EXPECT_EQ(outcome_->rank, 0);
    EXPECT_THAT(hooks_[0]->values(), ::testing::Each(11.0F)) << lost;
  }
}

TEST_F(HandOverTest, LateGradientsFollowTheResiduals) {
  Keep(3, own_late_);
  Keep(4, late_[0]);
  Begin();
  Run(/*is_between=*/false);
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, 0);
  EXPECT_EQ(outcome_->reason, "");
  EXPECT_THAT(Kept(late_[0]), ::testing::Each(7.0F));
  EXPECT_THAT(Kept(own_late_), IsEmpty());
  takers_[0]->Add();
  EXPECT_THAT(hooks_[0]->values(), ::testing::Each(11.0F));
}

TEST_F(HandOverTest, LateGradientsGoAloneWhereTheHookKeepsNothing) {
  Keep(3, own_late_);
  Effects effects;
  giving_.Begin(kId, {}, {1}, effects);
  Take(effects);
  Run();
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, 1);
  EXPECT_THAT(Kept(late_[1]), ::testing::Each(3.0F));
  EXPECT_THAT(own_.values(), ::testing::Each(10.0F));
}

// As a member of an earlier version refuses a format that is not its hook's.
TEST_F(HandOverTest, WhoRefusesLateGradientsHasTheResiduals) {
  Keep(3, own_late_);
  Begin({0});
  while (outcome_ == std::nullopt && pieces_.front().first.id == kId) {
    if (const auto answer = Arrive()) Answer(*answer);
  }
  pieces_.clear();
  Answer({.id = kId + 1, .rank = 0, .refusal = "no"});
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, 0);
  EXPECT_EQ(outcome_->reason, "late gradients: no");
  EXPECT_THAT(Kept(own_late_), ::testing::Each(3.0F));
  EXPECT_THAT(own_.values(), IsEmpty());
}

TEST_F(HandOverTest, WhoIsOutOfPatienceKnowsWhoHasAPart) {
  Keep(3, own_late_);
  Begin({0});
  EXPECT_EQ(giving_.Cancel(), -1);
  Begin({0});
  while (pieces_.front().first.id != kId + 1) {
    if (const auto answer = Arrive()) Answer(*answer);
  }
  EXPECT_EQ(giving_.Cancel(), 0);
  EXPECT_FALSE(giving_.open());
}

// Pieces were on their way when it began to leave, too.
TEST_F(HandOverTest, WhoRefusesTheLastPieceHasNotTakenThem) {
  Begin();
  std::uint64_t arrived = 0;
  while (pieces_.back().first.offset + 64 < pieces_.back().first.bytes) {
    arrived = pieces_.front().first.offset;
    Answer(*Arrive());
  }
  ASSERT_GT(arrived, 0U);
  takers_[0]->SetClosed(true);
  Run();
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, 1);
  EXPECT_EQ(outcome_->reason, "");
  EXPECT_THAT(hooks_[0]->values(), ::testing::Each(1.0F));
  EXPECT_THAT(hooks_[1]->values(), ::testing::Each(12.0F));
  EXPECT_THAT(own_.values(), IsEmpty());
}

// It is that of a piece from before the stream broke; since then the heir may have opened again,
// and taken the whole.
TEST_F(HandOverTest, ALateRefusalIsNotOneOfWhatWasSentSince) {
  Begin();
  Effects again;
  giving_.Resumed(again);
  pieces_.clear();
  Take(again);
  while (pieces_.back().first.offset + 64 < pieces_.back().first.bytes) Answer(*Arrive());
  Refuse(0);
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, -1);
  EXPECT_THAT(outcome_->reason, HasSubstr("perhaps rank 0 has them"));
}

// Both may have them: a third one must not get them, too.
TEST_F(HandOverTest, WhoMayHaveTakenThemIsTheLastOne) {
  Begin();
  for (;;) {
    const auto answer = Arrive();
    ASSERT_TRUE(answer.has_value());
    if (answer->taken) break;
    Answer(*answer);
  }
  Effects again;
  giving_.Resumed(again);
  Refuse(0);
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->rank, -1);
  EXPECT_EQ(outcome_->reason, "perhaps rank 0 has them; it answered: no");
  EXPECT_THAT(hooks_[0]->values(), ::testing::Each(11.0F));
  EXPECT_THAT(pieces_, IsEmpty());
}

TEST_F(HandOverTest, AnswersOfOthersAndOfEarlierTriesMeanNothing) {
  Begin();
  const std::size_t sent = pieces_.size();
  Answer({.id = kId + 1, .rank = 0, .received = 500, .taken = true});
  Answer({.id = kId, .rank = 1, .received = 500, .taken = true});
  EXPECT_FALSE(outcome_.has_value());
  giving_.Cancel();
  Answer({.id = kId, .rank = 0, .received = 500, .taken = true});
  EXPECT_FALSE(outcome_.has_value());
  EXPECT_THAT(pieces_, SizeIs(sent));
  EXPECT_THAT(own_.values(), ::testing::Each(10.0F));
}

// ---- Pieces from a member that may send anything

std::string Refusal(ResidualTaking& taking, const wire::HandOver& piece,
                    const std::vector<std::byte>& bytes) {
  Effects effects;
  const wire::PayloadRef payload = wire::OwnedPayload::Make(bytes);
  taking.On(piece, payload.get(), /*is_between=*/true, effects);
  if (effects.empty()) return "nothing";
  return std::get<wire::HandOverAnswer>(std::get<SendFrameEffect>(effects[0]).header).refusal;
}

TEST_F(HandOverTest, WhatIsNoStateOfTheHookIsRefused) {
  ResidualTaking& taking = *takers_[0];
  const auto whole = [&](const std::vector<std::byte>& file) {
    return Refusal(taking, {.id = 1, .rank = 2, .bytes = file.size()}, file);
  };
  EXPECT_THAT(whole(std::vector<std::byte>(40)), HasSubstr("rank 0 does not take them: "));
  HookState other = own_.State();
  other.metadata["format"] = "other";
  EXPECT_THAT(whole(FileOf(other)), HasSubstr("format \"other\"; allowed: \"kept\""));
  HookState large = own_.State();
  large.tensors[0].shape = {2};
  large.tensors[0].data.resize(8);
  EXPECT_THAT(whole(FileOf(large)), HasSubstr("has 8 bytes of float32; 400"));
  EXPECT_THAT(Refusal(taking, {.id = 1, .rank = 2, .bytes = std::uint64_t{1} << 40}, {}),
              HasSubstr("rank 0 takes at most "));
  // Not its beginning, or more than it has.
  EXPECT_EQ(
      Refusal(taking, {.id = 1, .rank = 2, .offset = 8, .bytes = 40}, std::vector<std::byte>(8)),
      "nothing");
  EXPECT_THAT(Refusal(taking, {.id = 1, .rank = 2, .bytes = 4}, std::vector<std::byte>(8)),
              HasSubstr("has bytes 0 to 8 of 4"));
  EXPECT_THAT(hooks_[0]->values(), ::testing::Each(1.0F));
  Keep(3, own_late_);
  HookState late = own_late_.State(own_options_.manifest);
  late.tensors[0].name = "v";
  EXPECT_THAT(whole(FileOf(late)), HasSubstr("tensor \"v\" is of no parameter"));
  late.tensors[0].name = "w";
  late.tensors[0].shape = {50, 2};
  EXPECT_THAT(whole(FileOf(late)), HasSubstr("another dtype or shape"));
  EXPECT_THAT(Kept(late_[0]), IsEmpty());
}

TEST_F(HandOverTest, FewAreTakenAtATime) {
  ResidualTaking& taking = *takers_[0];
  std::vector<std::string> refusals;
  for (int rank = 1; rank <= 5; ++rank) {
    refusals.push_back(
        Refusal(taking, {.id = 1, .rank = rank, .bytes = 40}, std::vector<std::byte>(8)));
  }
  EXPECT_THAT(refusals, ElementsAre("", "", "", "", "rank 0 takes those of 4 other members"));
}

// They were killed in the middle, or gave up.
TEST_F(HandOverTest, WhoIsGoneTakesNobodysPlace) {
  ResidualTaking& taking = *takers_[0];
  const std::vector<std::byte> piece(8);
  for (int rank = 1; rank <= 4; ++rank) {
    EXPECT_EQ(Refusal(taking, {.id = 1, .rank = rank, .bytes = 40}, piece), "");
  }
  taking.ForgetParts();
  // What was under way when they gathered begins nothing.
  for (int rank = 1; rank <= 4; ++rank) {
    Effects effects;
    taking.On({.id = 1, .rank = rank, .offset = 8, .bytes = 40}, nullptr, true, effects);
    EXPECT_THAT(effects, IsEmpty());
  }
  for (int rank = 5; rank <= 8; ++rank) {
    EXPECT_EQ(Refusal(taking, {.id = 1, .rank = rank, .bytes = 40}, piece), "");
  }
}

}  // namespace
}  // namespace gradwire::client
