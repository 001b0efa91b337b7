// Gradients flattened into one contiguous buffer, reduced as a unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/dtype.h"

namespace gradwire {

// One parameter of the model. Its identity in a session is its name.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;  // empty: a scalar, one element
  DType dtype = DType::kFloat32;

  // Product of the shape. Only meaningful after Validate returned ok.
  std::size_t numel() const;

  // A name of 1 to 512 bytes, at most 16 dimensions, none negative, and a byte size that fits
  // 2^48; InvalidArgument names the parameter, the field and what is allowed.
  absl::Status Validate() const;

  bool operator==(const ParameterSpec&) const = default;
};

// A typed run of elements in memory that somebody else owns.
struct TensorView {
  DType dtype = DType::kFloat32;
  void* data = nullptr;
  std::size_t numel = 0;

  std::size_t bytes() const { return numel * ByteSize(dtype); }
};

// What PyTorch's dist.GradBucket is: index, buffer, per-parameter views, is_last, set_buffer.
//
// Not thread-safe. The bucket does not own its buffer: the memory must stay valid, and untouched
// by its owner, from the moment the bucket is handed to a hook until that hook has finished.
class GradBucket {
 public:
  // `buffer` holds the parameters' gradients back to back, in this order. InvalidArgument if it
  // holds another number of elements, has another dtype than a parameter, or is null while it
  // should hold elements; and for no parameters, a parameter that is not valid, a negative index.
  static absl::StatusOr<GradBucket> Make(int index, TensorView buffer,
                                         std::vector<ParameterSpec> parameters,
                                         bool is_last = false);

  // Position in launch order. A hint: state is keyed by parameter, never by index.
  int index() const { return index_; }

  // The flat buffer that the next hook reads and writes.
  TensorView buffer() const { return buffer_; }

  // One view per parameter into the current buffer, in order.
  std::vector<TensorView> gradients() const;

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }

  // Whether the trainer says that this is the step's last bucket. A hint too.
  bool is_last() const { return is_last_; }

  // Replaces the buffer in this object only; the dtype may differ, the number of elements may not.
  absl::Status set_buffer(TensorView buffer);

 private:
  GradBucket(int index, TensorView buffer, std::vector<ParameterSpec> parameters, bool is_last);

  int index_;
  TensorView buffer_;
  std::vector<ParameterSpec> parameters_;
  bool is_last_;
};

}  // namespace gradwire
