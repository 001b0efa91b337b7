#include "hooks/safetensors.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

StateTensor Tensor(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
  std::size_t bytes = ByteSize(dtype);
  for (std::int64_t side : shape) bytes *= static_cast<std::size_t>(side);
  StateTensor tensor{.name = name, .dtype = dtype, .shape = std::move(shape), .data = {}};
  for (std::size_t i = 0; i < bytes; ++i) {
    tensor.data.push_back(static_cast<std::byte>(7 * i + name.size()));
  }
  return tensor;
}

HookState Small() {
  HookState state{.metadata = {{"iteration", "30"}, {"lines", "a\nb\"c\" é"}}, .tensors = {}};
  state.tensors.push_back(Tensor("q/weight", DType::kFloat32, {3, 2}));
  state.tensors.push_back(Tensor("bias", DType::kFloat16, {3}));
  return state;
}

void ExpectSame(const HookState& a, const HookState& b) {
  EXPECT_EQ(a.metadata, b.metadata);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].name, b.tensors[i].name);
    EXPECT_EQ(a.tensors[i].dtype, b.tensors[i].dtype) << a.tensors[i].name;
    EXPECT_EQ(a.tensors[i].shape, b.tensors[i].shape) << a.tensors[i].name;
    EXPECT_EQ(a.tensors[i].data, b.tensors[i].data) << a.tensors[i].name;
  }
}

// A file of this header and data, whatever they are.
std::string File(std::string header, const std::string& data = "") {
  std::string bytes;
  for (std::size_t i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xFF));
  }
  return bytes + header + data;
}

void ExpectRefused(const std::string& bytes, const std::string& why, const std::string& what) {
  const auto read = ReadSafetensors(bytes);
  ASSERT_FALSE(read.ok()) << what;
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_THAT(std::string(read.status().message()), AllOf(StartsWith("state: "), HasSubstr(why)))
      << what;
}

TEST(SafetensorsTest, EveryTypeComesBack) {
  HookState state{.metadata = {{"format", "test"}, {"", "empty key"}}, .tensors = {}};
  state.tensors.push_back(Tensor("a", DType::kFloat32, {5}));
  state.tensors.push_back(Tensor("b", DType::kFloat64, {2, 3, 4}));
  state.tensors.push_back(Tensor("c", DType::kFloat16, {3}));
  state.tensors.push_back(Tensor("d", DType::kBFloat16, {1, 1}));
  state.tensors.push_back(Tensor("empty", DType::kFloat32, {0}));
  state.tensors.push_back(Tensor("scalar", DType::kFloat64, {}));
  state.tensors.push_back(Tensor("void", DType::kBFloat16, {7, 0, 3}));
  const auto read = ReadSafetensors(WriteSafetensors(state));
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(*read, state);
}

TEST(SafetensorsTest, NothingComesBackAsNothing) {
  const auto read = ReadSafetensors(WriteSafetensors({}));
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(*read, {});
}

TEST(SafetensorsTest, TensorsLieInTheOrderOfTheirNames) {
  HookState state = Small();
  const std::string bytes = WriteSafetensors(state);
  std::swap(state.tensors[0], state.tensors[1]);
  EXPECT_EQ(WriteSafetensors(state), bytes);
  const auto read = ReadSafetensors(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(*read, state);
}

TEST(SafetensorsTest, AnOldDigestDoesNotCount) {
  HookState state = Small();
  const std::string bytes = WriteSafetensors(state);
  state.metadata["digest"] = "0123456789abcdef";
  EXPECT_EQ(WriteSafetensors(state), bytes);
}

TEST(SafetensorsTest, TheBytesStayWhatTheyAre) {
  HookState state{.metadata = {{"iteration", "30"}}, .tensors = {}};
  const float values[] = {1, -2};
  state.tensors.push_back({.name = "q", .dtype = DType::kFloat32, .shape = {2, 1}, .data = {}});
  state.tensors[0].data.resize(sizeof values);
  std::memcpy(state.tensors[0].data.data(), values, sizeof values);
  const std::string header =
      "{\"__metadata__\":{\"digest\":\"0d2cd55fc7b305d9\",\"iteration\":\"30\"},"
      "\"q\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}  ";
  EXPECT_EQ(header.size() % 8, 0U);
  EXPECT_EQ(WriteSafetensors(state),
            File(header, std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8)));
}

TEST(SafetensorsTest, EveryFlippedBitIsFound) {
  const std::string good = WriteSafetensors(Small());
  ASSERT_TRUE(ReadSafetensors(good).ok());
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ (1U << bit));
      ExpectRefused(bad, "", absl::StrCat("byte ", at, " bit ", bit));
    }
  }
}

TEST(SafetensorsTest, EveryTruncationIsFound) {
  const std::string good = WriteSafetensors(Small());
  for (std::size_t size = 0; size < good.size(); ++size) {
    ExpectRefused(good.substr(0, size), "", absl::StrCat(size, " bytes"));
  }
  ExpectRefused(good + '\0', "data", "one byte more");
}

