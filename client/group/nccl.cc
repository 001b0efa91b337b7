#include "client/group/nccl.h"

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/group/nccl_library.h"
#include "hooks/device_status.h"

namespace gradwire::client {
namespace {

using nccl::Failed;
using nccl::Library;
using nccl::Result;

// What every object here needs: the functions, and a thread for which the GPU is selected.
class OnDevice {
 public:
  OnDevice(const Library& library, std::shared_ptr<Device> device)
      : library_(library), device_(std::move(device)) {}

  const Library& library() const { return library_; }
  Device& device() const { return *device_; }

  template <class Call>
  Result Run(Call&& call) const {
    Result result = Result::kSuccess;
    device_->WithSelected([&] { result = call(); });
    return result;
  }

  // What `doing` failed with, which names a member, and what to do.
  absl::Status Error(Result result, const std::string& doing, const nccl::Comm* comm) const;

 private:
  Library library_;
  std::shared_ptr<Device> device_;
};

absl::Status OnDevice::Error(Result result, const std::string& doing,
                             const nccl::Comm* comm) const {
  const char* last = library_.get_last_error == nullptr ? nullptr : library_.get_last_error(comm);
  const std::string detail = last == nullptr ? "" : last;
  std::string text =
      absl::StrCat(library_.name(), ": ", doing, " failed: ", library_.get_error_string(result));
  if (!detail.empty()) absl::StrAppend(&text, " (", detail, ")");
  // NCCL's words up to 2.29, and since 2.30, when the variable is not set. The detail may be that
  // of an earlier error.
  const bool shared =
      result == Result::kInvalidUsage && (absl::StrContains(detail, "Duplicate GPU detected") ||
                                          absl::StrContains(detail, "NCCL_MULTI_RANK_GPU_ENABLE"));
  absl::StrAppend(&text, shared ? "; two members use one GPU, which needs NCCL >= 2.30 with "
                                  "NCCL_MULTI_RANK_GPU_ENABLE=1, or one GPU for each member"
                                : "; NCCL_DEBUG=WARN shows where");
  if (result == Result::kInvalidUsage) return absl::FailedPreconditionError(text);
  return result == Result::kRemoteError ? absl::UnavailableError(text) : absl::InternalError(text);
}

class NcclCommunicator final : public NodeCommunicator {
 public:
  NcclCommunicator(OnDevice on, std::string member)
      : on_(std::move(on)), member_(std::move(member)) {}
  ~NcclCommunicator() override { Abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Called once, first.
  absl::Status Connect(const nccl::UniqueId& id, int size, int index) {
    nccl::Config config;
    const Result result = on_.Run(
        [&] { return on_.library().comm_init_rank_config(&slot_, size, id, index, &config); });
    comm_ = slot_;
    return Failed(result) ? Error(result) : absl::OkStatus();
  }

  void Exchange(std::span<const PeerBytes> sends, std::span<const PeerBytes> receives) override {
    if (sends.empty() && receives.empty()) return;
    Group("an exchange", [&](const Library& library, nccl::Stream stream) {
      Result first = Result::kSuccess;
      for (const PeerBytes& piece : sends) {
        Keep(first,
             library.send(piece.memory, piece.bytes, nccl::kInt8, piece.peer, comm_, stream));
      }
      for (const PeerBytes& piece : receives) {
        Keep(first,
             library.recv(piece.memory, piece.bytes, nccl::kInt8, piece.peer, comm_, stream));
      }
      return first;
    });
  }

  void Gather(std::span<const PeerBytes> pieces) override {
    if (pieces.empty()) return;
    Group("a gather", [&](const Library& library, nccl::Stream stream) {
      Result first = Result::kSuccess;
      for (const PeerBytes& piece : pieces) {
        Keep(first, library.broadcast(piece.memory, piece.memory, piece.bytes, nccl::kInt8,
                                      piece.peer, comm_, stream));
      }
      return first;
    });
  }

  absl::StatusOr<bool> Poll() override {
    if (!status_.ok()) return status_;
    if (comm_ == nullptr) return Fail(absl::CancelledError(absl::StrCat(member_, " has aborted")));
    Result state = Result::kSuccess;
    const Result asked = on_.Run([&] { return on_.library().comm_get_async_error(comm_, &state); });
    if (Failed(asked)) state = asked;
    if (Failed(state)) return Fail(Error(state));
    in_progress_ = state == Result::kInProgress;
    return !in_progress_;
  }

  // NCCL's kernels poll a flag that this sets, and end.
  void Abort() override {
    if (comm_ == nullptr) return;
    on_.Run([&] { return on_.library().comm_abort(comm_); });
    comm_ = nullptr;
  }

 private:
  static void Keep(Result& first, Result result) {
    if (!Failed(first)) first = result;
  }

  absl::Status Error(Result result) const {
    return on_.Error(result, absl::StrCat(doing_, " of ", member_), comm_);
  }
  const absl::Status& Fail(absl::Status status) { return status_ = std::move(status); }

  // All calls that `calls` makes become one piece of the device's work. A group that has begun
  // ends, or it would take in the thread's next call.
  template <class Calls>
  void Group(const char* doing, const Calls& calls) {
    if (!status_.ok() || comm_ == nullptr) return;
    if (in_progress_) {
      Fail(absl::InternalError(
          absl::StrCat(doing, " of ", member_, " begins before ", doing_, " is in order")));
      return;
    }
    if (absl::Status status = StatusOf(on_.device()); !status.ok()) {
      Fail(std::move(status));
      return;
    }
    doing_ = doing;
    in_progress_ = true;
    const Result result = on_.Run([&] {
      Result first = on_.library().group_start();
      if (Failed(first)) return first;
      Keep(first, calls(on_.library(), on_.device().stream()));
      Keep(first, on_.library().group_end());
      return first;
    });
    if (Failed(result)) Fail(Error(result));
  }

  const OnDevice on_;
  const std::string member_;  // "member 1 of 4"
  // Up to 2.17 NCCL's threads use the place of the pointer until they have connected.
  nccl::Comm* slot_ = nullptr;
  nccl::Comm* comm_ = nullptr;  // null: aborted
  std::string doing_ = "the connecting";
  bool in_progress_ = true;  // NCCL allows no call but the query for its state
  absl::Status status_;
};

class NcclCommunicators final : public NodeCommunicators {
 public:
  explicit NcclCommunicators(OnDevice on) : on_(std::move(on)) {}

