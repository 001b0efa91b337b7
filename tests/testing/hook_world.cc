#include "tests/testing/hook_world.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "hooks/device_hooks.h"
#include "hooks/device_status.h"
#include "hooks/reduce.h"

namespace gradwire::testing {

namespace {

// What lies between the gradients of a scattered bucket: a NaN in every dtype.
constexpr std::byte kGap{0xFF};

}  // namespace

struct HookWorld::OpenBucket {
  struct Member {
    DeviceVector<std::byte> bytes;
    std::unique_ptr<GradBucket> bucket;
    std::unique_ptr<HookRun> run;
  };
  std::vector<std::uint32_t> positions;
  std::vector<ParameterSpec> parameters;
  std::vector<RoundPlan> plans;
  std::vector<Member> members;
};

HookWorld::HookWorld(const HookSpec& spec, std::vector<ParameterSpec> manifest,
                     std::vector<std::shared_ptr<Device>> devices,
                     std::vector<std::unique_ptr<Hook>> hooks,
                     std::unique_ptr<CoordinatorHook> coordinator)
    : spec_(spec),
      manifest_(std::move(manifest)),
      devices_(std::move(devices)),
      scattered_(devices_.size()),
      hooks_(std::move(hooks)),
      coordinator_(std::move(coordinator)),
      versions_(manifest_.size()) {
  for (const auto& device : devices_) staging_.emplace_back(*device);
}

absl::StatusOr<std::unique_ptr<HookWorld>> HookWorld::Make(int world_size, const HookSpec& spec,
                                                           std::vector<ParameterSpec> manifest,
                                                           const DeviceFactory& make_device) {
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<std::unique_ptr<Hook>> hooks;
  for (int rank = 0; rank < world_size; ++rank) {
    devices.push_back(make_device());
    auto hook = MakeHook(spec, devices.back());
    if (!hook.ok()) return hook.status();
    hooks.push_back(*std::move(hook));
  }
  auto coordinator = MakeCoordinatorHook(spec, manifest);
  if (!coordinator.ok()) return coordinator.status();
  if (*coordinator == nullptr) return absl::InvalidArgumentError("not a built-in hook");
  return std::unique_ptr<HookWorld>(new HookWorld(spec, std::move(manifest), std::move(devices),
                                                  std::move(hooks), *std::move(coordinator)));
}

void HookWorld::Reset() {
  std::fill(versions_.begin(), versions_.end(), 0);
  for (auto& hook : hooks_) hook->Reset(coordinator_->iteration());
}

absl::Status HookWorld::Import(const HookState& state) {
  const auto import = coordinator_->ReadState(state);
  if (!import.ok()) return import.status();
  coordinator_->Install(**import);
  return absl::OkStatus();
}

absl::Status HookWorld::LoseCoordinator(std::size_t rank) {
  auto fresh = MakeCoordinatorHook(spec_, manifest_);
  if (!fresh.ok()) return fresh.status();
  HookState copy = hooks_[rank]->Copy();
  copy.metadata.merge(HookState(own_).metadata);
  const auto import = (*fresh)->ReadCopy(std::move(copy), {});
  if (!import.ok()) return import.status();
  (*fresh)->Install(**import);
  own_version_ = (*fresh)->OwnVersion();
  coordinator_ = *std::move(fresh);
  std::fill(versions_.begin(), versions_.end(), 0);
  return absl::OkStatus();
}

absl::Status HookWorld::ReplaceMember(std::size_t rank) {
  auto hook = MakeHook(spec_, devices_[rank]);
  if (!hook.ok()) return hook.status();
  hooks_[rank] = *std::move(hook);
  hooks_[rank]->Reset(coordinator_->iteration());
  std::fill(versions_.begin(), versions_.end(), 0);
  return absl::OkStatus();
}

absl::StatusOr<Verdict> HookWorld::RunStep(std::vector<MemberGradients>& gradients,
                                           const Buckets& buckets, bool fails) {
  std::vector<OpenBucket> open(buckets.size());
  bool finite = true;
  norms_.clear();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (absl::Status status = Open(gradients, buckets[b], open[b]); !status.ok()) return status;
    for (std::uint32_t round = 0;; ++round) {
      auto more = RunRound(open[b], round, finite);
      if (!more.ok()) return more.status();
      if (!*more) break;
    }
    if (absl::Status status = CopyBack(open[b], gradients); !status.ok()) return status;
    norms_.push_back(open[b].members.front().run->norms());
  }
  const Verdict verdict = finite && !fails ? Verdict::kApply : Verdict::kSkip;
  for (OpenBucket& bucket : open) {
    for (auto& member : bucket.members) {
      verdict == Verdict::kApply ? member.run->Commit() : member.run->Abort();
    }
  }
  open.clear();
  const bool changes = coordinator_->OwnVersion() != own_version_;
  if (changes && verdict == Verdict::kApply) {
    own_version_ = coordinator_->OwnVersion();
    own_ = coordinator_->OwnState();
  }
  for (auto& hook : hooks_) hook->EndStep(verdict);
  coordinator_->EndStep(verdict);
  if (const auto chore = coordinator_->TakeChore()) chore->Run();
  ++step_;
  return verdict;
}

