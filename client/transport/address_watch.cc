#include "client/transport/address_watch.h"

#include <chrono>
#include <utility>

#include "base/thread_name.h"

namespace gradwire::client {
namespace {

constexpr std::chrono::seconds kBetweenLookups(1);

}  // namespace

AddressWatch::AddressWatch(std::shared_ptr<DaemonLookup> daemons, std::uint32_t shard,
                           std::function<void()> moved)
    : daemons_(std::move(daemons)), shard_(shard), moved_(std::move(moved)), thread_([this] {
        NameThread("gradwire-lookup");
        Run();
      }) {}

AddressWatch::~AddressWatch() {
  Stop();
  thread_.join();
}

void AddressWatch::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  wake_.NotifyOne();
}

bool AddressWatch::Pause() {
  const auto until = std::chrono::steady_clock::now() + kBetweenLookups;
  MutexLock lock(mutex_);
  while (!stopped_ && std::chrono::steady_clock::now() < until) wake_.WaitUntil(mutex_, until);
  return !stopped_;
}

void AddressWatch::Run() {
  while (!daemons_->HasMoved(shard_)) {
    if (!Pause()) return;
  }
  moved_();
}

}  // namespace gradwire::client