  std::string name() const override { return on_.library().name(); }

  absl::StatusOr<std::string> NewId() override {
    nccl::UniqueId id{};
    const Result result = on_.Run([&] { return on_.library().get_unique_id(&id); });
    if (Failed(result)) return on_.Error(result, "naming a communicator", nullptr);
    return std::string(id.bytes, sizeof(id.bytes));
  }

  absl::StatusOr<std::unique_ptr<NodeCommunicator>> Connect(const std::string& id, int size,
                                                            int index) override {
    nccl::UniqueId name{};
    if (id.size() != sizeof(name.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("the id of a communicator has ", id.size(),
                                                     " bytes; NCCL's has ", sizeof(name.bytes)));
    }
    if (index < 0 || index >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the member's index is ", index, "; allowed are 0 to ", size - 1));
    }
    if (absl::Status status = StatusOf(on_.device()); !status.ok()) return status;
    std::memcpy(name.bytes, id.data(), sizeof(name.bytes));
    auto communicator =
        std::make_unique<NcclCommunicator>(on_, absl::StrCat("member ", index, " of ", size));
    if (absl::Status status = communicator->Connect(name, size, index); !status.ok()) return status;
    return communicator;
  }

 private:
  const OnDevice on_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeCommunicators>> OpenNccl(const std::string& library,
                                                            std::shared_ptr<Device> device) {
  if (device->id().kind != DeviceKind::kCuda) {
    return Coded(ErrorCode::kNcclLibrary,
                 absl::FailedPreconditionError(
                     absl::StrCat("NCCL is for GPUs; the device is ", Name(device->id()))));
  }
  const absl::StatusOr<Library> opened = nccl::Open(library);
  if (!opened.ok()) return opened.status();
  return std::make_unique<NcclCommunicators>(OnDevice(*opened, std::move(device)));
}

}  // namespace gradwire::client
