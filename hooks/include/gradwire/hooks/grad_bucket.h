// Gradients that are reduced as a unit: as a rule, flattened into one contiguous buffer.
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

  // Part of a larger buffer, of which `buffer` is the whole: each parameter's gradient begins at
  // its element of `places`. For hooks of this library that take such buckets. Returns
  // InvalidArgument as Make does, and for places that are not as many as parameters, overlap, are
  // not in ascending order or exceed the buffer.
  static absl::StatusOr<GradBucket> MakeScattered(int index, TensorView buffer,
                                                  std::vector<ParameterSpec> parameters,
                                                  std::vector<std::size_t> places,
                                                  bool is_last = false);

  // The position in launch order. Only a hint: state is keyed by parameter, never by index.
  int index() const { return index_; }

  // The flat buffer that the next hook reads and writes. Of a scattered bucket: where the larger
  // buffer begins, with the number of elements that the parameters take.
  TensorView buffer() const { return buffer_; }

  // Whether the gradients lie back to back.
  bool is_flat() const { return places_.empty(); }

  // One view per parameter into the current buffer, in order.
  std::vector<TensorView> gradients() const;

  // All gradients in order, in one view if the bucket is flat.
  std::vector<TensorView> runs() const;

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }

  // Whether the trainer declared this the step's last bucket. Only a hint.
  bool is_last() const { return is_last_; }

  // Replaces the buffer in this object only, by one where the gradients lie back to back. The dtype
  // may differ; the number of elements may not.
  absl::Status set_buffer(TensorView buffer);

 private:
  GradBucket(int index, TensorView buffer, std::vector<ParameterSpec> parameters, bool is_last);

  int index_;
  TensorView buffer_;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::size_t> places_{};  // of a scattered bucket: elements, by parameter
  bool is_last_;
};

}  // namespace gradwire
