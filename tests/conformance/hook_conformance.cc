#include "tests/conformance/hook_conformance.h"

#include <cmath>
#include <cstring>
#include <random>

#include "gmock/gmock.h"
#include "tests/hooks/reference.h"

namespace gradwire::conformance {
namespace {

// Shapes that matter: longer than a chunk of the daemon under test, odd, one element, a scalar,
// none.
std::vector<ParameterSpec> Parameters(DType dtype) {
  return {{.name = "embedding.weight", .shape = {101, 37}, .dtype = dtype},
          {.name = "fc.weight", .shape = {17, 5, 3}, .dtype = dtype},
          {.name = "fc.bias", .shape = {1}, .dtype = dtype},
          {.name = "temperature", .shape = {}, .dtype = dtype},
          {.name = "unused", .shape = {0, 8}, .dtype = dtype}};
}

const std::vector<std::vector<std::size_t>> kOneBucket = {{0, 1, 2, 3, 4}};
const std::vector<std::vector<std::size_t>> kManyBuckets = {{4}, {3, 1}, {0}, {2}};

std::uint64_t BitsAt(const std::vector<std::byte>& bytes, DType dtype, std::size_t index) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + index * ByteSize(dtype), ByteSize(dtype));
  return bits;
}

std::vector<MemberGradients> RandomGradients(const Case& test, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<MemberGradients> all(static_cast<std::size_t>(test.world_size));
  for (MemberGradients& member : all) {
    for (const ParameterSpec& parameter : Parameters(test.dtype)) {
      std::vector<std::byte> bytes(parameter.numel() * ByteSize(test.dtype));
      for (std::size_t i = 0; i < parameter.numel(); ++i) {
        const std::uint64_t bits = reference::Encode(test.dtype, std::exp2(normal(random)) - 1.0);
        std::memcpy(bytes.data() + i * ByteSize(test.dtype), &bits, ByteSize(test.dtype));
      }
      member.push_back(std::move(bytes));
    }
  }
  return all;
}

// The dtype that the numbers have on the wire.
DType WireDType(const Case& test, const HookSpec& spec) {
  if (spec.comm_hook == "fp16") return DType::kFloat16;
  if (spec.comm_hook == "bf16") return DType::kBFloat16;
  if (spec.comm_wrapper == "fp16") return DType::kFloat16;
  if (spec.comm_wrapper == "bf16") return DType::kBFloat16;
  return test.dtype;
}

// torch's order of operations on one element: cast, divide, sum in rank order, cast back.
std::uint64_t Expected(const Case& test, DType wire, const std::vector<std::uint64_t>& inputs) {
  const DType sum_dtype = ByteSize(wire) == 2 ? DType::kFloat32 : DType::kFloat64;
  long double sum = 0;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const auto cast = reference::Decode(
        wire, reference::Encode(wire, reference::Decode(test.dtype, inputs[rank])));
    const auto part = reference::Decode(wire, reference::Encode(wire, cast / test.world_size));
    sum = rank == 0 ? part : reference::Decode(sum_dtype, reference::Encode(sum_dtype, sum + part));
  }
  return reference::Encode(test.dtype, reference::Decode(wire, reference::Encode(wire, sum)));
}

TEST_P(HookConformance, MatchesTorchsArithmeticOnEveryMember) {
  const Case& test = GetParam();
  const HookSpec spec = *HookSpec::Parse(test.spec);
  auto carrier = test.make(test.world_size, spec, Parameters(test.dtype));
  ASSERT_TRUE(carrier.ok()) << carrier.status();
  const DType wire = WireDType(test, spec);
  for (unsigned step = 0; step < 2; ++step) {
    const auto inputs = RandomGradients(test, step);
    auto result = (*carrier)->RunStep(inputs, step == 0 ? kOneBucket : kManyBuckets);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(result->verdicts, ::testing::Each(Verdict::kApply));
    if (spec.comm_hook == "noop") {
      EXPECT_EQ(result->gradients, inputs);
      continue;
    }
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      EXPECT_EQ(result->gradients[rank], result->gradients[0]) << "rank " << rank;
    }
    for (std::size_t p = 0; p < inputs[0].size(); ++p) {
      for (std::size_t i = 0; i < inputs[0][p].size() / ByteSize(test.dtype); ++i) {
        std::vector<std::uint64_t> column;
        for (const auto& member : inputs) column.push_back(BitsAt(member[p], test.dtype, i));
        ASSERT_EQ(BitsAt(result->gradients[0][p], test.dtype, i), Expected(test, wire, column))
            << "parameter " << p << " element " << i;
      }
    }
  }
}

