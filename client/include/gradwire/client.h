// The C++ SDK: a trainer's side of one training session.
//
//   auto client = gradwire::Client::Join(
//       {.address = "unix:/run/gradwire/gradwire.sock", .session = "digits", .rank = rank,
//        .world_size = 4, .parameters = {…}});
//   for (…) {
//     backward();                                     // fills the gradients
//     auto reduced = (*client)->AllReduce(bucket);    // returns at once
//     absl::Status status = reduced.Wait();           // ok: bucket now holds the mean
//     auto step = (*client)->EndStep();               // kSkip: do not update the weights
//   }
//   (*client)->Leave();
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook.h"
#include "gradwire/hooks/hook_spec.h"

namespace gradwire {

struct ClientOptions {
  // "unix:/path", "host:port", "dns:///host:port". Empty: the environment's GRADWIRE_ADDRESS.
  std::string address = {};
  // Names the training job: [A-Za-z0-9._-]{1,128}, the same for all members. Empty:
  // GRADWIRE_SESSION.
  std::string session = {};
  int rank = -1;  // -1: the coordinator picks
  int world_size = 1;
  // The model, in the same order on every member. Buckets name these parameters.
  std::vector<ParameterSpec> parameters = {};
  HookSpec hook = {};
  // Where the address is a unix socket, payloads travel in memory shared with the daemon, if it can
  // be had; GRADWIRE_SHARED_MEMORY=off says no for all clients of a process.
  bool shared_memory = true;

  absl::Duration connect_timeout = absl::Seconds(10);  // until the daemon answers
  absl::Duration join_timeout = absl::Minutes(5);      // until all members have joined
  absl::Duration step_timeout = absl::Minutes(30);     // for one step, as the session counts it

  // Join calls it, on its own thread, with a line of text: once if no daemon has answered after 1
  // s, and once if other members have not joined 3 s after this one. Empty: Join writes the line to
  // standard error.
  std::function<void(const std::string& line)> on_wait = {};

  // InvalidArgument names the field, the value and what is allowed.
  absl::Status Validate() const;
};

// The outcome of one asynchronous call. Copies share it. Thread-safe.
class Completion {
 public:
  Completion();  // already done, ok

  bool done() const;

  // Waits for the outcome. Never hangs: the call itself ends by the session's deadlines. Meanwhile
  // this thread may do the client's work, other calls' callbacks included.
  absl::Status Wait() const;
  // DeadlineExceeded if the outcome is not there in time, or soon after; the call goes on.
  absl::Status Wait(absl::Duration timeout) const;

  // Runs `callback` once: when the outcome arrives, on the thread that brings it, or at once on
  // this thread if it is there. It must not block, throw, or destroy the client, nor take a lock
  // that a thread holds while it calls the client or waits.
  void OnDone(std::function<void(const absl::Status&)> callback);

