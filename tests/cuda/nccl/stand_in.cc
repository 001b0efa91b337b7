#include "tests/cuda/nccl/stand_in.h"

#include <cuda_runtime.h>
#include <sys/random.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "tests/cuda/emulation/shared_work.h"
#include "tests/cuda/nccl/communicator.h"

using gradwire::emulation::Report;
using gradwire::stand_in::Communicator;
using gradwire::stand_in::Group;
using gradwire::stand_in::LastError;
using gradwire::stand_in::Result;
using gradwire::stand_in::Transfer;

// ---- The types of nccl.h that calls here have

struct UniqueId {
  char bytes[128];
};
struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
};

struct ncclComm {
  std::shared_ptr<Communicator> communicator;
  bool connected = false;
  // A group that has ended and is not yet the stream's, and how often the state says so.
  std::vector<Transfer> transfers{};
  cudaStream_t stream = nullptr;
  int queries_until_launch = 0;
  int groups = 0;
};

namespace {

constexpr int kVersion = 23004;
constexpr int kNeverN = 0;
constexpr int kInt8 = 0;
constexpr char kIdBegin[] = "gradwire-stand-in-for-nccl-";

// The value of a fault, 1 if it has none; nullopt if it is not wanted.
std::optional<int> Fault(const std::string& name) {
  const char* variable = std::getenv(gradwire::stand_in::kFaults);
  std::istringstream faults(variable == nullptr ? "" : variable);
  for (std::string fault; std::getline(faults, fault, ',');) {
    const auto equals = fault.find('=');
    if (fault.substr(0, equals) != name) continue;
    return equals == std::string::npos ? 1 : std::atoi(fault.c_str() + equals + 1);
  }
  return std::nullopt;
}

Result Refuse(Result result, const std::string& text) {
  LastError() = text;
  return result;
}
Result Forbidden(const std::string& text) {
  Report("NCCL: " + text);
  return Refuse(Result::kInvalidUsage, text);
}

// Of the calling thread, as in NCCL.
thread_local int group_depth = 0;
thread_local std::vector<ncclComm*> grouped;

// Makes an error of a thread that has selected another GPU, which NCCL only sees in part.
bool IsSelected(int device) {
  int selected = -1;
  cudaGetDevice(&selected);
  return selected == device;
}

Result Add(ncclComm* comm, cudaStream_t stream, int type, std::vector<Transfer> transfers) {
  if (comm == nullptr || type != kInt8)
    return Refuse(Result::kInvalidArgument, "a null, or a type");
  if (group_depth == 0) return Forbidden("a transfer outside of a group");
  const auto gpu = gradwire::emulation::LockGpu();
  const int device = comm->communicator->device();
  if (!IsSelected(device)) return Forbidden("another GPU is selected");
  if (stream == nullptr || gradwire::emulation::DeviceOf(stream) != device) {
    return Forbidden("the stream is another GPU's");
  }
  if (!comm->connected || comm->queries_until_launch > 0) {
    return Forbidden("a call while another one is in progress");
  }
  for (const Transfer& transfer : transfers) {
    if (transfer.peer < 0 || transfer.peer >= comm->communicator->size() ||
        transfer.peer == comm->communicator->rank()) {
      return Refuse(Result::kInvalidArgument, "no such peer: " + std::to_string(transfer.peer));
    }
  }
  if (std::find(grouped.begin(), grouped.end(), comm) == grouped.end()) grouped.push_back(comm);
  comm->stream = stream;
  comm->transfers.insert(comm->transfers.end(), transfers.begin(), transfers.end());
  return Result::kSuccess;
}

void GiveToStream(ncclComm& comm) {
  const auto group = std::make_shared<Group>(comm.communicator, comm.transfers);
  comm.transfers.clear();
  ++comm.groups;
  const bool hangs = comm.groups == Fault("hang").value_or(kNeverN);
  const bool fails = comm.groups == Fault("error").value_or(kNeverN);
  gradwire::emulation::EnqueueShared(
      comm.stream, [group, hangs, fails, communicator = comm.communicator] {
        if (communicator->aborted()) return true;
        if (fails) communicator->Fail(Result::kRemoteError, "rank 0 closed its connection");
        return !hangs && group->Advance();
      });
}

// The members' own name for a communicator, if it is one.
std::optional<std::string> NameIn(const UniqueId& id) {
  const std::string name(id.bytes, strnlen(id.bytes, sizeof(id.bytes)));
  if (!name.starts_with(kIdBegin)) return std::nullopt;
  return name;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

Result ncclGetVersion(int* version) {
  *version = Fault("version").value_or(kVersion);
  return Result::kSuccess;
}

const char* ncclGetErrorString(Result result) {
  switch (result) {
    case Result::kSuccess:
      return "no error";
    case Result::kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case Result::kInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case Result::kInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case Result::kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case Result::kRemoteError:
      return "remote process exited or there was a network error";
    case Result::kInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}
const char* ncclGetLastError(const ncclComm* /*comm*/) { return LastError().c_str(); }

Result ncclGetUniqueId(UniqueId* id) {
  std::uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) return Result::kSystemError;
  const std::string name = kIdBegin + std::to_string(random);
  *id = {};
  std::memcpy(id->bytes, name.data(), name.size());
  return Result::kSuccess;
}

Result ncclCommInitRankConfig(ncclComm** comm, int size, UniqueId id, int rank, Config* config) {
  // A configuration of 2.14 ends with `blocking`; what this library knows besides is undefined.
  if (config->size < offsetof(Config, cga_cluster_size) || config->magic != 0xcafebeef ||
      config->version < 21400 || config->blocking != 0) {
    return Refuse(Result::kInvalidArgument, "the configuration is not for non-blocking calls");
  }
  if (config->size >= sizeof(Config) && config->cga_cluster_size != INT_MIN) {
    return Refuse(Result::kInvalidArgument, "cgaClusterSize is not undefined");
  }
  if (Fault("refuse")) return Refuse(Result::kSystemError, "Call to bind failed");
  int device = -1;
  cudaGetDevice(&device);
  *comm = new ncclComm{std::make_shared<Communicator>(NameIn(id).value_or(""), size, rank, device)};
  if (!NameIn(id)) {
    (*comm)->communicator->Fail(Result::kSystemError, "no rank listens where the id says");
  }
  return Result::kInProgress;
}

Result ncclCommGetAsyncError(ncclComm* comm, Result* error) {
  const auto gpu = gradwire::emulation::LockGpu();
  Communicator& communicator = *comm->communicator;
  if (!IsSelected(communicator.device())) return Forbidden("another GPU is selected");
  if (!comm->connected && communicator.Connect()) {
    // NCCL compares the ranks' GPUs when all have met, so that each of them sees it.
    if (Fault("duplicate")) {
      communicator.Fail(Result::kInvalidUsage,
                        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000");
    } else {
      comm->connected = true;
    }
  }
  const bool launches = comm->connected && comm->queries_until_launch > 0;
  if (launches && --comm->queries_until_launch == 0) GiveToStream(*comm);
  *error = communicator.error();
  if (*error == Result::kSuccess && (!comm->connected || comm->queries_until_launch > 0)) {
    *error = Result::kInProgress;
  }
  return Result::kSuccess;
}

Result ncclGroupStart() {
  ++group_depth;
  return Result::kSuccess;
}
Result ncclGroupEnd() {
  if (group_depth == 0) return Forbidden("a group ends that has not begun");
  if (--group_depth > 0) return Result::kSuccess;
  for (ncclComm* comm : std::exchange(grouped, {})) comm->queries_until_launch = 2;
  return Result::kInProgress;
}

Result ncclSend(const void* from, std::size_t count, int type, int peer, ncclComm* comm,
                cudaStream_t stream) {
  auto* memory = const_cast<std::byte*>(static_cast<const std::byte*>(from));
  return Add(comm, stream, type, {{true, peer, memory, count}});
}
Result ncclRecv(void* to, std::size_t count, int type, int peer, ncclComm* comm,
                cudaStream_t stream) {
  return Add(comm, stream, type, {{false, peer, static_cast<std::byte*>(to), count}});
}
Result ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root,
                     ncclComm* comm, cudaStream_t stream) {
  if (from != to) return Refuse(Result::kInvalidArgument, "the stand-in broadcasts in place");
  auto* memory = static_cast<std::byte*>(to);
  if (root != comm->communicator->rank()) {
    return Add(comm, stream, type, {{false, root, memory, count}});
  }
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < comm->communicator->size(); ++peer) {
    if (peer != root) transfers.push_back({true, peer, memory, count});
  }
  return Add(comm, stream, type, std::move(transfers));
}

Result ncclCommAbort(ncclComm* comm) {
  const auto gpu = gradwire::emulation::LockGpu();
  if (!IsSelected(comm->communicator->device())) return Forbidden("another GPU is selected");
  comm->communicator->Abort();
  delete comm;
  return Result::kSuccess;
}
Result ncclCommFinalize(ncclComm* /*comm*/) { return Result::kSuccess; }
Result ncclCommDestroy(ncclComm* comm) { return ncclCommAbort(comm); }
}
#pragma GCC visibility pop
