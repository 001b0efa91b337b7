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
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/hooks/device_id.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/hook.h"
#include "gradwire/hooks/hook_spec.h"

namespace gradwire {

// Paths of PEM files. With `ca` the connection is encrypted, unless the address is a unix socket.
struct TlsOptions {
  // The authorities of which one must have signed the daemon's certificate, which must be for the
  // host in the address (for the name, with "dns-all:"). Empty: GRADWIRE_TLS_CA, else the
  // connection is not encrypted.
  std::string ca = {};
  // The member's own certificate and its key, which a daemon with --tls-client-ca asks for. Empty:
  // GRADWIRE_TLS_CERT and GRADWIRE_TLS_KEY, else none.
  std::string cert = {};
  std::string key = {};
};

struct ClientOptions {
  // "unix:/path", "host:port", "dns:///host:port". Several daemons, each of which reduces a part of
  // every step, are a list, "a:29610,b:29610", or a range, "gradwired-{0..3}.gradwired:29610": the
  // same for all members, in the same order; the first one leads. Or they are all addresses that
  // one DNS name has when Join looks it up, "dns-all:///gradwired:29610": IPv4 before IPv6, then by
  // number. With "?n=4" Join waits until there are four, for up to connect_timeout; with "?ip=4" or
  // "&ip=4" it takes IPv4 only. Empty: the environment's GRADWIRE_ADDRESS.
  std::string address = {};
  // Names the training job: [A-Za-z0-9._-]{1,128}, the same for all members. Empty:
  // GRADWIRE_SESSION.
  std::string session = {};
  int rank = -1;  // -1: the coordinator picks
  int world_size = 1;
  // This member's number among those on its node, whose ranks follow each other, and how many they
  // are. A leaf daemon needs to know; others do not look. Not set: LOCAL_RANK and LOCAL_WORLD_SIZE,
  // which torchrun and accelerate set, where they fit the rank and the world size.
  int local_rank = -1;
  int local_world_size = 0;
  TlsOptions tls = {};
  // The path of a file whose one line is the token that the daemon's --tokens has for this
  // member. It is sent only over TLS, or to this host. Empty: GRADWIRE_TOKEN_FILE, else the token
  // itself from GRADWIRE_TOKEN, else none.
  std::string token_file = {};
  // The model, in the same order on every member. Buckets name these parameters.
  std::vector<ParameterSpec> parameters = {};
  HookSpec hook = {};
  // Where the gradients of all buckets lie; the hook computes there, and keeps its state there. For
  // a GPU, Join fails with what to do if the CUDA library or a driver is missing. Hooks that are
  // registered take the CPU only.
  DeviceId device = {};
  // The path of libgradwire_cuda.so. Empty: GRADWIRE_CUDA_LIBRARY, else beside the program, in the
  // folder of libraries that was installed with it, or where the dynamic loader looks.
  std::string cuda_library = {};
  // The path of libnccl.so.2, which members whose GPUs are in one node exchange with. Empty:
  // GRADWIRE_NCCL_LIBRARY, else the one that the process has loaded, or where the dynamic loader
  // looks.
  std::string nccl_library = {};
  // Members of one node group add up their gradients among themselves with NCCL, and send the
  // coordinator one contribution for all of them: the network carries the bytes of one GPU for each
  // node. "off"; "auto": with the members on this machine, if NCCL is there; or a name that the
  // members of the group have in common, for containers of one machine. A name is refused on the
  // CPU and without NCCL; "auto" then goes without. Empty: GRADWIRE_NODE_GROUP, else "off".
  std::string node_group = {};
  // If the address is a unix socket and the device is the CPU, payloads travel in memory shared
  // with the daemon where the system allows it. GRADWIRE_SHARED_MEMORY=off disables this for all
  // clients of a process.
  bool shared_memory = true;
  // Whether ShareGradients may make the caller's memory shared. GRADWIRE_SHARED_GRADIENTS=off
  // disables this for all clients of a process.
  bool shared_gradients = true;
  // Copies each bucket's gradients when its reduction begins, which takes as much memory as they
  // do, and the time of one copy. A step that is open when the daemon is lost (on_coordinator_loss:
  // resume) is then reduced again from the copies, with the same result, if all members that have
  // results keep their gradients; else it is skipped. It is skipped all the same if a member is
  // lost in it, or the session has node groups. GRADWIRE_KEEP_GRADIENTS=on enables this for all
  // clients of a process.
  bool keep_gradients = false;
  // If the address is not a unix socket, but its daemon has one on this host and proves that it is
  // the same daemon, the member uses that socket, and with it shared memory. So all members can be
  // given one address. GRADWIRE_LOCAL_SOCKET=off disables this for all clients of a process.
  bool local_socket = true;

