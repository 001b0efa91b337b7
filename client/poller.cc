#include "client/poller.h"

#include "proto/wire/keep_grpc.h"
#include "proto/wire/thread_name.h"

namespace gradwire::client {

void Poller::Poll(Shared& shared) {
  wire::NameThread("gradwire-read");
  void* tag = nullptr;
  bool ok = false;
  // Every operation ends: a stream that nobody waits for any more was cancelled.
  while (shared.queue.Next(&tag, &ok)) {
    shared.begun.load(std::memory_order_acquire);
    const Operation operation = *static_cast<const Operation*>(tag);
    operation.done(operation.owner, ok);
  }
}

void* Poller::Begin(Operation& operation) {
  shared_->begun.fetch_add(1, std::memory_order_release);
  return &operation;
}

Poller::Poller()
    : shared_([] {
        wire::KeepGrpc();
        return std::make_shared<Shared>();
      }()),
      thread_([shared = shared_] { Poll(*shared); }) {}

Poller::~Poller() {
  shared_->queue.Shutdown();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // it is about to see the end of the queue
  } else {
    thread_.join();  // at once, likewise: streams with something in flight would refer to this
  }
}

}  // namespace gradwire::client
