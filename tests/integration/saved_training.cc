#include "tests/integration/saved_training.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "tests/testing/ranks.h"

namespace gradwire::testing {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns how many tensors it compared.
std::size_t ExpectSameState(const std::string& a, const std::string& b, const std::string& what) {
  auto first = ReadSafetensors(a);
  auto second = ReadSafetensors(b);
  EXPECT_TRUE(first.ok()) << what << ": " << first.status();
  EXPECT_TRUE(second.ok()) << what << ": " << second.status();
  if (!first.ok() || !second.ok()) return 0;
  // The one thing that belongs to the session, not to the training.
  first->metadata.erase("step");
  second->metadata.erase("step");
  EXPECT_EQ(first->metadata, second->metadata) << what;
  EXPECT_EQ(first->tensors.size(), second->tensors.size()) << what;
  if (first->tensors.size() != second->tensors.size()) return 0;
  for (std::size_t i = 0; i < first->tensors.size(); ++i) {
    const StateTensor& tensor = first->tensors[i];
    EXPECT_EQ(tensor.name, second->tensors[i].name) << what;
    EXPECT_EQ(tensor.shape, second->tensors[i].shape) << what << " " << tensor.name;
    EXPECT_TRUE(tensor.data == second->tensors[i].data) << what << " " << tensor.name << " differs";
  }
  return first->tensors.size();
}

}  // namespace

std::vector<ParameterSpec> Model(std::int64_t columns) {
  return {{.name = "bias", .shape = {40}},
          {.name = "linear", .shape = {40, columns}},
          {.name = "convolution", .shape = {64, 8, 3, 3}}};
}

std::vector<int> Range(int begin, int end) {
  std::vector<int> steps(static_cast<std::size_t>(end - begin));
  std::iota(steps.begin(), steps.end(), begin);
  return steps;
}

Buckets::Buckets(const std::vector<ParameterSpec>& model)
    : first_(model[0].numel() + model[1].numel()),
      values_(first_ + model[2].numel()),
      buckets_{
          *GradBucket::Make(0, {DType::kFloat32, values_.data(), first_}, {model[0], model[1]}),
          *GradBucket::Make(1, {DType::kFloat32, values_.data() + first_, model[2].numel()},
                            {model[2]})} {}

void Buckets::Fill(int rank, int step, float scale) {
  std::mt19937 words(static_cast<std::uint32_t>(step * 16 + rank));
  for (float& value : values_) {
    value = scale * (static_cast<float>(words()) * 0x1p-31F - 1);
  }
}

void Buckets::Poison() { values_[first_ + 5] = std::numeric_limits<float>::quiet_NaN(); }

absl::StatusOr<Verdict> Reduce(Client& client, Buckets& buckets) {
  const Completion first = client.AllReduce(buckets.bucket(0));
  const Completion second = client.AllReduce(buckets.bucket(1));
  for (const Completion& completion : {first, second}) {
    if (absl::Status status = completion.Wait(); !status.ok()) return status;
  }
  return client.EndStep();
}

absl::Status Load(Client& client, int rank, const Checkpoint& from) {
  if (rank == 0) {
    if (absl::Status status = client.ImportState(from.state); !status.ok()) return status;
  }
  const absl::Status loaded = client.LoadStateDict(from.dicts[static_cast<std::size_t>(rank)]);
  return loaded.ok() ? client.Barrier() : loaded;
}

// Each rank has its own place in `to`.
absl::Status Save(Client& client, int rank, Checkpoint& to) {
  if (absl::Status status = client.Barrier(); !status.ok()) return status;
  if (rank == 0) {
    auto state = client.ExportState();
    if (!state.ok()) return state.status();
    to.state = *std::move(state);
  }
  auto dict = client.StateDict();
  if (!dict.ok()) return dict.status();
  to.dicts[static_cast<std::size_t>(rank)] = *std::move(dict);
  return client.Barrier();
}

