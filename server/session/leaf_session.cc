#include "server/session/leaf_session.h"

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "hooks/reduce.h"
#include "server/rpc/clock.h"
#include "server/session/reduced_chunk.h"

namespace gradwire::server {
namespace {

std::size_t Elements(const Manifest& manifest, const std::vector<std::uint32_t>& parameters) {
  std::size_t numel = 0;
  for (const std::uint32_t p : parameters) numel += manifest[p].numel();
  return numel;
}

}  // namespace

// One bucket: the node's mean, which becomes the root's result.
struct LeafSession::Sum {
  Sum(std::vector<std::uint32_t> which, std::size_t elements, std::size_t element_bytes)
      : parameters(std::move(which)),
        bytes_of_one(element_bytes),
        buffer(std::make_unique_for_overwrite<std::byte[]>(elements * element_bytes)),
        left(elements) {}

  std::span<std::byte> Part(const ReduceEffect& reduce) const {
    return {buffer.get() + reduce.begin * bytes_of_one, reduce.segment.bytes()};
  }

  const std::vector<std::uint32_t> parameters;
  const std::size_t bytes_of_one;
  const std::unique_ptr<std::byte[]> buffer;
  std::atomic<std::size_t> left;  // elements that are not added up

  // What is to be answered once the result is there.
  Mutex mutex;
  std::vector<ReduceEffect> reductions GRADWIRE_GUARDED_BY(mutex);
  std::vector<Done> done GRADWIRE_GUARDED_BY(mutex);  // without results
  std::shared_ptr<SessionMemory> memory GRADWIRE_GUARDED_BY(mutex);
  Answer answer GRADWIRE_GUARDED_BY(mutex);
};

LeafSession::LeafSession(Manifest manifest, std::unique_ptr<Upstream> upstream, Host host)
    : manifest_(std::move(manifest)), host_(std::move(host)), upstream_(std::move(upstream)) {}

template <typename Function>
auto LeafSession::Later(Function function) {
  return [post = host_.post, weak = weak_from_this(), function](auto... arguments) {
    post([weak, function, arguments...] {
      if (const auto self = weak.lock()) function(*self, arguments...);
    });
  };
}

// ---- What the core asks for

void LeafSession::Queue(UpstreamEffect effect) {
  MutexLock lock(mutex_);
  if (!over_) wishes_.emplace_back(std::move(effect));
}

void LeafSession::QueueSum(std::shared_ptr<Sum> sum) {
  MutexLock lock(mutex_);
  if (!over_) wishes_.emplace_back(std::move(sum));
}

void LeafSession::QueueEnd(const absl::Status& why, int blamed_rank) {
  MutexLock lock(mutex_);
  if (std::exchange(over_, true)) return;
  // Members that leave may owe the root a last word: that they have all of a broadcast.
  if (!why.ok()) wishes_.clear();
  wishes_.emplace_back(End{.why = why, .blamed_rank = blamed_rank});
}

// Whoever finds another thread at it leaves its wishes to that one.
void LeafSession::Pump() {
  for (bool first = true;; first = false) {
    Wish wish;
    {
      MutexLock lock(mutex_);
      if (first && std::exchange(pumping_, true)) return;
      if (wishes_.empty()) {
        pumping_ = false;
        return;
      }
      wish = std::move(wishes_.front());
      wishes_.pop_front();
    }
    Do(wish);
  }
}

void LeafSession::Do(const Wish& wish) {
  if (const auto* sum = std::get_if<std::shared_ptr<Sum>>(&wish)) return SendUp(*sum);
  if (const auto* end = std::get_if<End>(&wish)) {
    return upstream_->End(end->why, end->blamed_rank);
  }
  const auto& effect = std::get<UpstreamEffect>(wish);
  switch (effect.what) {
    case UpstreamEffect::What::kJoin:
      return Join();
    case UpstreamEffect::What::kBucket:
      return ReduceEmpty(effect);
    case UpstreamEffect::What::kEndStep:
      return EndStep(effect.step);
    case UpstreamEffect::What::kParameters:
      return upstream_->CheckParameters(effect.digest);
    case UpstreamEffect::What::kBarrier:
      return upstream_->Barrier(ProgressLater());
    case UpstreamEffect::What::kBroadcast:
      return upstream_->Broadcast(effect.root, effect.bytes, effect.room, ProgressLater());
    case UpstreamEffect::What::kBytes:
      return upstream_->Give(effect.payload);
    case UpstreamEffect::What::kRoom:
      return upstream_->MakeRoom(effect.room);
  }
}

void LeafSession::Join() {
  upstream_->Join(
      {.waits = Later([](LeafSession& self, const std::string& why) { self.answers_.waits(why); }),
       .joined = Later([](LeafSession& self, const UpstreamWelcome& welcome) {
         self.answers_.joined(welcome);
       }),
       .failed = Later([](LeafSession& self, const absl::Status& why, int blamed_rank) {
         self.answers_.failed(why, blamed_rank);
       })});
}

// With the verdict nobody needs the step's buffers any more.
void LeafSession::EndStep(std::int64_t step) {
  upstream_->EndStep(Later([step](LeafSession& self, const UpstreamConclusion& conclusion) {
    {
      MutexLock lock(self.mutex_);
      self.sums_.clear();
    }
    self.answers_.concluded(step, conclusion);
  }));
}

Upstream::Progress LeafSession::ProgressLater() {
  return Later(
      [](LeafSession& self, const UpstreamProgress& progress) { self.answers_.goes_on(progress); });
}

// ---- Sums

GradBucket LeafSession::BucketOf(const std::vector<std::uint32_t>& parameters,
                                 std::byte* buffer) const {
  std::vector<ParameterSpec> specs;
  specs.reserve(parameters.size());
  for (const std::uint32_t p : parameters) specs.push_back(manifest_[p]);
  const TensorView view{
      .dtype = specs.front().dtype, .data = buffer, .numel = Elements(manifest_, parameters)};
  // The core has checked them against the manifest.
  return *GradBucket::Make(static_cast<int>(parameters.front()), view, std::move(specs));
}

std::shared_ptr<LeafSession::Sum> LeafSession::SumOf(const ReduceEffect& reduce) {
  MutexLock lock(mutex_);
  std::shared_ptr<Sum>& sum = sums_[{reduce.id.step, reduce.id.bucket}];
  if (sum == nullptr) {
    sum = std::make_shared<Sum>(*reduce.parameters, Elements(manifest_, *reduce.parameters),
                                ByteSize(reduce.segment.dtype));
  }
  return sum;
}

void LeafSession::Reduce(std::vector<ReduceEffect> batch, std::shared_ptr<SessionMemory> memory,
                         Answer answer) {
  std::vector<std::shared_ptr<Sum>> sums;
  std::size_t bytes = 0;
  for (const ReduceEffect& reduce : batch) {
    sums.push_back(SumOf(reduce));
    bytes += reduce.segment.bytes() * reduce.inputs.size();
  }
  if (bytes > kQuickSums) host_.before_long_work();
  std::vector<Done> done(batch.size());
  host_.threads->Run(batch.size(), [&](std::size_t i) {
    const absl::Time before = MonotonicNow();
    const ReduceEffect& reduce = batch[i];
    const Segment& segment = reduce.segment;
    gradwire::Reduce(segment.dtype, segment.op, segment.numel, InputsOf(reduce),
                     sums[i]->Part(reduce), reduce.raw, reduce.weight);
    done[i] = {.id = reduce.id,
               .chunk = reduce.chunk,
               .result = nullptr,
               .outcome = {},  // the root's verdict counts
               .spent = MonotonicNow() - before};
  });
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::size_t numel = batch[i].segment.numel;
    {
      Sum& sum = *sums[i];
      MutexLock lock(sum.mutex);
      // Who takes no result in place needs to give nothing any more.
      if (!batch[i].in_place) batch[i].inputs.clear();
      sum.reductions.push_back(std::move(batch[i]));
      sum.done.push_back(std::move(done[i]));
      sum.memory = memory;
      sum.answer = answer;
    }
    if (sums[i]->left.fetch_sub(numel) == numel) QueueSum(sums[i]);
  }
  Pump();
}

