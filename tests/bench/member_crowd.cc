#include "tests/bench/member_crowd.h"

#include <chrono>
#include <cmath>
#include <random>
#include <thread>
#include <utility>

namespace gradwire::bench {
namespace {

constexpr std::chrono::seconds kRoundTimeout(120);

}  // namespace

absl::StatusOr<std::unique_ptr<MemberCrowd>> MemberCrowd::Join(const std::string& address,
                                                               int members,
                                                               const CrowdModel& model) {
  std::vector<std::vector<ParameterSpec>> buckets(static_cast<std::size_t>(model.buckets));
  std::vector<ParameterSpec> parameters;
  std::size_t numel = 0;  // of a bucket
  for (std::vector<ParameterSpec>& bucket : buckets) {
    numel = 0;
    for (int i = 0; i < model.parameters; ++i) {
      parameters.push_back(
          {.name = "weight" + std::to_string(parameters.size()), .shape = model.shape});
      bucket.push_back(parameters.back());
      numel += bucket.back().numel();
    }
  }
  const bool lossy = model.hook.comm_hook != HookSpec().comm_hook;
  std::unique_ptr<MemberCrowd> crowd(new MemberCrowd(lossy));
  crowd->members_.resize(static_cast<std::size_t>(members));
  std::vector<absl::Status> outcomes(crowd->members_.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < members; ++rank) {
    Member& member = crowd->members_[static_cast<std::size_t>(rank)];
    for (int i = 0; i < model.buckets; ++i) {
      member.gradients.emplace_back(numel, static_cast<float>(rank + 1));
      if (lossy) {  // of full rank
        std::minstd_rand random(static_cast<unsigned>(rank + 1));
        std::uniform_real_distribution<float> values(-1, 1);
        for (float& value : member.gradients.back()) value = values(random);
      }
      auto bucket = GradBucket::Make(i, {DType::kFloat32, member.gradients.back().data(), numel},
                                     buckets[static_cast<std::size_t>(i)], i + 1 == model.buckets);
      if (!bucket.ok()) return bucket.status();
      member.buckets.push_back(*std::move(bucket));
    }
  }
  for (int rank = 0; rank < members; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = Client::Join({.address = address,
                                  .session = "crowd",
                                  .rank = rank,
                                  .world_size = members,
                                  .parameters = parameters,
                                  .hook = model.hook,
                                  .connect_timeout = absl::Seconds(30),
                                  .join_timeout = absl::Minutes(1),
                                  .step_timeout = absl::Minutes(1)});
      const auto at = static_cast<std::size_t>(rank);
      outcomes[at] = client.status();
      if (client.ok()) crowd->members_[at].client = *std::move(client);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) {
    if (!outcome.ok()) return outcome;
  }
  return crowd;
}

void MemberCrowd::OnVerdict(const absl::StatusOr<Verdict>& verdict) {
  const std::lock_guard lock(mutex_);
  if (!verdict.ok()) failure_.Update(verdict.status());
  if (verdict.ok() && *verdict != Verdict::kApply) failure_.Update(absl::InternalError("skipped"));
  if (++verdicts_ == members_.size()) all_there_.notify_all();
}

absl::Status MemberCrowd::Round() {
  {
    const std::lock_guard lock(mutex_);
    verdicts_ = 0;
  }
  for (Member& member : members_) {
    for (GradBucket& bucket : member.buckets) member.client->AllReduce(bucket);
    member.client->EndStep([this](const absl::StatusOr<Verdict>& verdict) { OnVerdict(verdict); });
  }
  std::unique_lock lock(mutex_);
  const bool in_time =
      all_there_.wait_for(lock, kRoundTimeout, [this] { return verdicts_ == members_.size(); });
  if (!in_time) {
    return absl::DeadlineExceededError(std::to_string(verdicts_) + " of " +
                                       std::to_string(members_.size()) + " members ended the step");
  }
  return failure_;
}

absl::Status MemberCrowd::Check() const {
  if (lossy_) return absl::OkStatus();
  const float mean = static_cast<float>(members_.size() + 1) / 2;
  for (const Member& member : members_) {
    for (const std::vector<float>& gradient : member.gradients) {
      for (const float value : gradient) {
        // A world size that is no power of two rounds, in every round.
        if (!(std::abs(value - mean) <= 1e-3F * mean)) {
          return absl::InternalError("rank " + std::to_string(member.client->rank()) + " has " +
                                     std::to_string(value) + " instead of " + std::to_string(mean));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace gradwire::bench
