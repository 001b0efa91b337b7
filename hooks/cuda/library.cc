#include "hooks/cuda/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/cuda/device.h"
#include "hooks/device_status.h"

namespace gradwire {
namespace {

constexpr const char* kName = "libgradwire_cuda.so";

template <class F>
bool Find(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

absl::Status NotThere(const std::string& why) {
  return Coded(ErrorCode::kNoGpu,
               absl::FailedPreconditionError(absl::StrCat(
                   "the CUDA library cannot be used: ", why,
                   "; build Gradwire where nvcc of CUDA 13 is found (hooks/README.md)")));
}

}  // namespace

struct CudaLibrary::Functions {
  decltype(gradwire_cuda_available)* available = nullptr;
  decltype(gradwire_cuda_count)* count = nullptr;
  decltype(gradwire_cuda_open)* open = nullptr;
  decltype(gradwire_cuda_record)* record = nullptr;
};

CudaLibrary::CudaLibrary(std::shared_ptr<const Functions> functions)
    : functions_(std::move(functions)) {}

// The handle is never closed: devices run the library's code.
absl::StatusOr<CudaLibrary> CudaLibrary::Open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NotThere(dlerror());
  decltype(gradwire_cuda_interface)* interface = nullptr;
  Functions functions;
  if (!Find(library, "gradwire_cuda_interface", interface) ||
      !Find(library, "gradwire_cuda_available", functions.available) ||
      !Find(library, "gradwire_cuda_count", functions.count) ||
      !Find(library, "gradwire_cuda_open", functions.open) ||
      !Find(library, "gradwire_cuda_record", functions.record)) {
    return NotThere(absl::StrCat(path, " is another library"));
  }
  if (std::strcmp(interface(), GRADWIRE_CUDA_INTERFACE) != 0) {
    return NotThere(absl::StrCat(path, " has interface ", interface(), " and this program needs ",
                                 GRADWIRE_CUDA_INTERFACE));
  }
  char why[512] = "";
  if (!functions.available(why, sizeof(why))) {
    return Coded(ErrorCode::kNoGpu,
                 absl::FailedPreconditionError(absl::StrCat("no GPU can be used: ", why)));
  }
  return CudaLibrary(std::make_shared<const Functions>(functions));
}

// The first place that has a file decides: a library that is there and does not work is reported,
// not passed over.
absl::StatusOr<CudaLibrary> CudaLibrary::OpenFirst() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&CudaLibrary::Global), &here) != 0 &&
      here.dli_fname != nullptr) {
    const std::string file = here.dli_fname;
    const std::string folder =
        file.find('/') == std::string::npos ? "." : file.substr(0, file.rfind('/'));
    for (const std::string& place :
         {absl::StrCat(folder, "/", kName),
          absl::StrCat(folder, "/../", GRADWIRE_LIBRARY_FOLDER, "/", kName)}) {
      if (access(place.c_str(), F_OK) == 0) return Open(place);
    }
  }
  return Open(kName);
}

const absl::StatusOr<CudaLibrary>& CudaLibrary::Global() {
  static const absl::StatusOr<CudaLibrary> library = OpenFirst();
  return library;
}

int CudaLibrary::count() const { return functions_->count(); }

std::unique_ptr<DeviceEvent> CudaLibrary::Record(int ordinal, void* stream) const {
  return std::unique_ptr<DeviceEvent>(functions_->record(ordinal, stream));
}

absl::StatusOr<std::shared_ptr<Device>> CudaLibrary::MakeDevice(
    int ordinal, std::chrono::milliseconds wait) const {
  std::shared_ptr<Device> device(functions_->open(ordinal, wait.count()));
  if (absl::Status status = StatusOf(*device); !status.ok()) return status;
  return device;
}

}  // namespace gradwire
