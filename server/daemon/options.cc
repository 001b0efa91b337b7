#include "server/daemon/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/core/session_options.h"
#include "server/daemon/exit_codes.h"
#include "server/daemon/memory_limit.h"
#include "server/net/listener.h"

namespace gradwire::server {
namespace {

absl::Status CheckRange(const std::string& name, std::int64_t value, std::int64_t low,
                        std::int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; allowed are ", low, " to ", high));
}

absl::Status CheckDuration(const std::string& name, absl::Duration value) {
  if (value > absl::ZeroDuration() && value <= absl::Hours(24 * 365)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", absl::FormatDuration(value),
                                                 "; allowed: more than 0, at most a year"));
}

// Applies the sessions' own rules, so that a wrong flag is refused at the start of the daemon and
// not at the first join.
absl::Status CheckSession(const ServerOptions& options) {
  SessionOptions session;
  session.name = "check";
  session.chunk_bytes = options.chunk_bytes;
  session.window_chunks = options.window_chunks;
  session.open_buckets = options.open_buckets;
  return session.Validate();
}

absl::Status CheckTls(const tls::Files& files) {
  if (absl::Status pair = tls::CheckFiles(files, "tls_"); !pair.ok()) return pair;
  if (files.ca.empty() || !files.cert.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "tls_client_ca is set, and tls_cert is not; allowed: with tls_cert and tls_key");
}

absl::Status CheckHttp(const ServerOptions& options) {
  if (options.http_listen == "off" || options.http_listen == "auto") return absl::OkStatus();
  if (IsUnixAddress(options.http_listen)) {
    return absl::InvalidArgumentError(absl::StrCat("http_listen is \"", options.http_listen,
                                                   "\"; allowed are host:port, off and auto"));
  }
  const absl::Status status = CheckListenAddress(options.http_listen, options.insecure_http);
  if (status.code() != absl::StatusCode::kFailedPrecondition) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("http_listen is \"", options.http_listen,
                   "\", which other hosts can reach; names of sessions can be read there without "
                   "encryption: allow that with --insecure-http"));
}

CLI::Validator DurationText() {
  return CLI::Validator(
      [](const std::string& text) {
        absl::Duration duration;
        if (absl::ParseDuration(text, &duration)) return std::string();
        return absl::StrCat("\"", text,
                            "\" is not a duration; allowed are, for example, 500ms, 30s, 2m");
      },
      "");
}

}  // namespace

bool ServerOptions::ListensOnUnixSocket() const {
  return std::any_of(listen.begin(), listen.end(), IsUnixAddress);
}

absl::StatusOr<std::size_t> ServerOptions::MemoryBytes() const {
  return ParseMemoryLimit(memory_limit, AvailableMemory());
}

absl::StatusOr<std::vector<int>> ServerOptions::Gpus() const {
  if (reduce == "cpu" || reduce == "cuda") return std::vector<int>();
  std::vector<int> gpus;
  absl::string_view list = reduce;
  bool valid = absl::ConsumePrefix(&list, "cuda:");
  for (const absl::string_view number : absl::StrSplit(list, ',')) {
    int gpu = 0;
    valid = valid && number.size() <= 3 && absl::SimpleAtoi(number, &gpu) && gpu >= 0 &&
            std::find(gpus.begin(), gpus.end(), gpu) == gpus.end();
    gpus.push_back(gpu);
  }
  if (valid) return gpus;
  return absl::InvalidArgumentError(absl::StrCat(
      "reduce is \"", reduce, "\"; allowed are cpu, cuda, and cuda:0,2 with each GPU once"));
}

