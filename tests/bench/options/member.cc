#include "tests/bench/options/member.h"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gradwire/client.h"
#include "tests/bench/options/load.h"
#include "tests/bench/process_group.h"
#include "tests/bench/spread.h"

namespace gradwire::bench {
namespace {

// Of 1 and 2; and from the second step on of two equal values.
constexpr float kMean = 1.5F;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "options_bench: " << status << std::endl;
  std::exit(1);
}

std::vector<ParameterSpec> Parameters(const Load& load) {
  std::vector<ParameterSpec> parameters;
  for (std::size_t i = 0; i < kBuckets * load.parameters; ++i) {
    parameters.push_back(
        {.name = std::to_string(i), .shape = {static_cast<std::int64_t>(load.numel)}});
  }
  return parameters;
}

class Member {
 public:
  Member(const MemberSettings& settings, const Load& load)
      : checks_parameters_(settings.check_parameters),
        weights_(kBuckets * load.bucket_numel()),
        owned_(load.in_place ? 0 : weights_.size()) {
    const std::vector<ParameterSpec> parameters = Parameters(load);
    auto client = Client::Join({.address = settings.address,
                                .session = "options",
                                .rank = settings.rank,
                                .world_size = kMembers,
                                .parameters = parameters,
                                .shared_memory = !load.tcp,
                                .keep_gradients = settings.keep_gradients});
    Check(client.status());
    client_ = *std::move(client);
    float* gradients = owned_.data();
    if (load.in_place) {
      shared_ = client_->AllocateGradients(weights_.size() * sizeof(float));
      gradients = reinterpret_cast<float*>(shared_.get());
    }
    gradients_ = {gradients, weights_.size()};
    for (float& value : gradients_) value = static_cast<float>(settings.rank + 1);
    for (std::size_t i = 0; i < kBuckets; ++i) MakeBucket(load, parameters, i);
    const auto weights = std::as_bytes(std::span<const float>(weights_));
    const std::size_t bytes = load.numel * sizeof(float);
    for (std::size_t at = 0; at < weights.size(); at += bytes) {
      weight_views_.push_back(weights.subspan(at, bytes));
    }
  }

  // Milliseconds.
  double Step() {
    const auto begin = std::chrono::steady_clock::now();
    if (checks_parameters_) Check(client_->CheckParameters(ParameterDigest(weight_views_)));
    std::vector<Completion> open;
    for (GradBucket& bucket : buckets_) open.push_back(client_->AllReduce(bucket));
    for (const Completion& one : open) Check(one.Wait());
    const absl::StatusOr<Verdict> verdict = client_->EndStep();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    Check(verdict.status());
    if (*verdict != Verdict::kApply) Check(absl::InternalError(client_->skip_reason()));
    for (std::size_t i = 0; i < gradients_.size(); i += 4099) {
      if (gradients_[i] != kMean) Check(absl::DataLossError("a result is not the mean"));
    }
    return took.count();
  }

  // After a step.
  void CheckPath(const Load& load) const {
    bool in_place = true;
    for (const BucketReport& report : client_->Report()) in_place = in_place && report.in_place;
    if (client_->metrics().shared_memory == !load.tcp && in_place == load.in_place) return;
    Check(absl::InternalError("the payloads do not travel where they should"));
  }

 private:
  void MakeBucket(const Load& load, const std::vector<ParameterSpec>& parameters, std::size_t i) {
    const std::span<const ParameterSpec> own =
        std::span(parameters).subspan(i * load.parameters, load.parameters);
    const std::size_t numel = load.bucket_numel();
    auto bucket = GradBucket::Make(
        static_cast<int>(i), {DType::kFloat32, gradients_.data() + i * numel, numel},
        std::vector<ParameterSpec>(own.begin(), own.end()), i + 1 == kBuckets);
    Check(bucket.status());
    buckets_.push_back(*std::move(bucket));
  }

  const bool checks_parameters_;
  std::vector<float> weights_;
  std::vector<std::span<const std::byte>> weight_views_;
  std::vector<float> owned_;
  std::shared_ptr<std::byte> shared_;
  std::span<float> gradients_;
  std::vector<GradBucket> buckets_;
  // Last, so that it goes before what its calls refer to.
  std::unique_ptr<Client> client_;
};

}  // namespace

int RunMember(const MemberSettings& settings) {
  const Load& load = LoadOf(settings.load);
  Member member(settings, load);
  AnswerParent([&] {
    member.Step();
    member.CheckPath(load);
    std::vector<double> taken;
    for (int i = 0; i < load.steps; ++i) taken.push_back(member.Step());
    return " " + std::to_string(SpreadOf(taken).median);
  });
  return 0;
}

}  // namespace gradwire::bench
