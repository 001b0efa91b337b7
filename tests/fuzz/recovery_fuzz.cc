// Any sequence of events into a session core that gathers its members: reports and copies of the
// hook's state that fit and that do not, successors, streams that come and go, time. It must not
// crash, welcome anybody before all are here, or go on with a state that members do not agree
// about.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hooks/safetensors.h"
#include "proto/wire/digest.h"
#include "proto/wire/owned_payload.h"
#include "server/core/session_core.h"
#include "tests/fuzz/input.h"

namespace gradwire::server {
namespace {

using fuzz::Input;

constexpr std::size_t kMaxEvents = 500;
constexpr int kMembers = 3;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "recovery_fuzz: %s\n", what);
  std::abort();
}

SessionOptions MakeOptions(Input& input) {
  static constexpr const char* kHooks[] = {"no", "power_sgd,start_powerSGD_iter=1",
                                           "batched_power_sgd,start_powerSGD_iter=1"};
  SessionOptions options;
  options.name = "fuzz";
  options.world_size = kMembers;
  options.manifest = {{"a", {8, 8}, DType::kFloat32}, {"b", {10}, DType::kFloat32}};
  options.spec = *HookSpec::Parse(kHooks[input.Below(3)]);
  options.generation = 2;
  options.lineage = 5;
  options.session_key = std::string(wire::kSessionKeyBytes, 'k');
  options.gathers = true;
  options.coordinator_grace = absl::Seconds(10);
  options.join_timeout = absl::Seconds(10);
  if (input.Below(2) == 1) options.member_grace = absl::Seconds(10);
  return options;
}

class Fuzz {
 public:
  explicit Fuzz(Input& input)
      : input_(input),
        options_(MakeOptions(input)),
        session_(options_, *MakeCoordinatorHook(options_.spec, options_.manifest), now_) {}

  void Run() {
    for (std::size_t i = 0; i < kMaxEvents && !input_.empty(); ++i) Step();
  }

 private:
  void Step() {
    const int rank = static_cast<int>(input_.Below(kMembers));
    Effects effects;
    switch (input_.Below(6)) {
      case 0:
        Join(rank, effects);
        break;
      case 1:
        if (session_
                .Attach(rank, starts_[Index(rank)], input_.Below(8), ++connections_, now_, effects)
                .ok()) {
          streams_[Index(rank)] = connections_;
        }
        break;
      case 2:
        session_.Detach(rank, streams_[Index(rank)], now_, effects);
        break;
      case 3:
        now_ += absl::Milliseconds(100 * input_.Byte());
        session_.Tick(now_, effects);
        break;
      case 4:
        if (restores_.empty()) break;
        session_.Restored(session_.ReadCopy(restores_.front()), effects);
        restores_.pop_front();
        break;
      default:
        session_.Receive(rank, streams_[Index(rank)], MakeCopy(), now_, effects);
    }
    Take(effects);
    Require(!session_.WaitingFor(now_).empty(), "WaitingFor says nothing");
  }

  void Join(int rank, Effects& effects) {
    JoinAsk ask{.world_size = kMembers,
                .rank = rank,
                .start_id = 10 + Index(rank) + 100 * input_.Below(2),
                .spec = options_.spec,
                .manifest = options_.manifest};
    if (input_.Below(3) != 0) ask.report = MakeReport();
    const auto joined = session_.Join(ask, session_.options().CheckSame(ask), now_, effects);
    if (joined.ok()) starts_[Index(*joined)] = ask.start_id;
  }

  wire::MemberReport MakeReport() {
    wire::MemberReport report{
        .session_key = options_.session_key, .lineage = options_.lineage, .step = input_.Below(5)};
    const std::uint32_t bits = input_.Byte();
    if ((bits & 1) != 0) report.last = (bits & 2) != 0 ? Verdict::kApply : Verdict::kSkip;
    report.has_contributed = (bits & 4) != 0;
    report.may_have_results = (bits & 8) != 0;
    if ((bits & 16) != 0) {
      report.ready = {.verdict = (bits & 32) != 0 ? Verdict::kApply : Verdict::kSkip,
                      .digest = bits >> 7};
    }
    report.newcomer = (bits & 64) != 0;
    report.keeps_gradients = (bits & 128) != 0;
    report.collectives = input_.Below(4);
    const std::uint32_t rare = input_.Below(16);
    if (rare == 3) report.step = (std::numeric_limits<std::int64_t>::max() - 2) >> input_.Below(64);
    if (rare == 1) report.session_key[0] = 'x';
    if (rare == 2) report.chain = 1 + (bits & 1);
    return report;
  }

  // Mostly a state that could be one, so that the next stage is reached.
  wire::Frame MakeCopy() {
    HookState state{.metadata = {{"iteration", std::to_string(input_.Below(4))}}, .tensors = {}};
    const std::uint32_t kind = input_.Byte();
    if ((kind & 1) != 0) state.metadata["generator"] = std::string(input_.Below(9), '1');
    if ((kind & 2) != 0) state.metadata["bucket/a"] = "a\nb";
    if ((kind & 4) != 0) {
      state.tensors.push_back({.name = "q/a",
                               .dtype = DType::kFloat32,
                               .shape = {8},
                               .data = std::vector<std::byte>(32, std::byte(input_.Byte()))});
    }
    std::string file = WriteSafetensors(state);
    if ((kind & 8) != 0 && !file.empty()) file[input_.Byte() % file.size()] ^= 1;
    const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
    wire::StateCopy copy{.generation = 2, .digest = wire::DigestOf(bytes)};
    if ((kind & 16) != 0) return {.header = copy};
    copy.bytes = file.size();
    if ((kind & 32) != 0) copy.offset = input_.Byte();
    if ((kind & 64) != 0) copy.unknown = input_.Below(4) == 0;
    return {.header = copy, .payload = wire::OwnedPayload::Make({bytes.begin(), bytes.end()})};
  }

  void Take(const Effects& effects) {
    for (const Effect& effect : effects) {
      if (const auto* restore = std::get_if<RestoreEffect>(&effect)) {
        Require(restores_.empty(), "two states are to be read");
        restores_.push_back(*restore);
      } else if (const auto* send = std::get_if<SendEffect>(&effect)) {
        CheckWelcome(send->frame);
      } else if (const auto* fan_out = std::get_if<FanOutEffect>(&effect)) {
        CheckWelcome(fan_out->frame);
      }
    }
  }

  void CheckWelcome(const wire::Frame& frame) const {
    if (!std::holds_alternative<wire::Welcome>(frame.header)) return;
    Require(session_.state() != SessionCore::State::kJoining, "a welcome before all are here");
    Require(restores_.empty(), "a welcome before the state is there");
  }

  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }

  Input& input_;
  const SessionOptions options_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  SessionCore session_;
  std::vector<std::uint64_t> streams_ = std::vector<std::uint64_t>(kMembers);  // by rank
  std::vector<std::uint64_t> starts_ = std::vector<std::uint64_t>(kMembers);   // by rank
  std::uint64_t connections_ = 0;
  std::deque<RestoreEffect> restores_;
};

}  // namespace
}  // namespace gradwire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gradwire::fuzz::Input input(data, size);
  gradwire::server::Fuzz(input).Run();
  return 0;
}
