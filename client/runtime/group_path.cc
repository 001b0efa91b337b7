#include "client/runtime/group_path.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/error_code.h"
#include "client/core/grouped_member.h"
#include "hooks/device_status.h"

namespace gradwire::client {
namespace {

// Arrays of what the others sent begin at multiples of this, as the device's own do.
constexpr std::size_t kAlignment = 256;

// A daemon declares a member lost after 15 s of silence, and looks every second; then it ends all
// streams.
constexpr std::chrono::seconds kPatience(20);

std::size_t Aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::string Seconds(std::chrono::steady_clock::duration duration) {
  return absl::FormatDuration(absl::FromChrono(duration));
}

}  // namespace

GroupPath::GroupPath(std::shared_ptr<Device> device,
                     std::shared_ptr<NodeCommunicators> communicators, const Options& options)
    : device_(std::move(device)),
      communicators_(std::move(communicators)),
      options_(options),
      received_(*device_),
      not_finite_(*device_) {}

void GroupPath::Begin(GroupedMember& member) {
  member_ = &member;
  ++begun_;
  not_finite_.Resize(1);
}

std::string GroupPath::Names() const {
  return absl::StrCat("the node group of ranks ", absl::StrJoin(member_->group()->ranks, ", "));
}

absl::Status GroupPath::Failed(const absl::Status& status) const {
  return Coded(ErrorCode::kNodeGroupFailed,
               absl::Status(status.code(), absl::StrCat(Names(), ": ", status.message())));
}

absl::StatusOr<std::string> GroupPath::NewId() {
  if (communicators_ == nullptr) {
    return Coded(ErrorCode::kBadAnswer,
                 absl::InternalError(
                     "the coordinator put this member into a node group; it asked for none"));
  }
  absl::StatusOr<std::string> id = communicators_->NewId();
  if (id.ok()) return id;
  return Failed(id.status());
}

absl::Status GroupPath::Connect(const std::string& id) {
  if (communicators_ == nullptr) return NewId().status();
  auto connected = communicators_->Connect(id, static_cast<int>(member_->group()->ranks.size()),
                                           static_cast<int>(member_->index()));
  if (!connected.ok()) {
    return Failed(connected.status());
  }
  communicator_ = *std::move(connected);
  connecting_ = true;
  connecting_since_ = Clock::now();
  return absl::OkStatus();
}

void GroupPath::Exchange(Ticket ticket) {
  task_ = Task{.ticket = ticket, .gather = false, .since = Clock::now()};
}

void GroupPath::Gather(Ticket ticket) {
  task_ = Task{.ticket = ticket, .gather = true, .since = Clock::now()};
}

bool GroupPath::IsOwn(const BucketShare& share) const {
  return member_->OwnerOf(share.share) == member_->index();
}

std::byte* GroupPath::BytesOf(Ticket ticket) const {
  return static_cast<std::byte*>(member_->BucketOf(ticket).buffer().data);
}

// ---- Exchange: every member sends each other member its gradients of that one's shares.

std::size_t GroupPath::OwnBytes(Ticket ticket) const {
  std::size_t bytes = 0;
  for (const BucketShare& share : member_->SharesOf(ticket)) {
    if (IsOwn(share)) bytes += share.bytes;
  }
  return bytes;
}

std::byte* GroupPath::ReceivedFrom(std::size_t peer, Ticket ticket) {
  const std::size_t place = peer < member_->index() ? peer : peer - 1;
  return received_.data() + place * Aligned(OwnBytes(ticket));
}

void GroupPath::BeginExchange(Ticket ticket) {
  const std::size_t peers = member_->group()->ranks.size() - 1;
  received_.Resize(std::max(received_.size(), peers * Aligned(OwnBytes(ticket))));
  std::vector<PeerBytes> sends;
  std::vector<PeerBytes> receives;
  std::size_t received = 0;
  for (const BucketShare& share : member_->SharesOf(ticket)) {
    const auto owner = static_cast<int>(member_->OwnerOf(share.share));
    for (const BucketShare::Piece& piece : share.pieces) {
      if (!IsOwn(share)) {
        sends.push_back(
            {.peer = owner, .memory = BytesOf(ticket) + piece.offset, .bytes = piece.bytes});
        continue;
      }
      for (std::size_t peer = 0; peer <= peers; ++peer) {
        if (peer == member_->index()) continue;
        receives.push_back({.peer = static_cast<int>(peer),
                            .memory = ReceivedFrom(peer, ticket) + received,
                            .bytes = piece.bytes});
      }
      received += piece.bytes;
    }
  }
  communicator_->Exchange(sends, receives);
}

// What lost a step its memory serves the next one, so that nothing is allocated once every size has
// been there.
DeviceVector<std::byte> GroupPath::TakeMemory(std::size_t bytes) {
  const auto fits = [bytes](const DeviceVector<std::byte>& one) { return one.size() == bytes; };
  const auto found = std::find_if(unused_.begin(), unused_.end(), fits);
  DeviceVector<std::byte> memory(*device_);
  if (found != unused_.end()) {
    memory = std::move(*found);
    unused_.erase(found);
  }
  memory.Resize(bytes);
  return memory;
}

// In the order of ranks, whoever sent first.
absl::Status GroupPath::AddUp(Ticket ticket, Done& done) {
  const TensorView buffer = member_->BucketOf(ticket).buffer();
  const std::size_t width = ByteSize(buffer.dtype);
  const double divisor =
      static_cast<double>(member_->members()) / static_cast<double>(member_->group()->groups);
  OwnShares& own = own_[ticket];
  std::vector<const void*> sources(member_->group()->ranks.size());
  std::size_t received = 0;
  for (const BucketShare& share : member_->SharesOf(ticket)) {
    if (!IsOwn(share)) continue;
    OwnShare& sum =
        own.emplace_back(OwnShare{.memory = TakeMemory(share.bytes), .bucket = nullptr});
    std::size_t at = 0;
    for (const BucketShare::Piece& piece : share.pieces) {
      for (std::size_t peer = 0; peer < sources.size(); ++peer) {
        sources[peer] = peer == member_->index() ? BytesOf(ticket) + piece.offset
                                                 : ReceivedFrom(peer, ticket) + received;
      }
      device_->Sum(buffer.dtype, sources, divisor, sum.memory.data() + at, piece.bytes / width,
                   not_finite_.data());
      at += piece.bytes;
      received += piece.bytes;
    }
    if (absl::Status status = StatusOf(*device_); !status.ok()) return status;
    auto bucket = GradBucket::Make(
        static_cast<int>(own.size()) - 1,
        {buffer.dtype, sum.memory.data(), share.bytes / width, buffer.device}, share.parameters);
    if (!bucket.ok()) return bucket.status();
    sum.bucket = std::make_unique<GradBucket>(*std::move(bucket));
    done.own.push_back(sum.bucket.get());
  }
  return absl::OkStatus();
}

// ---- Gather

void GroupPath::BeginGather(Ticket ticket) {
  std::vector<PeerBytes> pieces;
  std::size_t next = 0;
  for (const BucketShare& share : member_->SharesOf(ticket)) {
    const std::byte* from = IsOwn(share) ? own_.at(ticket)[next++].memory.data() : nullptr;
    for (const BucketShare::Piece& piece : share.pieces) {
      std::byte* const to = BytesOf(ticket) + piece.offset;
      if (from != nullptr) {
        device_->Copy(to, from, piece.bytes);
        from += piece.bytes;
      }
      pieces.push_back({.peer = static_cast<int>(member_->OwnerOf(share.share)),
                        .memory = to,
                        .bytes = piece.bytes});
    }
  }
  if (communicator_ != nullptr && !pieces.empty()) communicator_->Gather(pieces);
}

// ---- Progress

void GroupPath::BeginTask() {
  task_->begun = true;
  if (task_->gather) return BeginGather(task_->ticket);
  if (communicator_ != nullptr) BeginExchange(task_->ticket);
}

absl::Status GroupPath::Late(const Task& task) const {
  const std::string how = communicator_ == nullptr
                              ? ": its first member did not name the communicator"
                              : absl::StrCat(" with ", communicators_->name());
  return Coded(ErrorCode::kNodeGroupFailed,
               absl::DeadlineExceededError(absl::StrCat(
                   Names(), " did not ", task.gather ? "gather the results" : "exchange the shares",
                   " of a bucket within ", Seconds(options_.task_timeout), how)));
}

absl::Status GroupPath::DidNotConnect() const {
  return Coded(ErrorCode::kNodeGroupFailed,
               absl::DeadlineExceededError(absl::StrCat(
                   Names(), " did not connect with ", communicators_->name(), " within ",
                   Seconds(options_.connect_timeout),
                   "; are all of them on one machine? Without node groups: node_group \"off\"")));
}

bool GroupPath::HoldBack(const absl::Status& error, bool may_pass, Clock::time_point now) {
  if (!member_->outlives_daemon() || !may_pass) return false;
  held_ = {.error = error, .until = now + kPatience};
  return true;
}

absl::StatusOr<std::optional<GroupPath::Done>> GroupPath::Poll(Clock::time_point now) {
  if (held_) {
    if (now < held_->until) return std::nullopt;
    return held_->error;
  }
  const bool alone = member_ == nullptr || member_->group()->ranks.size() == 1;
  // The first order may be here before the name of the communicator.
  if (!alone && communicator_ == nullptr) {
    if (task_ && now - task_->since > options_.task_timeout) return Late(*task_);
    return std::nullopt;
  }
  while (true) {
    const absl::StatusOr<bool> ready = alone ? true : communicator_->Poll();
    if (!ready.ok()) {
      const bool may_pass = begun_ > 1 || !absl::IsFailedPrecondition(ready.status());
      if (!HoldBack(Failed(ready.status()), may_pass, now)) return Failed(ready.status());
      return std::nullopt;
    }
    if (!*ready && connecting_ && now - connecting_since_ > options_.connect_timeout) {
      const absl::Status late = DidNotConnect();
      if (!HoldBack(late, /*may_pass=*/begun_ > 1, now)) return late;
      return std::nullopt;
    }
    if (*ready) connecting_ = false;
    if (!*ready && task_ && now - task_->since > options_.task_timeout) return Late(*task_);
    if (!*ready || !task_) return std::nullopt;
    if (task_->begun) break;
    BeginTask();
  }
  const Task task = *std::exchange(task_, std::nullopt);
  Done done{.ticket = task.ticket, .gather = task.gather};
  if (!task.gather) {
    if (absl::Status status = AddUp(task.ticket, done); !status.ok()) return status;
  }
  return done;
}

void GroupPath::EndStep() {
  unused_.clear();  // of buckets that were not in this step
  for (auto& [ticket, shares] : own_) {
    for (OwnShare& share : shares) unused_.push_back(std::move(share.memory));
  }
  own_.clear();
}

void GroupPath::Abort() {
  if (communicator_ != nullptr) communicator_->Abort();
  communicator_ = nullptr;
  connecting_ = false;
  task_.reset();
  held_.reset();
}

}  // namespace gradwire::client
