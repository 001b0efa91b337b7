// What a session says that it may hold, against what it takes from the heap.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/hooks/registry.h"
#include "proto/wire/owned_payload.h"
#include "server/core/session_core.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// As sanitizer/allocator_interface.h has it, which GCC does not install.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace gradwire::server {
namespace {

std::size_t HeapBytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return __sanitizer_get_current_allocated_bytes();  // a sanitizer has an allocator of its own
#else
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#endif
}

SessionOptions OptionsOf(std::size_t parameters, int members, const std::string& spec) {
  SessionOptions options;
  options.name = "large";
  options.world_size = members;
  options.spec = *HookSpec::Parse(spec);
  Manifest::List list;
  for (std::size_t p = 0; p < parameters; ++p) {
    list.push_back({"layer." + std::to_string(p) + ".weight", {4, 4}, DType::kFloat32});
  }
  options.manifest = std::move(list);
  options.chunk_bytes = 64;
  options.window_chunks = 1;
  options.open_buckets = 1024;
  return options;
}

// One step of many buckets, of which no member acknowledges a result.
class CrowdedStep {
 public:
  explicit CrowdedStep(const SessionOptions& options)
      : session_(options, *MakeCoordinatorHook(options.spec, options.manifest), now_) {
    for (int r = 0; r < options.world_size; ++r) {
      const JoinAsk ask{.world_size = options.world_size,
                        .rank = r,
                        .start_id = StartId(r),
                        .spec = options.spec,
                        .manifest = options.manifest};
      EXPECT_TRUE(session_.Join(ask, options.CheckSame(ask), now_, effects_).ok());
      EXPECT_TRUE(session_.Attach(r, StartId(r), 0, Stream(r), now_, effects_).ok());
      effects_.clear();
    }
  }

  void Announce(const std::vector<std::uint32_t>& parameters,
                const std::vector<RoundPlan>& rounds) {
    for (int r = 0; r < session_.options().world_size; ++r) {
      Receive(r, {.header = wire::Announce{.generation = session_.options().generation,
                                           .parameters = parameters,
                                           .rounds = rounds}});
    }
  }
  // All members but the last contribute the first chunk of the bucket: nothing is reduced.
  void Contribute(std::uint32_t bucket, const wire::PayloadRef& bytes) {
    for (int r = 0; r + 1 < session_.options().world_size; ++r) {
      const wire::Contribution contribution{.id = {.bucket = bucket},
                                            .generation = session_.options().generation,
                                            .rank = r,
                                            .digest = {}};
      Receive(r, {.header = contribution, .payload = bytes});
    }
  }
  const SessionCore& session() const { return session_; }

 private:
  static std::uint64_t StartId(int rank) { return 100 + static_cast<std::uint64_t>(rank); }
  static std::uint64_t Stream(int rank) { return 1 + static_cast<std::uint64_t>(rank); }
  void Receive(int rank, const wire::Frame& frame) {
    session_.Receive(rank, Stream(rank), frame, now_, effects_);
    Effects done = std::exchange(effects_, {});
    for (const Effect& effect : done) {  // nothing is reduced
      const auto* const compute = std::get_if<ComputeEffect>(&effect);
      if (compute == nullptr) continue;
      compute->work->Run();
      session_.Computed(compute->id, *compute->work, effects_);
    }
    effects_.clear();
  }

  const absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Effects effects_;
  SessionCore session_;
};

struct Case {
  const char* name;
  const char* spec;
};

class Reservation : public ::testing::TestWithParam<Case> {};

TEST_P(Reservation, CoversWhatTenThousandParametersOf64MembersTake) {
  constexpr std::uint32_t kParameters = 10'000;
  constexpr std::uint32_t kInBucket = 25;
  const SessionOptions options = OptionsOf(kParameters, 64, GetParam().spec);
  const auto hook = *MakeCoordinatorHook(options.spec, options.manifest);
  wire::PayloadRef chunk;  // the same for all: its bytes are no bookkeeping
  const std::size_t before = HeapBytes();
  CrowdedStep step(options);
  for (std::uint32_t first = 0; first < kParameters; first += kInBucket) {
    std::vector<std::uint32_t> parameters(kInBucket);
    std::iota(parameters.begin(), parameters.end(), first);
    const auto rounds = hook->Plan(parameters);
    ASSERT_TRUE(rounds.ok());
    const std::size_t bytes = wire::ChunkLayout(rounds->front(), 64).ChunkBytes(0);
    if (chunk == nullptr) chunk = wire::OwnedPayload::Make(std::vector<std::byte>(bytes));
    step.Announce(parameters, *rounds);
    step.Contribute(first, chunk);
  }
  ASSERT_EQ(step.session().state(), SessionCore::State::kRunning) << step.session().failure();
  const std::size_t taken = HeapBytes() - before;
  const std::size_t bookkeeping = options.ReservedBytes() - options.PayloadBytes();
  std::printf("%s: %zu bytes taken, %zu reserved beside payloads\n", GetParam().name, taken,
              bookkeeping);
  // The hook's factors are reserved for themselves.
  EXPECT_GT(taken, std::size_t{1} << 20);
  EXPECT_LE(taken, bookkeeping + step.session().hook_state().bytes());
}

INSTANTIATE_TEST_SUITE_P(Hooks, Reservation,
                         ::testing::Values(Case{"no", "no"}, Case{"power_sgd",
                                                                  "power_sgd,start_powerSGD_iter=0,"
                                                                  "min_compression_rate=0.5"}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace gradwire::server
