// A bucket's parameters, wherever they are described.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradwire/hooks/grad_bucket.h"

namespace gradwire {

// A list of parameters, or the ones of a manifest at given positions. Owns nothing; copying it
// copies no names.
class BucketParameters {
 public:
  // NOLINTBEGIN(google-explicit-constructor): these are the two ways in which lists are written.
  BucketParameters(std::span<const ParameterSpec> list) : list_(list), size_(list.size()) {}
  BucketParameters(const std::vector<ParameterSpec>& list)
      : BucketParameters(std::span<const ParameterSpec>(list)) {}
  // NOLINTEND(google-explicit-constructor)
  BucketParameters(std::span<const ParameterSpec> manifest,
                   std::span<const std::uint32_t> positions)
      : list_(manifest), positions_(positions.data()), size_(positions.size()) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const ParameterSpec& operator[](std::size_t i) const {
    return list_[positions_ == nullptr ? i : positions_[i]];
  }
  const ParameterSpec& front() const { return (*this)[0]; }

 private:
  std::span<const ParameterSpec> list_;
  const std::uint32_t* positions_ = nullptr;  // null: all of the list
  std::size_t size_;
};

}  // namespace gradwire
