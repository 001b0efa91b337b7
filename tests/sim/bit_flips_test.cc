// Single bits flip, somewhere between a gradient and the parameters: what is noticed, and who is
// named. 1,000 trials for each place; tests/chaos/README.md has the table.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/core/member.h"
#include "gradwire/hooks/registry.h"
#include "hooks/cpu/host_device.h"
#include "hooks/device_hooks.h"
#include "proto/wire/codec.h"
#include "proto/wire/digest.h"
#include "tests/server/core/session_harness.h"
#include "tests/sim/random.h"
#include "tests/sim/reduce_now.h"

namespace gradwire::sim {
namespace {

constexpr int kTrials = 1000;
constexpr int kMembers = 3;
constexpr int kSteps = 6;
constexpr float kLearningRate = 0.05F;

enum class Place : std::uint8_t {
  kFrameUp,        // of a contribution, on its way to the daemon
  kFrameDown,      // of a result, on its way to a member
  kStateDown,      // of the coordinator's Q, on its way to a member
  kSharedMemory,   // a contribution in memory shared with the daemon, before it is read
  kWaiting,        // a contribution that has arrived and waits for the others'
  kSum,            // a sum as it is computed
  kResultWaiting,  // a sum that waits to be sent
  kParameters,     // of one member
};
struct PlaceName {
  Place place;
  const char* text;
};
constexpr std::array<PlaceName, 8> kPlaces = {{
    {Place::kFrameUp, "contribution's frame, network"},
    {Place::kFrameDown, "result's frame, network"},
    {Place::kStateDown, "Q's frame, network"},
    {Place::kSharedMemory, "contribution in shared memory"},
    {Place::kWaiting, "contribution waiting at the daemon"},
    {Place::kSum, "sum being computed"},
    {Place::kResultWaiting, "sum waiting at the daemon"},
    {Place::kParameters, "a member's parameters"},
}};

enum class Seen : std::uint8_t {
  kError,           // the session ends, and names the place
  kErrorElsewhere,  // it ends, and names another one
  kSkip,            // the step is a skip, which names the place's member
  kDrift,           // the check of parameters names the member
  kSameForAll,      // nobody notices; members have the same, but not what they would have
  kNoEffect,
  kStuck,  // nothing moves any more; the session says that it waits for the place's member
  kApart,  // nobody notices, and members differ: must not be
  kNumSeen,
};

server::SessionOptions OptionsOf(const std::string& hook) {
  server::SessionOptions options = server::SmallOptions(kMembers);
  options.manifest = {{"w", {12, 16}, DType::kFloat32}, {"b", {24}, DType::kFloat32}};
  options.spec = *HookSpec::Parse(hook);
  options.chunk_bytes = 256;
  options.window_chunks = 4;
  return options;
}

void FlipBit(std::byte* bytes, std::uint64_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
}
// Of bytes that nobody else is to change: as a fault of the memory.
void FlipPayload(const wire::Payload& payload, Random& random) {
  std::uint64_t bit = random.Below(8 * payload.bytes());
  for (const std::span<const std::byte> piece : payload.pieces()) {
    if (bit < 8 * piece.size()) return FlipBit(const_cast<std::byte*>(piece.data()), bit);
    bit -= 8 * piece.size();
  }
}

// A session with real members, and a place at which one bit flips, the first time that it is
// reached in step flip_step_, or soon after.
class World : public server::SessionHarness {
 public:
  World(const std::string& hook, std::uint64_t seed, std::optional<Place> place)
      : SessionHarness(OptionsOf(hook)), seed_(seed), random_(seed), place_(place) {
    victim_ = static_cast<int>(random_.Below(kMembers));
    skip_ = place == Place::kStateDown ? 0 : random_.Below(4);
    Start();
    for (int rank = 0; rank < kMembers; ++rank) {
      Trainer& trainer = trainers_.emplace_back();
      trainer.hook = *MakeHook(session.options().spec, MakeHostDevice());
      trainer.member = std::make_unique<client::Member>(
          client::MemberOptions{.rank = rank,
                                .world_size = kMembers,
                                .generation = session.options().generation,
                                .chunk_bytes = session.options().chunk_bytes,
                                .window_chunks = session.options().window_chunks,
                                .parameter_digests = true,
                                .manifest = session.options().manifest.list()},
          trainer.hook.get());
      trainer.parameters.assign(kNumel, 1.0F);
    }
  }

  Seen Run() {
    for (int step = 0; step < kSteps && !seen_; ++step) Step(step);
    if (seen_) return *seen_;
    for (const Trainer& trainer : trainers_) {
      if (trainer.parameters != trainers_.front().parameters) return Seen::kApart;
    }
    return Seen::kNoEffect;
  }

