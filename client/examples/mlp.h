// A multi-layer perceptron with tanh between its layers and softmax cross-entropy as its loss.
// Being smooth, it keeps rounding differences as small as they are: a kink, as ReLU has it, lets
// them jump.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "client/examples/digits_data.h"

namespace digits {

// A fully connected layer's place in the model's flat arrays: the weights [outputs, inputs], row by
// row, then the bias [outputs].
struct Layer {
  Eigen::Index inputs = 0;
  Eigen::Index outputs = 0;
  std::size_t offset = 0;

  std::size_t size() const { return static_cast<std::size_t>(outputs * (inputs + 1)); }
};

class Mlp {
 public:
  // `widths`: inputs, the hidden layers, classes. All parameters are 0 until Initialize.
  explicit Mlp(const std::vector<int>& widths);

  // He's uniform initialisation; the same values for the same seed on every machine.
  void Initialize(std::uint64_t seed);

  const std::vector<Layer>& layers() const { return layers_; }

  // All parameters and their gradients, layer after layer.
  std::span<float> parameters() { return parameters_; }
  std::span<float> gradients() { return gradients_; }
  std::span<float> gradients(const Layer& layer) {
    return gradients().subspan(layer.offset, layer.size());
  }

  // Computes the gradients of the batch's mean loss, last layer first, and returns that loss. Calls
  // `on_gradient(layer)` as soon as a layer's gradients are final, and does not touch them after
  // that.
  double Backward(const Samples& batch, const std::function<void(std::size_t layer)>& on_gradient);

  // The share of samples whose digit is recognised.
  double Accuracy(const Samples& samples) const;

 private:
  // Input of each layer, and at the end the logits; one column per sample.
  std::vector<Eigen::MatrixXf> Forward(const Eigen::MatrixXf& images) const;

  std::vector<Layer> layers_;
  std::vector<float> parameters_;
  std::vector<float> gradients_;
};

// Stochastic gradient descent with momentum, as torch.optim.SGD computes it.
class Sgd {
 public:
  Sgd(std::size_t parameters, float learning_rate, float momentum);

  void Step(std::span<const float> gradients, std::span<float> parameters);

 private:
  float learning_rate_;
  float momentum_;
  std::vector<float> velocity_;
};

}  // namespace digits
