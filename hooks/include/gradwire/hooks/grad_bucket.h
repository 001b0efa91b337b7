// Gradients flattened into one contiguous buffer, reduced as a unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/device_id.h"
#include "gradwire/hooks/dtype.h"

namespace gradwire {

// One parameter of the model. Its identity in a session is its name.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;  // empty: a scalar, one element
  DType dtype = DType::kFloat32;

  // The product of the shape. Only meaningful after Validate has returned ok.
  std::size_t numel() const;

  // Checks that the name has 1 to 512 bytes, that there are at most 16 dimensions, none negative,
  // and that the size is at most 2^48 bytes. Returns InvalidArgument with the parameter, the field
  // and what is allowed.
  absl::Status Validate() const;

  bool operator==(const ParameterSpec&) const = default;
};

// A typed run of elements in memory that it does not own.
struct TensorView {
  DType dtype = DType::kFloat32;
  void* data = nullptr;
  std::size_t numel = 0;
  DeviceId device{};

  std::size_t bytes() const { return numel * ByteSize(dtype); }
};

// The equivalent of PyTorch's dist.GradBucket: index, buffer, per-parameter views, is_last,
// set_buffer.
//
// Not thread-safe. The bucket does not own its buffer. The memory must stay valid, and its owner
// must not change it, from the moment the bucket is passed to a hook until that hook has finished.
class GradBucket {
 public:
  // `buffer` holds the parameters' gradients back to back, in this order. Returns InvalidArgument
  // if the number of elements or a dtype does not match, if the buffer is null although it should
  // hold elements, if there are no parameters, or if a parameter or the index is invalid.
  static absl::StatusOr<GradBucket> Make(int index, TensorView buffer,
                                         std::vector<ParameterSpec> parameters,
                                         bool is_last = false);

  // The position in launch order. Only a hint: state is keyed by parameter, never by index.
  int index() const { return index_; }

  // The flat buffer that the next hook reads and writes.
  TensorView buffer() const { return buffer_; }

  // One view per parameter into the current buffer, in order.
  std::vector<TensorView> gradients() const;

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }

  // Whether the trainer declared this the step's last bucket. Only a hint.
  bool is_last() const { return is_last_; }

  // Replaces the buffer in this object only. The dtype may differ; the number of elements may not.
  absl::Status set_buffer(TensorView buffer);

 private:
  GradBucket(int index, TensorView buffer, std::vector<ParameterSpec> parameters, bool is_last);

  int index_;
  TensorView buffer_;
  std::vector<ParameterSpec> parameters_;
  bool is_last_;
};

}  // namespace gradwire