  const std::vector<float>& parameters() const { return trainers_.front().parameters; }
  bool flipped() const { return flipped_; }
  const std::string& words() const { return words_; }

 private:
  static constexpr std::size_t kNumel = 12 * 16 + 24;
  struct Trainer {
    std::unique_ptr<Hook> hook;
    std::unique_ptr<client::Member> member;
    std::vector<float> parameters;
    std::vector<float> gradients;
    std::vector<GradBucket> buckets;
    std::deque<wire::Frame> sends;
    std::size_t read = 0;  // of the frames that it was sent
  };

  // Whether the bit flips now.
  bool Flips(Place place, int rank, std::int64_t step) {
    if (flipped_ || place_ != place || step != flip_step_ || rank != victim_) return false;
    if (skip_-- > 0) return false;
    flipped_ = true;
    return true;
  }
  bool FlipsAtDaemon(Place place) { return Flips(place, victim_, session.step()); }

  void Notice(Seen seen, std::string words) {
    if (seen_) return;
    seen_ = seen;
    words_ = std::move(words);
  }
  void NoticeError(const std::string& words, bool right) {
    Notice(right ? Seen::kError : Seen::kErrorElsewhere, words);
  }

  void Step(int step) {
    if (place_ == Place::kParameters && step == flip_step_) {
      flipped_ = true;
      FlipBit(reinterpret_cast<std::byte*>(trainers_[Index(victim_)].parameters.data()),
              random_.Below(32 * kNumel));
    }
    for (int rank = 0; rank < kMembers; ++rank) {
      Trainer& trainer = trainers_[Index(rank)];
      const std::uint64_t digest = wire::DigestOf(std::as_bytes(std::span(trainer.parameters)));
      client::Effects effects;
      ASSERT_TRUE(trainer.member->CheckParameters(digest, effects).ok());
      Take(rank, std::move(effects));
      Random values(Mix(seed_, static_cast<std::uint64_t>(step), Index(rank)));
      trainer.gradients.resize(kNumel);
      for (float& value : trainer.gradients) {
        value = static_cast<float>(static_cast<double>(values.Below(2'000'001)) / 1e6 - 1);
      }
      trainer.buckets.clear();
      trainer.buckets.reserve(2);
      AddBucket(rank, 0, 0, 12 * 16);
      AddBucket(rank, 1, 12 * 16, 24);
    }
    Pump();
    if (seen_ || trainers_.front().member->step() == step + 1) return;
    const std::string waiting = Waiting();
    Notice(absl::StrContains(waiting, absl::StrCat("rank ", victim_)) ? Seen::kStuck
                                                                      : Seen::kErrorElsewhere,
           waiting);
  }
  void AddBucket(int rank, std::size_t parameter, std::size_t begin, std::size_t numel) {
    Trainer& trainer = trainers_[Index(rank)];
    trainer.buckets.push_back(*GradBucket::Make(
        static_cast<int>(parameter), {DType::kFloat32, trainer.gradients.data() + begin, numel},
        {session.options().manifest[parameter]}));
    client::Effects effects;
    ASSERT_TRUE(trainer.member->StartBucket(++ticket_, trainer.buckets.back(), effects).ok());
    Take(rank, std::move(effects));
  }

  void Pump() {
    for (bool moved = true; moved && !seen_;) {
      moved = false;
      for (int rank = 0; rank < kMembers && !seen_; ++rank) {
        moved |= PumpUp(rank) | PumpDown(rank);
      }
      while (!reductions.empty() && !seen_) {
        moved = true;
        Add();
      }
    }
  }
  bool PumpUp(int rank) {
    const std::deque<wire::Frame> sends = std::exchange(trainers_[Index(rank)].sends, {});
    for (const wire::Frame& frame : sends) Up(rank, frame.header, frame.payload);
    return !sends.empty();
  }

  // At once: what is to be encoded belongs to the member.
  void Take(int rank, client::Effects effects) {
    Trainer& trainer = trainers_[Index(rank)];
    for (client::Effect& effect : effects) {
      if (auto* send = std::get_if<client::SendFrameEffect>(&effect)) {
        trainer.sends.push_back({.header = send->header, .payload = send->payload});
      } else if (auto* chunk = std::get_if<client::SendChunkEffect>(&effect)) {
        std::vector<std::byte> bytes(chunk->bytes);
        if (absl::Status encoded = chunk->run->Encode(chunk->range, bytes); !encoded.ok()) {
          return NoticeError(std::string(encoded.message()), false);
        }
        wire::PayloadRef payload = wire::OwnedPayload::Make(std::move(bytes));
        // Members in shared memory send none.
        if (place_ != Place::kSharedMemory) chunk->header.digest = wire::Digest(payload.get());
        trainer.sends.push_back({.header = chunk->header, .payload = std::move(payload)});
      } else if (auto* done = std::get_if<client::StepDoneEffect>(&effect)) {
        OnDone(rank, *done);
      } else if (auto* failed = std::get_if<client::FailedEffect>(&effect)) {
        const std::string words(failed->status.message());
        NoticeError(words, absl::StrContains(words, "the coordinator") == AtDaemon());
      }
    }
  }
  bool AtDaemon() const {
    return place_ == Place::kResultWaiting || place_ == Place::kFrameDown ||
           place_ == Place::kStateDown;
  }