TEST(SafetensorsTest, AHundredThousandTensorsComeBack) {
  HookState state;
  for (int i = 0; i < 100'000; ++i) {
    state.tensors.push_back(
        {.name = absl::StrCat("model.layers.", i, ".mlp.experts.down_proj.weight.q"),
         .dtype = DType::kFloat32,
         .shape = {1},
         .data = std::vector<std::byte>(4, std::byte(i % 251))});
  }
  const absl::StatusOr<HookState> read = ReadSafetensors(WriteSafetensors(state));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->tensors.size(), state.tensors.size());
  std::map<std::string, std::vector<std::byte>> bytes;
  for (const StateTensor& tensor : read->tensors) bytes[tensor.name] = tensor.data;
  for (const StateTensor& tensor : state.tensors) ASSERT_EQ(bytes.at(tensor.name), tensor.data);
}

TEST(SafetensorsTest, HeaderLengthsThatLieAreRefused) {
  const std::string good = WriteSafetensors(Small());
  for (const std::uint64_t length :
       {std::uint64_t{1} << 20, kMaxSafetensorsHeader + 1, std::uint64_t{1} << 63,
        ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    std::string bad = good;
    std::memcpy(bad.data(), &length, sizeof length);
    ExpectRefused(bad, "header length", absl::StrCat(length));
  }
  ExpectRefused(File(""), "JSON", "no header");
}

std::string Entry(const std::string& fields) { return "{\"t\":{" + fields + "}}"; }

TEST(SafetensorsTest, HostileHeadersAreRefusedByName) {
  const std::string tail = ",\"shape\":[1],\"data_offsets\":[0,4]";
  const auto with_shape = [](const std::string& shape) {
    return Entry("\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":[0,4]");
  };
  const auto with_offsets = [](const std::string& offsets) {
    return Entry("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + offsets);
  };
  const struct {
    std::string header;
    std::string why;
  } cases[] = {
      {"[]", "header is an array"},
      {"7", "header is a number"},
      {"nul", "no JSON"},
      {"{} {}", "no JSON"},
      {"{\"a\":1}", "key \"a\" is a number"},
      {"{\"a\":null}", "key \"a\" is null"},
      {"{\"a\":[]}", "key \"a\" is an array"},
      {"{\"__metadata__\":[]}", "\"__metadata__\" is an array"},
      {"{\"__metadata__\":{\"a\":1}}", "key \"a\" is a number"},
      {"{\"__metadata__\":{\"a\":{}}}", "key \"a\" is an object"},
      {"{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", "key \"a\" is the same key twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", "twice"},
      {Entry(""), "\"dtype\" is nothing"},
      {Entry("\"dtype\":\"F32\",\"shape\":[1]"), "\"data_offsets\" is nothing"},
      {Entry("\"dtype\":\"I64\"" + tail), "\"I64\"; allowed: F32"},
      {Entry("\"dtype\":4" + tail), "\"dtype\" is a number"},
      {Entry("\"dtype\":\"F32\",\"dtype\":\"F32\"" + tail), "twice"},
      {Entry("\"dtype\":\"F32\",\"x\":1" + tail), "\"x\" is a field that is not known"},
      {Entry("\"dtype\":[]" + tail), "\"dtype\" is an array"},
      {with_shape("[2]"), "span 4 bytes"},
      {with_shape("[[1]]"), "an array"},
      {with_shape("[-1]"), "negative"},
      {with_shape("[1.0]"), "no integer"},
      {with_shape("[1e2]"), "no integer"},
      {with_shape("[\"1\"]"), "a string"},
      {with_shape("1"), "\"shape\" is a number"},
      {with_shape("[9223372036854775808]"), "2^63"},
      {with_shape("[99999999999999999999999]"), "no integer"},
      {with_shape("[4611686018427387904]"), "too large"},
      {with_shape("[4294967296,4294967296,0]"), "too large"},
      {with_shape("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"), "more than 16"},
      {with_offsets("[0]"), "not two numbers"},
      {with_offsets("[0,4,4]"), "more than 2"},
      {with_offsets("[4,0]"), "begin at 4"},
      {with_offsets("[0,5]"), "end at 5"},
      {with_offsets("[0,18446744073709551615]"), "2^63"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "digest is missing"},
      {"{\"\xff\":{}}", "no JSON"},
      {std::string("{}\0{}", 5), "zero"},
      {std::string(100'000, '['), "an array"},
      {"{\"a\":" + std::string(100'000, '{'), "no JSON"},
      {"{\"a\":{\"shape\":" + std::string(100'000, '['), "an array"},
  };
  for (const auto& one : cases) {
    ExpectRefused(File(one.header, "\1\2\3\4"), one.why, one.header.substr(0, 100));
  }
}

TEST(SafetensorsTest, TensorsThatShareOrSkipBytesAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + a +
           "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + b + "}}";
  };
  const std::string data(12, 'x');
  ExpectRefused(File(two("[0,4]", "[0,4]"), data), "tensor \"b\"", "overlap");
  ExpectRefused(File(two("[4,8]", "[0,4]"), data), "tensor \"a\"", "out of order");
  ExpectRefused(File(two("[0,4]", "[8,12]"), data), "tensor \"b\"", "hole");
  ExpectRefused(File(two("[0,4]", "[4,8]"), data), "tensors take 8", "bytes after the last");
  const std::string same =
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
  ExpectRefused(File(same), "\"a\" occurs twice", "same name");
}

TEST(SafetensorsTest, NamesInMessagesAreShortAndPrintable) {
  const std::string name(100'000, 'n');
  const auto read = ReadSafetensors(File("{\"\\u001b[2J" + name + "\":1}"));
  EXPECT_LT(read.status().message().size(), 400U);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("\\x1b"));
}

}  // namespace
}  // namespace gradwire
