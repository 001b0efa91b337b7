// Trains a neural network on handwritten digits with data parallelism: each member computes the
// gradients of its part of every batch, Gradwire averages them, all members take the same step.
//
//   gradwired --listen unix:/tmp/gradwired.sock &
//   for rank in 0 1 2 3; do
//     train_digits --address unix:/tmp/gradwired.sock --world-size 4 --rank $rank --hook fp16 &
//   done; wait

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/examples/digits_data.h"
#include "client/examples/mlp.h"
#include "client/examples/progress.h"
#include "client/examples/train_options.h"
#include "gradwire/client.h"

namespace digits {
namespace {

constexpr float kMomentum = 0.9F;

// What the model looks like to the session: two parameters per layer, in the order of the flat
// arrays.
std::vector<gradwire::ParameterSpec> Describe(const Layer& layer, std::size_t index) {
  const std::string name = absl::StrCat("layer", index);
  return {{.name = name + ".weight", .shape = {layer.outputs, layer.inputs}},
          {.name = name + ".bias", .shape = {layer.outputs}}};
}

class Trainer {
 public:
  // `client` may be null: then this process trains alone.
  Trainer(const TrainOptions& options, const Digits& data, Mlp& model, gradwire::Client* client)
      : options_(options),
        data_(data),
        model_(model),
        client_(client),
        sgd_(model.parameters().size(), options.learning_rate, kMomentum) {}

  // Makes a bucket of each layer's gradients, and gives all members rank 0's initial parameters.
  absl::Status Prepare();

  absl::Status Train();

  double seconds() const { return seconds_; }
  int steps_applied() const { return steps_applied_; }

 private:
  absl::StatusOr<double> Step(const Samples& batch);
  Samples LocalBatch(std::span<const std::size_t> batch) const;
  std::uint64_t TrafficBytes() const;

