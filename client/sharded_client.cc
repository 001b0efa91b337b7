#include "client/sharded_client.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/error_code.h"
#include "base/sync.h"
#include "client/client_impl.h"
#include "client/core/leaf_weight.h"
#include "client/memory/gradient_memory.h"
#include "client/shard_buckets.h"
#include "client/shard_exchange.h"
#include "client/shard_state.h"

namespace gradwire {
namespace client {
namespace {

// The outcome of several calls: the first error, once all of them have ended.
class Together {
 public:
  Together(std::size_t calls, std::function<void(const absl::Status&)> done)
      : left_(calls), done_(std::move(done)) {}

  void OnDone(const absl::Status& status) GRADWIRE_EXCLUDES(mutex_) {
    absl::Status outcome;
    {
      MutexLock lock(mutex_);
      if (outcome_.ok()) outcome_ = status;
      if (--left_ > 0) return;
      outcome = outcome_;
    }
    done_(outcome);
  }

 private:
  Mutex mutex_;
  std::size_t left_ GRADWIRE_GUARDED_BY(mutex_);
  absl::Status outcome_ GRADWIRE_GUARDED_BY(mutex_);
  const std::function<void(const absl::Status&)> done_;
};

}  // namespace

}  // namespace client

class ShardedClient final : public client::MemberClient {
 public:
  explicit ShardedClient(client::ShardedParts parts)
      : options_(std::move(parts.options)),
        map_(std::move(parts.map)),
        buckets_(map_, options_.parameters),
        gradients_(std::move(parts.gradients)),
        lead_started_(std::move(parts.lead_started)),
        exchange_(std::move(parts.exchange)),
        shards_(std::move(parts.shards)) {
    for (std::size_t i = 0; i < parts.addresses.size(); ++i) {
      daemons_.push_back(absl::StrCat("shard ", i, " (", parts.addresses[i], ")"));
    }
  }

  ~ShardedClient() override { exchange_->Close(); }

  std::shared_ptr<client::Outcome> Start() override {
    auto all = std::make_shared<client::Outcome>();
    auto together = std::make_shared<client::Together>(
        shards_.size(), [all](const absl::Status& status) { all->Complete(status); });
    for (const auto& shard : shards_) {
      const bool started = shard == shards_.front() && lead_started_ != nullptr;
      (started ? lead_started_ : shard->Start())->OnDone([together](const absl::Status& status) {
        together->OnDone(status);
      });
    }
    return all;
  }

  void FailElsewhere(const absl::Status& status, int blamed_rank) override {
    exchange_->FailAll(status, blamed_rank);
  }

  int rank() const override { return lead().rank(); }
  int world_size() const override { return lead().world_size(); }
  std::vector<int> members() const override { return lead().members(); }
  std::int64_t step() const override { return lead().step(); }
  std::optional<MembershipChange> membership_change() const override {
    return lead().membership_change();
  }
  // Each daemon knows its own results.
  std::string skip_reason() const override {
    std::vector<std::string> reasons;
    for (const auto& shard : shards_) {
      std::string reason = shard->skip_reason();
      if (!reason.empty()) reasons.push_back(std::move(reason));
    }
    return absl::StrJoin(reasons, "; ");
  }
  absl::Status CheckParameters(std::uint64_t digest) override {
    return lead().CheckParameters(digest);
  }
  std::string parameter_drift() const override { return lead().parameter_drift(); }

  Completion AllReduce(GradBucket& bucket, void* stream) override {
    auto state = std::make_shared<Completion::State>();
    GradBucket whole = bucket;
    const client::BucketAlias alias(*gradients_, whole);
    if (lead().weight() != 1) client::Weigh(whole.buffer(), lead().weight());
    absl::StatusOr<std::vector<client::ShardBucket>> parts = buckets_.Divide(whole);
    if (!parts.ok()) {
      state->Complete(parts.status());
      return Completion(state);
    }
    auto together = std::make_shared<client::Together>(parts->size(),
                                                       [state, alias](const absl::Status& status) {
                                                         if (status.ok()) alias.Scatter();
                                                         state->Complete(status);
                                                       });
    for (client::ShardBucket& part : *parts) {
      Completion reduced = shards_[part.shard]->AllReduce(part.bucket, stream);
      reduced.OnDone([together](const absl::Status& status) { together->OnDone(status); });
    }
    return Completion(state);
  }

