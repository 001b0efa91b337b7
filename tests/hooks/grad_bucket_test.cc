#include "gradwire/hooks/grad_bucket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace gradwire {
namespace {

using testing::HasSubstr;

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

ParameterSpec Spec(const std::string& name, std::vector<std::int64_t> shape) {
  return {name, std::move(shape), DType::kFloat32};
}

TEST(ParameterSpec, NumelIsTheProductOfTheShape) {
  EXPECT_EQ(Spec("a", {}).numel(), 1U);
  EXPECT_EQ(Spec("a", {3, 4, 5}).numel(), 60U);
  EXPECT_EQ(Spec("a", {3, 0, 5}).numel(), 0U);
}

TEST(ParameterSpec, AcceptsWhatIsAllowed) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(Spec(std::string(512, 'n'), {}).Validate().ok());
  EXPECT_TRUE(Spec("a", std::vector<std::int64_t>(16, 2)).Validate().ok());
  EXPECT_TRUE(Spec("a", {std::int64_t{1} << 46}).Validate().ok());
  EXPECT_TRUE(Spec("a", {kMax, 0, kMax}).Validate().ok());
}

TEST(ParameterSpec, RefusesByNameFieldAndLimit) {
  EXPECT_THAT(Refusal(Spec("", {}).Validate()), HasSubstr("1 to 512"));
  EXPECT_THAT(Refusal(Spec(std::string(513, 'n'), {}).Validate()), HasSubstr("513 bytes"));
  EXPECT_THAT(Refusal(Spec("w", std::vector<std::int64_t>(17, 1)).Validate()),
              AllOf(HasSubstr("\"w\""), HasSubstr("17 dimensions"), HasSubstr("at most 16")));
  EXPECT_THAT(Refusal(Spec("w", {2, -3}).Validate()),
              AllOf(HasSubstr("\"w\""), HasSubstr("-3"), HasSubstr("negative")));
  EXPECT_THAT(Refusal(Spec("w", {0, -3}).Validate()), HasSubstr("negative"));
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(Refusal(Spec("w", {(std::int64_t{1} << 46) + 1}).Validate()),
              HasSubstr("281474976710656 bytes"));
  EXPECT_THAT(Refusal(Spec("w", {kMax, kMax, kMax}).Validate()), HasSubstr("shape"));
  EXPECT_THAT(Refusal(Spec("w", {std::int64_t{1} << 32, std::int64_t{1} << 32}).Validate()),
              HasSubstr("shape"));
  ParameterSpec odd = Spec("w", {1});
  odd.dtype = static_cast<DType>(9);
  EXPECT_THAT(Refusal(odd.Validate()), AllOf(HasSubstr("dtype: 9"), HasSubstr("float16")));
}

TEST(GradBucket, ShowsItsPartsAsTorchDoes) {
  std::vector<float> data(11);
  absl::StatusOr<GradBucket> bucket =
      GradBucket::Make(3, {DType::kFloat32, data.data(), 11},
                       {Spec("a", {2, 3}), Spec("empty", {0}), Spec("b", {5})}, true);
  ASSERT_TRUE(bucket.ok()) << bucket.status();
  EXPECT_EQ(bucket->index(), 3);
  EXPECT_TRUE(bucket->is_last());
  EXPECT_EQ(bucket->buffer().data, data.data());
  EXPECT_EQ(bucket->buffer().bytes(), 44U);
  EXPECT_EQ(bucket->parameters().size(), 3U);
  const std::vector<TensorView> views = bucket->gradients();
  ASSERT_EQ(views.size(), 3U);
  EXPECT_EQ(views[0].data, data.data());
  EXPECT_EQ(views[0].numel, 6U);
  EXPECT_EQ(views[1].numel, 0U);
  EXPECT_EQ(views[2].data, data.data() + 6);
  EXPECT_EQ(views[2].numel, 5U);
}

TEST(GradBucket, MayBeScatteredInALargerBuffer) {
  std::vector<float> data(11);
  const TensorView around = {DType::kFloat32, data.data(), 11};
  absl::StatusOr<GradBucket> bucket = GradBucket::MakeScattered(
      1, around, {Spec("a", {2}), Spec("empty", {0}), Spec("b", {4})}, {1, 3, 7}, true);
  ASSERT_TRUE(bucket.ok()) << bucket.status();
  EXPECT_FALSE(bucket->is_flat());
  EXPECT_TRUE(bucket->is_last());
  EXPECT_EQ(bucket->buffer().numel, 6U);
  const std::vector<TensorView> views = bucket->gradients();
  EXPECT_EQ(views[0].data, data.data() + 1);
  EXPECT_EQ(views[2].data, data.data() + 7);
  EXPECT_EQ(views[2].numel, 4U);
  EXPECT_EQ(bucket->runs().size(), 3U);

  std::vector<float> flat(6);
  ASSERT_TRUE(bucket->set_buffer({DType::kFloat32, flat.data(), 6}).ok());
  EXPECT_TRUE(bucket->is_flat());
  EXPECT_EQ(bucket->gradients()[2].data, flat.data() + 2);
  EXPECT_EQ(bucket->runs().size(), 1U);
}