TEST_P(HookConformance, NonFiniteGradientSkipsTheStepForAll) {
  const Case& test = GetParam();
  const HookSpec spec = *HookSpec::Parse(test.spec);
  auto carrier = test.make(test.world_size, spec, Parameters(test.dtype));
  ASSERT_TRUE(carrier.ok()) << carrier.status();
  auto inputs = RandomGradients(test, 3);
  const std::uint64_t nan = reference::CanonicalNan(test.dtype);
  std::memcpy(inputs.back()[1].data() + 5 * ByteSize(test.dtype), &nan, ByteSize(test.dtype));
  auto result = (*carrier)->RunStep(inputs, kManyBuckets);
  ASSERT_TRUE(result.ok()) << result.status();
  if (spec.comm_hook == "noop") {  // No gradient travels, so nobody else can know.
    EXPECT_THAT(result->verdicts, ::testing::Each(Verdict::kApply));
    EXPECT_EQ(result->gradients, inputs);
    return;
  }
  EXPECT_THAT(result->verdicts, ::testing::Each(Verdict::kSkip));
  for (const MemberGradients& member : result->gradients) {
    EXPECT_TRUE(reference::IsNan(test.dtype, BitsAt(member[1], test.dtype, 5)));
    EXPECT_EQ(member, result->gradients[0]);
  }
  auto next = (*carrier)->RunStep(RandomGradients(test, 4), kOneBucket);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->verdicts, ::testing::Each(Verdict::kApply));
}

TEST_P(PowerSgdConformance, GivesTheBitsOfTheSameHooksInOneLoop) {
  const Case& test = GetParam();
  const HookSpec spec = *HookSpec::Parse(test.spec);
  auto carrier = test.make(test.world_size, spec, Parameters(test.dtype));
  ASSERT_TRUE(carrier.ok()) << carrier.status();
  auto loop = MakeInProcessCarrier(test.world_size, spec, Parameters(test.dtype));
  ASSERT_TRUE(loop.ok()) << loop.status();
  for (unsigned step = 0; step < 7; ++step) {
    auto inputs = RandomGradients(test, step);
    const bool poisoned = step == 4;
    if (poisoned) {
      const std::uint64_t nan = reference::CanonicalNan(test.dtype);
      std::memcpy(inputs.back()[1].data(), &nan, ByteSize(test.dtype));
    }
    const auto& buckets = step % 3 == 2 ? kOneBucket : kManyBuckets;
    auto result = (*carrier)->RunStep(inputs, buckets);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(result->verdicts, ::testing::Each(poisoned ? Verdict::kSkip : Verdict::kApply));
    if (poisoned) continue;  // and the loop is not told: nothing of it may be left
    auto expected = (*loop)->RunStep(inputs, buckets);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(result->gradients, expected->gradients) << "step " << step;
  }
}

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HookConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PowerSgdConformance);

std::vector<Case> AllCases(const std::string& carrier, decltype(Case::make) make) {
  std::vector<Case> cases;
  for (const char* spec :
       {"no", "fp16", "bf16", "no,comm_wrapper=fp16", "no,comm_wrapper=bf16", "noop"}) {
    for (int world_size : {1, 2, 3, 4}) {
      for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
        cases.push_back({carrier, make, spec, world_size, dtype});
      }
    }
  }
  return cases;
}

std::vector<Case> PowerSgdCases(const std::string& carrier, decltype(Case::make) make) {
  std::vector<Case> cases;
  for (const char* spec :
       {"power_sgd", "power_sgd,rounds=1", "batched_power_sgd", "batched_power_sgd,rounds=1",
        "power_sgd,warm_start=false", "power_sgd,comm_wrapper=bf16,error_feedback=local"}) {
    const std::string options =
        ",start_powerSGD_iter=1,matrix_approximation_rank=16,min_compression_rate=0.5";
    for (int world_size : {1, 2, 3}) {
      for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
        cases.push_back({carrier, make, spec + options, world_size, dtype});
      }
    }
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.carrier + "_" + info.param.spec + "_world" +
                     std::to_string(info.param.world_size) + "_" + Name(info.param.dtype);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

}  // namespace gradwire::conformance
