// The coordinator's sums on the emulated GPU have the host's bits.
#include "hooks/device_reduce.h"

#include <cmath>
#include <cstring>

#include "gmock/gmock.h"
#include "tests/cuda/emulated_device.h"
#include "tests/cuda/emulation/emulation.h"
#include "tests/hooks/kernels_testing.h"
#include "tests/hooks/reference.h"

namespace gradwire {
namespace {

// Contributions in pieces that are cut anywhere, also within elements.
class Cut {
 public:
  Cut(std::vector<std::vector<std::byte>> bytes, std::size_t piece) : bytes_(std::move(bytes)) {
    for (const auto& one : bytes_) {
      auto& pieces = cut_.emplace_back();
      for (std::span<const std::byte> rest = one; !rest.empty();) {
        const std::size_t length = std::min(piece + pieces.size() + cut_.size(), rest.size());
        pieces.push_back(rest.first(length));
        rest = rest.subspan(length);
      }
    }
    for (const auto& pieces : cut_) all_.emplace_back(pieces);
  }
  std::span<const Pieces> all() const { return all_; }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::vector<std::span<const std::byte>>> cut_;
  std::vector<Pieces> all_;
};

class OnDevice : public ::testing::Test {
 protected:
  emulation::NewGpu gpu_;
  DeviceReduction reduction_{testing::MakeEmulatedDevice()};
};

Cut Random(DType dtype, std::size_t numel, std::size_t count, bool finite, std::size_t piece) {
  std::vector<std::vector<std::byte>> bytes;
  for (std::size_t i = 0; i < count; ++i) {
    auto patterns = reference::ModeratePatterns(dtype, numel, i + 1);
    if (!finite && i == 0) patterns[numel / 2] = reference::CanonicalNan(dtype);
    bytes.push_back(reference::Pack(dtype, patterns));
  }
  return Cut(std::move(bytes), piece);
}

TEST_F(OnDevice, SumsAndMeansAreTheHosts) {
  constexpr std::size_t kNumel = 1501;
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      for (const std::size_t count : {1U, 3U, 66U}) {
        for (const double weight : {0.0, 7.0}) {
          const Cut inputs = Random(dtype, kNumel, count, count != 3, 997);
          std::vector<std::byte> expected(kNumel * ByteSize(dtype));
          std::vector<std::byte> actual(expected.size());
          const auto host = Reduce(dtype, op, kNumel, inputs.all(), expected, {}, weight);
          const auto there = reduction_.Reduce(dtype, op, kNumel, inputs.all(), actual, {}, weight);
          ASSERT_TRUE(there.ok()) << there.status();
          EXPECT_EQ(there->finite, host.finite);
          EXPECT_EQ(there->sources, host.sources);
          EXPECT_EQ(host.finite, count != 3);
          ASSERT_EQ(actual, expected) << Name(dtype) << " of " << count;
        }
      }
    }
  }
}

TEST_F(OnDevice, RawContributionsAreCastAndDividedAsOnTheHost) {
  constexpr std::size_t kNumel = 1000;
  for (const DType wire : kDTypes) {
    for (const bool all_raw : {true, false}) {
      const DType gradients = DType::kFloat32;
      std::vector<std::vector<std::byte>> bytes;
      RawContributions raw{.dtype = gradients, .divisor = 3, .is_raw = {}};
      for (std::size_t i = 0; i < 3; ++i) {
        const bool is_raw = all_raw || i == 1;
        const DType dtype = is_raw ? gradients : wire;
        raw.is_raw.push_back(is_raw);
        bytes.push_back(reference::Pack(dtype, reference::ModeratePatterns(dtype, kNumel, i + 1)));
      }
      const Cut inputs(std::move(bytes), 1024);
      std::vector<std::byte> expected(kNumel * ByteSize(wire));
      std::vector<std::byte> actual(expected.size());
      Reduce(wire, ReduceOp::kSum, kNumel, inputs.all(), expected, raw);
      const auto there = reduction_.Reduce(wire, ReduceOp::kSum, kNumel, inputs.all(), actual, raw);
      ASSERT_TRUE(there.ok()) << there.status();
      ASSERT_EQ(actual, expected) << Name(wire);
    }
  }
}

TEST_F(OnDevice, OrthonormalizedSumsAreTheHosts) {
  for (const DType dtype : kDTypes) {
    for (const bool finite : {true, false}) {
      for (const double epsilon : {0.0, 1e-8}) {
        const Segment segment{.dtype = dtype,
                              .numel = 300 * 4 + 7 * 7 + 20,
                              .op = ReduceOp::kOrthonormalizedSum,
                              .matrices = {{300, 4}, {7, 7}, {20, 1}},
                              .epsilon = epsilon};
        const Cut inputs = Random(dtype, segment.numel, 3, finite, 1111);
        std::vector<std::byte> expected(segment.bytes());
        std::vector<std::byte> actual(segment.bytes());
        const auto host = ReduceOrthonormalized(segment, inputs.all(), expected);
        const auto there = reduction_.ReduceOrthonormalized(segment, inputs.all(), actual);
        ASSERT_TRUE(there.ok()) << there.status();
        EXPECT_EQ(there->finite, finite);
        EXPECT_EQ(host.finite, finite);
        ASSERT_EQ(actual, expected) << Name(dtype) << ", epsilon " << epsilon;
      }
    }
  }
}

TEST_F(OnDevice, AFailedDeviceIsAnError) {
  const Cut inputs = Random(DType::kFloat32, 100, 2, true, 400);
  std::vector<std::byte> out(400);
  emulation::settings().lost = true;
  const auto lost = reduction_.Reduce(DType::kFloat32, ReduceOp::kSum, 100, inputs.all(), out);
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(reduction_.name(), "cuda:0");
}

}  // namespace
}  // namespace gradwire
