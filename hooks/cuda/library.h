// The CUDA library, opened at run time: one binary serves machines with a GPU and without.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hooks/device.h"

namespace gradwire {

// Thread-safe. A library that was opened stays so until the process ends.
class CudaLibrary {
 public:
  // The library of this process: libgradwire_cuda.so beside the program or the shared object that
  // this code is part of, in the library folder that was installed with it, or where the dynamic
  // loader looks. Looked up once.
  static const absl::StatusOr<CudaLibrary>& Global();

  // FailedPrecondition: there is no such library, or it is of another build of Gradwire, or no GPU
  // can be used. The message says why, and what to do.
  static absl::StatusOr<CudaLibrary> Open(const std::string& path);

  // GPUs that this process sees.
  int count() const;

  // The point that `stream`, a cudaStream_t of GPU `ordinal`, has been given work up to. Null is
  // the legacy default stream.
  std::unique_ptr<DeviceEvent> Record(int ordinal, void* stream) const;

  // A device on GPU `ordinal`, with a stream of its own. Each of its waits ends after `wait`.
  absl::StatusOr<std::shared_ptr<Device>> MakeDevice(int ordinal,
                                                     std::chrono::milliseconds wait) const;

 private:
  struct Functions;
  explicit CudaLibrary(std::shared_ptr<const Functions> functions);
  static absl::StatusOr<CudaLibrary> OpenFirst();

  std::shared_ptr<const Functions> functions_;
};

// Whether hooks can run on a GPU here.
inline absl::Status CudaAvailable() { return CudaLibrary::Global().status(); }

}  // namespace gradwire