TEST(GradBucket, RefusesPlacesThatDoNotFit) {
  std::vector<float> data(8);
  const auto refusal = [&](std::vector<std::size_t> places) {
    return Refusal(GradBucket::MakeScattered(0, {DType::kFloat32, data.data(), 8},
                                             {Spec("a", {3}), Spec("b", {2})}, std::move(places))
                       .status());
  };
  EXPECT_THAT(refusal({0}), HasSubstr("1 places for 2 parameters"));
  EXPECT_THAT(refusal({0, 2}), AllOf(HasSubstr("\"b\" with 2 elements is at element 2"),
                                     HasSubstr("3 and up, within 8")));
  EXPECT_THAT(refusal({0, 7}), HasSubstr("is at element 7"));
  EXPECT_THAT(refusal({0, std::numeric_limits<std::size_t>::max()}), HasSubstr("\"b\""));
  EXPECT_THAT(refusal({4, 0}), HasSubstr("\"b\" with 2 elements is at element 0"));
}

TEST(GradBucket, MayHoldNoElements) {
  absl::StatusOr<GradBucket> bucket =
      GradBucket::Make(0, {DType::kFloat32, nullptr, 0}, {Spec("a", {0})});
  ASSERT_TRUE(bucket.ok()) << bucket.status();
  EXPECT_EQ(bucket->gradients().front().numel, 0U);
}

TEST(GradBucket, MakeRefusesWhatDoesNotFit) {
  std::vector<float> data(4);
  const TensorView buffer = {DType::kFloat32, data.data(), 4};
  EXPECT_THAT(Refusal(GradBucket::Make(0, buffer, {Spec("a", {5})}).status()),
              AllOf(HasSubstr("holds 4"), HasSubstr("take 5")));
  EXPECT_THAT(Refusal(GradBucket::Make(-1, buffer, {Spec("a", {4})}).status()), HasSubstr("-1"));
  EXPECT_THAT(Refusal(GradBucket::Make(0, buffer, {}).status()), HasSubstr("no parameters"));
  EXPECT_THAT(
      Refusal(GradBucket::Make(0, {DType::kFloat64, data.data(), 4}, {Spec("a", {4})}).status()),
      AllOf(HasSubstr("\"a\" is float32"), HasSubstr("buffer is float64")));
  EXPECT_THAT(
      Refusal(GradBucket::Make(0, {DType::kFloat32, nullptr, 4}, {Spec("a", {4})}).status()),
      HasSubstr("null"));
  EXPECT_THAT(Refusal(GradBucket::Make(0, buffer, {Spec("", {4})}).status()), HasSubstr("name"));
}

TEST(GradBucket, SetBufferReplacesTheViewHereOnly) {
  std::vector<float> data(4);
  std::vector<std::uint16_t> half(4);
  absl::StatusOr<GradBucket> bucket =
      GradBucket::Make(0, {DType::kFloat32, data.data(), 4}, {Spec("a", {3}), Spec("b", {1})});
  ASSERT_TRUE(bucket.ok());
  GradBucket copy = *bucket;
  ASSERT_TRUE(copy.set_buffer({DType::kFloat16, half.data(), 4}).ok());
  EXPECT_EQ(copy.gradients()[1].data, half.data() + 3);
  EXPECT_EQ(copy.gradients()[1].dtype, DType::kFloat16);
  EXPECT_EQ(bucket->buffer().data, data.data());

  EXPECT_THAT(Refusal(copy.set_buffer({DType::kFloat16, half.data(), 3})), HasSubstr("holds 3"));
  EXPECT_THAT(Refusal(copy.set_buffer({DType::kFloat16, nullptr, 4})), HasSubstr("null"));
  EXPECT_THAT(Refusal(copy.set_buffer({static_cast<DType>(0), half.data(), 4})),
              HasSubstr("dtype 0"));
  EXPECT_EQ(copy.buffer().data, half.data());
}

}  // namespace
}  // namespace gradwire