absl::Status HookWorld::Open(const std::vector<MemberGradients>& gradients,
                             const std::vector<std::size_t>& positions, OpenBucket& open) {
  open.positions.assign(positions.begin(), positions.end());
  for (std::size_t p : positions) open.parameters.push_back(manifest_[p]);
  auto plans = coordinator_->Plan(open.positions);
  if (!plans.ok()) return plans.status();
  open.plans = *std::move(plans);
  for (std::size_t rank = 0; rank < hooks_.size(); ++rank) {
    OpenBucket::Member member{
        .bytes = DeviceVector<std::byte>(*devices_[rank]), .bucket = {}, .run = {}};
    auto bucket = MakeBucket(rank, open, gradients[rank], member.bytes);
    if (!bucket.ok()) return bucket.status();
    member.bucket = std::make_unique<GradBucket>(*std::move(bucket));
    auto run = hooks_[rank]->Start(*member.bucket, step_);
    if (!run.ok()) return run.status();
    member.run = *std::move(run);
    if (rank == 0) member.run->Measure();
    open.members.push_back(std::move(member));
  }
  return absl::OkStatus();
}

absl::StatusOr<GradBucket> HookWorld::MakeBucket(std::size_t rank, const OpenBucket& open,
                                                 const MemberGradients& gradients,
                                                 DeviceVector<std::byte>& memory) {
  const DType dtype = open.parameters.front().dtype;
  std::vector<std::byte> bytes;
  std::vector<std::size_t> places;
  for (const std::uint32_t p : open.positions) {
    if (scattered_[rank]) bytes.resize(bytes.size() + (p + 1) * ByteSize(dtype), kGap);
    places.push_back(bytes.size() / ByteSize(dtype));
    bytes.insert(bytes.end(), gradients[p].begin(), gradients[p].end());
  }
  memory.Upload(bytes.data(), bytes.size());
  const TensorView view{dtype, memory.data(), memory.size() / ByteSize(dtype)};
  return scattered_[rank] ? GradBucket::MakeScattered(0, view, open.parameters, places)
                          : GradBucket::Make(0, view, open.parameters);
}

absl::Status HookWorld::GiveSharedState(OpenBucket& open) {
  const std::uint64_t version = coordinator_->SharedVersion(open.positions);
  if (version == 0 || std::all_of(open.positions.begin(), open.positions.end(),
                                  [&](std::uint32_t p) { return versions_[p] == version; })) {
    return absl::OkStatus();
  }
  const auto work = coordinator_->SharedState(open.positions);
  work->Run();
  const std::vector<std::byte> state = work->TakeBytes();
  for (auto& member : open.members) {
    if (absl::Status status = member.run->Import(state); !status.ok()) return status;
  }
  for (std::uint32_t p : open.positions) versions_[p] = version;
  return absl::OkStatus();
}