  // As the daemon reads it: what cannot be read ends the session and blames the stream's member.
  void Up(int rank, const wire::Header& header, wire::PayloadRef payload) {
    if (seen_) return;
    const bool contributes = std::holds_alternative<wire::Contribution>(header);
    std::string bytes = Bytes(header, payload);
    if (contributes && Flips(Place::kFrameUp, rank, session.step())) {
      FlipBit(reinterpret_cast<std::byte*>(bytes.data()), random_.Below(8 * bytes.size()));
    }
    absl::StatusOr<wire::Frame> frame = Read(bytes);
    if (!frame.ok()) return NoticeError(std::string(frame.status().message()), true);
    if (contributes && Flips(Place::kSharedMemory, rank, session.step())) {
      FlipPayload(*frame->payload, random_);
    }
    Receive(rank, frame->header, frame->payload);
    if (session.state() == server::SessionCore::State::kFailed) {
      return NoticeError(Message(), absl::StrContains(Message(), absl::StrCat("rank ", victim_)));
    }
    if (contributes && Flips(Place::kWaiting, rank, session.step())) {
      FlipPayload(*frame->payload, random_);
    }
  }

  void Add() {
    const server::ReduceEffect reduce = std::move(reductions.front());
    reductions.pop_front();
    ReducedNow reduced = ReduceNow(reduce, random_);
    if (FlipsAtDaemon(Place::kSum)) {
      std::vector<std::byte> wrong = Flatten(reduced.result->kept().get());
      FlipBit(wrong.data(), random_.Below(8 * wrong.size()));
      reduced.finite = AllFinite(reduce.segment.dtype, wrong);
      reduced.result = server::KeptResult::Make(MakePayload(std::move(wrong), random_));
    }
    const std::uint64_t digest = reduced.result->digest();
    EXPECT_EQ(digest, reduced.result->digest());
    if (FlipsAtDaemon(Place::kResultWaiting)) FlipPayload(*reduced.result->kept(), random_);
    server::Effects effects;
    session.Reduced(reduce.id, reduce.chunk, reduced.result, {.finite = reduced.finite},
                    absl::Microseconds(3), effects);
    TakeAll(std::move(effects));
  }

  bool PumpDown(int rank) {
    Trainer& trainer = trainers_[Index(rank)];
    const bool moved = trainer.read < frames[rank].size();
    while (trainer.read < frames[rank].size() && !seen_) Down(rank, frames[rank][trainer.read++]);
    return moved;
  }
  // As the runtime reads it.
  void Down(int rank, const wire::Frame& sent) {
    std::string bytes = Bytes(sent.header, sent.payload);
    const std::int64_t step = trainers_[Index(rank)].member->step();
    const bool flips = (std::holds_alternative<wire::Result>(sent.header) &&
                        Flips(Place::kFrameDown, rank, step)) ||
                       (std::holds_alternative<wire::SharedState>(sent.header) &&
                        Flips(Place::kStateDown, rank, step));
    if (flips) FlipBit(reinterpret_cast<std::byte*>(bytes.data()), random_.Below(8 * bytes.size()));
    absl::StatusOr<wire::Frame> frame = Read(bytes);
    if (!frame.ok()) return NoticeError(std::string(frame.status().message()), AtDaemon());
    const auto* result = std::get_if<wire::Result>(&frame->header);
    if (result != nullptr && wire::Digest(frame->payload.get()) != result->digest) {
      return NoticeError("a chunk from the daemon does not fit its digest", AtDaemon());
    }
    Trainer& trainer = trainers_[Index(rank)];
    client::Effects effects;
    trainer.member->Receive(*frame, effects);
    Take(rank, std::move(effects));
  }

