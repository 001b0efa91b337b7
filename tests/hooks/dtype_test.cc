#include "gradwire/hooks/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire {
namespace {

TEST(DType, ByteSizes) {
  EXPECT_EQ(ByteSize(DType::kFloat32), 4U);
  EXPECT_EQ(ByteSize(DType::kFloat64), 8U);
  EXPECT_EQ(ByteSize(DType::kFloat16), 2U);
  EXPECT_EQ(ByteSize(DType::kBFloat16), 2U);
}

TEST(DType, NamesAreTorchs) {
  EXPECT_EQ(Name(DType::kFloat32), "float32");
  EXPECT_EQ(Name(DType::kFloat64), "float64");
  EXPECT_EQ(Name(DType::kFloat16), "float16");
  EXPECT_EQ(Name(DType::kBFloat16), "bfloat16");
}

TEST(DType, ParseIsTheInverseOfName) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    ASSERT_TRUE(ParseDType(Name(dtype)).ok());
    EXPECT_EQ(*ParseDType(Name(dtype)), dtype);
  }
}

TEST(DType, ParseNamesTheValueAndWhatIsAllowed) {
  for (const std::string name : {"float8", "", "Float32", "float32 "}) {
    const absl::Status status = ParseDType(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("\"" + name + "\""));
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("\"float32\", \"float64\", \"float16\", \"bfloat16\""));
  }
}

TEST(DType, KnowsItsValues) {
  for (int value = -2; value < 300; ++value) EXPECT_EQ(IsDType(value), value >= 1 && value <= 4);
}

}  // namespace
}  // namespace gradwire
