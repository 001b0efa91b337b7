// Any sequence of events into the session core: frames that fit and frames that do not, streams
// that come and go, reductions in any order, time. It must not crash, hold more than it reserved,
// or end in a state that does not exist.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "gradwire/hooks/registry.h"
#include "hooks/reduce.h"
#include "proto/wire/owned_payload.h"
#include "server/core/session_core.h"
#include "server/core/step.h"
#include "tests/fuzz/input.h"

namespace gradwire::server {
namespace {

using fuzz::Input;

constexpr std::size_t kMaxEvents = 2'000;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "session_fuzz: %s\n", what);
  std::abort();
}

bool IsPowerSgd(const SessionOptions& options) {
  return options.spec.comm_hook.ends_with("power_sgd");
}

SessionOptions MakeOptions(Input& input) {
  SessionOptions options;
  options.name = "fuzz";
  options.world_size = static_cast<int>(1 + input.Below(3));
  options.manifest = {{"a", {4, 4}, DType::kFloat32},
                      {"b", {10, 5}, DType::kFloat32},
                      {"c", {0, 3}, DType::kFloat32},
                      {"d", {5, 8}, DType::kFloat16}};
  options.generation = 2;
  options.chunk_bytes = 64;
  options.window_chunks = 1 + input.Below(3);
  options.open_buckets = 1 + input.Below(3);
  static constexpr const char* kHooks[] = {"no",        "fp16",      "noop",
                                           "users_own", "power_sgd", "batched_power_sgd"};
  options.spec.comm_hook = kHooks[input.Below(6)];
  if (!IsPowerSgd(options)) return options;
  static constexpr const char* kWrappers[] = {"no", "fp16", "bf16"};
  options.spec.comm_wrapper = kWrappers[input.Below(3)];
  auto& chosen = options.spec.comm_state_option;
  chosen["matrix_approximation_rank"] = std::int64_t{1} + input.Below(3);
  chosen["start_powerSGD_iter"] = std::int64_t{input.Below(2)};
  chosen["min_compression_rate"] = 0.25;
  const std::uint32_t form = input.Below(3);
  if (form == 1) chosen["warm_start"] = false;
  if (form == 2) chosen["rounds"] = std::int64_t{1};
  return options;
}

class Fuzz {
 public:
  explicit Fuzz(Input& input)
      : input_(input),
        options_(MakeOptions(input)),
        is_user_hook_(options_.spec.comm_hook == "users_own"),
        plan_(is_user_hook_ ? nullptr : *HookRegistry::Global().Make(options_.spec)),
        session_(options_,
                 is_user_hook_ ? nullptr : *MakeCoordinatorHook(options_.spec, options_.manifest),
                 now_),
        streams_(static_cast<std::size_t>(options_.world_size)) {}

  void Run() {
    if (input_.Below(2) == 0) Begin();
    for (std::size_t i = 0; i < kMaxEvents && !input_.empty(); ++i) {
      Record();
      Step();
      Check();
    }
    CheckTimeline();
  }

 private:
  void Begin() {
    for (int r = 0; r < options_.world_size; ++r) {
      Join(r, 0);
      Attach(r, 0);
    }
    Require(session_.state() == SessionCore::State::kRunning, "a complete session does not run");
  }

  // Somebody always records: the next recording follows when one has ended.
  void Record() {
    session_.Observe(now_);
    const StepTimeline* const timeline = session_.timeline();
    if (timeline != nullptr && timeline->state() == StepTimeline::State::kRecording) return;
    CheckTimeline();
    session_.TakeTimeline();
    session_.BeginTimeline(2, now_ + absl::Minutes(1), now_).IgnoreError();
  }