  // Until the daemon answers. A large model adds 20 us for each parameter.
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration join_timeout = absl::Minutes(5);   // until all members have joined
  absl::Duration step_timeout = absl::Minutes(30);  // for one step; the session measures it

  // Join calls this on its own thread with a line of text: once if no daemon has answered after
  // 1 s, once if other members have not joined 3 s after this one, and if node_group "auto" finds
  // no NCCL. If it is empty, Join writes the line to standard error.
  std::function<void(const std::string& line)> on_wait = {};

  // Returns InvalidArgument with the field, the value and what is allowed.
  absl::Status Validate() const;
};

// The outcome of one asynchronous call. Copies share it. Thread-safe.
class Completion {
 public:
  Completion();  // already done, ok

  bool done() const;

  // Waits for the outcome. Never hangs, because the session's deadlines end the call. Meanwhile
  // this thread may do the client's work, including callbacks of other calls.
  absl::Status Wait() const;
  // Returns DeadlineExceeded, in time or soon after, if there is no outcome. The call continues.
  absl::Status Wait(absl::Duration timeout) const;

  // Runs `callback` once: on the thread that brings the outcome, or at once on this thread if the
  // call is done. The callback must not block, throw or destroy the client, and must not take a
  // lock that any thread holds while it calls the client or waits.
  void OnDone(std::function<void(const absl::Status&)> callback);

