// What one member keeps between steps for PowerSGD, keyed by parameter.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradwire/hooks/grad_bucket.h"
#include "hooks/power_sgd/layout.h"

namespace gradwire {

// A step writes the new residual to `next`; its commit swaps the two.
template <class T>
struct ParameterState {
  std::vector<T> residual;  // empty: none yet
  std::vector<T> next;
};

// Factors as the coordinator averaged them, row-major. Batched: those of a whole bucket.
template <class T>
struct FactorState {
  std::vector<std::string> parameters;  // batched: the bucket that they belong to, in order
  std::vector<T> q;                     // empty: the coordinator has to send it
  std::vector<T> p;                     // with one round per step only
};

// Batched: the residual in the elements that pad a bucket to a square.
template <class T>
struct PaddingState {
  std::string bucket;  // its parameters' names, a line each
  std::vector<T> residual;
  std::vector<T> next;
};

// Scratch memory of one open bucket, reused from step to step.
template <class T>
struct Workspace {
  std::vector<T> matrix;      // the bucket in another dtype, or padded to a square
  std::vector<T> p;           // P block, row-major factors
  std::vector<T> q;           // Q block, row-major factors
  std::vector<T> own;         // local error feedback: this member's own Q, or P
  std::vector<T> transposed;  // Q of one matrix after the other, rank x cols each
  std::vector<T> residual;    // batched: the square's
  std::vector<double> precise;
};

template <class T>
class MemberState {
 public:
  ParameterState<T>& parameter(const std::string& name) { return parameters_[name]; }
  FactorState<T>& factor(const std::string& name) { return factors_[name]; }
  std::unordered_map<std::string, ParameterState<T>>& parameters() { return parameters_; }
  const std::unordered_map<std::string, ParameterState<T>>& parameters() const {
    return parameters_;
  }
  void ForgetFactors() { factors_.clear(); }
  void ForgetResiduals() {
    parameters_.clear();
    paddings_.clear();
  }
  PaddingState<T>& padding(const std::string& name) { return paddings_[name]; }
  std::unordered_map<std::string, PaddingState<T>>& paddings() { return paddings_; }
  const std::unordered_map<std::string, PaddingState<T>>& paddings() const { return paddings_; }
  // Sum of squares of the padding residuals that a new bucket layout has discarded.
  double lost = 0;

  std::unique_ptr<Workspace<T>> TakeWorkspace() {
    if (free_.empty()) return std::make_unique<Workspace<T>>();
    auto workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void GiveWorkspace(std::unique_ptr<Workspace<T>> workspace) {
    free_.push_back(std::move(workspace));
  }

 private:
  std::unordered_map<std::string, ParameterState<T>> parameters_;
  std::unordered_map<std::string, FactorState<T>> factors_;
  std::unordered_map<std::string, PaddingState<T>> paddings_;  // by the bucket's first parameter
  std::vector<std::unique_ptr<Workspace<T>>> free_;
};

}  // namespace gradwire