namespace {

ClientOptions OptionsAt(std::string address, const Training& training) {
  const auto hook = HookSpec::Parse(training.hook);
  EXPECT_TRUE(hook.ok()) << hook.status();
  return {.address = std::move(address),
          .session = "state",
          .world_size = training.world_size,
          .parameters = training.model,
          .hook = *hook};
}

}  // namespace

ClientOptions Options(const TestDaemon& daemon, const Training& training) {
  return OptionsAt(daemon.address(), training);
}

ClientOptions Options(const std::vector<std::unique_ptr<TestDaemon>>& daemons,
                      const Training& training) {
  return OptionsAt(absl::StrJoin(daemons, ",",
                                 [](std::string* out, const auto& daemon) {
                                   absl::StrAppend(out, daemon->address());
                                 }),
                   training);
}

std::vector<std::unique_ptr<TestDaemon>> Daemons(const Training& training) {
  std::vector<std::unique_ptr<TestDaemon>> daemons;
  for (std::size_t i = 0; i < training.daemons; ++i) {
    daemons.push_back(std::make_unique<TestDaemon>(server::ServerOptions{.chunk_bytes = 1024}));
  }
  return daemons;
}

absl::Status Step(Client& client, int rank, int step, const Training& training, Results& results) {
  Buckets buckets(training.model);
  buckets.Fill(rank, step);
  const bool poisoned = step == training.poisoned;
  if (poisoned && rank == 1) buckets.Poison();
  const auto verdict = Reduce(client, buckets);
  if (!verdict.ok()) return verdict.status();
  EXPECT_EQ(*verdict, poisoned ? Verdict::kSkip : Verdict::kApply)
      << "rank " << rank << " step " << step;
  results[static_cast<std::size_t>(rank)].push_back(buckets.values());
  return absl::OkStatus();
}

Trained Train(const Training& training) {
  const auto daemons = Daemons(training);
  Trained trained;
  trained.results.resize(static_cast<std::size_t>(training.world_size));
  trained.checkpoint.dicts.resize(static_cast<std::size_t>(training.world_size));
  ExpectAllOk(RunRanks(Options(daemons, training), [&](Client& client, int rank) -> absl::Status {
    if (rank == 0 && !training.draw_plan.empty()) {
      absl::Status set = client.SetDrawPlan(training.draw_plan);
      if (!set.ok()) return set;
    }
    if (training.from != nullptr) {
      if (absl::Status status = Load(client, rank, *training.from); !status.ok()) return status;
    }
    for (int step : training.steps) {
      absl::Status status = Step(client, rank, step, training, trained.results);
      if (!status.ok()) return status;
    }
    if (absl::Status status = Save(client, rank, trained.checkpoint); !status.ok()) return status;
    return client.Leave();
  }));
  return trained;
}

void ExpectSameResults(const Results& whole, const Results& part, std::size_t from) {
  ASSERT_EQ(whole.size(), part.size());
  for (std::size_t rank = 0; rank < whole.size(); ++rank) {
    ASSERT_EQ(whole[rank].size(), from + part[rank].size()) << "rank " << rank;
    for (std::size_t i = 0; i < part[rank].size(); ++i) {
      ASSERT_TRUE(SameBits(whole[rank][from + i], part[rank][i]))
          << "rank " << rank << ": result " << from + i << " differs";
    }
  }
}

void ExpectSameCheckpoint(const Checkpoint& a, const Checkpoint& b) {
  // Between two cold starts the coordinator has no factors.
  std::size_t tensors = ExpectSameState(a.state, b.state, "the coordinator's state");
  for (std::size_t rank = 0; rank < a.dicts.size(); ++rank) {
    tensors +=
        ExpectSameState(a.dicts[rank], b.dicts[rank], absl::StrCat("the state of rank ", rank));
  }
  EXPECT_GT(tensors, 0U);
}

}  // namespace gradwire::testing
