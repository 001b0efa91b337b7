#include "gradwire/hooks/grad_bucket.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxNameBytes = 512;
constexpr std::size_t kMaxDimensions = 16;
// Far above any model, and low enough that the sum of 65535 sizes stays below 2^64.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 48;

}  // namespace

std::size_t ParameterSpec::numel() const {
  std::size_t product = 1;
  for (const std::int64_t dimension : shape) product *= static_cast<std::size_t>(dimension);
  return product;
}

absl::Status ParameterSpec::Validate() const {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return Coded(ErrorCode::kParameter,
                 absl::InvalidArgumentError(absl::StrCat("parameter name: has ", name.size(),
                                                         " bytes; allowed: 1 to ", kMaxNameBytes)));
  }
  const std::string where = absl::StrCat("parameter \"", name, "\": ");
  if (!IsDType(static_cast<int>(dtype))) {
    return Coded(
        ErrorCode::kParameter,
        absl::InvalidArgumentError(absl::StrCat(
            where, "dtype: ", static_cast<int>(dtype),
            " is not known; allowed: 1 (float32), 2 (float64), 3 (float16), 4 (bfloat16)")));
  }
  if (shape.size() > kMaxDimensions) {
    return Coded(ErrorCode::kParameter, absl::InvalidArgumentError(absl::StrCat(
                                            where, "shape: has ", shape.size(),
                                            " dimensions; allowed: at most ", kMaxDimensions)));
  }
  bool is_empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) {
      return Coded(ErrorCode::kParameter,
                   absl::InvalidArgumentError(absl::StrCat(where, "shape: dimension ", dimension,
                                                           " is negative; allowed: 0 and up")));
    }
    is_empty = is_empty || dimension == 0;
  }
  // One dimension of 0 makes the product 0, so the others cannot overflow it.
  if (is_empty) return absl::OkStatus();
  std::uint64_t bytes = ByteSize(dtype);
  for (const std::int64_t dimension : shape) {
    // A division instead of a product, which could overflow.
    if (static_cast<std::uint64_t>(dimension) > kMaxBytes / bytes) {
      return Coded(ErrorCode::kParameter,
                   absl::InvalidArgumentError(absl::StrCat(
                       where, "shape: takes more than ", kMaxBytes, " bytes, which is the limit")));
    }
    bytes *= static_cast<std::uint64_t>(dimension);
  }
  return absl::OkStatus();
}

GradBucket::GradBucket(int index, TensorView buffer, std::vector<ParameterSpec> parameters,
                       bool is_last)
    : index_(index), buffer_(buffer), parameters_(std::move(parameters)), is_last_(is_last) {}

absl::StatusOr<GradBucket> GradBucket::Make(int index, TensorView buffer,
                                            std::vector<ParameterSpec> parameters, bool is_last) {
  if (index < 0) {
    return Coded(ErrorCode::kBuffer,
                 absl::InvalidArgumentError(
                     absl::StrCat("bucket index: ", index, " is negative; allowed: 0 and up")));
  }
  if (parameters.empty()) {
    return Coded(ErrorCode::kBuffer,
                 absl::InvalidArgumentError(
                     absl::StrCat("bucket ", index, " has no parameters; allowed: 1 or more")));
  }
  std::size_t numel = 0;
  for (const ParameterSpec& parameter : parameters) {
    if (absl::Status status = parameter.Validate(); !status.ok()) return status;
    if (parameter.dtype != buffer.dtype) {
      return Coded(ErrorCode::kBuffer,
                   absl::InvalidArgumentError(absl::StrCat(
                       "bucket ", index, ": parameter \"", parameter.name, "\" is ",
                       Name(parameter.dtype), ", the buffer is ", Name(buffer.dtype))));
    }
    numel += parameter.numel();
  }
  // Begins with the parameters' own size, which set_buffer then compares with the buffer's.
  GradBucket bucket(index, TensorView{buffer.dtype, nullptr, numel}, std::move(parameters),
                    is_last);
  if (absl::Status status = bucket.set_buffer(buffer); !status.ok()) return status;
  return bucket;
}

absl::StatusOr<GradBucket> GradBucket::MakeScattered(int index, TensorView buffer,
                                                     std::vector<ParameterSpec> parameters,
                                                     std::vector<std::size_t> places,
                                                     bool is_last) {
  const auto refuse = [index](const auto&... parts) {
    return Coded(ErrorCode::kBuffer,
                 absl::InvalidArgumentError(absl::StrCat("bucket ", index, ": ", parts...)));
  };
  if (places.size() != parameters.size()) {
    return refuse(places.size(), " places for ", parameters.size(), " parameters");
  }
  const std::size_t available = buffer.numel;
  buffer.numel = 0;
  for (const ParameterSpec& parameter : parameters) {
    // Make says the same again, but a size that is not valid has no sum.
    if (absl::Status status = parameter.Validate(); !status.ok()) return status;
    buffer.numel += parameter.numel();
  }
  std::size_t end = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t numel = parameters[i].numel();
    if (places[i] < end || places[i] > available || numel > available - places[i]) {
      return refuse("parameter \"", parameters[i].name, "\" with ", numel,
                    " elements is at element ", places[i], "; allowed: ", end, " and up, within ",
                    available);
    }
    end = places[i] + numel;
  }
  absl::StatusOr<GradBucket> bucket = Make(index, buffer, std::move(parameters), is_last);
  if (bucket.ok()) bucket->places_ = std::move(places);
  return bucket;
}

std::vector<TensorView> GradBucket::gradients() const {
  std::vector<TensorView> views;
  views.reserve(parameters_.size());
  auto* const begin = static_cast<std::byte*>(buffer_.data);
  // As a rule gradients lie back to back, in the order of the parameters, as in
  // DistributedDataParallel's buckets.
  std::size_t next = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::size_t place = is_flat() ? next : places_[i];
    views.push_back({.dtype = buffer_.dtype,
                     .data = begin + place * ByteSize(buffer_.dtype),
                     .numel = parameters_[i].numel(),
                     .device = buffer_.device});
    next = place + views.back().numel;
  }
  return views;
}

std::vector<TensorView> GradBucket::runs() const {
  return is_flat() ? std::vector<TensorView>{buffer_} : gradients();
}

absl::Status GradBucket::set_buffer(TensorView buffer) {
  if (!IsDType(static_cast<int>(buffer.dtype))) {
    return Coded(ErrorCode::kBuffer, absl::InvalidArgumentError(absl::StrCat(
                                         "bucket ", index_, ": the buffer's dtype ",
                                         static_cast<int>(buffer.dtype), " is not known")));
  }
  if (buffer.numel != buffer_.numel) {
    return Coded(ErrorCode::kBuffer, absl::InvalidArgumentError(absl::StrCat(
                                         "bucket ", index_, ": the buffer holds ", buffer.numel,
                                         " elements; the parameters take ", buffer_.numel)));
  }
  // An empty tensor's data pointer may be null, in PyTorch too.
  if (buffer.data == nullptr && buffer.numel > 0) {
    return Coded(ErrorCode::kBuffer,
                 absl::InvalidArgumentError(absl::StrCat(
                     "bucket ", index_, ": the buffer is null; ", "allowed only for 0 elements")));
  }
  buffer_ = buffer;
  places_.clear();
  return absl::OkStatus();
}

}  // namespace gradwire