  void CheckTimeline() const {
    const StepTimeline* const timeline = session_.timeline();
    if (timeline == nullptr) return;
    std::int64_t last = 0;
    std::map<std::pair<std::int64_t, int>, std::pair<std::int64_t, std::int64_t>> steps;
    for (const TimelineSpan& span : timeline->spans()) {
      Require(span.begin_ns >= last && span.end_ns >= span.begin_ns, "spans out of order");
      Require(span.rank >= -1 && span.rank < options_.world_size, "a span of nobody");
      Require(span.bucket < options_.manifest.size(), "a span of no bucket");
      last = span.begin_ns;
      if (span.kind == TimelineSpan::Kind::kMemberStep && span.ended) {
        steps[{span.step, span.rank}] = {span.begin_ns, span.end_ns};
      }
    }
    for (const TimelineSpan& span : timeline->spans()) {
      const auto step = steps.find({span.step, span.rank});
      if (step == steps.end() || span.kind >= TimelineSpan::Kind::kBroken) continue;
      Require(span.begin_ns >= step->second.first && span.end_ns <= step->second.second,
              "a span that leaves its step");
    }
  }

  void Step() {
    const int rank =
        static_cast<int>(input_.Below(static_cast<std::uint32_t>(options_.world_size)));
    switch (input_.Below(18)) {
      case 0:
        return Join(rank, input_.Below(12));
      case 1:
        return Attach(rank, session_.step() - static_cast<std::int64_t>(input_.Below(3)));
      case 2:
        return Detach(rank);
      case 3:
        return Leave(rank);
      case 4:
        return Tick();
      case 5:
      case 6:
      case 7:
        return Reduce();
      case 8:
        return Export();
      case 9:
        return Import();
      default:
        return Receive(rank, MakeFrame(rank));
    }
  }

  // `change` says what is wrong with the request, if anything.
  void Join(int rank, std::uint32_t change) {
    JoinAsk ask{.world_size = options_.world_size,
                .rank = rank,
                .start_id = 10 + static_cast<std::uint64_t>(rank),
                .spec = options_.spec,
                .manifest = options_.manifest};
    if (change == 1) ask.world_size = static_cast<int>(input_.Byte()) - 3;
    if (change == 2) ask.rank = static_cast<int>(input_.Byte()) - 3;
    if (change == 3) ask.start_id += 1;
    if (change == 4) ask.manifest = {ask.manifest[0]};
    Effects effects;
    const absl::StatusOr<int> joined =
        session_.Join(ask, session_.options().CheckSame(ask), now_, effects);
    Require(!joined.ok() || (*joined >= 0 && *joined < options_.world_size), "a rank out of range");
    Take(std::move(effects));
  }

  void Attach(int rank, std::int64_t step) {
    Effects effects;
    const absl::Status status = session_.Attach(rank, 10 + static_cast<std::uint64_t>(rank), step,
                                                ++connections_, now_, effects);
    if (status.ok()) streams_[static_cast<std::size_t>(rank)] = connections_;
    Take(std::move(effects));
  }

  void Detach(int rank) {
    Effects effects;
    session_.Detach(rank, Stream(rank), now_, effects);
    Take(std::move(effects));
  }

  void Leave(int rank) {
    Effects effects;
    session_.Leave(rank, 10 + static_cast<std::uint64_t>(rank), now_, effects).IgnoreError();
    Take(std::move(effects));
  }

  void Tick() {
    static constexpr int kMilliseconds[] = {100, 100, 100, 400, 600, 5000, 100000};
    now_ += absl::Milliseconds(kMilliseconds[input_.Below(7)]);
    Effects effects;
    session_.Tick(now_, effects);
    Take(std::move(effects));
  }

  void Receive(int rank, wire::Frame frame) {
    const std::uint64_t stream = input_.Below(16) == 0 ? input_.Byte() : Stream(rank);
    Effects effects;
    session_.Receive(rank, stream, frame, now_, effects);
    Take(std::move(effects));
  }

  void Export() {
    const absl::StatusOr<StateSnapshot> snapshot = session_.Export();
    if (!snapshot.ok()) return;
    absl::StatusOr<HookState> state = snapshot->State();
    if (!state.ok()) return;
    std::size_t bytes = 0;
    for (const StateTensor& tensor : state->tensors) bytes += tensor.data.size();
    Require(bytes <= session_.hook_state().bytes(), "a state larger than its bound");
    exported_ = *std::move(state);
  }

