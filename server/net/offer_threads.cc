#include "server/net/offer_threads.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/thread_name.h"
#include "server/net/local_users.h"

namespace gradwire::server {
namespace {

absl::Status TooMany(const std::string& whose, std::size_t count, std::size_t allowed) {
  return absl::ResourceExhaustedError(absl::StrCat(
      whose, " has ", count, " offers of shared memory that wait; allowed: ", allowed));
}

absl::Status ShuttingDown() { return absl::UnavailableError("the daemon is shutting down"); }

// A lost reply is no error: the member then sends payloads in the stream.
void Reply(const UniqueFd& connection, const wire::MemoryReply& reply) {
  if (!reply.status.ok()) {
    spdlog::info("a request on the unix socket was refused: {}",
                 std::string(reply.status.message()));
  }
  wire::SendMemoryReply(connection.get(), reply).IgnoreError();
}

// Whether the segment is for an existing attachment.
bool IsFurther(const wire::MemoryRequest& request) { return request.attachment != 0; }

bool IsClosed(const UniqueFd& connection) {
  // POLLHUP is reported even without requested events. A peer that only shuts down its own
  // direction does not cause it.
  pollfd peer{.fd = connection.get(), .events = 0, .revents = 0};
  return poll(&peer, 1, 0) == 1;
}

}  // namespace

void OfferThreads::Submit(UniqueFd connection) {
  // The time in the queue counts too, because the member waits for the answer meanwhile.
  const std::optional<uid_t> user = PeerUser(connection.get());
  if (!user) return;  // no unix socket
  Offer offer{.connection = std::move(connection),
              .user = *user,
              .request = {},
              .deadline = Clock::now() + options_.timeout};
  absl::StatusOr<wire::MemoryRequest> request = wire::ReceiveMemoryRequest(offer.connection.get());
  absl::Status status = request.status();
  if (request.ok() && !request->probe.empty()) return Reply(offer.connection, Prove(*request));
  if (request.ok()) {
    offer.request = *std::move(request);
    status = Enqueue(offer);
  }
  if (!status.ok()) Reply(offer.connection, {.status = status});
}

wire::MemoryReply OfferThreads::Prove(const wire::MemoryRequest& request) const {
  if (prove_ == nullptr) return {.status = absl::UnimplementedError("probes are not answered")};
  absl::StatusOr<std::string> proof = prove_(request.start_id, request.probe);
  if (!proof.ok()) return {.status = proof.status()};
  return {.proof = *std::move(proof)};
}

// A quarter of the queue is reserved for first segments. A member is counted by its token.
absl::Status OfferThreads::Enqueue(Offer& offer) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return ShuttingDown();
    const std::size_t allowed =
        options_.max_pending - (IsFurther(offer.request) ? options_.max_pending / 4 : 0);
    if (pending_.size() >= allowed) return TooMany("the daemon", pending_.size(), allowed);
    const auto counted = std::count_if(pending_.begin(), pending_.end(), [&](const Offer& other) {
      return other.request.token == offer.request.token;
    });
    const auto of_member = static_cast<std::size_t>(counted);
    if (of_member >= options_.max_pending_of_member) {
      return TooMany("the member", of_member, options_.max_pending_of_member);
    }
    if (absl::Status started = StartThreads(); !started.ok()) return started;
    pending_.push_back(std::move(offer));
  }
  work_.NotifyOne();
  return absl::OkStatus();
}

absl::Status OfferThreads::StartThreads() {
  try {
    while (threads_.size() < options_.threads) {
      threads_.emplace_back([this] {
        NameThread("gradwire-offer");
        Run();
      });
    }
  } catch (const std::system_error& error) {
    if (threads_.empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("starting a thread for shared memory failed: ", error.what()));
    }
  }
  return absl::OkStatus();
}

void OfferThreads::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const auto next = NextOffer();
    if (next == pending_.end()) {
      work_.Wait(mutex_);
    } else {
      Take(next);
    }
  }
}

// One thread is reserved for first segments, which are small and for which a joining member waits;
// further ones may have gigabytes. One member has one thread at most.
std::deque<OfferThreads::Offer>::iterator OfferThreads::NextOffer() {
  const bool may_be_further = further_at_work_ < std::max<std::size_t>(options_.threads, 2) - 1;
  const auto has_turn = [&](const Offer& offer) GRADWIRE_REQUIRES(mutex_) {
    return !at_work_.contains(offer.request.token) && (may_be_further || !IsFurther(offer.request));
  };
  return std::find_if(pending_.begin(), pending_.end(), has_turn);
}

void OfferThreads::Take(const std::deque<Offer>::iterator& next) {
  Offer offer = std::move(*next);
  pending_.erase(next);
  const std::string token = offer.request.token;
  const std::size_t further = IsFurther(offer.request) ? 1 : 0;
  at_work_.insert(token);
  further_at_work_ += further;
  mutex_.Unlock();
  Answer(std::move(offer));
  mutex_.Lock();
  at_work_.erase(token);
  further_at_work_ -= further;
  // This thread takes the next offer itself, but two offers may be eligible now.
  work_.NotifyOne();
}

void OfferThreads::Answer(Offer offer) {
  const auto go_on = [&] { return MayGoOn(offer.connection, offer.deadline); };
  wire::MemoryReply reply{.status = go_on()};
  if (reply.status.ok()) {
    absl::StatusOr<wire::MemoryReply> answer =
        handler_(std::move(offer.request), offer.user, go_on);
    if (answer.ok()) {
      reply = *std::move(answer);
    } else {
      reply.status = answer.status();
    }
  }
  Reply(offer.connection, reply);
}

// Asked between pieces of the mapping, so that nobody maps gigabytes for a member that is gone.
absl::Status OfferThreads::MayGoOn(const UniqueFd& connection, Clock::time_point deadline) const {
  {
    MutexLock lock(mutex_);
    if (stopping_) return ShuttingDown();
  }
  if (IsClosed(connection)) {
    return absl::CancelledError("the member closed its connection before the answer");
  }
  if (Clock::now() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("the offer was not answered within ", options_.timeout.count(), " ms"));
}

void OfferThreads::Stop() {
  std::vector<std::thread> threads;
  std::deque<Offer> pending;  // closed without the lock
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads = std::exchange(threads_, {});
    pending = std::exchange(pending_, {});
  }
  work_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

std::size_t OfferThreads::pending() const {
  MutexLock lock(mutex_);
  return pending_.size();
}

}  // namespace gradwire::server
