// What tools ask of any gRPC server.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "tests/testing/test_daemon.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::TestDaemon;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

namespace health = grpc::health::v1;

constexpr char kAggregation[] = "gradwire.v1.AggregationService";
constexpr char kAdmin[] = "gradwire.v1.AdminService";

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

std::shared_ptr<grpc::Channel> Connect(const TestDaemon& daemon) {
  return grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials());
}

health::HealthCheckRequest About(const std::string& service) {
  health::HealthCheckRequest request;
  request.set_service(service);
  return request;
}

grpc::Status Check(const TestDaemon& daemon, const std::string& service,
                   health::HealthCheckResponse& response) {
  grpc::ClientContext context;
  SetDeadline(context);
  return health::Health::NewStub(Connect(daemon))->Check(&context, About(service), &response);
}

class HealthWatcher {
 public:
  HealthWatcher(const TestDaemon& daemon, const std::string& service)
      : stub_(health::Health::NewStub(Connect(daemon))) {
    SetDeadline(context_);
    reader_ = stub_->Watch(&context_, About(service));
  }
  // UNKNOWN: the watch has ended.
  health::HealthCheckResponse::ServingStatus Next() {
    health::HealthCheckResponse response;
    return reader_->Read(&response) ? response.status() : health::HealthCheckResponse::UNKNOWN;
  }
  grpc::Status Finish() { return reader_->Finish(); }

 private:
  const std::unique_ptr<health::Health::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<health::HealthCheckResponse>> reader_;
};

TEST(HealthTest, KnowsTheDaemonAndItsServices) {
  TestDaemon daemon;
  health::HealthCheckResponse response;
  for (const std::string service : {"", kAggregation, kAdmin}) {
    EXPECT_TRUE(Check(daemon, service, response).ok()) << service;
    EXPECT_EQ(response.status(), health::HealthCheckResponse::SERVING) << service;
  }
  const grpc::Status unknown = Check(daemon, "a.B", response);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(unknown.error_message(), HasSubstr("a.B"));

  daemon.server().BeginDrain();
  for (const std::string service : {"", kAggregation, kAdmin}) {
    EXPECT_TRUE(Check(daemon, service, response).ok()) << service;
    EXPECT_EQ(response.status(), health::HealthCheckResponse::NOT_SERVING) << service;
  }
}

