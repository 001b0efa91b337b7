#include "proto/wire/join_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::wire {
namespace {

using testing::AllOf;
using testing::HasSubstr;

v1::JoinPart First(std::uint64_t parameters, std::uint64_t name_bytes) {
  v1::JoinPart part;
  part.mutable_request()->set_session("s");
  part.set_parameters(parameters);
  part.set_name_bytes(name_bytes);
  return part;
}

v1::JoinPart Names(const std::vector<std::string>& names) {
  v1::JoinPart part;
  for (const std::string& name : names)
    *part.add_manifest() = ToProto({name, {2}, DType::kFloat32});
  return part;
}

absl::Status Room(std::size_t /*bytes*/) { return absl::OkStatus(); }

absl::Status AddAll(const std::vector<v1::JoinPart>& parts) {
  JoinParts join(Room);
  for (const v1::JoinPart& part : parts) {
    if (absl::Status status = join.Add(part); !status.ok()) return status;
  }
  return join.CheckComplete();
}

TEST(JoinPartsTest, PutTogetherInOrder) {
  JoinParts join(Room);
  ASSERT_TRUE(join.Add(First(3, 6)).ok());
  ASSERT_TRUE(join.Add(Names({"a", "bb"})).ok());
  EXPECT_FALSE(join.CheckComplete().ok());
  ASSERT_TRUE(join.Add(Names({"ccc"})).ok());
  ASSERT_TRUE(join.CheckComplete().ok());
  EXPECT_EQ(join.request().session(), "s");
  const std::vector<ParameterSpec> expected = {{"a", {2}}, {"bb", {2}}, {"ccc", {2}}};
  EXPECT_EQ(join.TakeManifest(), expected);
}

TEST(JoinPartsTest, HostilePartsAreRefused) {
  v1::JoinPart both = First(1, 1);
  both.MergeFrom(Names({"a"}));
  const std::vector<std::pair<std::string, std::vector<v1::JoinPart>>> cases = {
      {"no part came", {}},
      {"JoinPart.request", {Names({"a"})}},
      {"not empty in the first part", {both}},
      {"JoinPart.parameters: 0", {First(0, 1)}},
      {"JoinPart.parameters: 1048577", {First(kMaxParameters + 1, 1)}},
      {"JoinPart.name_bytes: 0", {First(1, 0)}},
      {"JoinPart.name_bytes: 134217729", {First(1, kMaxManifestNameBytes + 1)}},
      {"in a later part", {First(1, 1), First(1, 1)}},
      {"is empty", {First(1, 1), v1::JoinPart()}},
      {"has 2 more bytes of names", {First(2, 3), Names({"aa"}), Names({"bb"})}},
      {"has 2 more parameters", {First(1, 9), Names({"a", "b"})}},
      {"manifest[1].name", {First(2, 2), Names({"a"}), Names({"a"})}},
      {"ends after 1 parameters", {First(2, 2), Names({"a"})}},
  };
  for (const auto& [what, parts] : cases) {
    const absl::Status status = AddAll(parts);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(what), HasSubstr("allowed")));
  }
}

TEST(JoinPartsTest, MemoryIsAskedForFirstAndOnce) {
  std::vector<std::size_t> asked;
  JoinParts join([&asked](std::size_t bytes) {
    asked.push_back(bytes);
    return absl::UnavailableError("full");
  });
  EXPECT_FALSE(join.Add(First(kMaxParameters + 1, 1)).ok());
  EXPECT_TRUE(asked.empty());
  EXPECT_EQ(join.Add(First(1000, 5000)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(asked, std::vector<std::size_t>{ManifestReader::BytesFor(1000, 5000)});
}

}  // namespace
}  // namespace gradwire::wire
