#include "tests/testing/host_communicator.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gradwire::testing {
namespace {

using client::PeerBytes;

struct Call {
  bool gather = false;
  std::vector<PeerBytes> sends;  // or pieces
  std::vector<PeerBytes> receives;
};

// One group.
struct Room {
  std::size_t size = 0;
  std::vector<bool> here;
  std::map<std::size_t, std::map<std::size_t, Call>> calls;  // by number, by member
  std::size_t done = 0;                                      // calls that all have made
  std::string error;
};

// What `to` receives from `from` in this exchange, in order, must be what `from` sends.
std::string Deliver(const std::map<std::size_t, Call>& calls, std::size_t from, std::size_t to) {
  std::vector<PeerBytes> sent;
  for (const PeerBytes& one : calls.at(from).sends) {
    if (one.peer == static_cast<int>(to)) sent.push_back(one);
  }
  std::size_t next = 0;
  for (const PeerBytes& one : calls.at(to).receives) {
    if (one.peer != static_cast<int>(from)) continue;
    if (next == sent.size() || sent[next].bytes != one.bytes) return "sizes differ";
    std::memcpy(one.memory, sent[next++].memory, one.bytes);
  }
  return next == sent.size() ? "" : "more was sent than received";
}

std::string Exchange(const std::map<std::size_t, Call>& calls) {
  for (const auto& [from, sender] : calls) {
    for (const auto& [to, receiver] : calls) {
      if (from == to) continue;
      if (std::string error = Deliver(calls, from, to); !error.empty()) return error;
    }
  }
  return "";
}

std::string Gather(const std::map<std::size_t, Call>& calls) {
  const std::vector<PeerBytes>& pieces = calls.begin()->second.sends;
  for (const auto& [member, call] : calls) {
    if (call.sends.size() != pieces.size()) return "members gather different pieces";
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (call.sends[i].peer != pieces[i].peer || call.sends[i].bytes != pieces[i].bytes) {
        return "members gather different pieces";
      }
      const auto root = static_cast<std::size_t>(pieces[i].peer);
      const std::byte* from = calls.at(root).sends[i].memory;
      if (member != root) std::memcpy(call.sends[i].memory, from, pieces[i].bytes);
    }
  }
  return "";
}

}  // namespace

struct HostMeetingPlace::State {
  std::mutex mutex;
  std::map<std::string, Room> rooms;
  int operations = 0;
  int hang_after = -1;

  // With the lock: does what all members of the room have called.
  void Advance(Room& room) {
    while (room.error.empty() && (hang_after < 0 || operations < hang_after)) {
      const auto found = room.calls.find(room.done);
      if (found == room.calls.end() || found->second.size() < room.size) return;
      const bool gather = found->second.begin()->second.gather;
      for (const auto& [member, call] : found->second) {
        if (call.gather != gather) room.error = "members do different things";
      }
      if (room.error.empty()) {
        room.error = gather ? Gather(found->second) : Exchange(found->second);
      }
      room.calls.erase(found);
      ++room.done;
      ++operations;
    }
  }
};

namespace {

template <class Shared>
class HostCommunicator final : public client::NodeCommunicator {
 public:
  HostCommunicator(std::shared_ptr<Shared> state, std::string id, std::size_t index)
      : state_(std::move(state)), id_(std::move(id)), index_(index) {}

  void Exchange(std::span<const PeerBytes> sends, std::span<const PeerBytes> receives) override {
    Make({.gather = false,
          .sends = {sends.begin(), sends.end()},
          .receives = {receives.begin(), receives.end()}});
  }
  void Gather(std::span<const PeerBytes> pieces) override {
    Make({.gather = true, .sends = {pieces.begin(), pieces.end()}, .receives = {}});
  }
  absl::StatusOr<bool> Poll() override {
    const std::lock_guard lock(state_->mutex);
    Room& room = state_->rooms.at(id_);
    if (!room.error.empty()) return absl::InternalError(room.error);
    for (const bool one : room.here) {
      if (!one) return false;
    }
    return room.done >= made_;
  }
  void Abort() override {
    const std::lock_guard lock(state_->mutex);
    Room& room = state_->rooms.at(id_);
    // Its memory may be gone: nobody touches it any more.
    for (auto& [number, calls] : room.calls) calls.erase(index_);
  }

 private:
  void Make(Call call) {
    const std::lock_guard lock(state_->mutex);
    Room& room = state_->rooms.at(id_);
    room.calls[made_++][index_] = std::move(call);
    state_->Advance(room);
  }

  const std::shared_ptr<Shared> state_;
  const std::string id_;
  const std::size_t index_;
  std::size_t made_ = 0;
};

template <class Shared>
class HostCommunicators final : public client::NodeCommunicators {
 public:
  HostCommunicators(std::shared_ptr<Shared> state, std::string name)
      : state_(std::move(state)), name_(std::move(name)) {}

  std::string name() const override { return name_; }
  absl::StatusOr<std::string> NewId() override {
    const std::lock_guard lock(state_->mutex);
    std::string id = absl::StrCat("room ", state_->rooms.size());
    state_->rooms[id];
    return id;
  }
  absl::StatusOr<std::unique_ptr<client::NodeCommunicator>> Connect(const std::string& id, int size,
                                                                    int index) override {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->rooms.find(id);
    if (found == state_->rooms.end()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", id, "\" is no meeting place"));
    }
    found->second.size = static_cast<std::size_t>(size);
    found->second.here.resize(static_cast<std::size_t>(size));
    found->second.here[static_cast<std::size_t>(index)] = true;
    return std::make_unique<HostCommunicator<Shared>>(state_, id, static_cast<std::size_t>(index));
  }

 private:
  const std::shared_ptr<Shared> state_;
  const std::string name_;
};

}  // namespace

HostMeetingPlace::HostMeetingPlace() : state_(std::make_shared<State>()) {}
HostMeetingPlace::~HostMeetingPlace() = default;

std::shared_ptr<client::NodeCommunicators> HostMeetingPlace::ForMember(const std::string& name) {
  return std::make_shared<HostCommunicators<State>>(state_, name);
}

void HostMeetingPlace::HangAfter(int operations) {
  const std::lock_guard lock(state_->mutex);
  state_->hang_after = state_->operations + operations;
}

}  // namespace gradwire::testing
