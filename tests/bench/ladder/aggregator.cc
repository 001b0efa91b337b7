// The yardstick of the whole service: sums N members' chunks over raw sockets with one thread, and
// does nothing else that a service has to do.
#include <sys/epoll.h>

#include <algorithm>
#include <vector>

#include "hooks/cpu/kernels.h"
#include "tests/bench/ladder/child_settings.h"
#include "tests/bench/ladder/raw_socket.h"

namespace gradwire::bench {
namespace {

// A place in a stream of rounds of `bytes`, cut into chunks.
struct Position {
  std::size_t chunk = 0;  // since the start, over all rounds
  std::size_t offset = 0;
};

class Aggregator {
 public:
  explicit Aggregator(const ChildSettings& settings)
      : settings_(settings),
        per_round_((settings.bytes + settings.message_bytes - 1) / settings.message_bytes),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        members_(settings.members),
        result_(settings.in_flight * settings.message_bytes) {
    for (UniqueFd& fd : AcceptAll(settings.address, settings.members, settings.send_buffer)) {
      std::byte rank;
      ReceiveAll(fd.get(), {&rank, 1});
      Member& member = members_.at(static_cast<std::size_t>(rank));
      member.fd = std::move(fd);
      member.chunks.resize(result_.size());
    }
    for (std::size_t rank = 0; rank < members_.size(); ++rank) Watch(rank, EPOLL_CTL_ADD, EPOLLIN);
  }

  void Serve() {
    std::vector<epoll_event> events(members_.size());
    for (;;) {
      const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   kSocketTimeoutMs);
      if (count <= 0) SocketDies("no member sends");
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const std::size_t rank = events[i].data.u32;
        if ((events[i].events & EPOLLOUT) != 0) Send(rank);
        if ((events[i].events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) Receive(rank);
      }
    }
  }

 private:
  struct Member {
    UniqueFd fd;
    std::vector<std::byte> chunks;  // a ring, as is result_
    Position in;
    Position out;
    bool waits_to_send = false;
  };

  std::size_t ChunkBytes(std::size_t chunk) const {
    const std::size_t begin = chunk % per_round_ * settings_.message_bytes;
    return std::min(settings_.message_bytes, settings_.bytes - begin);
  }
  // A member sends chunk c + in_flight only when it has the result of chunk c, so a place in the
  // rings is free when its turn comes again.
  std::size_t Place(std::size_t chunk) const {
    return chunk % settings_.in_flight * settings_.message_bytes;
  }

  void Watch(std::size_t rank, int operation, std::uint32_t what) {
    epoll_event event{.events = what, .data = {.u32 = static_cast<std::uint32_t>(rank)}};
    if (epoll_ctl(epoll_.get(), operation, members_[rank].fd.get(), &event) != 0) {
      SocketDies("cannot watch a member");
    }
  }

  // At most one chunk, so that the members take turns.
  void Receive(std::size_t rank) {
    Member& member = members_[rank];
    if (member.in.chunk >= summed_ + settings_.in_flight) SocketDies("a member is too far ahead");
    const std::size_t size = ChunkBytes(member.in.chunk);
    std::byte* const to = member.chunks.data() + Place(member.in.chunk);
    member.in.offset +=
        ReceiveSome(member.fd.get(), {to + member.in.offset, size - member.in.offset});
    if (member.in.offset < size) return;
    member.in = {.chunk = member.in.chunk + 1, .offset = 0};
    SumWhatIsThere();
  }

  void SumWhatIsThere() {
    const auto there = [this](const Member& member) { return member.in.chunk > summed_; };
    while (std::all_of(members_.begin(), members_.end(), there)) {
      std::vector<const void*> sources;
      for (const Member& member : members_)
        sources.push_back(member.chunks.data() + Place(summed_));
      cpu::Sum(DType::kFloat32, sources.data(), sources.size(), 1, result_.data() + Place(summed_),
               ChunkBytes(summed_) / sizeof(float));
      ++summed_;
      for (std::size_t rank = 0; rank < members_.size(); ++rank) {
        if (!members_[rank].waits_to_send) Send(rank);
      }
    }
  }

  void Send(std::size_t rank) {
    Member& member = members_[rank];
    bool blocked = false;
    while (member.out.chunk < summed_ && !blocked) {
      const std::size_t size = ChunkBytes(member.out.chunk);
      const std::byte* const from = result_.data() + Place(member.out.chunk);
      const std::size_t sent =
          SendSome(member.fd.get(), {from + member.out.offset, size - member.out.offset});
      blocked = sent == 0;
      member.out.offset += sent;
      if (member.out.offset == size) member.out = {.chunk = member.out.chunk + 1, .offset = 0};
    }
    if (blocked == member.waits_to_send) return;
    member.waits_to_send = blocked;
    Watch(rank, EPOLL_CTL_MOD, EPOLLIN | (blocked ? EPOLLOUT : 0U));
  }

  const ChildSettings settings_;
  const std::size_t per_round_;
  const UniqueFd epoll_;
  std::vector<Member> members_;
  std::vector<std::byte> result_;
  std::size_t summed_ = 0;  // chunks
};

}  // namespace

int ServeAggregator(const ChildSettings& settings) {
  Aggregator(settings).Serve();
  return 0;
}

}  // namespace gradwire::bench
