#include "tests/bench/allreduce/member.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/client.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kTinyNumel = 1024;
constexpr std::size_t kTinyBuckets = 32;  // in a step
constexpr int kTinySteps = 48;            // in a run

[[noreturn]] void Die(const absl::Status& status) {
  std::cerr << "bench: " << status << std::endl;
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (!status.ok()) Die(status);
}

ParameterSpec Parameter(const std::string& name, std::size_t numel) {
  return {.name = name, .shape = {static_cast<std::int64_t>(numel)}, .dtype = DType::kFloat32};
}

std::unique_ptr<Client> Join(const MemberSettings& settings,
                             const std::vector<ParameterSpec>& parameters) {
  const auto hook = HookSpec::Parse(settings.hook);
  Check(hook.status());
  auto client = Client::Join({.address = settings.address,
                              .session = settings.session,
                              .rank = settings.rank,
                              .world_size = settings.world_size,
                              .parameters = parameters,
                              .hook = *hook});
  Check(client.status());
  if ((*client)->metrics().shared_memory != settings.shares_memory) {
    Die(absl::InternalError("the payloads do not travel where they should"));
  }
  return *std::move(client);
}

// Gradients that lie where the settings say.
class Memory {
 public:
  Memory(Client& client, const MemberSettings& settings, std::size_t numel)
      : owned_(settings.gradients == "shared" ? 0 : numel),
        shared_(settings.gradients == "shared" ? client.AllocateGradients(numel * sizeof(float))
                                               : nullptr),
        values_(shared_ == nullptr ? owned_.data() : reinterpret_cast<float*>(shared_.get()),
                numel) {}
  std::span<float> values() { return values_; }

 private:
  std::vector<float> owned_;
  std::shared_ptr<std::byte> shared_;
  std::span<float> values_;
};

GradBucket Bucket(std::span<float> values, const ParameterSpec& parameter) {
  auto bucket = GradBucket::Make(0, {DType::kFloat32, values.data(), values.size()}, {parameter});
  Check(bucket.status());
  return *std::move(bucket);
}

}  // namespace

int RunBulkMember(const MemberSettings& settings) {
  const std::size_t numel = settings.bytes / sizeof(float);
  const std::vector<ParameterSpec> parameters = {Parameter("weight", numel)};
  const auto client = Join(settings, parameters);
  Memory memory(*client, settings, numel);
  const std::span<float> values = memory.values();
  // The mean of 1, 2, …, N, and from then on the mean of equal values: itself.
  std::fill(values.begin(), values.end(), 1.0F + static_cast<float>(settings.rank));
  const float mean = 0.5F * static_cast<float>(settings.world_size + 1);
  GradBucket bucket = Bucket(values, parameters[0]);
  AnswerParent([&]() -> std::string {
    Check(client->AllReduce(bucket).Wait());
    Check(client->EndStep().status());
    for (std::size_t i = 0; i < numel; i += 4099) {
      if (values[i] != mean) Die(absl::DataLossError("a result is not the mean"));
    }
    return "";
  });
  return 0;
}

int RunTinyMember(const MemberSettings& settings, bool beside) {
  std::vector<ParameterSpec> parameters;
  for (std::size_t i = 0; i < kTinyBuckets; ++i) {
    parameters.push_back(Parameter("tiny" + std::to_string(i), kTinyNumel));
  }
  const std::size_t bulk_numel = settings.bytes / sizeof(float);
  if (beside) parameters.push_back(Parameter("bulk", bulk_numel));
  const auto client = Join(settings, parameters);
  std::vector<float> tiny(kTinyNumel, 1);
  Memory memory(*client, settings, beside ? bulk_numel : 0);
  AnswerParent([&]() -> std::string {
    std::vector<double> taken;
    for (int step = 0; step < kTinySteps; ++step) {
      Completion bulk;
      std::vector<GradBucket> buckets;
      if (beside) {
        buckets.push_back(Bucket(memory.values(), parameters.back()));
        bulk = client->AllReduce(buckets.back());
      }
      for (std::size_t i = 0; i < kTinyBuckets; ++i) {
        GradBucket bucket = Bucket(tiny, parameters[i]);
        const auto begin = Clock::now();
        Check(client->AllReduce(bucket).Wait());
        const double micros =
            std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
        if (!beside || !bulk.done()) taken.push_back(micros);
      }
      Check(bulk.Wait());
      Check(client->EndStep().status());
    }
    if (taken.empty()) return " 0 0 0";
    std::sort(taken.begin(), taken.end());
    return " " + std::to_string(taken[taken.size() / 2]) + " " +
           std::to_string(taken[taken.size() * 99 / 100]) + " " + std::to_string(taken.size());
  });
  return 0;
}

}  // namespace gradwire::bench