  std::shared_ptr<std::byte> AllocateGradients(std::size_t bytes) override {
    return lead().AllocateGradients(bytes);
  }

  // Of all shards, as the memory is (ShardPlace::gradients). A shard on this host says whether.
  using Client::ShareGradients;
  absl::StatusOr<std::shared_ptr<void>> ShareGradients(const TensorView& gradients,
                                                       std::shared_ptr<void> owner) override {
    const auto local = std::find_if(shards_.begin(), shards_.end(), [](const auto& shard) {
      return shard->metrics().shared_memory;
    });
    return (local == shards_.end() ? shards_.front() : *local)
        ->ShareGradients(gradients, std::move(owner));
  }

  absl::StatusOr<Verdict> EndStep() override {
    if (absl::Status may = MayWait("EndStep"); !may.ok()) return may;
    auto outcome = std::make_shared<client::Outcome>();
    auto verdict = std::make_shared<Verdict>(Verdict::kApply);
    EndStep([outcome, verdict](const absl::StatusOr<Verdict>& step) {
      if (step.ok()) *verdict = *step;
      outcome->Complete(step.status());
    });
    if (absl::Status status = outcome->Wait(); !status.ok()) return status;
    return *verdict;
  }

  // All shards have the same verdict, because they conclude with what the first one says.
  void EndStep(std::function<void(const absl::StatusOr<Verdict>&)> done) override {
    auto verdict = std::make_shared<std::atomic<Verdict>>(Verdict::kApply);
    auto together = std::make_shared<client::Together>(
        shards_.size(), [verdict, done = std::move(done)](const absl::Status& status) {
          done(status.ok() ? absl::StatusOr<Verdict>(verdict->load()) : status);
        });
    for (const auto& shard : shards_) {
      shard->EndStep([together, verdict](const absl::StatusOr<Verdict>& step) {
        if (step.ok() && *step == Verdict::kSkip) verdict->store(Verdict::kSkip);
        together->OnDone(step.status());
      });
    }
  }

  absl::Status SetDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets) override {
    return OnAll([&](ClientImpl& shard) { return shard.SetDrawPlan(buckets); });
  }

  absl::Status Broadcast(int root, void* data, std::size_t bytes) override {
    return lead().Broadcast(root, data, bytes);
  }

  absl::Status Barrier() override {
    if (absl::Status may = MayWait("a broadcast or barrier"); !may.ok()) return may;
    auto outcome = std::make_shared<client::Outcome>();
    Barrier([outcome](const absl::Status& status) { outcome->Complete(status); });
    return outcome->Wait();
  }
  // On all shards: a new state reaches a member on each shard's stream, before the end of a barrier
  // there.
  void Barrier(std::function<void(const absl::Status&)> done) override {
    auto together = std::make_shared<client::Together>(shards_.size(), std::move(done));
    for (const auto& shard : shards_) {
      shard->EnterBarrier()->outcome.OnDone(
          [together](const absl::Status& status) { together->OnDone(status); });
    }
  }
  // As Broadcast.
  void Relay(client::RelayWish wish, std::function<void(const absl::Status&)> done) override {
    lead().Relay(std::move(wish), std::move(done));
  }
  void Give(wire::PayloadRef bytes) override { lead().Give(std::move(bytes)); }
  void MakeRoom(std::uint64_t bytes) override { lead().MakeRoom(bytes); }

  absl::Status Leave() override {
    return OnAll([](ClientImpl& shard) { return shard.Leave(); });
  }

  // Each daemon has the residuals of its own parameters, so that several members may take them.
  absl::StatusOr<HandOver> HandOverAndLeave(absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    HandOver all;
    std::vector<std::string> reasons;
    for (const auto& shard : shards_) {
      absl::StatusOr<HandOver> part = shard->GiveResiduals(deadline - absl::Now());
      if (!part.ok()) return part.status();
      if (!all.rank) all.rank = part->rank;
      if (!part->reason.empty()) reasons.push_back(std::move(part->reason));
    }
    all.reason = absl::StrJoin(reasons, "; ");
    if (absl::Status left = Leave(); !left.ok()) return left;
    return all;
  }

  absl::StatusOr<std::string> ExportState() override {
    if (absl::Status may = MayCallBetweenSteps("ExportState"); !may.ok()) return may;
    return client::FetchWholeState(
        daemons_, [this](std::size_t shard) { return shards_[shard]->ExportState(); },
        kConclusionTimeout);
  }