absl::StatusOr<bool> HookWorld::RunRound(OpenBucket& open, std::uint32_t round, bool& finite) {
  std::optional<RoundPlan> plan;
  if (round < open.plans.size()) plan = open.plans[round];
  for (std::size_t rank = 0; rank < open.members.size(); ++rank) {
    auto next = open.members[rank].run->Next(
        {.world_size = static_cast<int>(hooks_.size()), .rank = static_cast<int>(rank)});
    if (!next.ok()) return next.status();
    if (*next != plan) return absl::InternalError("a member's round is not the coordinator's");
  }
  if (!plan) return false;
  if (round == 0) {
    if (absl::Status status = GiveSharedState(open); !status.ok()) return status;
  }
  for (std::size_t s = 0; s < plan->segments.size(); ++s) {
    const Segment& segment = plan->segments[s];
    const ElementRange range{.segment = s, .begin = 0, .end = segment.numel};
    std::vector<std::vector<std::byte>> contributions(open.members.size());
    std::vector<std::span<const std::byte>> pieces;
    std::vector<Pieces> inputs;
    for (std::size_t rank = 0; rank < open.members.size(); ++rank) {
      contributions[rank].resize(segment.bytes());
      absl::Status status = Encode(rank, *open.members[rank].run, range, contributions[rank]);
      if (!status.ok()) return status;
    }
    contributed_ += segment.bytes();
    pieces.assign(contributions.begin(), contributions.end());
    for (const auto& piece : pieces) inputs.emplace_back(&piece, 1);
    std::vector<std::byte> sum(segment.bytes());
    finite &= (segment.op == ReduceOp::kOrthonormalizedSum
                   ? ReduceOrthonormalized(segment, inputs, sum)
                   : Reduce(segment.dtype, segment.op, segment.numel, inputs, sum))
                  .finite;
    if (coordinator_->Observes(round, segment)) {
      coordinator_->Observe(open.positions, round, range, sum);
    }
    for (std::size_t rank = 0; rank < open.members.size(); ++rank) {
      absl::Status status = Decode(rank, *open.members[rank].run, range, sum);
      if (!status.ok()) return status;
    }
  }
  return true;
}

absl::Status HookWorld::Encode(std::size_t rank, HookRun& run, ElementRange range,
                               std::span<std::byte> out) {
  staging_[rank].Resize(out.size());
  absl::Status status = run.Encode(range, {staging_[rank].data(), out.size()});
  if (!status.ok()) return status;
  devices_[rank]->Download(out.data(), staging_[rank].data(), out.size());
  return StatusOf(*devices_[rank]);
}

absl::Status HookWorld::Decode(std::size_t rank, HookRun& run, ElementRange range,
                               std::span<const std::byte> in) {
  staging_[rank].Upload(in.data(), in.size());
  return run.Decode(range, {staging_[rank].data(), in.size()});
}

absl::Status HookWorld::CopyBack(const OpenBucket& open, std::vector<MemberGradients>& gradients) {
  for (std::size_t rank = 0; rank < open.members.size(); ++rank) {
    const DeviceVector<std::byte>& memory = open.members[rank].bytes;
    std::vector<std::byte> bytes(memory.size());
    devices_[rank]->Download(bytes.data(), memory.data(), bytes.size());
    if (absl::Status status = StatusOf(*devices_[rank]); !status.ok()) return status;
    auto from = bytes.begin();
    for (const std::uint32_t p : open.positions) {
      if (scattered_[rank]) {
        const auto end = from + static_cast<std::ptrdiff_t>((p + 1) * ByteSize(manifest_[p].dtype));
        if (std::any_of(from, end, [](std::byte byte) { return byte != kGap; })) {
          return absl::InternalError("a hook wrote between the gradients");
        }
        from = end;
      }
      std::vector<std::byte>& to = gradients[rank][p];
      std::copy_n(from, to.size(), to.begin());
      from += static_cast<std::ptrdiff_t>(to.size());
    }
  }
  return absl::OkStatus();
}

}  // namespace gradwire::testing
