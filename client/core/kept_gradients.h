// The open step's gradients as they were when their buckets began. Results overwrite a bucket's own
// memory, so that a step which has to be reduced again begins with these copies.
//
// They lie where the gradients lie, and take as much memory as these, beside them; memory is used
// again in the next step. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/slice.h"
#include "hooks/device.h"
#include "hooks/device_vector.h"

namespace gradwire::client {

class KeptGradients {
 public:
  // On this device. Null: nothing may be kept.
  explicit KeptGradients(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  bool on() const { return device_ != nullptr; }

  // Before a hook sees the bucket, of which this slice is reduced here. Only if on(). An error of
  // the device shows in its error().
  void Keep(std::uint32_t id, const GradBucket& bucket, const Slice& slice);
  bool Has(std::uint32_t id) const;

  // A bucket with the same parameters whose buffer has the kept gradients at the slice's place, and
  // is not the caller's: nobody has seen it, and no daemon that was lost writes there. What lies
  // beside the slice is not written, but on a GPU it takes memory. It stays until Clear. A later
  // call gives the kept gradients again, in the same buffer. Of a bucket that is kept.
  absl::StatusOr<GradBucket*> Again(std::uint32_t id);
  // Copies the slice from the buffer of Again to the caller's bucket.
  void GiveBack(std::uint32_t id);

  // The step is over.
  void Clear();

 private:
  struct Bucket {
    explicit Bucket(Device& device) : kept(device), scratch(device) {}
    DeviceVector<std::byte> kept;
    DeviceVector<std::byte> scratch;
    std::vector<TensorView> places{};  // where the caller's bucket lies
    std::size_t begin = 0;             // of the slice, in bytes of the bucket
    std::size_t end = 0;
    std::optional<GradBucket> bucket{};  // the caller's, later with another buffer; none: not kept
  };

  // Calls function(place, size, at) for the slice's bytes in each of the caller's places, which are
  // `at` in the slice.
  template <class Function>
  static void ForEachPlace(const Bucket& entry, Function function);

  const std::shared_ptr<Device> device_;
  std::map<std::uint32_t, Bucket> buckets_;  // also of the last step, for their memory
};

}  // namespace gradwire::client
