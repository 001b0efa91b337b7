#include "client/group/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::client::nccl {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr int kOldest = 21400;  // has non-blocking communicators

absl::Status CannotBeUsed(const std::string& why) {
  return Coded(ErrorCode::kNcclLibrary,
               absl::FailedPreconditionError(absl::StrCat(
                   "NCCL cannot be used: ", why,
                   "; install PyPI's nvidia-nccl-cu13 or the system's libnccl2, or set "
                   "GRADWIRE_NCCL_LIBRARY to the path of libnccl.so.2")));
}

// Up to 2.8 the number was 1000 x major + 100 x minor + patch.
std::string Name(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return absl::StrCat("NCCL ", major, ".", minor, ".", version % 100);
}

// Looks functions up and remembers the first that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <class F>
  void Find(const char* name, F*& function) {
    function = reinterpret_cast<F*>(dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

}  // namespace

std::string Library::name() const { return Name(version); }

// The handle is never closed: NCCL has threads that run its code.
absl::StatusOr<Library> Open(const std::string& path) {
  const std::string file = path.empty() ? kName : path;
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return CannotBeUsed(dlerror());
  Library library;
  Symbols symbols(handle);
  // The version comes first: an old library lacks functions, and its age says more.
  Result (*get_version)(int* version) = nullptr;
  symbols.Find("ncclGetVersion", get_version);
  if (get_version != nullptr) {
    if (Failed(get_version(&library.version))) {
      return CannotBeUsed(absl::StrCat(file, " does not tell its version"));
    }
    if (library.version < kOldest) {
      return CannotBeUsed(
          absl::StrCat(file, " is ", library.name(), "; needed is ", Name(kOldest), " or later"));
    }
  }
  symbols.Find("ncclGetErrorString", library.get_error_string);
  symbols.Find("ncclGetUniqueId", library.get_unique_id);
  symbols.Find("ncclCommInitRankConfig", library.comm_init_rank_config);
  symbols.Find("ncclCommGetAsyncError", library.comm_get_async_error);
  symbols.Find("ncclCommAbort", library.comm_abort);
  symbols.Find("ncclGroupStart", library.group_start);
  symbols.Find("ncclGroupEnd", library.group_end);
  symbols.Find("ncclSend", library.send);
  symbols.Find("ncclRecv", library.recv);
  symbols.Find("ncclBroadcast", library.broadcast);
  if (!symbols.missing().empty()) {
    return CannotBeUsed(absl::StrCat(file, " has no function ", symbols.missing()));
  }
  Symbols(handle).Find("ncclGetLastError", library.get_last_error);
  return library;
}

}  // namespace gradwire::client::nccl