void LeafSession::SendUp(const std::shared_ptr<Sum>& sum) {
  upstream_->AllReduce(BucketOf(sum->parameters, sum->buffer.get()),
                       Later([sum](LeafSession& self) { self.SpreadOut(*sum); }));
}

// Untouched: where a bucket has elements here, its hook leaves them as they are.
void LeafSession::ReduceEmpty(const UpstreamEffect& effect) {
  const std::size_t numel = Elements(manifest_, effect.parameters);
  auto sum = std::make_shared<Sum>(effect.parameters, numel,
                                   ByteSize(manifest_[effect.parameters.front()].dtype));
  {
    MutexLock lock(mutex_);
    sums_[{effect.step, effect.parameters.front()}] = sum;
  }
  upstream_->AllReduce(BucketOf(sum->parameters, sum->buffer.get()), [] {});
}

void LeafSession::SpreadOut(Sum& sum) {
  std::vector<ReduceEffect> reductions;
  std::vector<Done> done;
  std::shared_ptr<SessionMemory> memory;
  Answer answer;
  {
    MutexLock lock(sum.mutex);
    reductions = std::move(sum.reductions);
    done = std::move(sum.done);
    memory = std::move(sum.memory);
    answer = std::move(sum.answer);
  }
  host_.threads->Run(reductions.size(), [&](std::size_t i) {
    done[i].result = ReducedChunk::Given(reductions[i], sum.Part(reductions[i]), *memory);
    reductions[i].inputs.clear();
  });
  answer(std::move(done));
}

}  // namespace gradwire::server
