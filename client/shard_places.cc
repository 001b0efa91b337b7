#include "client/shard_places.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/client_impl.h"
#include "client/memory/gradient_memory.h"
#include "client/runtime/join.h"
#include "client/shard_exchange.h"
#include "client/sharded_client.h"

namespace gradwire {
namespace client {
namespace {

// A token is used within 5 s. Where joining all daemons took longer than this, the first ones are
// asked again.
constexpr std::chrono::seconds kTokensAreFresh(2);
constexpr absl::Duration kLeaveAfterError = absl::Seconds(1);

// One member's places at all daemons.
class Places {
 public:
  Places(ClientOptions options, const Daemons& daemons, const Leaf& leaf,
         std::shared_ptr<const ShardMap> map)
      : options_(std::move(options)), daemons_(daemons), leaf_(leaf), map_(std::move(map)) {}

  // A session that gathers its members takes this one in at shard 0 first, which says where the
  // others are.
  absl::StatusOr<std::unique_ptr<MemberClient>> Make() {
    absl::Status status = MakeHooks();
    if (!status.ok()) return status;
    const auto begin = std::chrono::steady_clock::now();
    status = Join(0);
    const bool gathers = status.ok() && joined_.front()->membership.gathers;
    if (status.ok()) status = gathers ? BeginAtLead() : JoinOthers();
    if (status.ok() && !gathers && std::chrono::steady_clock::now() > begin + kTokensAreFresh) {
      status = Join(0);
      if (status.ok()) status = JoinOthers();
    }
    if (status.ok() && !gathers) status = CheckSteps();
    if (status.ok()) {
      if (exchange_ == nullptr) MakeExchange();
      for (std::uint32_t i = gathers ? 1 : 0; i < count(); ++i) MakeClient(i);
    }
    // Shard 0 may have been lost meanwhile, which says more than what follows from it.
    if (exchange_ != nullptr && !exchange_->failure().ok()) status = exchange_->failure();
    if (!status.ok()) {
      LeaveAll();
      return status;
    }
    options_.on_wait = nullptr;  // it may refer to objects that live only until Join returns
    return MakeShardedClient({.options = std::move(options_),
                              .addresses = daemons_.addresses,
                              .map = map_,
                              .gradients = gradients_,
                              .exchange = std::move(exchange_),
                              .shards = std::move(shards_),
                              .lead_started = lead_started_});
  }

 private:
  std::uint32_t count() const { return static_cast<std::uint32_t>(daemons_.addresses.size()); }
  std::string NameOfShard(std::uint32_t i) const {
    return absl::StrCat("shard ", i, " (", NameOf(daemons_, i), ")");
  }

  absl::Status MakeHooks() {
    joined_.resize(count());
    for (std::uint32_t i = 0; i < count(); ++i) {
      absl::StatusOr<MemberHook> hook = MakeMemberHook(options_);
      if (!hook.ok()) return Coded(ErrorCode::kOption, hook.status());
      hooks_.push_back(*std::move(hook));
      at_.push_back(options_);
      at_.back().address = daemons_.addresses[i];
    }
    return absl::OkStatus();
  }

  // The first one gives the rank.
  absl::Status Join(std::uint32_t i) {
    if (i > 0) at_[i].rank = rank_;
    at_[i].address = daemons_.addresses[i];
    const JoinWish wish{.shard = {.number = i, .addresses = daemons_.addresses, .life = life_},
                        .leaf = leaf_.wish,
                        .host = daemons_.host,
                        .lookup = daemons_.lookup};
    absl::StatusOr<Joined> joined = JoinNearest(at_[i], wish, start_id_);
    if (!joined.ok()) {
      return absl::Status(joined.status().code(),
                          absl::StrCat(NameOfShard(i), ": ", joined.status().message()));
    }
    if (joined->membership.leaf) {
      return Coded(ErrorCode::kShards,
                   absl::FailedPreconditionError(absl::StrCat(
                       NameOfShard(i),
                       " is a leaf daemon; allowed: a leaf alone, or daemons that are none")));
    }
    if (i == 0) {
      rank_ = joined->membership.rank;
      step_ = joined->membership.next_step;
    }
    KeepAccount(joined->membership.ledger_rows, options_, hooks_[i]);
    joined_[i] = *std::move(joined);
    return absl::OkStatus();
  }

  absl::Status JoinOthers() {
    for (std::uint32_t i = 1; i < count(); ++i) {
      if (absl::Status status = Join(i); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status CheckSteps() const {
    for (std::uint32_t i = 1; i < count(); ++i) {
      if (joined_[i]->membership.next_step == step_) continue;
      return Coded(ErrorCode::kShards,
                   absl::FailedPreconditionError(absl::StrCat(NameOfShard(i), " is at step ",
                                                              joined_[i]->membership.next_step,
                                                              "; shard 0 at step ", step_)));
    }
    return absl::OkStatus();
  }

  // As long as the others need to come together.
  absl::Status BeginAtLead() {
    MakeExchange();
    MakeClient(0);
    lead_started_ = shards_.front()->Start();
    if (absl::Status status = lead_started_->Wait(); !status.ok()) return status;
    life_ = exchange_->life();
    exchange_->BeginAt(shards_.front()->step());
    return JoinOthers();
  }

  void MakeExchange() { exchange_ = std::make_unique<ShardExchange>(count(), step_, leaf_.failed); }

  void MakeClient(std::uint32_t i) {
    at_[i].on_wait = nullptr;
    shards_.push_back(
        std::make_unique<ClientImpl>(std::move(at_[i]), *std::exchange(joined_[i], std::nullopt),
                                     start_id_, std::move(hooks_[i]),
                                     ShardPlace{.number = i,
                                                .addresses = daemons_.addresses,
                                                .map = map_,
                                                .link = exchange_->LinkOf(i),
                                                .ranks = std::max(leaf_.wish.ranks, 1),
                                                .gradients = gradients_,
                                                .window = window_}));
    exchange_->SetShard(i, shards_.back().get());
  }

  void LeaveAll() {
    if (exchange_ != nullptr) exchange_->Close();
    for (const std::optional<Joined>& joined : joined_) {
      if (!joined) continue;
      LeaveSession(joined->channel, joined->membership.token, start_id_,
                   joined->dialer.access_token(), kLeaveAfterError)
          .IgnoreError();
    }
    shards_.clear();  // before the exchange
  }

  ClientOptions options_;
  const Daemons& daemons_;
  const Leaf& leaf_;
  const std::shared_ptr<const ShardMap> map_;
  const std::uint64_t start_id_ = DrawStartId();
  const std::shared_ptr<GradientMemory> gradients_ = std::make_shared<GradientMemory>();
  const std::shared_ptr<SendWindow> window_ = std::make_shared<SendWindow>();
  int rank_ = -1;
  std::int64_t step_ = 0;
  std::uint64_t life_ = 0;  // of the session, where it gathers
  // By shard.
  std::vector<ClientOptions> at_;
  std::vector<MemberHook> hooks_;
  std::vector<std::optional<Joined>> joined_;  // until there is a client
  std::unique_ptr<ShardExchange> exchange_;
  std::vector<std::unique_ptr<ClientImpl>> shards_;
  std::shared_ptr<Outcome> lead_started_;
};

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
  return Places(std::move(options), daemons, leaf, map).Make();
}

}  // namespace client
}  // namespace gradwire
