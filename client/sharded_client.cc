#include "client/sharded_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/sync.h"
#include "client/client_impl.h"
#include "client/core/shard_vote.h"
#include "client/options.h"
#include "client/runtime/join.h"
#include "client/shard_buckets.h"
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

// What the shards' runtimes tell each other, each on its own thread. Events are handed on without
// the lock, because an event queue may handle them at once on this thread.
class ShardExchange {
 public:
  ShardExchange(std::uint32_t shards, std::int64_t step) : vote_(shards, step) {}

  // Before the first event.
  void SetShards(std::vector<ClientImpl*> shards) GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    shards_ = std::move(shards);
  }

  ShardLink LinkOf(std::uint32_t shard) {
    return {.prepared = [this, shard](const PreparedEffect& effect) { OnPrepared(shard, effect); },
            .concluded =
                [this, shard](const StepDoneEffect& effect) {
                  if (shard == 0) OnConcluded(effect.verdict);
                },
            .failed = [this, shard](const FailedEffect& effect) { OnFailed(shard, effect); }};
  }

  // Ends the session on all shards. Before Close.
  void FailAll(const absl::Status& status) GRADWIRE_EXCLUDES(mutex_) {
    if (failed_.exchange(true) || !Begin()) return;
    for (ClientImpl* one : shards_) one->FailElsewhere(status, -1);
    End();
  }

  // Nothing is handed on from now on. Whoever hands on something now does not wait for anybody.
  void Close() GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    while (busy_ > 0) idle_.Wait(mutex_);
  }

 private:
  void OnPrepared(std::uint32_t shard, const PreparedEffect& effect) GRADWIRE_EXCLUDES(mutex_) {
    if (!Begin()) return;
    absl::StatusOr<std::optional<ShardVote::Outcome>> outcome = std::nullopt;
    {
      MutexLock lock(mutex_);
      outcome = vote_.OnPrepared(shard, effect);
    }
    if (!outcome.ok()) {
      for (ClientImpl* one : shards_) one->FailElsewhere(outcome.status(), -1);
    } else if (*outcome) {
      shards_.front()->SayReady((*outcome)->verdict, (*outcome)->digest);
    }
    End();
  }

  void OnConcluded(Verdict verdict) GRADWIRE_EXCLUDES(mutex_) {
    if (!Begin()) return;
    {
      MutexLock lock(mutex_);
      vote_.Conclude();
    }
    for (std::size_t i = 1; i < shards_.size(); ++i) shards_[i]->ConcludeAs(verdict);
    End();
  }

  // The first failure is everybody's; those that it causes come back here and have no effect.
  void OnFailed(std::uint32_t shard, const FailedEffect& effect) GRADWIRE_EXCLUDES(mutex_) {
    if (failed_.exchange(true) || !Begin()) return;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (i != shard) shards_[i]->FailElsewhere(effect.status, effect.blamed_rank);
    }
    End();
  }

  bool Begin() GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return false;
    ++busy_;
    return true;
  }
  void End() GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (--busy_ == 0) idle_.NotifyAll();
  }

  std::vector<ClientImpl*> shards_;  // constant from the first event on
  std::atomic<bool> failed_ = false;
  Mutex mutex_;
  CondVar idle_;
  ShardVote vote_ GRADWIRE_GUARDED_BY(mutex_);
  bool closed_ GRADWIRE_GUARDED_BY(mutex_) = false;
  int busy_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace client

