#include "tests/conformance/grouped_conformance.h"

// Node groups over a real daemon and the SDK: the bits are those of the same hooks in one loop,
// with one member for each group whose gradient is the group's sum times groups / members.
#include <cstring>
#include <map>
#include <optional>
#include <random>

#include "gmock/gmock.h"
#include "tests/conformance/hook_conformance.h"
#include "tests/hooks/reference.h"

namespace gradwire::conformance {
namespace {

std::vector<ParameterSpec> Model(DType dtype) {
  return {{.name = "embedding", .shape = {101, 37}, .dtype = dtype},
          {.name = "fc.weight", .shape = {17, 5, 3}, .dtype = dtype},
          {.name = "fc.bias", .shape = {17}, .dtype = dtype},
          {.name = "scale", .shape = {}, .dtype = dtype},
          {.name = "empty", .shape = {0, 8}, .dtype = dtype},
          {.name = "head", .shape = {40, 60}, .dtype = dtype}};
}

const std::vector<std::vector<std::size_t>> kOne = {{0, 1, 2, 3, 4, 5}};
const std::vector<std::vector<std::size_t>> kMany = {{5}, {4, 3}, {2, 0}, {1}};

std::vector<MemberGradients> RandomGradients(std::size_t members, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<MemberGradients> all(members);
  for (MemberGradients& member : all) {
    for (const ParameterSpec& parameter : Model(dtype)) {
      std::vector<std::byte>& bytes = member.emplace_back(parameter.numel() * ByteSize(dtype));
      for (std::size_t at = 0; at < bytes.size(); at += ByteSize(dtype)) {
        const std::uint64_t bits = reference::Encode(dtype, normal(random));
        std::memcpy(bytes.data() + at, &bits, ByteSize(dtype));
      }
    }
  }
  return all;
}

double At(const std::vector<std::byte>& bytes, DType dtype, std::size_t at) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + at, ByteSize(dtype));
  return static_cast<double>(reference::Decode(dtype, bits));
}

// The gradients of each group, in the order of the groups' first ranks.
std::vector<MemberGradients> OfGroups(const std::vector<MemberGradients>& members,
                                      const Grouping& grouping, DType dtype) {
  std::vector<std::vector<std::size_t>> groups;
  std::map<std::string, std::size_t> named;
  for (std::size_t r = 0; r < grouping.size(); ++r) {
    const bool known = !grouping[r].empty() && named.contains(grouping[r]);
    if (!known) {
      named[grouping[r]] = groups.size();
      groups.emplace_back();
    }
    groups[named[grouping[r]]].push_back(r);
  }
  const double divisor = static_cast<double>(members.size()) / static_cast<double>(groups.size());
  const bool wide = dtype == DType::kFloat32 || dtype == DType::kFloat64;
  std::vector<MemberGradients> sums;
  for (const std::vector<std::size_t>& ranks : groups) {
    MemberGradients& sum = sums.emplace_back(members[ranks.front()]);
    for (std::size_t p = 0; p < sum.size(); ++p) {
      for (std::size_t at = 0; at < sum[p].size(); at += ByteSize(dtype)) {
        double exact = 0;
        float narrow = 0;
        for (const std::size_t rank : ranks) {
          exact += At(members[rank][p], dtype, at);
          narrow += static_cast<float>(At(members[rank][p], dtype, at));
        }
        const double mean = wide ? exact / divisor : double{narrow / static_cast<float>(divisor)};
        const std::uint64_t bits = reference::Encode(dtype, mean);
        std::memcpy(sum[p].data() + at, &bits, ByteSize(dtype));
      }
    }
  }
  return sums;
}

TEST_P(NodeGroups, GiveTheBitsOfOneMemberForEachGroup) {
  const GroupedCase& test = GetParam();
  const HookSpec spec = *HookSpec::Parse(test.spec);
  auto carrier = MakeDaemonCarrier(static_cast<int>(test.grouping.size()), spec, Model(test.dtype),
                                   test.memory(test.grouping));
  ASSERT_TRUE(carrier.ok()) << carrier.status();
  std::unique_ptr<Carrier> loop;
  for (unsigned step = 0; step < 5; ++step) {
    const auto inputs = RandomGradients(test.grouping.size(), test.dtype, step);
    const auto groups = OfGroups(inputs, test.grouping, test.dtype);
    if (loop == nullptr) {
      loop =
          *MakeDeviceCarrier(static_cast<int>(groups.size()), spec, Model(test.dtype), test.device);
    }
    const auto& buckets = step % 3 == 2 && test.one_bucket ? kOne : kMany;
    auto result = (*carrier)->RunStep(inputs, buckets);
    ASSERT_TRUE(result.ok()) << result.status();
    auto expected = loop->RunStep(groups, buckets);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      EXPECT_EQ(result->gradients[r], expected->gradients[0]) << "rank " << r << " step " << step;
    }
  }
}

TEST_P(NodeGroups, ANonFiniteGradientSkipsTheStepForAll) {
  const GroupedCase& test = GetParam();
  auto carrier =
      MakeDaemonCarrier(static_cast<int>(test.grouping.size()), *HookSpec::Parse(test.spec),
                        Model(test.dtype), test.memory(test.grouping));
  ASSERT_TRUE(carrier.ok()) << carrier.status();
  auto inputs = RandomGradients(test.grouping.size(), test.dtype, 7);
  const std::uint64_t nan = reference::CanonicalNan(test.dtype);
  std::memcpy(inputs.back()[1].data(), &nan, ByteSize(test.dtype));
  auto result = (*carrier)->RunStep(inputs, kMany);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->verdicts, ::testing::Each(Verdict::kSkip));
}

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NodeGroups);

std::vector<GroupedCase> GroupedCases(const MakeGroupedMemory& memory,
                                      const std::function<std::shared_ptr<Device>()>& device,
                                      bool low_rank) {
  const std::string options =
      ",start_powerSGD_iter=1,matrix_approximation_rank=4,min_compression_rate=0.5";
  std::vector<GroupedCase> cases;
  const std::map<std::string, Grouping> groupings = {
      {"one_of_four", {"a", "a", "a", "a"}},
      {"two_of_two", {"a", "b", "a", "b"}},
      {"three_and_one", {"a", "a", "", "a"}},
      {"three_and_two", {"a", "a", "b", "a", "b"}},
  };
  for (const auto& [name, grouping] : groupings) {
    for (const std::string& spec :
         {std::string("no"), std::string("fp16"), std::string("bf16"),
          std::string("no,comm_wrapper=bf16"), "power_sgd" + options,
          "power_sgd" + options + ",rounds=1", "batched_power_sgd" + options,
          "power_sgd,comm_wrapper=fp16" + options}) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
        const bool casts = spec.starts_with("fp16") || spec.starts_with("bf16");
        if (casts && dtype == DType::kFloat16) continue;
        if (!low_rank && spec.find("sgd") != std::string::npos) continue;
        cases.push_back({name, grouping, spec, dtype, memory, device});
      }
    }
  }
  return cases;
}

std::string GroupedCaseName(const ::testing::TestParamInfo<GroupedCase>& info) {
  std::string name = info.param.name + "_" + info.param.spec + "_" + Name(info.param.dtype);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

}  // namespace gradwire::conformance
