// The coordinator's arithmetic on a device: what hooks/reduce.h computes on the host, with the same
// bits. Contributions come from the host's memory, and results go there.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "hooks/device.h"
#include "hooks/device_vector.h"
#include "hooks/reduce.h"

namespace gradwire {

// Keeps its memory for the next call. Not thread-safe.
class DeviceReduction {
 public:
  explicit DeviceReduction(std::shared_ptr<Device> device);

  // The name of the device, for messages.
  std::string name() const { return Name(device_->id()); }

  // As Reduce and ReduceOrthonormalized. An error is the device's: `out` has no result then, and
  // neither has any later call.
  absl::StatusOr<ReduceOutcome> Reduce(DType dtype, ReduceOp op, std::size_t numel,
                                       std::span<const Pieces> contributions,
                                       std::span<std::byte> out, const RawContributions& raw = {},
                                       double weight = 0);
  absl::StatusOr<ReduceOutcome> ReduceOrthonormalized(const Segment& segment,
                                                      std::span<const Pieces> contributions,
                                                      std::span<std::byte> out);

 private:
  // The next `bytes` of a contribution, from `skip` on, to the device.
  void Upload(std::byte* to, Pieces pieces, std::size_t skip, std::size_t bytes);
  // Downloads the flag that Sum sets, after the results are there.
  absl::StatusOr<ReduceOutcome> Outcome(DType dtype, std::size_t numel,
                                        std::span<const Pieces> contributions,
                                        const RawContributions& raw);

  const std::shared_ptr<Device> device_;
  DeviceVector<std::byte> uploaded_;  // all contributions
  DeviceVector<std::byte> cast_;      // those that are raw, in the reduction's dtype
  DeviceVector<std::byte> result_;
  DeviceVector<double> sum_;
  DeviceVector<double> orthonormal_;
  DeviceVector<std::uint32_t> not_finite_;
  std::vector<const void*> sources_;
  std::vector<std::span<const std::byte>> pieces_;
};

}  // namespace gradwire
