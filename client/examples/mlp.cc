#include "client/examples/mlp.h"

#include <cmath>
#include <random>

namespace digits {
namespace {

using RowMajorMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<const RowMajorMatrix> Weights(std::span<const float> flat, const Layer& layer) {
  return {flat.data() + layer.offset, layer.outputs, layer.inputs};
}
Eigen::Map<RowMajorMatrix> Weights(std::span<float> flat, const Layer& layer) {
  return {flat.data() + layer.offset, layer.outputs, layer.inputs};
}
Eigen::Map<const Eigen::VectorXf> Bias(std::span<const float> flat, const Layer& layer) {
  return {flat.data() + layer.offset + layer.outputs * layer.inputs, layer.outputs};
}
Eigen::Map<Eigen::VectorXf> Bias(std::span<float> flat, const Layer& layer) {
  return {flat.data() + layer.offset + layer.outputs * layer.inputs, layer.outputs};
}

// Turns logits into the gradient of the mean loss by the logits, in place, and returns that loss.
double SoftmaxCrossEntropy(const std::vector<int>& labels, Eigen::MatrixXf& logits) {
  const auto count = static_cast<float>(labels.size());
  double loss = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    auto column = logits.col(static_cast<Eigen::Index>(i));
    column.array() -= column.maxCoeff();
    const float log_sum = std::log(column.array().exp().sum());
    loss += log_sum - column(labels[i]);
    column = (column.array() - log_sum).exp() / count;
    column(labels[i]) -= 1 / count;
  }
  return loss / count;
}

}  // namespace

Mlp::Mlp(const std::vector<int>& widths) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    layers_.push_back({.inputs = widths[i], .outputs = widths[i + 1], .offset = offset});
    offset += layers_.back().size();
  }
  parameters_.resize(offset);
  gradients_.resize(offset);
}

void Mlp::Initialize(std::uint64_t seed) {
  // Not std::uniform_real_distribution: its values differ between standard libraries.
  std::mt19937_64 random(seed);
  for (const Layer& layer : layers_) {
    const double bound = std::sqrt(6.0 / static_cast<double>(layer.inputs));
    for (float& weight : Weights(parameters(), layer).reshaped<Eigen::RowMajor>()) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
      weight = static_cast<float>((2 * unit - 1) * bound);
    }
    Bias(parameters(), layer).setZero();
  }
}

std::vector<Eigen::MatrixXf> Mlp::Forward(const Eigen::MatrixXf& images) const {
  std::vector<Eigen::MatrixXf> values = {images};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Eigen::MatrixXf next = Weights(parameters_, layers_[i]) * values.back();
    next.colwise() += Bias(parameters_, layers_[i]);
    if (i + 1 < layers_.size()) next = next.array().tanh();
    values.push_back(std::move(next));
  }
  return values;
}

double Mlp::Backward(const Samples& batch,
                     const std::function<void(std::size_t layer)>& on_gradient) {
  std::vector<Eigen::MatrixXf> values = Forward(batch.images);
  Eigen::MatrixXf delta = std::move(values.back());
  const double loss = SoftmaxCrossEntropy(batch.labels, delta);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    Weights(gradients(), layer).noalias() = delta * values[i].transpose();
    Bias(gradients(), layer) = delta.rowwise().sum();
    on_gradient(i);
    if (i == 0) break;
    delta = Weights(std::span<const float>(parameters_), layer).transpose() * delta;
    delta.array() *= 1 - values[i].array().square();  // tanh' = 1 - tanh^2
  }
  return loss;
}

double Mlp::Accuracy(const Samples& samples) const {
  const Eigen::MatrixXf logits = Forward(samples.images).back();
  std::size_t right = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Eigen::Index best = 0;
    logits.col(static_cast<Eigen::Index>(i)).maxCoeff(&best);
    if (best == samples.labels[i]) ++right;
  }
  return static_cast<double>(right) / static_cast<double>(samples.size());
}

Sgd::Sgd(std::size_t parameters, float learning_rate, float momentum)
    : learning_rate_(learning_rate), momentum_(momentum), velocity_(parameters) {}

void Sgd::Step(std::span<const float> gradients, std::span<float> parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    velocity_[i] = momentum_ * velocity_[i] + gradients[i];
    parameters[i] -= learning_rate_ * velocity_[i];
  }
}

}  // namespace digits
