// The root's session, as a leaf's session has it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "server/core/effects.h"

namespace gradwire::server {

// Calls come from one thread at a time and return at once; answers come on any thread, perhaps
// before the call has returned. An error is told once, as Events::failed: calls that it ends have
// no answer of their own.
class Upstream {
 public:
  struct Events {
    // Why it has not answered yet. "": it has, and waits for other members.
    std::function<void(const std::string& why)> waits;
    std::function<void(const UpstreamWelcome& welcome)> joined;
    // The root's session has ended, or could not be joined. `blamed_rank` -1: nobody.
    std::function<void(const absl::Status& why, int blamed_rank)> failed;
  };

  // Ends the membership, if End has not; waits for that, some seconds at most. No answer comes
  // afterwards.
  virtual ~Upstream() = default;

  // First, and once.
  virtual void Join(Events events) = 0;

  // ---- After `joined`.
  // The bucket's buffer must stay until the answer to the step's end, or until this object is gone.
  virtual void AllReduce(const GradBucket& bucket, std::function<void()> done) = 0;
  // As Client::CheckParameters: it waits for the client's own thread, but for no network. Its
  // answer is in the step's conclusion.
  virtual void CheckParameters(std::uint64_t digest) = 0;
  virtual void EndStep(std::function<void(const UpstreamConclusion& conclusion)> done) = 0;
  // What comes of the barrier or broadcast, in its order. One is open at a time: a barrier until it
  // has begun; a broadcast until all its bytes are taken, or have come and there is room for all.
  using Progress = std::function<void(const UpstreamProgress& progress)>;
  virtual void Barrier(Progress progress) = 0;
  // Of so many bytes. Where `root` is a member behind this leaf, they are given; else they come, as
  // far as there is room.
  virtual void Broadcast(int root, std::uint64_t bytes, std::uint64_t room, Progress progress) = 0;
  // The open broadcast's next bytes.
  virtual void Give(const wire::PayloadRef& bytes) = 0;
  // There is room for so many of the open broadcast's bytes in all; never for fewer than before.
  virtual void MakeRoom(std::uint64_t bytes) = 0;

  // The leaf's session is over: it leaves (OK), or tells the root why, and whom that blames. At any
  // time, and last.
  virtual void End(const absl::Status& why, int blamed_rank) = 0;
};

}  // namespace gradwire::server
