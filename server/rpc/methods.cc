#include "server/rpc/methods.h"

#include <spdlog/spdlog.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace gradwire::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;

MethodKind KindOf(const MethodDescriptor& method) {
  if (method.client_streaming()) {
    return method.server_streaming() ? MethodKind::kBothStream : MethodKind::kClientStream;
  }
  return method.server_streaming() ? MethodKind::kServerStream : MethodKind::kUnary;
}

// "/package.Service/Method" of those with these types and this kind, in the file of the request.
// `name`: that of the method, if it is not empty.
std::vector<std::string> NamesOf(const Descriptor* request, const Descriptor* response,
                                 MethodKind kind, const std::string& name) {
  std::vector<std::string> names;
  const FileDescriptor& file = *request->file();
  for (int i = 0; i < file.service_count(); ++i) {
    for (int j = 0; j < file.service(i)->method_count(); ++j) {
      const MethodDescriptor& method = *file.service(i)->method(j);
      if (method.input_type() != request || method.output_type() != response) continue;
      if (KindOf(method) != kind || (!name.empty() && method.name() != name)) continue;
      names.push_back(absl::StrCat("/", method.service()->full_name(), "/", method.name()));
    }
  }
  return names;
}

}  // namespace

// A method is found by its message types, so a misspelt name cannot occur. If the .proto files make
// the types ambiguous, the daemon aborts at its start.
void Methods::Add(const Descriptor* request, const Descriptor* response, MethodKind kind,
                  Factory factory, const std::string& method) {
  const std::vector<std::string> names = NamesOf(request, response, kind, method);
  if (names.size() != 1 || !factories_.emplace(names[0], std::move(factory)).second) {
    spdlog::critical("no one method takes {} and gives {}", request->full_name(),
                     response->full_name());
    std::abort();
  }
}

std::shared_ptr<Call> Methods::Make(const std::string& name) const {
  const auto found = factories_.find(name);
  return found == factories_.end() ? nullptr : found->second();
}

// The map is sorted, so the methods of one service are adjacent.
std::vector<std::string> Methods::services() const {
  std::vector<std::string> services;
  for (const auto& [name, factory] : factories_) {
    std::string service = name.substr(1, name.rfind('/') - 1);
    if (services.empty() || services.back() != service) services.push_back(std::move(service));
  }
  return services;
}

}  // namespace gradwire::server
