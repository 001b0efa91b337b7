#include "client/transport/rejoin.h"

#include <chrono>
#include <utility>

#include "base/thread_name.h"
#include "client/daemon_lookup.h"

namespace gradwire::client {
namespace {

// Short, so that a client that is destroyed meanwhile need not wait long.
constexpr absl::Duration kTry = absl::Seconds(1);

// Between tries that a daemon has refused, for which the quota of joins may be used up.
constexpr std::chrono::milliseconds kBetweenTries(200);

// All members come at once.
bool MayTryAgain(const absl::Status& answer) {
  return absl::IsUnavailable(answer) || absl::IsDeadlineExceeded(answer) ||
         absl::IsResourceExhausted(answer);
}

}  // namespace

Rejoin::Rejoin(ClientOptions options, JoinWish wish, std::uint64_t start_id,
               Clock::time_point deadline, Done done)
    : options_(std::move(options)),
      wish_(std::move(wish)),
      start_id_(start_id),
      done_(std::move(done)),
      thread_([this, deadline] {
        NameThread("gradwire-rejoin");
        Run(deadline);
      }) {}

Rejoin::~Rejoin() {
  Stop();
  thread_.join();
}

void Rejoin::Run(Clock::time_point deadline) {
  for (;;) {
    ClientOptions options = options_;
    options.connect_timeout = kTry;
    if (wish_.lookup != nullptr) options.address = wish_.lookup->Next(wish_.shard.number);
    const std::string tried = options.address;
    absl::StatusOr<Joined> joined = JoinNearest(options, wish_, start_id_);
    if (joined.ok()) {
      if (wish_.lookup != nullptr) wish_.lookup->Took(wish_.shard.number, tried);
      return done_(Rejoined{.joined = *std::move(joined), .address = std::move(options.address)});
    }
    if (stopped_) return;
    if (!MayTryAgain(joined.status()) || Clock::now() >= deadline) return done_(joined.status());
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace gradwire::client
