// gradwirectl: asks a daemon what it does. Results go to standard output, everything else to
// standard error. Exit codes: 0 fine, 1 the daemon refused or is not serving, 2 usage, 69
// unreachable.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/util/json_util.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "server/health_client.h"
#include "server/version.h"

namespace {

namespace v1 = gradwire::v1;

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kUnreachable = 69;
constexpr int kRefreshSeconds = 1;

struct Options {
  std::string address = "127.0.0.1:29610";
  std::string output = "table";
  std::string session;
  std::string service;
  int timeout_seconds = 5;
  bool watch = false;
};

void SetDeadline(const Options& options, grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(options.timeout_seconds));
}

int Report(const Options& options, const grpc::Status& status) {
  const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                           status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  if (unreachable) {
    std::cerr << "gradwirectl: no daemon answers at " << options.address << ": "
              << status.error_message() << std::endl;
    return kUnreachable;
  }
  std::cerr << "gradwirectl: " << status.error_message() << std::endl;
  return kFailed;
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string text;
  if (google::protobuf::util::MessageToJsonString(message, &text, print).ok()) std::cout << text;
  std::cout.flush();
}

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + static_cast<double>(duration.nanos()) * 1e-9;
}

std::string HookText(const v1::HookSpec& hook) {
  std::string text = hook.comm_hook().empty() ? "no" : hook.comm_hook();
  if (!hook.comm_wrapper().empty() && hook.comm_wrapper() != "no") {
    absl::StrAppend(&text, ", wrapper ", hook.comm_wrapper());
  }
  return text;
}

void PrintSession(const v1::SessionStatus& session, bool details) {
  std::cout << "session " << session.name() << ": " << session.waiting_for() << "\n";
  std::cout << absl::StrFormat("  %s, step %d, hook %s, %d members, generation %d\n",
                               session.state(), session.step(), HookText(session.hook()),
                               session.world_size(), session.generation());
  if (details) {
    std::cout << absl::StrFormat(
        "  %d parameters, %.3f MB of gradients a step and member; %.3f MB reserved\n",
        session.parameters(), static_cast<double>(session.gradient_bytes()) / 1e6,
        static_cast<double>(session.reserved_bytes()) / 1e6);
    std::cout << absl::StrFormat("  received %.3f MB, sent %.3f MB, %d chunks repeated\n",
                                 static_cast<double>(session.contribution_bytes_total()) / 1e6,
                                 static_cast<double>(session.result_bytes_total()) / 1e6,
                                 session.duplicate_chunks_total());
    std::cout << absl::StrFormat("  steps: %d applied, %d skipped\n", session.steps_applied_total(),
                                 session.steps_skipped_total());
  }
  for (const v1::MemberStatus& member : session.members()) {
    std::cout << absl::StrFormat("  rank %-4d %-10s last heard %.1f s ago, sent %.3f MB\n",
                                 member.rank(), member.state(), Seconds(member.last_heard()),
                                 static_cast<double>(member.contribution_bytes_total()) / 1e6);
  }
}

int Status(const Options& options, v1::AdminService::Stub& stub) {
  grpc::ClientContext server_context;
  SetDeadline(options, server_context);
  v1::GetServerResponse server;
  grpc::Status status = stub.GetServer(&server_context, {}, &server);
  if (!status.ok()) return Report(options, status);
  grpc::ClientContext list_context;
  SetDeadline(options, list_context);
  v1::ListSessionsResponse sessions;
  status = stub.ListSessions(&list_context, {}, &sessions);
  if (!status.ok()) return Report(options, status);
  if (options.output == "json") {
    PrintJson(sessions);
    return 0;
  }
  std::cout << absl::StrFormat(
      "gradwired %s, up %.0f s, %d sessions, %d connections, %.1f of %.1f MB reserved%s\n",
      server.version(), Seconds(server.uptime()), server.sessions(), server.connections(),
      static_cast<double>(server.reserved_bytes()) / 1e6,
      static_cast<double>(server.memory_limit_bytes()) / 1e6,
      server.draining() ? ", draining" : "");
  for (const v1::SessionStatus& session : sessions.sessions()) PrintSession(session, false);
  if (sessions.sessions().empty()) std::cout << "no session is open\n";
  std::cout.flush();
  return 0;
}

int WatchStatus(const Options& options, v1::AdminService::Stub& stub) {
  for (;;) {
    if (isatty(STDOUT_FILENO) != 0) std::cout << "\033[H\033[2J";
    if (const int code = Status(options, stub); code != 0 || !options.watch) return code;
    sleep(kRefreshSeconds);
  }
}

int GetSession(const Options& options, v1::AdminService::Stub& stub) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::GetSessionRequest request;
  request.set_session(options.session);
  v1::GetSessionResponse response;
  const grpc::Status status = stub.GetSession(&context, request, &response);
  if (!status.ok()) return Report(options, status);
  if (options.output == "json") {
    PrintJson(response.session());
  } else {
    PrintSession(response.session(), true);
    std::cout.flush();
  }
  return 0;
}

int Health(const Options& options, const std::shared_ptr<grpc::Channel>& channel) {
  bool serving = false;
  const grpc::Status status = gradwire::server::CheckHealth(
      channel, options.service, std::chrono::seconds(options.timeout_seconds), &serving);
  if (!status.ok()) return Report(options, status);
  std::cout << (serving ? "serving" : "not serving") << std::endl;
  return serving ? 0 : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Asks a Gradwire daemon what it does"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("gradwirectl ") + gradwire::server::kVersion);
  app.add_option("--address", options.address, "host:port or unix:/path of the daemon")
      ->envname("GRADWIRE_ADDRESS")
      ->capture_default_str();
  app.add_option("-o,--output", options.output, "how to print")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_seconds, "seconds to wait for an answer")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app.fallthrough();
  CLI::App* status =
      app.add_subcommand("status", "sessions, members, and what is being waited for");
  status->add_flag("-w,--watch", options.watch, "refresh every second");
  CLI::App* session = app.add_subcommand("session", "one session");
  session->require_subcommand(1);
  CLI::App* get = session->add_subcommand("get", "all that the daemon knows of a session");
  get->add_option("name", options.session, "the session")->required();
  get->fallthrough();
  session->fallthrough();
  CLI::App* health = app.add_subcommand("health", "0 serving, 1 not serving, 69 unreachable");
  health->add_option("--service", options.service, "a gRPC service; none: the whole daemon");
  CLI::App* version = app.add_subcommand("version", "print the version");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (version->parsed()) {
    std::cout << "gradwirectl " << gradwire::server::kVersion << std::endl;
    return 0;
  }
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials());
  if (health->parsed()) return Health(options, channel);
  const std::unique_ptr<v1::AdminService::Stub> stub = v1::AdminService::NewStub(channel);
  if (get->parsed()) return GetSession(options, *stub);
  return WatchStatus(options, *stub);
}
