#include "tests/conformance/daemon_carrier.h"

#include <cstring>
#include <list>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::conformance {
namespace {

server::ServerOptions SmallChunks(server::ServerOptions options) {
  options.chunk_bytes = 4096;  // so that the larger parameters take several
  options.window_chunks = 2;
  options.open_buckets = 2;
  return options;
}

class HostMemory final : public MemberMemory {
 public:
  DeviceId device() const override { return {}; }
  void* Put(std::span<const std::byte> bytes) override {
    return buffers_.emplace_back(bytes.begin(), bytes.end()).data();
  }
  void Get(const void* from, std::span<std::byte> bytes) override {
    if (!bytes.empty()) std::memcpy(bytes.data(), from, bytes.size());
  }
  void Clear() override { buffers_.clear(); }

 private:
  std::list<std::vector<std::byte>> buffers_;
};

class DaemonCarrier : public Carrier {
 public:
  DaemonCarrier(const server::ServerOptions& options, std::vector<ParameterSpec> parameters,
                int world_size, const MakeMemory& make_memory, std::size_t daemons)
      : parameters_(std::move(parameters)) {
    for (std::size_t i = 0; i < daemons; ++i) daemons_.emplace_back(SmallChunks(options));
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(world_size); ++rank) {
      memory_.push_back(make_memory(rank));
    }
  }

  ~DaemonCarrier() override {
    for (auto& client : clients_) EXPECT_EQ(client->Leave(), absl::OkStatus());
  }

  absl::Status Join(int world_size, const HookSpec& spec) {
    clients_.resize(static_cast<std::size_t>(world_size));
    const std::string addresses =
        absl::StrJoin(daemons_, ",", [](std::string* out, const testing::TestDaemon& daemon) {
          absl::StrAppend(out, daemon.address());
        });
    return OnEachRank([&](std::size_t rank) {
      auto client = memory_[rank]->Join({.address = addresses,
                                         .session = "conformance",
                                         .rank = static_cast<int>(rank),
                                         .world_size = world_size,
                                         .parameters = parameters_,
                                         .hook = spec,
                                         .device = memory_[rank]->device(),
                                         .cuda_library = memory_[rank]->library()});
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
    MemberMemory& memory = *memory_[rank];
    std::vector<std::pair<void*, std::vector<std::byte>>> buffers(buckets.size());
    std::vector<std::unique_ptr<GradBucket>> open;
    std::vector<Completion> completions;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const std::size_t index = (i + rank) % buckets.size();
      std::vector<ParameterSpec> parameters;
      auto& [there, bytes] = buffers[index];
      for (std::size_t p : buckets[index]) {
        parameters.push_back(parameters_[p]);
        bytes.insert(bytes.end(), gradients[p].begin(), gradients[p].end());
      }
      there = memory.Put(bytes);
      const DType dtype = parameters.front().dtype;
      const TensorView view{dtype, there, bytes.size() / ByteSize(dtype), memory.device()};
      auto bucket = GradBucket::Make(static_cast<int>(i), view, parameters);
      if (!bucket.ok()) return bucket.status();
      open.push_back(std::make_unique<GradBucket>(*std::move(bucket)));
      completions.push_back(client.AllReduce(*open.back(), memory.stream()));
    }
    for (const Completion& completion : completions) {
      if (absl::Status status = completion.Wait(); !status.ok()) return status;
    }
    absl::StatusOr<Verdict> end = client.EndStep();
    if (!end.ok()) return end.status();
    verdict = *end;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      auto& [there, bytes] = buffers[b];
      memory.Get(there, bytes);
      auto from = bytes.begin();
      for (std::size_t p : buckets[b]) {
        const auto until = from + static_cast<std::ptrdiff_t>(gradients[p].size());
        gradients[p].assign(from, until);
        from = until;
      }
    }
    memory.Clear();
    return absl::OkStatus();
  }

  std::list<testing::TestDaemon> daemons_;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::unique_ptr<MemberMemory>> memory_;  // by rank
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace

std::unique_ptr<MemberMemory> MakeHostMemory(std::size_t /*rank*/) {
  return std::make_unique<HostMemory>();
}

absl::StatusOr<std::unique_ptr<Carrier>> MakeDaemonCarrier(
    int world_size, const HookSpec& spec, const std::vector<ParameterSpec>& parameters,
    const MakeMemory& make_memory, const server::ServerOptions& options, std::size_t daemons) {
  auto carrier =
      std::make_unique<DaemonCarrier>(options, parameters, world_size, make_memory, daemons);
  if (absl::Status status = carrier->Join(world_size, spec); !status.ok()) return status;
  return std::unique_ptr<Carrier>(std::move(carrier));
}

}  // namespace gradwire::conformance
