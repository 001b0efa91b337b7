#include "server/daemon/make_registry.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/cuda/library.h"
#include "server/arbiter/file_arbiter.h"
#include "server/leaf/client_upstream.h"
#include "server/record/recorder.h"
#include "server/rpc/rpc_threads.h"
#include "server/session/gpu_reducer.h"

namespace gradwire::server {
namespace {

// What recordings may take of the memory, beside the sessions.
std::size_t RecordQueueBytes(std::size_t memory_bytes) {
  constexpr std::size_t kPart = 8;
  constexpr std::size_t kMost = std::size_t{1} << 30;
  return std::min(memory_bytes / kPart, kMost);
}

// For one sum. A GPU that is not hung takes milliseconds.
constexpr std::chrono::seconds kDeviceWait(10);

absl::StatusOr<std::vector<std::shared_ptr<Device>>> OpenGpus(const ServerOptions& options) {
  absl::StatusOr<std::vector<int>> gpus = options.Gpus();
  if (!gpus.ok()) return gpus.status();
  const absl::StatusOr<CudaLibrary> library = options.cuda_library.empty()
                                                  ? CudaLibrary::Global()
                                                  : CudaLibrary::Open(options.cuda_library);
  if (!library.ok()) return library.status();
  if (gpus->empty()) {
    gpus->resize(static_cast<std::size_t>(library->count()));
    std::iota(gpus->begin(), gpus->end(), 0);
  }
  std::vector<std::shared_ptr<Device>> devices;
  for (const int gpu : *gpus) {
    auto device = library->MakeDevice(gpu, kDeviceWait);
    if (!device.ok()) return device.status();
    devices.push_back(*std::move(device));
  }
  return devices;
}

absl::StatusOr<std::shared_ptr<Reducer>> MakeGpuReducer(const ServerOptions& options) {
  const auto devices = OpenGpus(options);
  if (!devices.ok()) {
    // The daemon's operator can do other things about it than a member.
    return absl::Status(
        devices.status().code(),
        RecodedText(ErrorCode::kReduce, absl::StrCat("reduce is \"", options.reduce,
                                                     "\": ", devices.status().message())));
  }
  spdlog::info("sums are computed on {} GPU(s)", devices->size());
  return std::make_shared<GpuReducer>(
      *devices, options.reduce_least_bytes, &RpcThreads::YieldLeadership,
      [](const absl::Status& status) {
        spdlog::warn("{}; what it computed is computed on the processor from now on",
                     std::string(status.message()));
      });
}

}  // namespace

absl::StatusOr<std::shared_ptr<Registry>> MakeRegistry(const ServerOptions& options,
                                                       std::size_t memory_bytes,
                                                       const SystemShares& shares,
                                                       std::shared_ptr<AuditSink> audit) {
  std::shared_ptr<Reducer> reducer;
  if (options.reduce != "cpu") {
    auto on_gpus = MakeGpuReducer(options);
    if (!on_gpus.ok()) return on_gpus.status();
    reducer = *std::move(on_gpus);
  }
  const auto identity = ParseQuota(options.identity_quota, QuotaOwner::kIdentity);
  if (!identity.ok()) return identity.status();
  const auto session = ParseQuota(options.session_quota, QuotaOwner::kSession);
  if (!session.ok()) return session.status();
  auto registry = std::make_shared<Registry>(
      Registry::Limits{.memory_bytes = memory_bytes,
                       .max_sessions = static_cast<std::size_t>(options.max_sessions),
                       .memory_segments = shares.segments,
                       .shared_sessions = shares.shared_sessions},
      std::move(reducer), std::move(audit));
  registry->ledger().SetLimits(*identity, *session);
  if (!options.record.empty()) {
    auto recorder = Recorder::Open({.directory = options.record,
                                    .steps = options.record_steps,
                                    .sessions = options.record_sessions,
                                    .queue_bytes = RecordQueueBytes(memory_bytes)});
    if (!recorder.ok()) return recorder.status();
    registry->SetRecorder(*std::move(recorder));
    spdlog::info(
        "the last {} step(s) of each session are recorded in {}; recordings of {} session(s) that "
        "have ended stay",
        options.record_steps, options.record, options.record_sessions);
  }
  if (!options.arbiter.empty()) {
    auto arbiter = FileArbiter::Open(options.arbiter);
    if (!arbiter.ok()) return arbiter.status();
    if (options.on_member_loss != "shrink") {
      spdlog::warn("arbiter is \"{}\", and on_member_loss is {}: only with shrink is it used",
                   options.arbiter, options.on_member_loss);
    }
    registry->SetArbiter(*std::move(arbiter));
  }
  if (options.is_leaf()) registry->SetUpstream(ClientUpstreams(options));
  return registry;
}

}  // namespace gradwire::server