  // What was exported last, whole or damaged.
  void Import() {
    HookState state = exported_;
    const std::uint32_t damage = input_.Below(6);
    if (damage == 1 && !state.metadata.empty()) {
      auto entry = state.metadata.begin();
      std::advance(entry, input_.Below(static_cast<std::uint32_t>(state.metadata.size())));
      entry->second.assign(input_.Below(3), static_cast<char>(input_.Byte()));
    }
    if (damage == 2 && !state.tensors.empty()) {
      StateTensor& tensor =
          state.tensors[input_.Below(static_cast<std::uint32_t>(state.tensors.size()))];
      tensor.data.resize(input_.Byte(), std::byte(input_.Byte()));
    }
    if (damage == 3 && !state.tensors.empty()) state.tensors.pop_back();
    const std::int64_t iteration = session_.hook_state().iteration();
    Effects effects;
    absl::Status status = session_.CheckImport();
    if (status.ok()) {
      const auto import = session_.ReadState(state);
      status = import.ok() ? session_.Install(**import, effects) : import.status();
    }
    Require(status.ok() || (effects.empty() && session_.hook_state().iteration() == iteration),
            "a state that was refused had an effect");
    Take(std::move(effects));
  }

  // Answers one of the open computations, or of the chores.
  void Compute() {
    const std::size_t index = input_.Below(static_cast<std::uint32_t>(computations_.size()));
    const auto answer = std::move(computations_[index]);
    computations_.erase(computations_.begin() + static_cast<std::ptrdiff_t>(index));
    Effects effects;
    answer(effects);
    Take(std::move(effects));
  }

  // Answers one of the open reductions, or computes something else.
  void Reduce() {
    if (!computations_.empty() && input_.Below(2) == 0) return Compute();
    if (reductions_.empty()) return;
    const std::size_t index = input_.Below(static_cast<std::uint32_t>(reductions_.size()));
    const ReduceEffect reduce = std::move(reductions_[index]);
    reductions_.erase(reductions_.begin() + static_cast<std::ptrdiff_t>(index));
    std::vector<Pieces> inputs;
    for (const wire::PayloadRef& payload : reduce.inputs) {
      Require(payload->bytes() == reduce.segment.bytes(), "a contribution of the wrong size");
      inputs.push_back(payload->pieces());
    }
    Require(inputs.size() == streams_.size(), "a reduction without everybody's contribution");
    std::vector<std::byte> out(reduce.segment.bytes());
    const bool finite = (reduce.segment.op == ReduceOp::kOrthonormalizedSum
                             ? ReduceOrthonormalized(reduce.segment, inputs, out)
                             : gradwire::Reduce(reduce.segment.dtype, reduce.segment.op,
                                                reduce.segment.numel, inputs, out))
                            .finite;
    Effects effects;
    session_.Reduced(reduce.id, reduce.chunk,
                     KeptResult::Make(wire::OwnedPayload::Make(std::move(out))), {.finite = finite},
                     absl::ZeroDuration(), effects);
    Take(std::move(effects));
  }

  // What the chunk has to have, by the last announcement of its bucket.
  wire::PayloadRef MakeChunk(const wire::RoundId& id, std::uint32_t chunk) {
    const auto found = announced_.find(id.bucket);
    if (found == announced_.end() || id.round >= found->second.size()) return MakePayload();
    const wire::ChunkLayout layout(found->second[id.round], options_.chunk_bytes);
    if (chunk >= layout.chunk_count() || input_.Below(16) == 15) return MakePayload();
    return wire::OwnedPayload::Make(
        std::vector<std::byte>(layout.ChunkBytes(chunk), std::byte(input_.Byte())));
  }