  const TrainOptions& options_;
  const Digits& data_;
  Mlp& model_;
  gradwire::Client* client_;
  Sgd sgd_;
  std::vector<gradwire::GradBucket> buckets_;  // one per layer
  double seconds_ = 0;
  int steps_applied_ = 0;
};

absl::Status Trainer::Prepare() {
  if (client_ == nullptr) {
    model_.Initialize(options_.seed);
    return absl::OkStatus();
  }
  const std::size_t count = model_.layers().size();
  for (std::size_t i = 0; i < count; ++i) {
    const Layer& layer = model_.layers()[i];
    const std::span<float> gradients = model_.gradients(layer);
    auto bucket = gradwire::GradBucket::Make(
        static_cast<int>(count - 1 - i),  // the last layer's gradients are the first to be ready
        {.dtype = gradwire::DType::kFloat32, .data = gradients.data(), .numel = gradients.size()},
        Describe(layer, i), /*is_last=*/i == 0);
    if (!bucket.ok()) return bucket.status();
    buckets_.push_back(*std::move(bucket));
  }
  if (client_->rank() == 0) model_.Initialize(options_.seed);
  const std::span<float> parameters = model_.parameters();
  return client_->Broadcast(/*root=*/0, parameters.data(), parameters.size_bytes());
}

absl::Status Trainer::Train() {
  Progress progress(options_.label, options_.world_size, options_.epochs, options_.progress);
  const auto batch_size = static_cast<std::size_t>(options_.batch);
  for (int epoch = 1; epoch <= options_.epochs; ++epoch) {
    const auto order =
        Permutation(data_.train.size(), options_.seed + static_cast<unsigned>(epoch));
    const std::size_t steps = order.size() / batch_size;  // what is left over sits this epoch out
    double loss_sum = 0;
    for (std::size_t i = 0; i < steps; ++i) {
      const auto loss = Step(LocalBatch(std::span(order).subspan(i * batch_size, batch_size)));
      if (!loss.ok()) return loss.status();
      loss_sum += *loss;
      progress.Step(epoch, *loss, TrafficBytes());
    }
    progress.EndOfEpoch(epoch, loss_sum / static_cast<double>(steps), TrafficBytes());
  }
  seconds_ = progress.seconds();
  return absl::OkStatus();
}

// One step on this member's part of the batch; returns that part's loss.
absl::StatusOr<double> Trainer::Step(const Samples& batch) {
  // Each layer's gradients leave as soon as they are there, while backward goes on.
  std::vector<gradwire::Completion> reductions;
  const double loss = model_.Backward(batch, [&](std::size_t layer) {
    if (client_ != nullptr) reductions.push_back(client_->AllReduce(buckets_[layer]));
  });
  // All of them, also after an error: until then the SDK may still read and write the gradients.
  absl::Status status;
  for (const gradwire::Completion& reduction : reductions) status.Update(reduction.Wait());
  if (!status.ok()) return status;
  if (client_ != nullptr) {
    const absl::StatusOr<gradwire::Verdict> verdict = client_->EndStep();
    if (!verdict.ok()) return verdict.status();
    if (*verdict == gradwire::Verdict::kSkip) return loss;
  }
  sgd_.Step(model_.gradients(), model_.parameters());
  ++steps_applied_;
  return loss;
}

Samples Trainer::LocalBatch(std::span<const std::size_t> batch) const {
  if (client_ == nullptr) return Gather(data_.train, batch);
  const std::size_t share = batch.size() / static_cast<std::size_t>(client_->world_size());
  return Gather(data_.train,
                batch.subspan(static_cast<std::size_t>(client_->rank()) * share, share));
}

std::uint64_t Trainer::TrafficBytes() const {
  if (client_ == nullptr) return 0;
  const gradwire::ClientMetrics metrics = client_->metrics();
  return metrics.bytes_sent + metrics.bytes_received;
}

// The summary comes last and at once, so that who sees it finds both files whole.
absl::Status WriteResult(const TrainOptions& options, Mlp& model, const Trainer& trainer,
                         double accuracy) {
  if (options.out.empty()) return absl::OkStatus();
  const std::string summary = options.out + ".summary";
  std::ofstream parameters_file(options.out, std::ios::binary);
  const auto bytes = std::as_bytes(model.parameters());
  parameters_file.write(reinterpret_cast<const char*>(bytes.data()),
                        static_cast<std::streamsize>(bytes.size()));
  parameters_file.close();
  std::ofstream summary_file(summary + ".part");
  summary_file << "accuracy=" << accuracy << "\nsteps_applied=" << trainer.steps_applied()
               << "\nseconds=" << trainer.seconds() << "\n";
  summary_file.close();
  std::error_code error;
  std::filesystem::rename(summary + ".part", summary, error);
  if (!parameters_file || !summary_file || error) {
    return absl::UnavailableError(absl::StrCat("cannot write ", options.out));
  }
  return absl::OkStatus();
}

void WaitForEndOfInput() {
  char ignored[64];
  while (read(STDIN_FILENO, ignored, sizeof ignored) > 0) {
  }
}

absl::StatusOr<std::unique_ptr<gradwire::Client>> Join(const TrainOptions& options,
                                                       const Mlp& model) {
  absl::StatusOr<gradwire::HookSpec> hook = gradwire::HookSpec::Parse(options.hook);
  if (!hook.ok()) return hook.status();
  gradwire::ClientOptions client_options;
  client_options.address = options.address;
  client_options.session = options.session;
  client_options.rank = options.rank;
  client_options.world_size = options.world_size;
  client_options.hook = *std::move(hook);
  for (std::size_t i = 0; i < model.layers().size(); ++i) {
    for (auto& parameter : Describe(model.layers()[i], i)) {
      client_options.parameters.push_back(std::move(parameter));
    }
  }
  return gradwire::Client::Join(client_options);
}

absl::Status Run(const TrainOptions& options) {
  const absl::StatusOr<Digits> data = Load(options.data);
  if (!data.ok()) return data.status();
  Mlp model({kPixels, 512, 1024, 512, kClasses});

  std::unique_ptr<gradwire::Client> client;
  if (!options.single) {
    auto joined = Join(options, model);
    if (!joined.ok()) return joined.status();
    client = *std::move(joined);
  }
  Trainer trainer(options, *data, model, client.get());
  if (absl::Status status = trainer.Prepare(); !status.ok()) return status;
  if (absl::Status status = trainer.Train(); !status.ok()) return status;

  const double accuracy = model.Accuracy(data->test);
  if (options.progress) {
    std::printf("%-6s test accuracy %.4f\n", options.label.c_str(), accuracy);
    std::fflush(stdout);
  }
  if (absl::Status status = WriteResult(options, model, trainer, accuracy); !status.ok()) {
    return status;
  }
  if (options.hold) WaitForEndOfInput();
  return client == nullptr ? absl::OkStatus() : client->Leave();
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) {
  const digits::TrainOptions options = digits::ParseTrainOptions(argc, argv);
  const absl::Status status = digits::Run(options);
  if (!status.ok()) {
    std::fprintf(stderr, "train_digits: %s\n", status.ToString().c_str());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
