#include "client/stream.h"

#include <grpcpp/generic/generic_stub.h>

#include <string>
#include <utility>

#include "proto/wire/codec.h"
#include "proto/wire/status.h"

namespace gradwire::client {

std::shared_ptr<ExchangeStream> ExchangeStream::Start(const std::shared_ptr<grpc::Channel>& channel,
                                                      std::shared_ptr<Inbox> inbox,
                                                      std::size_t max_payload_bytes) {
  static const std::string method = "/gradwire.v1.AggregationService/Exchange";
  std::shared_ptr<ExchangeStream> stream(new ExchangeStream(std::move(inbox), max_payload_bytes));
  stream->self_ = stream;
  grpc::GenericStub stub(channel);
  stub.PrepareBidiStreamingCall(&stream->context_, method, grpc::StubOptions(), stream.get());
  stream->AddHold();
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

ExchangeStream::ExchangeStream(std::shared_ptr<Inbox> inbox, std::size_t max_payload_bytes)
    : inbox_(std::move(inbox)), max_payload_bytes_(max_payload_bytes) {}

void ExchangeStream::Write(const wire::Frame& frame) {
  grpc::ByteBuffer bytes = wire::Serialize(frame.header, frame.payload);
  outgoing_.Swap(&bytes);
  StartWrite(&outgoing_);
}

void ExchangeStream::ReadOn() { StartRead(&incoming_); }

void ExchangeStream::Release() {
  if (released_) return;
  released_ = true;
  RemoveHold();
}

void ExchangeStream::Cancel() {
  context_.TryCancel();
  Release();
}

void ExchangeStream::OnReadDone(bool ok) {
  if (!ok) {
    const std::shared_ptr<Inbox> inbox = inbox_;
    return inbox->Push(ReadEndEvent{});
  }
  absl::StatusOr<wire::Frame> frame =
      wire::Parse(incoming_, {.max_payload_bytes = max_payload_bytes_});
  incoming_.Clear();
  // The next frame is read while this one is dealt with.
  const std::shared_ptr<Inbox> inbox = inbox_;  // the stream may be gone before Work returns
  if (inbox->PushFrame(std::move(frame))) StartRead(&incoming_);
  inbox->Work();
}

void ExchangeStream::OnWriteDone(bool ok) {
  // The slices go back to the pool now, not with the next write.
  outgoing_.Clear();
  const std::shared_ptr<Inbox> inbox = inbox_;
  inbox->Push(WriteEvent{ok});
}

void ExchangeStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<Inbox> inbox = inbox_;  // the stream may be gone before Push returns
  inbox->Push(StreamEndEvent{.status = wire::FromGrpc(status), .stream = std::move(self_)});
}

}  // namespace gradwire::client
