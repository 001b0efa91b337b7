// Trainings that are saved and go on elsewhere, in threads of the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/client.h"
#include "hooks/draw_buckets.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::testing {

inline const std::string kPowerSgd = "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=2";

std::vector<ParameterSpec> Model(std::int64_t columns = 30);

// begin, begin + 1, … end - 1
std::vector<int> Range(int begin, int end);

// The model's gradients in two buckets: {bias, linear} and {convolution}.
class Buckets {
 public:
  explicit Buckets(const std::vector<ParameterSpec>& model);
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  void Fill(int rank, int step, float scale = 1);
  void Poison();

  GradBucket& bucket(std::size_t i) { return buckets_[i]; }
  const std::vector<float>& values() const { return values_; }

 private:
  const std::size_t first_;
  std::vector<float> values_;
  std::vector<GradBucket> buckets_;
};

struct Checkpoint {
  std::string state;               // the coordinator's
  std::vector<std::string> dicts;  // the members', by rank
};
using Results = std::vector<std::vector<std::vector<float>>>;  // by rank and step

struct Training {
  std::string hook = kPowerSgd;
  int world_size = 2;
  std::vector<int> steps{};  // which gradients, in order
  int poisoned = -1;         // rank 1's gradient of this step has a NaN
  const Checkpoint* from = nullptr;
  std::vector<ParameterSpec> model = Model();
  std::size_t daemons = 1;  // more: the session's shards
  DrawBuckets draw_plan{};  // rank 0's, before its first step; empty: none
};

struct Trained {
  Results results;
  Checkpoint checkpoint;
};

ClientOptions Options(const TestDaemon& daemon, const Training& training);
ClientOptions Options(const std::vector<std::unique_ptr<TestDaemon>>& daemons,
                      const Training& training);

// As many as the training has, with small chunks.
std::vector<std::unique_ptr<TestDaemon>> Daemons(const Training& training);

// Reduces both buckets and ends the step.
absl::StatusOr<Verdict> Reduce(Client& client, Buckets& buckets);

// One step of one member; its result goes to `results`.
absl::Status Step(Client& client, int rank, int step, const Training& training, Results& results);

// Gives the session and the member what `from` has of them. All members call it before their first
// step.
absl::Status Load(Client& client, int rank, const Checkpoint& from);

// All members meet, and each puts its part into `to`.
absl::Status Save(Client& client, int rank, Checkpoint& to);

// The whole training, with a daemon and members of its own.
Trained Train(const Training& training);

// Bit for bit. `from`: the step of `whole` that `part` begins with.
void ExpectSameResults(const Results& whole, const Results& part, std::size_t from);
void ExpectSameCheckpoint(const Checkpoint& a, const Checkpoint& b);

}  // namespace gradwire::testing
