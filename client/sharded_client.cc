#include "client/sharded_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/sync.h"
#include "client/client_impl.h"
#include "client/core/leaf_weight.h"
#include "client/options.h"
#include "client/runtime/join.h"
#include "client/shard_buckets.h"
#include "client/shard_exchange.h"
#include "client/shard_state.h"

namespace gradwire {
namespace client {
namespace {

// A token is used within 5 s. Where joining all daemons took longer than this, the first ones are
// asked again.
constexpr std::chrono::seconds kTokensAreFresh(2);
constexpr absl::Duration kLeaveAfterError = absl::Seconds(1);

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
  ShardedClient(ClientOptions options, const std::vector<std::string>& addresses,
                std::shared_ptr<const ShardMap> map,
                std::shared_ptr<const client::GradientMemory> gradients,
                std::unique_ptr<client::ShardExchange> exchange,
                std::vector<std::unique_ptr<ClientImpl>> shards)
      : options_(std::move(options)),
        map_(std::move(map)),
        buckets_(map_, options_.parameters),
        gradients_(std::move(gradients)),
        exchange_(std::move(exchange)),
        shards_(std::move(shards)) {
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      daemons_.push_back(absl::StrCat("shard ", i, " (", addresses[i], ")"));
    }
  }

  ~ShardedClient() override { exchange_->Close(); }

  std::shared_ptr<client::Outcome> Start() override {
    auto all = std::make_shared<client::Outcome>();
    auto together = std::make_shared<client::Together>(
        shards_.size(), [all](const absl::Status& status) { all->Complete(status); });
    for (const auto& shard : shards_) {
      shard->Start()->OnDone([together](const absl::Status& status) { together->OnDone(status); });
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
  // A session with several daemons ends with its first lost member.
  std::optional<MembershipChange> membership_change() const override { return std::nullopt; }
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
  absl::Status Leave() override {
    return OnAll([](ClientImpl& shard) { return shard.Leave(); });
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
  const std::unique_ptr<client::ShardExchange> exchange_;
  const std::vector<std::unique_ptr<ClientImpl>> shards_;
  std::vector<std::string> daemons_;  // for errors
};

namespace client {
namespace {

// One member's place at one daemon.
struct AtDaemon {
  ClientOptions options;
  MemberHook hook;
  std::optional<Joined> joined{};
};

void LeaveAll(const std::vector<AtDaemon>& places, std::uint64_t start_id) {
  for (const AtDaemon& place : places) {
    if (!place.joined) continue;
    LeaveSession(place.joined->channel, place.joined->membership.token, start_id,
                 place.joined->dialer.access_token(), kLeaveAfterError)
        .IgnoreError();
  }
}

// At each daemon in turn. The first one gives the rank.
absl::Status JoinEach(std::vector<AtDaemon>& places, const Daemons& daemons, const LeafWish& leaf,
                      std::uint64_t start_id) {
  const std::vector<std::string>& addresses = daemons.addresses;
  for (std::uint32_t i = 0; i < places.size(); ++i) {
    AtDaemon& place = places[i];
    if (i > 0) place.options.rank = places.front().joined->membership.rank;
    place.options.address = addresses[i];
    const JoinWish wish{
        .shard = {.number = i, .addresses = addresses}, .leaf = leaf, .host = daemons.host};
    absl::StatusOr<Joined> joined = JoinNearest(place.options, wish, start_id);
    if (!joined.ok()) {
      return absl::Status(
          joined.status().code(),
          absl::StrCat("shard ", i, " (", NameOf(daemons, i), "): ", joined.status().message()));
    }
    if (joined->membership.leaf) {
      return Coded(ErrorCode::kShards,
                   absl::FailedPreconditionError(absl::StrCat(
                       "shard ", i, " (", NameOf(daemons, i),
                       ") is a leaf daemon; allowed: a leaf alone, or daemons that are none")));
    }
    place.joined = *std::move(joined);
  }
  const std::int64_t step = places.front().joined->membership.next_step;
  for (std::uint32_t i = 1; i < places.size(); ++i) {
    if (places[i].joined->membership.next_step == step) continue;
    return Coded(ErrorCode::kShards,
                 absl::FailedPreconditionError(absl::StrCat(
                     "shard ", i, " (", addresses[i], ") is at step ",
                     places[i].joined->membership.next_step, "; shard 0 at step ", step)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckShards(const HookSpec& hook, DeviceId device, std::uint32_t shards) {
  const absl::StatusOr<ShardMap> map = ShardMap::Make(hook, {}, shards);
  if (!map.ok()) return map.status();
  const bool has_slices = shards == 1 || hook.OnlyCasts();
  if (has_slices || device.kind == DeviceKind::kCpu) return absl::OkStatus();
  return Coded(ErrorCode::kShards,
               absl::InvalidArgumentError(absl::StrCat(
                   "address: ", shards, " daemons with hook ", hook.ToString(), " on ",
                   Name(device), "; allowed: the CPU, or the hooks no, fp16 and bf16")));
}

absl::StatusOr<std::unique_ptr<MemberClient>> PlaceAtShards(ClientOptions options,
                                                            const Daemons& daemons,
                                                            const Leaf& leaf) {
  const std::vector<std::string>& addresses = daemons.addresses;
  const auto count = static_cast<std::uint32_t>(addresses.size());
  if (absl::Status fits = CheckShards(options.hook, options.device, count); !fits.ok()) return fits;
  absl::StatusOr<ShardMap> made = ShardMap::Make(options.hook, options.parameters, count);
  if (!made.ok()) return made.status();
  const auto map = std::make_shared<const ShardMap>(*std::move(made));
  options.node_group = "off";
  std::vector<AtDaemon> places;
  for (std::uint32_t i = 0; i < count; ++i) {
    absl::StatusOr<MemberHook> hook = MakeMemberHook(options);
    if (!hook.ok()) return Coded(ErrorCode::kOption, hook.status());
    places.push_back({.options = options, .hook = *std::move(hook)});
  }
  const std::uint64_t start_id = DrawStartId();
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status = JoinEach(places, daemons, leaf.wish, start_id);
  if (status.ok() && std::chrono::steady_clock::now() > begin + kTokensAreFresh) {
    status = JoinEach(places, daemons, leaf.wish, start_id);
  }
  if (!status.ok()) {
    LeaveAll(places, start_id);
    return status;
  }
  const JoinResult& first = places.front().joined->membership;
  auto exchange = std::make_unique<ShardExchange>(count, first.next_step, leaf.failed);
  const auto gradients = std::make_shared<GradientMemory>();
  std::vector<std::unique_ptr<ClientImpl>> shards;
  std::vector<ClientImpl*> pointers;
  for (std::uint32_t i = 0; i < count; ++i) {
    AtDaemon& place = places[i];
    place.options.on_wait = nullptr;
    shards.push_back(std::make_unique<ClientImpl>(
        std::move(place.options), *std::move(place.joined), start_id, std::move(place.hook),
        ShardPlace{.number = i,
                   .addresses = addresses,
                   .map = map,
                   .link = exchange->LinkOf(i),
                   .ranks = std::max(leaf.wish.ranks, 1),
                   .gradients = gradients}));
    pointers.push_back(shards.back().get());
  }
  exchange->SetShards(std::move(pointers));
  options.on_wait = nullptr;  // it may refer to objects that live only until Join returns
  return std::make_unique<ShardedClient>(std::move(options), addresses, map, gradients,
                                         std::move(exchange), std::move(shards));
}

}  // namespace client
}  // namespace gradwire