class ShardedClient final : public Client {
 public:
  ShardedClient(ClientOptions options, const std::vector<std::string>& addresses,
                std::shared_ptr<const ShardMap> map,
                std::unique_ptr<client::ShardExchange> exchange,
                std::vector<std::unique_ptr<ClientImpl>> shards)
      : options_(std::move(options)),
        map_(std::move(map)),
        buckets_(map_, options_.parameters),
        exchange_(std::move(exchange)),
        shards_(std::move(shards)) {
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      daemons_.push_back(absl::StrCat("shard ", i, " (", addresses[i], ")"));
    }
  }

  ~ShardedClient() override { exchange_->Close(); }

  // Waits until all members have attached to all daemons. `still_waiting` is called once, if that
  // takes long.
  absl::Status Start(const std::function<void()>& still_waiting) {
    std::vector<std::shared_ptr<client::Outcome>> outcomes;
    outcomes.reserve(shards_.size());
    for (const auto& shard : shards_) outcomes.push_back(shard->Start());
    const auto patience = std::chrono::steady_clock::now() + client::kSilentWaitForMembers;
    for (const auto& outcome : outcomes) outcome->WaitUntil(patience).IgnoreError();
    const bool all =
        std::all_of(outcomes.begin(), outcomes.end(), [](const auto& one) { return one->done(); });
    if (!all) still_waiting();
    for (const auto& outcome : outcomes) {
      if (absl::Status started = outcome->Wait(); !started.ok()) return started;
    }
    return absl::OkStatus();
  }

  int rank() const override { return lead().rank(); }
  int world_size() const override { return lead().world_size(); }
  std::int64_t step() const override { return lead().step(); }

  Completion AllReduce(GradBucket& bucket, void* stream) override {
    auto state = std::make_shared<Completion::State>();
    absl::StatusOr<std::vector<client::ShardBucket>> parts = buckets_.Divide(bucket);
    if (!parts.ok()) {
      state->Complete(parts.status());
      return Completion(state);
    }
    auto together = std::make_shared<client::Together>(
        parts->size(), [state](const absl::Status& status) { state->Complete(status); });
    auto* const buffer = static_cast<std::byte*>(bucket.buffer().data);
    for (client::ShardBucket& part : *parts) {
      Completion reduced = shards_[part.shard]->AllReduce(part.bucket, stream);
      reduced.OnDone([together, buffer, part = std::move(part)](const absl::Status& status) {
        if (status.ok()) part.CopyBack(buffer);
        together->OnDone(status);
      });
    }
    return Completion(state);
  }

  std::shared_ptr<std::byte> AllocateGradients(std::size_t bytes) override {
    const auto local = std::find_if(shards_.begin(), shards_.end(), [](const auto& shard) {
      return shard->metrics().shared_memory;
    });
    return (local == shards_.end() ? shards_.front() : *local)->AllocateGradients(bytes);
  }

  // The results of several daemons would meet in the pages at the memory's ends.
  using Client::ShareGradients;
  absl::StatusOr<std::shared_ptr<void>> ShareGradients(const TensorView& /*gradients*/,
                                                       std::shared_ptr<void> /*owner*/) override {
    return Coded(ErrorCode::kShards,
                 absl::FailedPreconditionError("the session has several daemons"));
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

  // On all shards: a new state reaches a member on each shard's stream, before the end of a barrier
  // there.
  absl::Status Barrier() override {
    if (absl::Status may = MayWait("a broadcast or barrier"); !may.ok()) return may;
    std::vector<std::shared_ptr<client::CollectiveCall>> calls;
    calls.reserve(shards_.size());
    for (const auto& shard : shards_) calls.push_back(shard->EnterBarrier());
    absl::Status outcome;
    for (const auto& call : calls) outcome.Update(call->outcome.Wait());
    return outcome;
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
    for (std::size_t i = 1; i < shards_.size() && !map_->has_slices(); ++i) {
      for (BucketReport& report : shards_[i]->Report()) all.push_back(std::move(report));
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
  const std::unique_ptr<client::ShardExchange> exchange_;
  const std::vector<std::unique_ptr<ClientImpl>> shards_;
  std::vector<std::string> daemons_;  // for errors
};

namespace client {
namespace {

// One member's place at one daemon.
struct Place {
  ClientOptions options;
  MemberHook hook;
  std::optional<Joined> joined{};
};

void LeaveAll(const std::vector<Place>& places, std::uint64_t start_id) {
  for (const Place& place : places) {
    if (!place.joined) continue;
    LeaveSession(place.joined->channel, place.joined->membership.token, start_id,
                 place.joined->dialer.access_token(), kLeaveAfterError)
        .IgnoreError();
  }
}

// At each daemon in turn. The first one gives the rank.
absl::Status JoinEach(std::vector<Place>& places, const std::vector<std::string>& addresses,
                      std::uint64_t start_id) {
  for (std::uint32_t i = 0; i < places.size(); ++i) {
    Place& place = places[i];
    if (i > 0) place.options.rank = places.front().joined->membership.rank;
    place.options.address = addresses[i];
    const JoinWish wish{.group = {}, .shard = {.number = i, .addresses = addresses}};
    absl::StatusOr<Joined> joined = JoinNearest(place.options, wish, start_id);
    if (!joined.ok()) {
      return absl::Status(joined.status().code(), absl::StrCat("shard ", i, " (", addresses[i],
                                                               "): ", joined.status().message()));
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

absl::StatusOr<std::unique_ptr<Client>> JoinShards(ClientOptions options,
                                                   std::vector<std::string> addresses) {
  const auto count = static_cast<std::uint32_t>(addresses.size());
  if (absl::Status fits = CheckShards(options.hook, options.device, count); !fits.ok()) return fits;
  absl::StatusOr<ShardMap> made = ShardMap::Make(options.hook, options.parameters, count);
  if (!made.ok()) return made.status();
  const auto map = std::make_shared<const ShardMap>(*std::move(made));
  options.node_group = "off";
  const auto on_wait = options.on_wait;
  std::vector<Place> places;
  for (std::uint32_t i = 0; i < count; ++i) {
    absl::StatusOr<MemberHook> hook = MakeMemberHook(options);
    if (!hook.ok()) return Coded(ErrorCode::kOption, hook.status());
    places.push_back({.options = options, .hook = *std::move(hook)});
  }
  const std::uint64_t start_id = DrawStartId();
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status = JoinEach(places, addresses, start_id);
  if (status.ok() && std::chrono::steady_clock::now() > begin + kTokensAreFresh) {
    status = JoinEach(places, addresses, start_id);
  }
  if (!status.ok()) {
    LeaveAll(places, start_id);
    return status;
  }
  const JoinResult& first = places.front().joined->membership;
  const std::string waiting = WaitsForMembers(first.rank, options);
  auto exchange = std::make_unique<ShardExchange>(count, first.next_step);
  std::vector<std::unique_ptr<ClientImpl>> shards;
  std::vector<ClientImpl*> pointers;
  for (std::uint32_t i = 0; i < count; ++i) {
    Place& place = places[i];
    place.options.on_wait = nullptr;
    shards.push_back(std::make_unique<ClientImpl>(
        std::move(place.options), *std::move(place.joined), start_id, std::move(place.hook),
        ShardPlace{.number = i, .addresses = addresses, .map = map, .link = exchange->LinkOf(i)}));
    pointers.push_back(shards.back().get());
  }
  exchange->SetShards(std::move(pointers));
  options.on_wait = nullptr;  // it may refer to objects that live only until Join returns
  auto client = std::make_unique<ShardedClient>(std::move(options), addresses, map,
                                                std::move(exchange), std::move(shards));
  if (absl::Status started = client->Start([&] { SayWait(on_wait, waiting); }); !started.ok()) {
    return started;
  }
  return client;
}

}  // namespace client
}  // namespace gradwire
