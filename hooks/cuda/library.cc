#include "hooks/cuda/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <climits>
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

// The program, or the shared object that this code is part of; "" if the system does not say it.
// Of a program the loader only has the word it was started with, which for one that was found in
// PATH is without its folder: that of the working directory must never count instead.
std::string FileOfThisCode() {
  Dl_info here{};
  link_map* object = nullptr;
  if (dladdr1(reinterpret_cast<void*>(&CudaLibrary::Global), &here,
              reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0) {
    return "";
  }
  const bool is_program = object == nullptr || object->l_name == nullptr || *object->l_name == 0;
  std::array<char, PATH_MAX> program;
  const ssize_t length =
      is_program ? readlink("/proc/self/exe", program.data(), program.size()) : -1;
  const std::string file = !is_program ? object->l_name
                           : length > 0
                               ? std::string(program.data(), static_cast<std::size_t>(length))
                               : "";
  return file.find('/') == std::string::npos ? "" : file;
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
  const std::string file = FileOfThisCode();
  if (!file.empty()) {
    const std::string folder = file.substr(0, file.rfind('/'));
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