  absl::Status ImportState(const std::string& state) override {
    if (absl::Status may = MayCallBetweenSteps("ImportState"); !may.ok()) return may;
    const client::LoadedState loaded = client::LoadWholeState(
        daemons_, [&](std::size_t shard) { return shards_[shard]->ImportState(state); },
        kConclusionTimeout);
    if (loaded.is_half()) exchange_->FailAll(loaded.status);
    return loaded.status;
  }

  absl::StatusOr<std::string> StateDict() override {
    std::vector<HookState> parts;
    for (const auto& shard : shards_) {
      absl::StatusOr<HookState> part = shard->MemberState();
      if (!part.ok()) return part.status();
      parts.push_back(*std::move(part));
    }
    return client::JoinMemberParts(std::move(parts));
  }

  absl::Status LoadStateDict(const std::string& state) override {
    if (absl::Status may = MayCallBetweenSteps("LoadStateDict"); !may.ok()) return may;
    const auto parts = client::DivideMemberState(state, options_, *map_);
    if (!parts.ok()) return parts.status();
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (absl::Status loaded = shards_[i]->LoadMemberState((*parts)[i]); !loaded.ok()) {
        return loaded;
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetLossScale(double scale) override {
    return OnAll([&](ClientImpl& shard) { return shard.SetLossScale(scale); });
  }

  ClientMetrics metrics() const override {
    ClientMetrics sum = lead().metrics();
    for (std::size_t i = 1; i < shards_.size(); ++i) {
      const ClientMetrics one = shards_[i]->metrics();
      sum.bytes_sent += one.bytes_sent;
      sum.bytes_received += one.bytes_received;
      // With slices each shard is given every bucket.
      if (!map_->has_slices()) sum.gradient_bytes += one.gradient_bytes;
      sum.resumes += one.resumes;
      // Each reduces its own parts again.
      sum.steps_reduced_again = std::max(sum.steps_reduced_again, one.steps_reduced_again);
      sum.shared_memory |= one.shared_memory;
      sum.unix_socket |= one.unix_socket;
      sum.compress_seconds += one.compress_seconds;
      sum.decompress_seconds += one.decompress_seconds;
    }
    return sum;
  }

  std::vector<BucketReport> Report() const override {
    std::vector<BucketReport> all = lead().Report();
    for (std::size_t i = 1; i < shards_.size(); ++i) {
      for (BucketReport& report : shards_[i]->Report()) {
        if (!map_->has_slices()) {
          all.push_back(std::move(report));
          continue;
        }
        // The same buckets; the first shard's figures stand for all.
        const auto same = std::find_if(all.begin(), all.end(), [&](const BucketReport& one) {
          return one.first_parameter == report.first_parameter;
        });
        if (same != all.end()) same->in_place |= report.in_place;
      }
    }
    return all;
  }

 private:
  ClientImpl& lead() const { return *shards_.front(); }

  template <typename Function>
  absl::Status OnAll(Function function) {
    for (const auto& shard : shards_) {
      if (absl::Status status = function(*shard); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status MayWait(const char* call) {
    return OnAll([call](ClientImpl& shard) { return shard.MayWait(call); });
  }
  absl::Status MayCallBetweenSteps(const char* call) {
    if (absl::Status may = MayWait(call); !may.ok()) return may;
    return OnAll([call](ClientImpl& shard) { return shard.MayCallBetweenSteps(call); });
  }

  // Until all daemons have heard of the end of this member's last step.
  static constexpr absl::Duration kConclusionTimeout = absl::Seconds(10);

  const ClientOptions options_;
  const std::shared_ptr<const ShardMap> map_;
  const client::ShardBuckets buckets_;
  const std::shared_ptr<const client::GradientMemory> gradients_;
  const std::shared_ptr<client::Outcome> lead_started_;  // null: it is started with the others
  const std::unique_ptr<client::ShardExchange> exchange_;
  const std::vector<std::unique_ptr<ClientImpl>> shards_;
  std::vector<std::string> daemons_;  // for errors
};

namespace client {

std::unique_ptr<MemberClient> MakeShardedClient(ShardedParts parts) {
  return std::make_unique<ShardedClient>(std::move(parts));
}

}  // namespace client
}  // namespace gradwire
