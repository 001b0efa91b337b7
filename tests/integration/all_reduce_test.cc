// All-reduce through a real daemon gives, bit for bit, what the hooks and Reduce give by
// themselves.
#include <memory>
#include <string>
#include <vector>

#include "gradwire/client.h"
#include "gradwire/hooks/dtype.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::ExpectedReduction;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;

constexpr std::size_t kChunkBytes = 1024;
constexpr std::int64_t kSteps = 3;

struct Case {
  std::string spec;
  int world_size;
  DType dtype;
};

// Around one chunk of each element size, and the ends.
std::vector<std::vector<ParameterSpec>> Buckets(DType dtype) {
  std::vector<std::vector<ParameterSpec>> buckets;
  for (const std::size_t numel :
       std::vector<std::size_t>{1, 127, 128, 129, 255, 256, 257, 511, 512, 513, 5000}) {
    buckets.push_back({MakeParameter("p" + std::to_string(numel), numel, dtype)});
  }
  buckets.push_back({MakeParameter("empty", 0, dtype), MakeParameter("rest", 700, dtype),
                     MakeParameter("scalar", 1, dtype)});
  buckets.push_back({MakeParameter("nothing", 0, dtype)});
  return buckets;
}

class AllReduce : public ::testing::TestWithParam<Case> {};

absl::Status Train(Client& client, int rank, const std::vector<std::vector<ParameterSpec>>& buckets,
                   const HookSpec& spec) {
  for (std::int64_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(client.step(), step);
    std::vector<Gradients> gradients;
    std::vector<GradBucket> views;
    for (const auto& parameters : buckets) {
      gradients.emplace_back(parameters).Fill(rank, step);
    }
    for (Gradients& one : gradients) views.push_back(one.Bucket());
    std::vector<Completion> completions(buckets.size());
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const std::size_t b = (i + static_cast<std::size_t>(rank) * 5) % buckets.size();
      completions[b] = client.AllReduce(views[b]);
    }
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (absl::Status status = completions[b].Wait(); !status.ok()) return status;
      const auto expected = ExpectedReduction(spec, buckets[b], client.world_size(), step, rank);
      if (!expected.ok()) return expected.status();
      EXPECT_TRUE(gradients[b].bytes() == *expected)
          << "rank " << rank << " step " << step << " bucket of " << buckets[b][0].name;
    }
    const auto verdict = client.EndStep();
    if (!verdict.ok()) return verdict.status();
    EXPECT_EQ(*verdict, Verdict::kApply);
  }
  EXPECT_EQ(client.metrics().steps_applied, kSteps);
  return client.Leave();
}

TEST_P(AllReduce, IsExactlyTheReference) {
  TestDaemon daemon({.chunk_bytes = kChunkBytes, .window_chunks = 2, .open_buckets = 2});
  const auto spec = HookSpec::Parse(GetParam().spec);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto buckets = Buckets(GetParam().dtype);
  ClientOptions options{.address = daemon.address(),
                        .session = "exact",
                        .world_size = GetParam().world_size,
                        .hook = *spec};
  for (const auto& bucket : buckets) {
    options.parameters.insert(options.parameters.end(), bucket.begin(), bucket.end());
  }
  ExpectAllOk(RunRanks(
      options, [&](Client& client, int rank) { return Train(client, rank, buckets, *spec); }));
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* spec : {"no", "fp16", "bf16", "noop", "no,comm_wrapper=fp16",
                           "fp16,comm_wrapper=bf16", "noop,comm_wrapper=bf16"}) {
    for (int world_size = 1; world_size <= 4; ++world_size) {
      cases.push_back({spec, world_size, DType::kFloat32});
    }
  }
  for (const DType dtype : {DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const char* spec : {"no", "fp16", "bf16"}) cases.push_back({spec, 3, dtype});
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  std::string name =
      info.param.spec + "_" + std::to_string(info.param.world_size) + "_" + Name(info.param.dtype);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Hooks, AllReduce, ::testing::ValuesIn(Cases()), CaseName);

TEST(AllReduceWindow, OppositeOrdersWithTheSmallestWindowFinish) {
  constexpr std::size_t kBuckets = 64;
  constexpr std::size_t kElements = (std::size_t{1} << 20) / sizeof(float);
  TestDaemon daemon({.chunk_bytes = 64 << 10, .window_chunks = 1, .open_buckets = 1});
  ClientOptions options{.address = daemon.address(), .session = "opposite", .world_size = 2};
  for (std::size_t b = 0; b < kBuckets; ++b) {
    options.parameters.push_back(MakeParameter("p" + std::to_string(b), kElements));
  }
  ExpectAllOk(RunRanks(options, [&](Client& client, int rank) -> absl::Status {
    std::vector<Gradients> gradients;
    std::vector<GradBucket> views;
    std::vector<Completion> completions;
    for (const ParameterSpec& parameter : options.parameters) {
      gradients.emplace_back(std::vector{parameter}).Fill(rank, 0);
    }
    for (Gradients& one : gradients) views.push_back(one.Bucket());
    for (std::size_t i = 0; i < kBuckets; ++i) {
      completions.push_back(client.AllReduce(views[rank == 0 ? i : kBuckets - 1 - i]));
    }
    for (Completion& completion : completions) {
      if (absl::Status status = completion.Wait(absl::Seconds(60)); !status.ok()) return status;
    }
    const auto expected = ExpectedReduction({}, {options.parameters[0]}, 2, 0);
    for (const Gradients& one : gradients) EXPECT_TRUE(one.bytes() == *expected);
    return client.EndStep().status();
  }));
}

}  // namespace
}  // namespace gradwire