absl::Status ServerOptions::Validate() const {
  if (absl::Status status = CheckTls(tls); !status.ok()) return status;
  if (listen.empty())
    return absl::InvalidArgumentError("listen is empty; allowed: one address or more");
  for (const std::string& address : listen) {
    if (absl::Status status = CheckListenAddress(address, insecure || !tls.cert.empty());
        !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = CheckHttp(*this); !status.ok()) return status;
  const std::pair<const char*, absl::Duration> durations[] = {
      {"join_timeout", join_timeout},       {"step_timeout", step_timeout},
      {"token_timeout", token_timeout},     {"hello_timeout", hello_timeout},
      {"resume_grace", resume_grace},       {"heartbeat_interval", heartbeat_interval},
      {"silence_timeout", silence_timeout}, {"handshake_timeout", handshake_timeout},
      {"close_timeout", close_timeout},     {"drain_timeout", drain_timeout},
  };
  for (const auto& [name, value] : durations) {
    if (absl::Status status = CheckDuration(name, value); !status.ok()) return status;
  }
  // Otherwise a member that only sends heartbeats would count as silent between two of them.
  if (heartbeat_interval >= silence_timeout) {
    return absl::InvalidArgumentError("heartbeat_interval must be shorter than silence_timeout");
  }
  if (log_level != "debug" && log_level != "info" && log_level != "warning" &&
      log_level != "error") {
    return absl::InvalidArgumentError(absl::StrCat(
        "log_level is \"", log_level, "\"; allowed are debug, info, warning and error"));
  }
  if (log_format != "text" && log_format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log_format is \"", log_format, "\"; allowed are text and json"));
  }
  for (const absl::Status& status :
       {CheckRange("max_connections", max_connections, 1, 1'000'000),
        CheckRange("max_sessions", max_sessions, 1, 1'000'000), CheckSession(*this),
        MemoryBytes().status(), Gpus().status()}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  ServerOptions& options = line.options;
  // A daemon by itself shows its status; one inside another program does when it is told to.
  options.http_listen = "auto";
  std::string drain_timeout = absl::FormatDuration(options.drain_timeout);
  CLI::App app("Gradwire's daemon: reduces the gradients of training sessions.", "gradwired");
  app.set_version_flag("--version", absl::StrCat("gradwired ", GRADWIRE_VERSION));
  app.option_defaults()->always_capture_default();
  const auto add = [&app](const std::string& name, auto& value, const std::string& help) {
    std::string variable = "GRADWIRE_" + name;
    for (char& c : variable) {
      c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    return app.add_option("--" + name, value, help)->envname(variable);
  };
  add("listen", options.listen, "Address: host:port, [v6]:port or unix:/path; may be repeated")
      ->delimiter(',')
      ->type_name("ADDRESS");
  app.add_flag("--insecure", options.insecure,
               "Allow addresses that other hosts can reach without TLS")
      ->envname("GRADWIRE_INSECURE");
  add("tls-cert", options.tls.cert, "Certificate for TCP addresses, a PEM file; turns on TLS")
      ->type_name("PATH");
  add("tls-key", options.tls.key, "The certificate's private key, a PEM file")->type_name("PATH");
  add("tls-client-ca", options.tls.ca,
      "Authorities of clients' certificates, a PEM file; clients without one are refused")
      ->type_name("PATH");
  add("tokens", options.tokens, "Lines of name, role, sessions and token: who may do what over TCP")
      ->type_name("PATH");
  add("http-listen", options.http_listen,
      "Address of metrics, probes and the status page: host:port, off, or auto (127.0.0.1:29611 if "
      "it is free)")
      ->type_name("ADDRESS");
  app.add_flag("--insecure-http", options.insecure_http,
               "Allow an HTTP address that other hosts can reach; it is read-only, not encrypted")
      ->envname("GRADWIRE_INSECURE_HTTP");
  add("max-connections", options.max_connections,
      "Maximum number of connections; further ones are reset");
  add("max-sessions", options.max_sessions, "Maximum number of sessions");
  add("memory-limit", options.memory_limit,
      "Memory that all sessions may reserve, such as 2GiB or 80%")
      ->type_name("SIZE");
  add("chunk-bytes", options.chunk_bytes, "Size of a chunk, the unit of one message")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("SIZE");
  add("window-chunks", options.window_chunks,
      "Chunks a member may send beyond acknowledged results");
  add("open-buckets", options.open_buckets, "Buckets of a session that are reduced at once");
  add("reduce", options.reduce,
      "What computes the sums: cpu, cuda (all GPUs), or cuda:0,1 (these GPUs)")
      ->type_name("DEVICES");
  add("cuda-library", options.cuda_library,
      "Path of libgradwire_cuda.so, if it is not where it was installed")
      ->type_name("PATH");
  add("drain-timeout", drain_timeout, "Time for running sessions to finish after SIGTERM")
      ->check(DurationText())
      ->type_name("DURATION");
  app.add_flag("--stop-on-eof", options.stop_on_eof,
               "Drain when standard input ends, as on SIGTERM; for a parent that holds a pipe");
  add("log-level", options.log_level, "debug, info, warning or error")->type_name("LEVEL");
  add("log-format", options.log_format, "text or json")->type_name("FORMAT");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    line.exit = true;
    line.exit_code = app.exit(error) == 0 ? kExitOk : kExitUsage;
    return line;
  }
  // The text is the default, or DurationText has accepted it.
  absl::ParseDuration(drain_timeout, &options.drain_timeout);
  if (absl::Status status = options.Validate(); !status.ok()) {
    std::cerr << "gradwired: " << status.message() << "\n";
    line.exit = true;
    line.exit_code = kExitUsage;
  }
  return line;
}

}  // namespace gradwire::server