  wire::PayloadRef MakePayload() {
    static constexpr std::size_t kSizes[] = {64, 64, 64, 8, 16, 36, 0, 63, 100};
    const std::size_t size = kSizes[input_.Below(9)];
    return wire::OwnedPayload::Make(std::vector<std::byte>(size, std::byte(input_.Byte())));
  }

  wire::RoundId MakeId() {
    static constexpr std::uint32_t kBuckets[] = {0, 1, 2, 3, 0, 1, 9};
    wire::RoundId id{.step = session_.step(), .attempt = session_.progress().attempt()};
    id.bucket = kBuckets[input_.Below(7)];
    id.round = input_.Below(4) / 3;
    if (input_.Below(8) == 7) id.step += static_cast<std::int64_t>(input_.Below(4)) - 2;
    if (input_.Below(4) == 3) id.attempt = input_.Below(4);
    return id;
  }

  std::vector<RoundPlan> MakePlans(const std::vector<std::uint32_t>& parameters) {
    if (plan_ != nullptr && input_.Below(8) != 7) {
      std::vector<ParameterSpec> specs;
      for (std::uint32_t p : parameters) specs.push_back(options_.manifest[p % 4]);
      plan_->Reset(session_.hook_state().iteration());
      absl::StatusOr<std::vector<RoundPlan>> plans = plan_->Plan(specs, 0);
      if (!specs.empty() && plans.ok()) {
        announced_[parameters.front()] = *plans;
        return *std::move(plans);
      }
    }
    std::vector<RoundPlan> plans(input_.Below(4));
    for (RoundPlan& plan : plans) {
      plan.segments.resize(input_.Below(3));
      for (Segment& segment : plan.segments) {
        segment.dtype = static_cast<DType>(1 + input_.Below(4));
        segment.numel =
            input_.Below(8) == 7 ? std::size_t{1} << input_.Below(63) : input_.Below(50);
        segment.op = static_cast<ReduceOp>(1 + input_.Below(3));
        if (segment.op != ReduceOp::kOrthonormalizedSum) continue;
        // As far as the frames' codec lets them through.
        const std::uint32_t cols = 1 + input_.Below(4);
        const MatrixShape shape{.rows = cols + input_.Below(40), .cols = cols};
        segment.matrices.resize(1 + input_.Below(2), shape);
        segment.numel = segment.matrices.size() * shape.numel();
      }
    }
    return plans;
  }

  wire::Announce MakeAnnounce() {
    static const std::vector<std::vector<std::uint32_t>> kLists = {
        {0}, {1}, {2}, {3}, {0, 2}, {1, 0}, {}, {0, 1, 2, 3}, {7}, {1, 1}};
    wire::Announce announce;
    announce.step = session_.step();
    announce.generation = 2;
    announce.parameters = kLists[input_.Below(10)];
    announce.rounds = MakePlans(announce.parameters);
    if (input_.Below(16) == 15) announce.step += static_cast<std::int64_t>(input_.Below(4)) - 2;
    if (input_.Below(16) == 15) announce.generation = input_.Below(4);
    return announce;
  }

  wire::DrawPlan MakeDrawPlan() {
    wire::DrawPlan plan{.generation = 2, .piece = input_.Below(3)};
    plan.buckets.resize(input_.Below(3));
    for (auto& bucket : plan.buckets) {
      bucket.resize(1 + input_.Below(3));
      for (std::uint32_t& parameter : bucket) parameter = input_.Below(5);
    }
    plan.continued = input_.Below(2) == 1;
    plan.last = input_.Below(2) == 1;
    return plan;
  }