 private:
  friend class ClientImpl;
  struct State;
  explicit Completion(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

struct ClientMetrics {
  std::int64_t steps_applied = 0;
  std::int64_t steps_skipped = 0;
  std::uint64_t bytes_sent = 0;      // payload of contributions
  std::uint64_t bytes_received = 0;  // payload of results
  std::uint64_t gradient_bytes = 0;  // what the same buckets hold uncompressed
  std::int64_t resumes = 0;          // broken streams that were resumed
  bool shared_memory = false;        // payloads travel in shared memory now
  double compress_seconds = 0;       // made contributions out of gradients
  // Took results in, with what a hook computes at its rounds' ends.
  double decompress_seconds = 0;
};

// What the reductions of one bucket have cost this member since it joined.
struct BucketReport {
  std::string first_parameter;
  std::uint32_t parameters = 0;  // how many it has
  std::uint64_t reductions = 0;
  std::uint64_t gradient_bytes = 0;  // uncompressed
  std::uint64_t sent_bytes = 0;      // payload
  std::uint64_t received_bytes = 0;
  double compress_seconds = 0;
  double wire_seconds = 0;    // in flight, less the other three: the network, and waits for others
  double reduce_seconds = 0;  // the coordinator's sums
  double decompress_seconds = 0;
  // Euclidean, of the reduction that was measured last, about once a second: this member's gradient
  // and the residual that was left of it. 0: the hook keeps no residual.
  double gradient_norm = 0;
  double residual_norm = 0;
};

// One member's place in a session.
//
// Threads: all calls are thread-safe. One thread at a time encodes, decodes and completes: the one
// that reads frames, the one for what is large and for timers, or, for what is small, one that
// calls or waits. Large gradients are never encoded on the caller's. Two threads are the client's,
// from Join on, beside gRPC's own. Ownership: a bucket and its buffer must stay alive and untouched
// from AllReduce until its completion. Before that moment the client has handed no reference into
// the buffer to anything else. Failure: policy `fail`. When a member is lost, the data is bad, or
// the daemon is gone, every open and later call ends with the same error, which names the member to
// blame. The buckets' content is then unspecified. Join again, under the same or another name, to
// go on from a checkpoint.
class Client {
 public:
  // Joins and waits until all members have, or a deadline passes. Never returns a half-joined
  // client.
  static absl::StatusOr<std::unique_ptr<Client>> Join(const ClientOptions& options);

  // Open calls end with Cancelled. Leaves if Leave was not called. Takes at most about 7 s, when
  // the daemon does not answer; no callback runs after it.
  virtual ~Client() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // The step that AllReduce contributes to now.
  virtual std::int64_t step() const = 0;

  // Reduces the bucket through the session's hook, in place. Returns at once; many buckets may be
  // in flight, in any order, also another order than other members'. The bucket's parameters are
  // looked up by name. Errors that the caller can avoid (unknown parameter, another shape or dtype,
  // a parameter that is already in this step) come as a completion with InvalidArgument and leave
  // the session as it was.
  virtual Completion AllReduce(GradBucket& bucket) = 0;

  // Memory for a bucket's gradients, of its own pages. Where memory is shared with the daemon and
  // the hook only casts ("no", "fp16", "bf16", without a wrapper), it reads the gradients there and
  // writes the result over them, so that nothing is copied. Lives as long as the pointer, also
  // after the client; but once a call has failed, the daemon may still write what it was computing.
  virtual std::shared_ptr<std::byte> AllocateGradients(std::size_t bytes) = 0;

  // Ends this member's part of the step and waits for the verdict: kApply, or kSkip when a
  // non-finite value was met anywhere (the buckets then show it on all members). All buckets of the
  // step are complete when it returns.
  virtual absl::StatusOr<Verdict> EndStep() = 0;

  // The same without waiting: runs `done` once, as Completion::OnDone does.
  virtual void EndStep(std::function<void(const absl::StatusOr<Verdict>&)> done) = 0;

  // In which order PowerSGD draws its first Q, where it is to be another trainer's: buckets of
  // positions in ClientOptions::parameters, each bucket with a seed of its own. Without a call it
  // is the model as one bucket. Parameters that are left out come last. Rank 0 alone calls it,
  // before its first AllReduce of the first step that compresses; a later plan has no effect, nor
  // has one for another hook or for a daemon of an earlier version. Kept in the session's state:
  // importing one replaces it. The buckets of AllReduce need not be those of the plan.
  // InvalidArgument or FailedPrecondition says what is not allowed. Does not wait.
  virtual absl::Status SetDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets) = 0;

  // Copies `bytes` bytes at `data` from member `root` to all. Collectives are entered by all
  // members in the same order. Waits.
  virtual absl::Status Broadcast(int root, void* data, std::size_t bytes) = 0;

  // Waits until all members are here.
  virtual absl::Status Barrier() = 0;

  // Ends the membership in good order, between steps. Other members that begin another step get an
  // error that says so.
  virtual absl::Status Leave() = 0;

  // The session's state on the coordinator (PowerSGD's factors, generator, iteration) as the bytes
  // of a safetensors file, as it was after this member's last step: between two steps of its own,
  // wherever the others are. Waits.
  virtual absl::StatusOr<std::string> ExportState() = 0;

  // Replaces it. One member calls this between two steps, then all members meet in a Barrier before
  // they go on. Refused by name when the bytes are damaged, when they are of another hook, other
  // options or another model, or when a step is open; and then nothing changes. Waits.
  virtual absl::Status ImportState(const std::string& state) = 0;

  // What this member alone keeps between steps (PowerSGD's residuals), likewise, and its
  // replacement. A checkpoint has both, and the step they belong to. FailedPrecondition in a step,
  // between a bucket's AllReduce and the EndStep, and for the state of another rank.
  virtual absl::StatusOr<std::string> StateDict() = 0;
  virtual absl::Status LoadStateDict(const std::string& state) = 0;

  // Gradients come multiplied by `scale` from the next step on (loss scaling); residuals follow.
  // Between two steps, like StateDict. Finite and above 0.
  virtual absl::Status SetLossScale(double scale) = 0;

  virtual ClientMetrics metrics() const = 0;

  // A line for each bucket of the last step, in the model's order. The daemon shows rank 0's in
  // `gradwirectl session get`.
  virtual std::vector<BucketReport> Report() const = 0;
};

}  // namespace gradwire
