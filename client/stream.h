// One Exchange stream: gRPC's reactor on one side, the client's inbox on the other.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <memory>

#include "client/inbox.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

// Write, ReadOn, Release and Cancel belong to the SDK thread. gRPC's threads push into the inbox;
// StreamEndEvent is the last they push, and it follows Release or Cancel.
class ExchangeStream final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static std::shared_ptr<ExchangeStream> Start(const std::shared_ptr<grpc::Channel>& channel,
                                               std::shared_ptr<Inbox> inbox,
                                               std::size_t max_payload_bytes);

  // One at a time: the next after a WriteEvent with ok.
  void Write(const wire::Frame& frame);

  // After Inbox::Pop said so.
  void ReadOn();

  // No Write and no ReadOn follow. Needed after ReadEndEvent too: the stream ends only then.
  void Release();

  // Breaks the stream, and Release.
  void Cancel();

 private:
  ExchangeStream(std::shared_ptr<Inbox> inbox, std::size_t max_payload_bytes);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<Inbox> inbox_;
  const std::size_t max_payload_bytes_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;  // gRPC reads it until OnWriteDone
  bool released_ = false;
  std::shared_ptr<ExchangeStream> self_;  // until OnDone
};

}  // namespace gradwire::client
