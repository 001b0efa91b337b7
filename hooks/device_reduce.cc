#include "hooks/device_reduce.h"

#include <algorithm>
#include <utility>

#include "hooks/device_status.h"

namespace gradwire {
namespace {

// Contributions begin at addresses that kernels access 16 bytes at a time.
std::size_t Aligned(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

DeviceReduction::DeviceReduction(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      uploaded_(*device_),
      cast_(*device_),
      result_(*device_),
      sum_(*device_),
      orthonormal_(*device_),
      not_finite_(*device_) {}

void DeviceReduction::Upload(std::byte* to, Pieces pieces, std::size_t skip, std::size_t bytes) {
  pieces_.clear();
  for (std::span<const std::byte> piece : pieces) {
    const std::size_t skipped = std::min(skip, piece.size());
    skip -= skipped;
    piece = piece.subspan(skipped, std::min(bytes, piece.size() - skipped));
    bytes -= piece.size();
    if (!piece.empty()) pieces_.push_back(piece);
  }
  device_->UploadPieces(to, pieces_);
}

// Contributions lie on the host, where nothing has overwritten them.
absl::StatusOr<ReduceOutcome> DeviceReduction::Outcome(DType dtype, std::size_t numel,
                                                       std::span<const Pieces> contributions,
                                                       const RawContributions& raw) {
  std::uint32_t not_finite = 0;
  device_->Download(&not_finite, not_finite_.data(), sizeof(not_finite));
  if (absl::Status status = StatusOf(*device_); !status.ok()) return status;
  if (not_finite == 0) return ReduceOutcome{};
  return ReduceOutcome{.finite = false, .sources = FindNonFinite(dtype, numel, contributions, raw)};
}

absl::StatusOr<ReduceOutcome> DeviceReduction::Reduce(DType dtype, ReduceOp op, std::size_t numel,
                                                      std::span<const Pieces> contributions,
                                                      std::span<std::byte> out,
                                                      const RawContributions& raw, double weight) {
  if (numel == 0) return ReduceOutcome{};
  const std::size_t count = contributions.size();
  const std::size_t wire_bytes = numel * ByteSize(dtype);
  const std::size_t raw_bytes = numel * ByteSize(raw.dtype);
  const std::size_t stride = Aligned(std::max(wire_bytes, raw.is_raw.empty() ? 0 : raw_bytes));
  const double mean = weight > 0 ? weight : static_cast<double>(count);
  const double divisor = op == ReduceOp::kMean ? mean : 1.0;
  // One kernel divides and adds where the host's does, whose quotients are never stored.
  const bool quotients =
      dtype == DType::kFloat32 && raw.dtype == dtype && divisor == 1 &&
      static_cast<std::size_t>(std::count(raw.is_raw.begin(), raw.is_raw.end(), true)) == count;
  uploaded_.Resize(count * stride);
  if (!quotients && !raw.is_raw.empty()) cast_.Resize(count * stride);
  result_.Resize(wire_bytes);
  not_finite_.Resize(1);
  device_->Zero(not_finite_.data(), not_finite_.bytes());
  sources_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = uploaded_.data() + i * stride;
    Upload(at, contributions[i], 0, raw.raw(i) ? raw_bytes : wire_bytes);
    if (raw.raw(i) && !quotients) {
      std::byte* to = cast_.data() + i * stride;
      device_->ConvertAndDivide(raw.dtype, at, dtype, to, numel, raw.divisor);
      at = to;
    }
    sources_[i] = at;
  }
  if (quotients) {
    device_->SumQuotients(sources_, raw.divisor, result_.data(), numel, not_finite_.data());
  } else {
    device_->Sum(dtype, sources_, divisor, result_.data(), numel, not_finite_.data());
  }
  device_->Download(out.data(), result_.data(), wire_bytes);
  return Outcome(dtype, numel, contributions, raw);
}

// Each contribution is cast to fp64 and added to zeros, in rank order: the host's operations.
absl::StatusOr<ReduceOutcome> DeviceReduction::ReduceOrthonormalized(
    const Segment& segment, std::span<const Pieces> contributions, std::span<std::byte> out) {
  const std::size_t width = ByteSize(segment.dtype);
  LowRankMath<double>& math = device_->low_rank<double>();
  not_finite_.Resize(1);
  device_->Zero(not_finite_.data(), not_finite_.bytes());
  std::size_t done = 0;
  for (const MatrixShape& shape : segment.matrices) {
    const std::size_t numel = shape.numel();
    if (numel == 0) continue;
    uploaded_.Resize(numel * width);
    sum_.Resize(numel);
    orthonormal_.Resize(numel);
    result_.Resize(numel * width);
    device_->Zero(sum_.data(), sum_.bytes());
    for (const Pieces pieces : contributions) {
      Upload(uploaded_.data(), pieces, done, numel * width);
      device_->Convert(segment.dtype, uploaded_.data(), DType::kFloat64, orthonormal_.data(),
                       numel);
      math.Add(numel, sum_.data(), orthonormal_.data());
    }
    const FactorOperands<double> factor{shape, sum_.data(), orthonormal_.data()};
    math.Orthonormalize(segment.epsilon, std::span(&factor, 1));
    // A sum of one: it notes what is not finite.
    const void* const one = orthonormal_.data();
    device_->Sum(DType::kFloat64, std::span(&one, 1), 1, sum_.data(), numel, not_finite_.data());
    device_->Convert(DType::kFloat64, sum_.data(), segment.dtype, result_.data(), numel);
    device_->Download(out.data() + done, result_.data(), numel * width);
    done += numel * width;
  }
  return Outcome(segment.dtype, segment.numel, contributions, {});
}

}  // namespace gradwire
