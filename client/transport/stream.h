// One Exchange stream: translates completions of gRPC operations into events of the client.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/sync.h"
#include "client/transport/event_queue.h"
#include "client/transport/poller.h"
#include "proto/wire/bundle.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

// Only the SDK thread calls Write, ReadOn, Release and Cancel. The polling thread pushes events
// into the event queue; the last is StreamEndEvent, which follows Release or Cancel.
class ExchangeStream final {
 public:
  struct Options {
    std::size_t max_payload_bytes = 0;
    Source source{};
    bool paired = false;            // it is one of two lanes
    std::string access_token = {};  // "": there is none
  };
  static std::shared_ptr<ExchangeStream> Start(const std::shared_ptr<grpc::Channel>& channel,
                                               std::shared_ptr<Poller> poller,
                                               std::shared_ptr<EventQueue> events,
                                               const Options& options);

  ExchangeStream(const ExchangeStream&) = delete;
  ExchangeStream& operator=(const ExchangeStream&) = delete;

  // One write at a time: the next one after a WriteEvent with ok. At least one frame; several only
  // to a daemon that takes bundles.
  void Write(const std::vector<wire::Frame>& frames) GRADWIRE_EXCLUDES(mutex_);
  // Bytes that one write of several frames should have at most.
  std::size_t write_budget() const { return arrivals_.Budget(); }

  // After EventQueue::Pop said so.
  void ReadOn() GRADWIRE_EXCLUDES(mutex_);

  // No Write and no ReadOn may follow. Call it after ReadEndEvent too, because only then the stream
  // ends.
  void Release() GRADWIRE_EXCLUDES(mutex_);

  // Breaks the stream, and Release.
  void Cancel() GRADWIRE_EXCLUDES(mutex_);

 private:
  ExchangeStream(std::shared_ptr<Poller> poller, std::shared_ptr<EventQueue> events,
                 const Options& options);

  // What a message must not have with a bulk lane, and without one.
  absl::Status CheckLanes(const std::vector<wire::Frame>& frames) const;

  // The operations' ends.
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  template <void (ExchangeStream::*end)(bool)>
  Poller::Operation Operation();

  // Finish may be called only while no read is in flight.
  void MaybeFinish() GRADWIRE_EXCLUDES(mutex_);

  const std::shared_ptr<Poller> poller_;
  const std::shared_ptr<EventQueue> events_;
  const Options options_;
  Poller::Operation read_;
  Poller::Operation write_;
  Poller::Operation finish_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;  // of the read in flight
  wire::ArrivalRate arrivals_;
  grpc::Status outcome_;  // once finished
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;

  // Not held during gRPC's calls, because a write copies its bytes into the socket.
  Mutex mutex_;
  int in_flight_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  bool reading_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool released_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool finishing_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ExchangeStream> self_;  // until nothing is in flight any more
};

}  // namespace gradwire::client
