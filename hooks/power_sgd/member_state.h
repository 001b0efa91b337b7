// What one member keeps between steps for PowerSGD, keyed by parameter. It lies where the gradients
// lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradwire/hooks/grad_bucket.h"
#include "hooks/device_vector.h"
#include "hooks/power_sgd/layout.h"

namespace gradwire {

// A step writes the new residual to `next`; its commit swaps the two.
template <class T>
struct ParameterState {
  explicit ParameterState(Device& device) : residual(device), next(device) {}
  DeviceVector<T> residual;  // empty: none yet
  DeviceVector<T> next;
};

// Factors as the coordinator averaged them, row-major. Batched: those of a whole bucket.
template <class T>
struct FactorState {
  explicit FactorState(Device& device) : q(device), p(device) {}
  std::vector<std::string> parameters;  // batched: the bucket that they belong to, in order
  // A step that was applied has averaged them, or the coordinator has sent them again since.
  // Factors that it has sent otherwise may have been drawn for a step that was skipped.
  bool kept = false;
  // Batched: those of another bucket with the same first parameter that are kept, until a step with
  // this bucket is applied. Other members may not have begun it.
  std::unique_ptr<FactorState> earlier{};
  DeviceVector<T> q;  // empty: the coordinator has to send it
  DeviceVector<T> p;  // with one round per step only
};

// Batched: the residual in the elements that pad a bucket to a square.
template <class T>
struct PaddingState {
  explicit PaddingState(Device& device) : residual(device), next(device) {}
  std::string bucket;  // its parameters' names, a line each
  DeviceVector<T> residual;
  DeviceVector<T> next;
};

// Sums of squares that one open bucket computes, in the device's memory.
enum class Squares : std::uint8_t { kGradient, kResidual, kLost };
inline constexpr std::size_t kSquares = 3;

// Scratch memory of one open bucket, reused from step to step.
template <class T>
struct Workspace {
  explicit Workspace(Device& device)
      : matrix(device),
        p(device),
        q(device),
        own(device),
        transposed(device),
        residual(device),
        squares(device) {}
  DeviceVector<T> matrix;      // the bucket in another dtype, or padded to a square
  DeviceVector<T> p;           // P block, row-major factors
  DeviceVector<T> q;           // Q block, row-major factors
  DeviceVector<T> own;         // local error feedback: this member's own Q, or P
  DeviceVector<T> transposed;  // the Q block with each factor transposed: rank x cols
  DeviceVector<T> residual;    // batched: the square's
  DeviceVector<double> squares;
};

template <class T>
class MemberState {
 public:
  explicit MemberState(Device& device) : device_(device), lost_(device) {}

  ParameterState<T>& parameter(const std::string& name) { return Of(parameters_, name); }
  FactorState<T>& factor(const std::string& name) { return Of(factors_, name); }
  const std::unordered_map<std::string, FactorState<T>>& factors() const { return factors_; }
  PaddingState<T>& padding(const std::string& name) { return Of(paddings_, name); }
  std::unordered_map<std::string, ParameterState<T>>& parameters() { return parameters_; }
  const std::unordered_map<std::string, ParameterState<T>>& parameters() const {
    return parameters_;
  }
  std::unordered_map<std::string, PaddingState<T>>& paddings() { return paddings_; }
  const std::unordered_map<std::string, PaddingState<T>>& paddings() const { return paddings_; }
  void ForgetFactors() { factors_.clear(); }
  // Batched: those of the buckets that begin with it.
  void ForgetFactors(const std::string& name) { factors_.erase(name); }
  // Batched: parameters have factors in one bucket only, the last that a step was applied with.
  void KeepOnly(const std::string& name) {
    const FactorState<T>& kept = factors_.at(name);
    for (auto& [other, factor] : factors_) {
      const auto is_here = [&](const std::string& p) {
        return std::ranges::count(kept.parameters, p) > 0;
      };
      if (other == name) continue;
      if (std::ranges::any_of(factor.parameters, is_here)) factor.kept = false;
      FactorState<T>* const earlier = factor.earlier.get();
      if (earlier != nullptr && std::ranges::any_of(earlier->parameters, is_here)) {
        factor.earlier.reset();
      }
    }
  }
  void ForgetResiduals() {
    parameters_.clear();
    paddings_.clear();
  }

  // Sum of squares of the padding residuals that a new bucket layout has discarded. `squares` is
  // memory of the device.
  void AddLost(const double* squares) {
    if (lost_.empty()) {
      lost_.Resize(1);
      device_.Zero(lost_.data(), lost_.bytes());
    }
    device_.doubles().Add(1, lost_.data(), squares);
  }
  double lost() const {
    double sum = 0;
    if (!lost_.empty()) device_.Download(&sum, lost_.data(), sizeof(sum));
    return sum;
  }

  std::unique_ptr<Workspace<T>> TakeWorkspace() {
    if (free_.empty()) return std::make_unique<Workspace<T>>(device_);
    auto workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void GiveWorkspace(std::unique_ptr<Workspace<T>> workspace) {
    free_.push_back(std::move(workspace));
  }

 private:
  template <class Kept>
  Kept& Of(std::unordered_map<std::string, Kept>& map, const std::string& name) {
    return map.try_emplace(name, device_).first->second;
  }

  Device& device_;
  std::unordered_map<std::string, ParameterState<T>> parameters_;
  std::unordered_map<std::string, FactorState<T>> factors_;
  std::unordered_map<std::string, PaddingState<T>> paddings_;  // by the bucket's first parameter
  DeviceVector<double> lost_;
  std::vector<std::unique_ptr<Workspace<T>>> free_;
};

}  // namespace gradwire