 private:
  friend class ClientImpl;
  friend class ShardedClient;
  struct State;
  explicit Completion(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

struct ClientMetrics {
  std::int64_t steps_applied = 0;
  std::int64_t steps_skipped = 0;
  std::uint64_t bytes_sent = 0;      // payload of contributions
  std::uint64_t bytes_received = 0;  // payload of results
  std::uint64_t gradient_bytes = 0;  // uncompressed size of the same buckets
  std::int64_t resumes = 0;          // broken streams that were resumed
  std::int64_t rejoins = 0;          // daemons that were lost, and followed by another one
  // Steps that went on with the next daemon, from gradients that were kept.
  std::int64_t steps_reduced_again = 0;
  // Steps that went on without some of this member's gradients, which were late: they were part of
  // a later step, or will be.
  std::int64_t missed_steps = 0;
  bool shared_memory = false;   // payloads travel in shared memory now
  bool unix_socket = false;     // frames travel over a unix socket, not over TCP
  bool leaf = false;            // the daemon is a leaf, and runs the hook for the whole node
  double compress_seconds = 0;  // time spent on encoding contributions
  // Time spent on decoding results, including a hook's computation at the end of a round.
  double decompress_seconds = 0;
};

// The cost of one bucket's reductions to this member since it joined.
struct BucketReport {
  std::string first_parameter;
  std::uint32_t parameters = 0;  // number of parameters in the bucket
  std::uint64_t reductions = 0;
  std::uint64_t gradient_bytes = 0;  // uncompressed
  std::uint64_t sent_bytes = 0;      // payload
  std::uint64_t received_bytes = 0;
  double compress_seconds = 0;
  double wire_seconds = 0;    // in flight, less the other three: the network, and waits for others
  double reduce_seconds = 0;  // the coordinator's sums
  double decompress_seconds = 0;
  // Euclidean norms of this member's gradient and residual in the last measured reduction (one in
  // ten seconds). 0: not measured, or the hook keeps no residual.
  double gradient_norm = 0;
  double residual_norm = 0;
  // In the last reduction the daemon read the gradients where they lie and wrote the result over
  // them: nothing was copied. Of several daemons at least one did so with its part.
  bool in_place = false;
};

// With on_member_loss=wait lost members have successors; with on_member_loss=shrink the others go
// on without them, and processes may come in their place later.
struct MembershipChange {
  std::vector<int> newcomers;  // ranks, ascending, which do not have the model
  int root = 0;                // the lowest rank that has it
  std::vector<int> members;    // ranks that are in the session from now on, ascending
};

// What became of the residuals and late gradients of a member that has left.
struct HandOver {
  std::optional<int> rank{};  // who has added them to its own, or a part of them
  // Why nobody has, or not all, so that they are lost; "": somebody has, or there are none.
  std::string reason{};
};

// XXH3-64 of the parameters' bytes, one after another, for Client::CheckParameters.
std::uint64_t ParameterDigest(const std::vector<std::span<const std::byte>>& parameters);

// One member of a session.
//
// Threads: all calls are thread-safe. The client has two threads from Join on, beside gRPC's own:
// one reads frames, the other does large work and timers. One thread at a time encodes, decodes and
// completes calls. For small buckets this may be a thread that calls or waits; large gradients are
// never encoded on the caller's thread.
// Ownership: a bucket and its buffer must stay alive and unchanged from AllReduce until its
// completion. When the completion is done, nothing in the client refers to the buffer any more.
// Failure: if a member is lost, data is invalid or the daemon is unreachable, every open and later
// call ends with the same error, which names the member to blame. The content of buckets is then
// unspecified. Join again, under the same or another name, to continue from a checkpoint. A daemon
// with on_coordinator_loss=resume may be lost, and with on_member_loss=wait or shrink a member: the
// session goes on, and a step is skipped; none for a daemon, if the members keep their gradients.
class Client {
 public:
  // Joins, and waits until all members have joined or a deadline passes. Never returns a client
  // that has not joined completely.
  static absl::StatusOr<std::unique_ptr<Client>> Join(const ClientOptions& options);

  // Ends open calls with Cancelled, and leaves the session if Leave was not called. Takes about 7 s
  // if no daemon answers, or as long as a lookup in DNS takes. No callback runs after it.
  virtual ~Client() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Ranks that are in the session, ascending: all of them, unless it goes on without lost members.
  // Means are of these. After EndStep membership_change() tells when they are others.
  virtual std::vector<int> members() const = 0;
  // The step that AllReduce contributes to now.
  virtual std::int64_t step() const = 0;

  // Reduces the bucket through the session's hook, in place. Returns at once. Many buckets may be
  // in flight, and members may submit them in different orders. Parameters are looked up by name.
  // Errors that the caller can avoid (an unknown parameter, a wrong shape or dtype, a parameter
  // twice in a step) complete the call with InvalidArgument and do not change the session.
  Completion AllReduce(GradBucket& bucket) { return AllReduce(bucket, nullptr); }

  // The same for a bucket on a GPU: `stream`, a cudaStream_t, has been given the work that computes
  // the gradients; null is the legacy default stream. The reduction begins when that work is done,
  // and when the completion is done, so is the work on the bucket: no stream has to wait for it.
  virtual Completion AllReduce(GradBucket& bucket, void* stream) = 0;

  // Allocates whole pages for a bucket's gradients. If memory is shared with the daemon and the
  // hook only casts ("no", "fp16", "bf16", without a wrapper), the daemon reads the gradients there
  // and writes the result over them, so that nothing is copied. The memory lives as long as the
  // pointer, even after the client. After a failed call the daemon may still write a result there.
  // A forked child has a private view of it.
  virtual std::shared_ptr<std::byte> AllocateGradients(std::size_t bytes) = 0;

  // Makes memory that the caller has allocated shared with the daemon, or with those of several
  // that are on this host, where it lies: its address, its contents and what refers to it stay.
  // Buckets that lie in it are then reduced as those from AllocateGradients, until the last copy of
  // the returned pointer is gone. The memory is then private again, and `owner` is dropped.
  //
  // Until then the caller keeps the allocation as it is (`owner` may do that): not freed, moved or
  // resized. No other thread writes into the memory during this call, and no bucket in it is in
  // flight when the pointer goes. The memory must not be known to a device or the kernel by its
  // pages: pinned for a GPU, registered for RDMA or io_uring. After fork the child has a private
  // view of it.
  //
  // FailedPrecondition says why buckets in this memory are copied instead: payloads do not travel
  // in shared memory, the hook computes with gradients, the memory is small or not ordinary private
  // memory. ResourceExhausted: the system has no shared memory. Nothing has changed then.
  // May be called from any thread.
  virtual absl::StatusOr<std::shared_ptr<void>> ShareGradients(const TensorView& gradients,
                                                               std::shared_ptr<void> owner) = 0;
  absl::StatusOr<std::shared_ptr<void>> ShareGradients(const TensorView& gradients) {
    return ShareGradients(gradients, nullptr);
  }

  // Ends this member's part of the step and waits for the verdict: kApply, or kSkip if any result
  // was not finite (the buckets then contain it on all members). All buckets of the step are
  // complete when it returns.
  virtual absl::StatusOr<Verdict> EndStep() = 0;

  // What the last EndStep told of the membership, for a newcomer the Join; nullopt: nothing. If
  // there are newcomers, the step was skipped for all, and before the next one every member gives
  // or takes the model: Broadcast from `root` (parameters, the optimizer's state, how far the
  // training is). Newcomers begin without residuals. A reduction before the next collective is an
  // error. Without newcomers the step's mean was that of `members`, if it was applied.
  virtual std::optional<MembershipChange> membership_change() const = 0;

  // Why the last EndStep said kSkip, in a sentence: who contributed what, or what was lost. "": it
  // said kApply, or the reason is not known.
  virtual std::string skip_reason() const = 0;

  // Has the members' parameters compared, as they are at the beginning of this step: `digest` is
  // ParameterDigest of them, or whatever else is equal where parameters are. Before the step's
  // first AllReduce, and in the same steps on all members, such as every 100th. After EndStep
  // parameter_drift() has the answer. FailedPrecondition in the middle of a step. A daemon of an
  // earlier version compares nothing.
  virtual absl::Status CheckParameters(std::uint64_t digest) = 0;
  // Whose parameters differ from those of most members, and since when, in a sentence, the same for
  // all members. "": nobody's, or the last step had no CheckParameters. The session goes on.
  virtual std::string parameter_drift() const = 0;

  // EndStep without waiting: runs `done` once, under the rules of Completion::OnDone.
  virtual void EndStep(std::function<void(const absl::StatusOr<Verdict>&)> done) = 0;

  // Sets the order in which PowerSGD draws its first Q, for example that of another trainer:
  // buckets of positions in ClientOptions::parameters, each with a seed of its own. Without a plan
  // the model is one bucket; parameters that the plan leaves out are drawn last. Only rank 0 calls
  // this, before its first AllReduce of the first step that compresses. A later plan, a plan for
  // another hook and a plan for a daemon of an earlier version have no effect. The session's state
  // includes the plan: importing a state replaces it. The buckets of AllReduce may differ from the
  // plan's. InvalidArgument or FailedPrecondition names what is not allowed. Does not wait.
  virtual absl::Status SetDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets) = 0;

  // Copies `bytes` bytes at `data` from member `root` to all members. All members must call
  // collectives in the same order. Waits. Aborted with GW320: a member was lost in it; some members
  // may have the bytes, and others not. FailedPrecondition: the root is not one of members().
  virtual absl::Status Broadcast(int root, void* data, std::size_t bytes) = 0;

  // Waits until all members have called it.
  virtual absl::Status Barrier() = 0;

  // Leaves the session, between steps. Other members that begin another step get an error that
  // names this member, if the daemon's on_member_loss is `fail`. Where the session outlives its
  // daemon, waits until the others have heard how the last step ended: for 5 s at most, and if the
  // daemon is lost meanwhile for the next one, for 10 s at most.
  virtual absl::Status Leave() = 0;

  // Leaves before the others, as a member does whose host is taken away or drained: what this
  // member has not contributed yet (PowerSGD's residuals, and gradients that others went on
  // without) goes to another member first, so that it is not lost. Between steps, in a session that
  // goes on without it (on_member_loss=shrink or wait). Leaves in any case; gives them up when
  // nobody has taken them within `timeout`, and says so. An error is Leave's.
  virtual absl::StatusOr<HandOver> HandOverAndLeave(absl::Duration timeout) = 0;

  // Returns the session's state on the coordinator (PowerSGD's factors, generator, iteration) after
  // this member's last step, as the bytes of a safetensors file. Call it between two of this
  // member's steps; other members may be in a step. Waits.
  virtual absl::StatusOr<std::string> ExportState() = 0;

  // Replaces that state. One member calls this between two steps; then all members call Barrier
  // before they continue. Fails with the reason, and changes nothing, if the bytes are damaged, if
  // they come from another hook, other options or another model, or if a step is open. Waits.
  // States are the same for every number of daemons. If only some of several daemons take the
  // state, because one is gone or a member has begun a step, the session ends for all members.
  virtual absl::Status ImportState(const std::string& state) = 0;

  // StateDict returns this member's own state between steps (PowerSGD's residuals), as the bytes of
  // a safetensors file; LoadStateDict replaces it. A checkpoint needs this and the coordinator's
  // state of the same step. FailedPrecondition in a step, from the first AllReduce to EndStep,
  // and for the state of another rank.
  virtual absl::StatusOr<std::string> StateDict() = 0;
  virtual absl::Status LoadStateDict(const std::string& state) = 0;

  // From the next step on the caller multiplies gradients by `scale` (loss scaling); the client
  // scales residuals accordingly. `scale` is finite and above 0. Call it between two steps.
  virtual absl::Status SetLossScale(double scale) = 0;

  virtual ClientMetrics metrics() const = 0;

  // Returns one report for each bucket of the last step, in the model's order. `gradwirectl session
  // get` shows rank 0's reports.
  virtual std::vector<BucketReport> Report() const = 0;
};

}  // namespace gradwire
