// The methods that can be called, by name.
#pragma once

#include <google/protobuf/descriptor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/rpc/call.h"
#include "server/rpc/messages.h"

namespace gradwire::server {

// One message each way, or a stream of them.
enum class MethodKind { kUnary, kServerStream, kClientStream, kBothStream };

class Methods {
 public:
  using Factory = std::function<std::shared_ptr<Call>()>;

  // Each call of the one method that has these types and this kind is handed to a new
  // `make_shared<Handler>(arguments...)`. The name is the descriptors'; a program that has no such
  // method, or two, ends here.
  template <class Request, class Response, class Handler, class... Arguments>
  void Add(MethodKind kind, Arguments... arguments) {
    Add(Request::descriptor(), Response::descriptor(), kind,
        [arguments...] { return std::make_shared<Handler>(arguments...); });
  }

  // Where several methods have these types: that one.
  template <class Request, class Response, class Handler, class... Arguments>
  void AddNamed(const std::string& method, MethodKind kind, Arguments... arguments) {
    Add(
        Request::descriptor(), Response::descriptor(), kind,
        [arguments...] { return std::make_shared<Handler>(arguments...); }, method);
  }

  // `handler(request, response)` answers; the response goes out if its status is OK.
  template <class Request, class Response>
  void AddUnary(std::function<absl::Status(const Request&, Response&)> handler) {
    AddUnaryOf<Request, Response>([handler = std::move(handler)](const Request& request,
                                                                 Response& response,
                                                                 const Caller& /*caller*/) {
      return handler(request, response);
    });
  }
  // `handler(request, response, caller)`.
  template <class Request, class Response>
  void AddUnaryOf(typename UnaryCall<Request, Response>::Handler handler) {
    Add<Request, Response, UnaryCall<Request, Response>>(MethodKind::kUnary, std::move(handler));
  }

  // Null: no method has that name.
  std::shared_ptr<Call> Make(const std::string& name) const;

  // Full names of those with a method here.
  std::vector<std::string> services() const;

 private:
  void Add(const google::protobuf::Descriptor* request,
           const google::protobuf::Descriptor* response, MethodKind kind, Factory factory,
           const std::string& method = "");

  std::map<std::string, Factory> factories_;  // by "/package.Service/Method"
};

}  // namespace gradwire::server
