#include "server/services/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/rpc/messages.h"
#include "server/rpc/rpc_threads.h"

namespace gradwire::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

using Services = std::vector<std::string>;

// The file and those that it imports, each once and each before its imports.
template <class Files>
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>& added, Files& files) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  files.add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, files);
}

template <class Response>
absl::Status AnswerFile(const FileDescriptor* file, const std::string& asked, Response& response) {
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("no file has ", asked));
  std::set<const FileDescriptor*> added;
  AddFile(*file, added, *response.mutable_file_descriptor_response());
  return absl::OkStatus();
}

template <class Response>
absl::Status AnswerExtensions(const std::string& type, Response& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* const message = pool.FindMessageTypeByName(type);
  if (message == nullptr) return absl::NotFoundError(absl::StrCat("no type is called ", type));
  auto& numbers = *response.mutable_all_extension_numbers_response();
  numbers.set_base_type_name(type);
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(message, &extensions);
  for (const FieldDescriptor* extension : extensions) {
    numbers.add_extension_number(extension->number());
  }
  return absl::OkStatus();
}

const FileDescriptor* FileOfExtension(const std::string& type, int number) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* const message = pool.FindMessageTypeByName(type);
  if (message == nullptr) return nullptr;
  const FieldDescriptor* const extension = pool.FindExtensionByNumber(message, number);
  return extension == nullptr ? nullptr : extension->file();
}

// Both versions of the protocol have the same messages in different packages, hence the templates.
template <class Request, class Response>
absl::Status Answer(const Request& request, const Services& services, Response& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      return AnswerFile(pool.FindFileByName(request.file_by_filename()), request.file_by_filename(),
                        response);
    case Request::kFileContainingSymbol:
      return AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                        request.file_containing_symbol(), response);
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      return AnswerFile(
          FileOfExtension(asked.containing_type(), asked.extension_number()),
          absl::StrCat("extension ", asked.extension_number(), " of ", asked.containing_type()),
          response);
    }
    case Request::kAllExtensionNumbersOfType:
      return AnswerExtensions(request.all_extension_numbers_of_type(), response);
    case Request::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      return absl::OkStatus();
    case Request::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("message_request: not set");
}

// Every answer repeats its question, so the question's size is limited.
constexpr std::size_t kLongestQuestion = 4096;

// Reads the next question only after the last answer was written.
template <class Request, class Response>
class ReflectionStream final : public Call {
 public:
  explicit ReflectionStream(std::shared_ptr<const Services> services)
      : services_(std::move(services)) {}

 private:
  void OnStart() override { StartRead(); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(absl::OkStatus());
    if (const std::size_t bytes = incoming().Length(); bytes > kLongestQuestion) {
      return Finish(absl::InvalidArgumentError(absl::StrCat(
          method(), ": a question of ", bytes, " bytes; allowed: at most ", kLongestQuestion)));
    }
    RpcThreads::YieldLeadership();  // a file's answer has all that it imports
    Request request;
    if (absl::Status status = FromBytes(method(), incoming(), request); !status.ok()) {
      return Finish(status);
    }
    Response response;
    response.set_valid_host(request.host());
    if (absl::Status status = Answer(request, *services_, response); !status.ok()) {
      auto& error = *response.mutable_error_response();
      error.set_error_code(static_cast<int>(status.code()));
      error.set_error_message(std::string(status.message()));
    }
    // The protocol reports an error in the answer and keeps the stream.
    *response.mutable_original_request() = std::move(request);
    StartWrite(ToBytes(response));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(absl::CancelledError("the reader is gone"));
    StartRead();
  }

  const std::shared_ptr<const Services> services_;
};

template <class Request, class Response>
void Add(const std::shared_ptr<Services>& services, Methods& methods) {
  methods.Add<Request, Response, ReflectionStream<Request, Response>>(
      MethodKind::kBothStream, std::shared_ptr<const Services>(services));
}

}  // namespace

// Both versions, because older tools such as grpcurl know only v1alpha. The list of services is
// made last, so that it has the reflection services themselves.
void AddReflection(Methods& methods) {
  namespace v1 = grpc::reflection::v1;
  namespace v1alpha = grpc::reflection::v1alpha;
  const auto services = std::make_shared<Services>();
  Add<v1::ServerReflectionRequest, v1::ServerReflectionResponse>(services, methods);
  Add<v1alpha::ServerReflectionRequest, v1alpha::ServerReflectionResponse>(services, methods);
  *services = methods.services();
}

}  // namespace gradwire::server