  wire::Frame MakeFrame(int rank) {
    switch (input_.Below(12)) {
      case 0:
      case 1:
        return {.header = MakeAnnounce()};
      case 2:
      case 3:
      case 4:
      case 5: {
        wire::Contribution chunk{.id = MakeId(), .generation = 2, .rank = rank, .digest = {}};
        chunk.chunk = input_.Below(6);
        chunk.received = input_.Below(3) == 2 ? input_.Below(6) : chunk.chunk;
        if (input_.Below(16) == 15) chunk.rank = static_cast<int>(input_.Byte()) - 3;
        if (input_.Below(16) == 15) chunk.digest = input_.Byte();
        return {.header = chunk,
                .payload = input_.Below(16) == 15 ? nullptr : MakeChunk(chunk.id, chunk.chunk)};
      }
      case 6:
        return {.header = wire::Ack{MakeId(), input_.Below(6)}};
      case 7:
        return {.header = wire::EndStep{session_.step(), 2}};
      case 8: {
        const auto kind = static_cast<wire::CollectiveKind>(1 + input_.Below(2));
        const int root = static_cast<int>(input_.Below(4));
        return {.header = wire::Enter{input_.Below(4), 2, kind, root, input_.Below(200)}};
      }
      case 9:
        return {.header = wire::CollectiveChunk{input_.Below(4), input_.Below(5)},
                .payload = MakePayload()};
      case 10:
        return {.header = wire::CollectiveAck{input_.Below(4), input_.Below(5)}};
      default:
        break;
    }
    const std::uint32_t other = input_.Below(4);
    if (other == 3) return {.header = MakeDrawPlan()};
    if (other != 0) return {.header = wire::Heartbeat{}};
    return {.header = wire::StepDone{.step = session_.step()}, .payload = MakePayload()};
  }

  void Take(Effects effects) {
    for (Effect& effect : effects) {
      if (auto* reduce = std::get_if<ReduceEffect>(&effect)) {
        reductions_.push_back(std::move(*reduce));
      } else if (const auto* compute = std::get_if<ComputeEffect>(&effect)) {
        computations_.emplace_back([this, one = *compute](Effects& more) {
          one.work->Run();
          session_.Computed(one.id, *one.work, more);
        });
      } else if (const auto* chore = std::get_if<ChoreEffect>(&effect)) {
        ++chores_;
        Require(chores_ == 1, "two chores at once");
        computations_.emplace_back([this, one = chore->chore](Effects& more) {
          --chores_;
          one->Run();
          session_.ChoreDone(more);
        });
      } else if (const auto* send = std::get_if<SendEffect>(&effect)) {
        Require(send->rank >= 0 && send->rank < options_.world_size, "a frame to nobody");
      }
    }
  }

  void Check() {
    using State = SessionCore::State;
    // A factor that exceeds a chunk is gathered whole from every member.
    const std::size_t factors = session_.hook_state().bytes() / 3 * (streams_.size() + 1);
    Require(session_.held_bytes() <= session_.options().PayloadBytes() + factors,
            "more held than reserved");
    Require(!session_.WaitingFor(now_).empty(), "WaitingFor says nothing");
    Require((session_.state() == State::kFailed) == !session_.failure().ok(), "a failure unsaid");
    Require(session_.step() >= last_step_ && session_.step() <= last_step_ + 1, "a step back");
    last_step_ = session_.step();
    const bool over = session_.state() == State::kFailed || session_.state() == State::kClosed;
    Require(over || !was_over_, "a session that was over goes on");
    Require(!over || session_.held_bytes() == 0, "bytes held past the end");
    was_over_ = over;
  }

  std::uint64_t Stream(int rank) const { return streams_[static_cast<std::size_t>(rank)]; }

  Input& input_;
  const SessionOptions options_;
  const bool is_user_hook_;
  const std::unique_ptr<Hook> plan_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  SessionCore session_;
  std::vector<std::uint64_t> streams_;  // by rank
  std::uint64_t connections_ = 0;
  std::deque<ReduceEffect> reductions_;
  std::deque<std::function<void(Effects&)>> computations_;
  int chores_ = 0;
  std::map<std::uint32_t, std::vector<RoundPlan>> announced_;  // by bucket
  HookState exported_;
  std::int64_t last_step_ = 0;
  bool was_over_ = false;
};

}  // namespace
}  // namespace gradwire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gradwire::fuzz::Input input(data, size);
  gradwire::server::Fuzz(input).Run();
  return 0;
}
