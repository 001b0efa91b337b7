// The contributor set of a bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace gradwire::server {

// The ranks that contribute a bucket and get its results, each with a weight: the number of
// trainers that it represents. A chunk is complete when all contributors have sent it, and a mean
// divides by the sum of their weights. Today every weight is 1.
class Contributors {
 public:
  // By rank; 0: does not contribute.
  explicit Contributors(std::vector<std::uint32_t> weights) : weights_(std::move(weights)) {
    for (const std::uint32_t weight : weights_) count_ += weight > 0 ? 1 : 0;
  }

  std::size_t world_size() const { return weights_.size(); }
  std::size_t count() const { return count_; }
  bool has(std::size_t rank) const { return weights_[rank] > 0; }
  // Those of `ranks` that contribute.
  std::vector<int> Among(std::vector<int> ranks) const {
    std::erase_if(ranks, [this](int rank) { return !has(static_cast<std::size_t>(rank)); });
    return ranks;
  }
  double total_weight() const {
    return static_cast<double>(std::accumulate(weights_.begin(), weights_.end(), std::uint64_t{0}));
  }

 private:
  std::vector<std::uint32_t> weights_;
  std::size_t count_ = 0;
};

}  // namespace gradwire::server