  void OnDone(int rank, const client::StepDoneEffect& done) {
    if (!done.drift.empty()) {
      const bool right = absl::StrContains(
          done.drift, absl::StrCat("parameters of rank ", victim_, " have differed"));
      return Notice(right ? Seen::kDrift : Seen::kErrorElsewhere, done.drift);
    }
    if (done.verdict == Verdict::kSkip) {
      flipped_ ? Notice(Seen::kSkip, done.reason) : Notice(Seen::kErrorElsewhere, done.reason);
      return;
    }
    Trainer& trainer = trainers_[Index(rank)];
    for (std::size_t i = 0; i < kNumel; ++i) {
      trainer.parameters[i] -= kLearningRate * trainer.gradients[i];
    }
  }

  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }
  static std::string Bytes(const wire::Header& header, const wire::PayloadRef& payload) {
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (!wire::Serialize(header, payload).Dump(&slices).ok()) return bytes;
    for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
    return bytes;
  }
  static absl::StatusOr<wire::Frame> Read(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    return wire::Parse(grpc::ByteBuffer(&slice, 1), {});
  }

  const std::uint64_t seed_;
  Random random_;
  const std::optional<Place> place_;
  // Members hear of Q with the first step that compresses, and then make the next ones themselves.
  const std::int64_t flip_step_ = place_ == Place::kStateDown ? 2 : 4;
  int victim_ = 0;
  std::uint64_t skip_ = 0;  // so many times the place is reached without a flip
  bool flipped_ = false;
  std::optional<Seen> seen_;
  std::string words_;
  std::vector<Trainer> trainers_;
  client::Ticket ticket_ = 0;
};

using Row = std::array<int, static_cast<std::size_t>(Seen::kNumSeen)>;

Row RowOf(const std::string& hook, Place place) {
  Row row{};
  int trials = 0;
  for (std::uint64_t seed = 0; trials < kTrials && seed < 20 * kTrials; ++seed) {
    World disturbed(hook, seed, place);
    Seen seen = disturbed.Run();
    if (!disturbed.flipped()) continue;  // the place was not reached so often
    ++trials;
    if (seen == Seen::kNoEffect) {
      World undisturbed(hook, seed, std::nullopt);
      EXPECT_EQ(undisturbed.Run(), Seen::kNoEffect) << undisturbed.words();
      if (undisturbed.parameters() != disturbed.parameters()) seen = Seen::kSameForAll;
    }
    if (seen == Seen::kErrorElsewhere || seen == Seen::kApart) {
      ::testing::Test::RecordProperty(absl::StrCat("seed_", seed), disturbed.words());
    }
    ++row[static_cast<std::size_t>(seen)];
  }
  EXPECT_EQ(trials, kTrials) << "the place is hardly ever reached";
  return row;
}

int At(const Row& row, Seen seen) { return row[static_cast<std::size_t>(seen)]; }

class BitFlips : public ::testing::TestWithParam<const char*> {};

TEST_P(BitFlips, AreNoticedWhereTheyCanBeAndNeverPartTheMembers) {
  const std::string hook = GetParam();
  std::cout << absl::StrFormat("%-36s%8s%8s%8s%8s%11s%10s%11s   hook %s\n", "one bit flips in",
                               "error", "skip", "drift", "waits", "elsewhere", "same, all",
                               "no effect", hook);
  for (const auto& [place, text] : kPlaces) {
    if (place == Place::kStateDown && hook == "no") continue;  // it has none
    const Row row = RowOf(hook, place);
    std::cout << absl::StrFormat("%-36s%8d%8d%8d%8d%11d%10d%11d\n", text, At(row, Seen::kError),
                                 At(row, Seen::kSkip), At(row, Seen::kDrift), At(row, Seen::kStuck),
                                 At(row, Seen::kErrorElsewhere), At(row, Seen::kSameForAll),
                                 At(row, Seen::kNoEffect));
    EXPECT_EQ(At(row, Seen::kApart), 0) << text;
    // A flipped header can be that of a frame of another kind, or of another bucket.
    EXPECT_LE(At(row, Seen::kErrorElsewhere), kTrials / 20) << text;
    switch (place) {
      case Place::kFrameUp:
      case Place::kFrameDown:
      case Place::kResultWaiting:
        EXPECT_EQ(At(row, Seen::kSameForAll), 0) << text << ": digests";
        EXPECT_GT(At(row, Seen::kError), kTrials / 2) << text;
        break;
      case Place::kParameters:
        EXPECT_EQ(At(row, Seen::kDrift), kTrials) << text;
        break;
      default:
        break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BitFlips, ::testing::Values("no", "power_sgd,start_powerSGD_iter=2"),
                         [](const auto& hook) {
                           return std::string(hook.param).substr(0, 5) == "power" ? "PowerSgd"
                                                                                  : "No";
                         });

}  // namespace
}  // namespace gradwire::sim
