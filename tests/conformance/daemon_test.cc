// The hooks' promises over a real daemon and the SDK.
#include <memory>
#include <thread>
#include <utility>

#include "gradwire/client.h"
#include "tests/conformance/hook_conformance.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::conformance {
namespace {

server::ServerOptions SmallChunks() {
  server::ServerOptions options;
  options.chunk_bytes = 4096;  // so that the larger parameters take several
  options.window_chunks = 2;
  options.open_buckets = 2;
  return options;
}

class DaemonCarrier : public Carrier {
 public:
  explicit DaemonCarrier(std::vector<ParameterSpec> parameters)
      : daemon_(SmallChunks()), parameters_(std::move(parameters)) {}

  ~DaemonCarrier() override {
    for (auto& client : clients_) EXPECT_EQ(client->Leave(), absl::OkStatus());
  }

  absl::Status Join(int world_size, const HookSpec& spec) {
    clients_.resize(static_cast<std::size_t>(world_size));
    return OnEachRank([&](std::size_t rank) {
      auto client = Client::Join({.address = daemon_.address(),
                                  .session = "conformance",
                                  .rank = static_cast<int>(rank),
                                  .world_size = world_size,
                                  .parameters = parameters_,
                                  .hook = spec});
      if (!client.ok()) return client.status();
      clients_[rank] = *std::move(client);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<StepResult> RunStep(
      const std::vector<MemberGradients>& gradients,
      const std::vector<std::vector<std::size_t>>& buckets) override {
    StepResult result{.gradients = gradients,
                      .verdicts = std::vector<Verdict>(clients_.size(), Verdict::kApply)};
    const absl::Status status = OnEachRank([&](std::size_t rank) {
      return RunMember(*clients_[rank], rank, buckets, result.gradients[rank],
                       result.verdicts[rank]);
    });
    if (!status.ok()) return status;
    return result;
  }

 private:
  absl::Status OnEachRank(const std::function<absl::Status(std::size_t)>& work) {
    std::vector<absl::Status> statuses(clients_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < clients_.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = work(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status RunMember(Client& client, std::size_t rank,
                         const std::vector<std::vector<std::size_t>>& buckets,
                         MemberGradients& gradients, Verdict& verdict) const {
    std::vector<std::vector<std::byte>> buffers(buckets.size());
    std::vector<std::unique_ptr<GradBucket>> open;
    std::vector<Completion> completions;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const std::size_t index = (i + rank) % buckets.size();
      std::vector<ParameterSpec> parameters;
      std::vector<std::byte>& bytes = buffers[index];
      for (std::size_t p : buckets[index]) {
        parameters.push_back(parameters_[p]);
        bytes.insert(bytes.end(), gradients[p].begin(), gradients[p].end());
      }
      const DType dtype = parameters.front().dtype;
      auto bucket = GradBucket::Make(
          static_cast<int>(i), {dtype, bytes.data(), bytes.size() / ByteSize(dtype)}, parameters);
      if (!bucket.ok()) return bucket.status();
      open.push_back(std::make_unique<GradBucket>(*std::move(bucket)));
      completions.push_back(client.AllReduce(*open.back()));
    }
    for (const Completion& completion : completions) {
      if (absl::Status status = completion.Wait(); !status.ok()) return status;
    }
    absl::StatusOr<Verdict> end = client.EndStep();
    if (!end.ok()) return end.status();
    verdict = *end;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      auto from = buffers[b].begin();
      for (std::size_t p : buckets[b]) {
        const auto until = from + static_cast<std::ptrdiff_t>(gradients[p].size());
        gradients[p].assign(from, until);
        from = until;
      }
    }
    return absl::OkStatus();
  }

  testing::TestDaemon daemon_;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::unique_ptr<Client>> clients_;
};

absl::StatusOr<std::unique_ptr<Carrier>> MakeDaemonCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters) {
  auto carrier = std::make_unique<DaemonCarrier>(parameters);
  if (absl::Status status = carrier->Join(world_size, spec); !status.ok()) return status;
  return std::unique_ptr<Carrier>(std::move(carrier));
}

INSTANTIATE_TEST_SUITE_P(Daemon, HookConformance,
                         ::testing::ValuesIn(AllCases("Daemon", MakeDaemonCarrier)), CaseName);
INSTANTIATE_TEST_SUITE_P(Daemon, PowerSgdConformance,
                         ::testing::ValuesIn(PowerSgdCases("Daemon", MakeDaemonCarrier)), CaseName);

}  // namespace
}  // namespace gradwire::conformance
