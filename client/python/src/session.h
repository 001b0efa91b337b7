// One member for Python: calls go by number, outcomes come back through a queue.
//
// No Python here but for the module that binds it. Every method may be called from any thread
// without the interpreter's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "client/python/src/completions.h"
#include "gradwire/client.h"

namespace gradwire::python {

class Session {
 public:
  static absl::StatusOr<std::unique_ptr<Session>> Join(const ClientOptions& options);
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // FailedPrecondition after Close. The client lives as long as the pointer.
  absl::StatusOr<std::shared_ptr<Client>> client() const;
  Completions& completions() { return *completions_; }

  // Reduces `numel` elements at `data`, the gradients of the parameters at these positions of the
  // model. The outcome comes under `id`. The memory stays the caller's until then.
  void AllReduce(std::uint64_t id, void* data, std::size_t numel, DType dtype,
                 const std::vector<std::size_t>& positions, void* stream);
  // As Client::SetDrawPlan. A session that is over tells so in other calls.
  void SetDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets);
  // The verdict comes under `id`.
  void EndStep(std::uint64_t id);

  // Ends the client, once the calls in other threads are back: open reductions end with Cancelled,
  // and the queue closes. Idempotent.
  void Close();

  // In a forked child: forgets the client, whose threads the child does not have.
  void Abandon() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS;

 private:
  Session(std::unique_ptr<Client> client, std::vector<ParameterSpec> parameters, DeviceId device);

  mutable Mutex mutex_;
  std::shared_ptr<Client> client_ GRADWIRE_GUARDED_BY(mutex_);
  const std::vector<ParameterSpec> parameters_;
  const DeviceId device_;
  const std::shared_ptr<Completions> completions_;
};

}  // namespace gradwire::python
