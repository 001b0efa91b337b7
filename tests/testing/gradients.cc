#include "tests/testing/gradients.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "gradwire/hooks/registry.h"
#include "hooks/reduce.h"

namespace gradwire::testing {
namespace {

// Exactly representable neighbours are enough here: the conversions have tests of their own.
std::uint16_t ToBFloat16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

// A multiple of 1/1024 in [-1, 1], the half-precision bits of it.
std::uint16_t ToHalf(double value) {
  const auto fixed = static_cast<int>(std::lround(value * 1024));
  if (fixed == 0) return 0;
  const unsigned magnitude = static_cast<unsigned>(std::abs(fixed));
  unsigned shift = 0;
  while ((magnitude << shift) < 1024) ++shift;
  const unsigned exponent = 15 - shift;
  const unsigned mantissa = (magnitude << shift) & 1023U;
  return static_cast<std::uint16_t>((fixed < 0 ? 0x8000U : 0U) | (exponent << 10) | mantissa);
}

void Store(DType dtype, double value, std::byte* out) {
  const auto single = static_cast<float>(value);
  std::uint16_t half = 0;
  switch (dtype) {
    case DType::kFloat64:
      std::memcpy(out, &value, sizeof(value));
      return;
    case DType::kFloat32:
      std::memcpy(out, &single, sizeof(single));
      return;
    case DType::kBFloat16:
      half = ToBFloat16(single);
      break;
    case DType::kFloat16:
      half = std::isnan(value) ? std::uint16_t{0x7e00} : ToHalf(value);
      break;
  }
  std::memcpy(out, &half, sizeof(half));
}

}  // namespace

double GradientValue(int rank, std::int64_t step, std::size_t i) {
  const auto mixed =
      static_cast<std::uint32_t>(i * 2654435761U + static_cast<std::size_t>(rank) * 40503U +
                                 static_cast<std::size_t>(step) * 977U);
  return static_cast<double>(mixed) / 2147483648.0 - 1.0;
}

ParameterSpec MakeParameter(const std::string& name, std::size_t numel, DType dtype) {
  return {.name = name, .shape = {static_cast<std::int64_t>(numel)}, .dtype = dtype};
}

Gradients::Gradients(std::vector<ParameterSpec> parameters)
    : parameters_(std::move(parameters)), dtype_(parameters_.front().dtype) {
  for (const ParameterSpec& parameter : parameters_) numel_ += parameter.numel();
  bytes_.resize(numel_ * ByteSize(dtype_));
}

void Gradients::Fill(int rank, std::int64_t step) {
  const std::size_t width = ByteSize(dtype_);
  for (std::size_t i = 0; i < numel_; ++i) {
    Store(dtype_, GradientValue(rank, step, i), bytes_.data() + i * width);
  }
}

void Gradients::Poison(std::size_t element) {
  Store(dtype_, std::numeric_limits<double>::quiet_NaN(),
        bytes_.data() + element * ByteSize(dtype_));
}

GradBucket Gradients::Bucket(int index) {
  return *GradBucket::Make(index, {.dtype = dtype_, .data = bytes_.data(), .numel = numel_},
                           parameters_);
}

absl::StatusOr<std::vector<std::byte>> ExpectedReduction(
    const HookSpec& spec, const std::vector<ParameterSpec>& parameters, int world_size,
    std::int64_t step, int rank, int poisoned_rank) {
  struct Rank {
    std::unique_ptr<Gradients> gradients;
    std::unique_ptr<GradBucket> bucket;
    std::unique_ptr<Hook> hook;
    std::unique_ptr<HookRun> run;
  };
  std::vector<Rank> ranks;
  for (int r = 0; r < world_size; ++r) {
    Rank one{
        .gradients = std::make_unique<Gradients>(parameters), .bucket = {}, .hook = {}, .run = {}};
    one.gradients->Fill(r, step);
    if (r == poisoned_rank) one.gradients->Poison(0);
    one.bucket = std::make_unique<GradBucket>(one.gradients->Bucket());
    auto hook = HookRegistry::Global().Make(spec);
    if (!hook.ok()) return hook.status();
    one.hook = *std::move(hook);
    auto run = one.hook->Start(*one.bucket, step);
    if (!run.ok()) return run.status();
    one.run = *std::move(run);
    ranks.push_back(std::move(one));
  }
  while (true) {
    std::optional<RoundPlan> plan;
    for (int r = 0; r < world_size; ++r) {
      auto next =
          ranks[static_cast<std::size_t>(r)].run->Next({.world_size = world_size, .rank = r});
      if (!next.ok()) return next.status();
      plan = *next;
    }
    if (!plan) break;
    for (std::size_t s = 0; s < plan->segments.size(); ++s) {
      const Segment& segment = plan->segments[s];
      const ElementRange range{.segment = s, .begin = 0, .end = segment.numel};
      std::vector<std::vector<std::byte>> encoded(ranks.size());
      std::vector<std::span<const std::byte>> spans(ranks.size());
      std::vector<Pieces> inputs;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        encoded[r].resize(segment.bytes());
        if (absl::Status status = ranks[r].run->Encode(range, encoded[r]); !status.ok())
          return status;
        spans[r] = encoded[r];
        inputs.push_back({&spans[r], 1});
      }
      std::vector<std::byte> result(segment.bytes());
      Reduce(segment.dtype, segment.op, segment.numel, inputs, result);
      for (Rank& one : ranks) {
        if (absl::Status status = one.run->Decode(range, result); !status.ok()) return status;
      }
    }
  }
  for (Rank& one : ranks) one.run->Abort();
  return ranks[static_cast<std::size_t>(rank)].gradients->bytes();
}

}  // namespace gradwire::testing