TEST(HealthTest, NamesOfServicesAreShort) {
  TestDaemon daemon;
  health::HealthCheckResponse response;
  const grpc::Status long_name = Check(daemon, std::string(201, 'a'), response);
  EXPECT_EQ(long_name.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(long_name.error_message(), HasSubstr("201 bytes; allowed: at most 200"));
  EXPECT_EQ(Check(daemon, std::string(200, 'a'), response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  HealthWatcher watcher(daemon, std::string(1 << 20, 'a'));
  EXPECT_EQ(watcher.Next(), health::HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(watcher.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(ReflectionTest, QuestionsAreShort) {
  TestDaemon daemon;
  const auto stub = grpc::reflection::v1::ServerReflection::NewStub(Connect(daemon));
  grpc::ClientContext context;
  SetDeadline(context);
  const auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest question;
  question.set_file_by_filename(std::string(5000, 'a'));
  EXPECT_TRUE(stream->Write(question));
  grpc::reflection::v1::ServerReflectionResponse answer;
  EXPECT_FALSE(stream->Read(&answer));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("allowed: at most 4096"));
}

TEST(HealthTest, WatchersHearOfTheDrainAndOfTheEnd) {
  TestDaemon daemon;
  HealthWatcher all(daemon, "");
  HealthWatcher one(daemon, kAggregation);
  HealthWatcher unknown(daemon, "a.B");
  EXPECT_EQ(all.Next(), health::HealthCheckResponse::SERVING);
  EXPECT_EQ(one.Next(), health::HealthCheckResponse::SERVING);
  EXPECT_EQ(unknown.Next(), health::HealthCheckResponse::SERVICE_UNKNOWN);
  daemon.server().BeginDrain();
  EXPECT_EQ(all.Next(), health::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(one.Next(), health::HealthCheckResponse::NOT_SERVING);
  // Watchers are no reason to use up the time.
  daemon.server().Shutdown(absl::Minutes(2));
  for (HealthWatcher* watcher : {&all, &one, &unknown}) {
    EXPECT_EQ(watcher->Next(), health::HealthCheckResponse::UNKNOWN);
    EXPECT_EQ(watcher->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

TEST(HealthTest, AWatcherThatReadsNothingHoldsNothingUp) {
  TestDaemon daemon;
  const HealthWatcher mute(daemon, "");
  daemon.server().BeginDrain();
  daemon.server().Shutdown(absl::Minutes(2));
}

struct V1 {
  using Service = grpc::reflection::v1::ServerReflection;
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;
};
struct V1Alpha {
  using Service = grpc::reflection::v1alpha::ServerReflection;
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;
};

template <class Version>
class ReflectionTest : public ::testing::Test {
 protected:
  using Request = typename Version::Request;
  using Response = typename Version::Response;

  ReflectionTest() {
    SetDeadline(context_);
    stream_ = stub_->ServerReflectionInfo(&context_);
  }

  Response Ask(const Request& request) {
    Response response;
    EXPECT_TRUE(stream_->Write(request));
    EXPECT_TRUE(stream_->Read(&response));
    EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
    return response;
  }

  TestDaemon daemon_;
  const std::unique_ptr<typename Version::Service::Stub> stub_ =
      Version::Service::NewStub(Connect(daemon_));
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
};

using Versions = ::testing::Types<V1, V1Alpha>;
TYPED_TEST_SUITE(ReflectionTest, Versions);

template <class Response>
std::vector<std::string> FileNames(const Response& response) {
  std::vector<std::string> names;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  return names;
}

TYPED_TEST(ReflectionTest, ListsTheServices) {
  typename TypeParam::Request request;
  request.set_list_services("");
  const auto response = this->Ask(request);
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names, IsSupersetOf({std::string(kAggregation), std::string(kAdmin),
                                   std::string("grpc.health.v1.Health"),
                                   std::string("grpc.reflection.v1alpha.ServerReflection")}));
  this->stream_->WritesDone();
  EXPECT_TRUE(this->stream_->Finish().ok());
}

TYPED_TEST(ReflectionTest, FindsFiles) {
  typename TypeParam::Request request;
  for (const std::string symbol : {"gradwire.v1.AdminService", "gradwire.v1.AdminService.GetServer",
                                   "gradwire.v1.GetServerResponse"}) {
    request.set_file_containing_symbol(symbol);
    EXPECT_THAT(FileNames(this->Ask(request)),
                IsSupersetOf({std::string("gradwire/v1/admin.proto"),
                              std::string("google/protobuf/duration.proto")}));
  }
  request.set_file_by_filename("gradwire/v1/aggregation.proto");
  EXPECT_THAT(FileNames(this->Ask(request)), Contains("gradwire/v1/aggregation.proto"));
  request.mutable_file_containing_extension()->set_containing_type("google.protobuf.FieldOptions");
  request.mutable_file_containing_extension()->set_extension_number(1);
  EXPECT_EQ(this->Ask(request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
}

TYPED_TEST(ReflectionTest, SaysWhatThereIsNot) {
  typename TypeParam::Request request;
  const auto error = [&] { return this->Ask(request).error_response(); };
  EXPECT_EQ(error().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_file_containing_symbol("a.B");
  EXPECT_EQ(error().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(error().error_message(), HasSubstr("a.B"));
  request.set_file_by_filename("a.proto");
  EXPECT_EQ(error().error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_all_extension_numbers_of_type("a.B");
  EXPECT_EQ(error().error_code(), grpc::StatusCode::NOT_FOUND);
  request.mutable_file_containing_extension()->set_containing_type("a.B");
  EXPECT_EQ(error().error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_all_extension_numbers_of_type("gradwire.v1.Frame");
  EXPECT_EQ(this->Ask(request).all_extension_numbers_response().base_type_name(),
            "gradwire.v1.Frame");
}

}  // namespace
}  // namespace gradwire::server
