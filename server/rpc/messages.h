// Calls whose bytes are protobuf messages.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "server/rpc/call.h"

namespace gradwire::server {

template <class Message>
grpc::ByteBuffer ToBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  // Fails only for messages of more than 2 GiB, which nobody builds; the call then fails at the
  // peer.
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);
  return bytes;
}

// InvalidArgument, which names the method, if the bytes are no such message.
template <class Message>
absl::Status FromBytes(const std::string& method, grpc::ByteBuffer& bytes, Message& message) {
  if (grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok()) {
    return absl::OkStatus();
  }
  return Coded(ErrorCode::kProtocolVersion,
               absl::InvalidArgumentError(absl::StrCat(method, ": the bytes are no ",
                                                       Message::descriptor()->full_name())));
}

// A call that brings one message. It is finished with InvalidArgument where that is missing or bad.
template <class Request>
class RequestCall : public Call {
 protected:
  virtual void OnRequest(const Request& request) = 0;

 private:
  void OnStart() final { StartRead(); }

  void OnReadDone(bool ok) final {
    if (!ok)
      return Finish(absl::InvalidArgumentError(absl::StrCat(method(), ": without a message")));
    Request request;
    if (absl::Status status = FromBytes(method(), incoming(), request); !status.ok()) {
      return Finish(status);
    }
    OnRequest(request);
  }
};

// A call that brings one message and takes one.
template <class Request, class Response>
class UnaryCall final : public RequestCall<Request> {
 public:
  using Handler = std::function<absl::Status(const Request&, Response&, const Caller&)>;

  explicit UnaryCall(Handler handler) : handler_(std::move(handler)) {}

 private:
  void OnRequest(const Request& request) override {
    Response response;
    if (absl::Status status = handler_(request, response, this->caller()); !status.ok()) {
      return this->Finish(status);
    }
    this->WriteAndFinish(ToBytes(response));
  }

  const Handler handler_;
};

}  // namespace gradwire::server
