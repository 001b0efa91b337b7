#include "client/options.h"

#include <cstdlib>
#include <iostream>
#include <unordered_set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/limits.h"
#include "client/addresses.h"
#include "hooks/draw_buckets.h"
#include "proto/tls/channel_credentials.h"

namespace gradwire {
namespace {

absl::Status Bad(const std::string& field, const std::string& value, const std::string& allowed) {
  return Coded(ErrorCode::kOption, absl::InvalidArgumentError(
                                       absl::StrCat(field, " is ", value, "; allowed: ", allowed)));
}

bool IsSessionName(const std::string& name) {
  if (name.empty() || name.size() > kMaxSessionNameBytes) return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

absl::Status CheckTimeout(const std::string& field, absl::Duration value) {
  if (value > absl::ZeroDuration() && value <= absl::Hours(24 * 30)) return absl::OkStatus();
  return Bad(field, absl::FormatDuration(value), "more than 0, at most 30 days");
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status CheckNode(const ClientOptions& options) {
  const int local = options.local_rank;
  const int members = options.local_world_size;
  if (local == -1 && members == 0) return absl::OkStatus();
  if (members < 1 || members > options.world_size) {
    return Bad(
        "local_world_size", absl::StrCat(members, " with local_rank ", local),
        absl::StrCat("1 to ", options.world_size, ", the world size, or neither of the two"));
  }
  if (local < 0 || local >= members) {
    return Bad("local_rank", absl::StrCat(local, " with local_world_size ", members),
               absl::StrCat("0 to ", members - 1, ", or neither of the two"));
  }
  if (options.rank < 0 || NodeOf(options)) return absl::OkStatus();
  return Bad("local_rank",
             absl::StrCat(local, " with local_world_size ", members, ", rank ", options.rank,
                          " and world_size ", options.world_size),
             "ranks of a node that follow each other, from rank - local_rank on");
}

}  // namespace

ClientOptions WithEnvironment(ClientOptions options) {
  const std::pair<std::string&, const char*> texts[] = {
      {options.address, "GRADWIRE_ADDRESS"},
      {options.session, "GRADWIRE_SESSION"},
      {options.tls.ca, "GRADWIRE_TLS_CA"},
      {options.tls.cert, "GRADWIRE_TLS_CERT"},
      {options.tls.key, "GRADWIRE_TLS_KEY"},
      {options.token_file, "GRADWIRE_TOKEN_FILE"},
      {options.cuda_library, "GRADWIRE_CUDA_LIBRARY"},
      {options.nccl_library, "GRADWIRE_NCCL_LIBRARY"},
      {options.node_group, "GRADWIRE_NODE_GROUP"},
  };
  for (const auto& [text, variable] : texts) {
    if (text.empty()) text = Environment(variable);
  }
  if (options.node_group.empty()) options.node_group = "off";
  if (options.local_rank == -1 && options.local_world_size == 0) {
    ClientOptions placed = options;
    const bool numbers =
        absl::SimpleAtoi(Environment("LOCAL_RANK"), &placed.local_rank) &&
        absl::SimpleAtoi(Environment("LOCAL_WORLD_SIZE"), &placed.local_world_size);
    if (numbers && NodeOf(placed)) {
      options.local_rank = placed.local_rank;
      options.local_world_size = placed.local_world_size;
    }
  }
  if (Environment("GRADWIRE_SHARED_MEMORY") == "off") options.shared_memory = false;
  if (Environment("GRADWIRE_SHARED_GRADIENTS") == "off") options.shared_gradients = false;
  if (Environment("GRADWIRE_LOCAL_SOCKET") == "off") options.local_socket = false;
  if (Environment("GRADWIRE_KEEP_GRADIENTS") == "on") options.keep_gradients = true;
  return options;
}

std::optional<NodeRanks> NodeOf(const ClientOptions& options) {
  const int members = options.local_world_size;
  const bool is_place = options.local_rank >= 0 && options.local_rank < members;
  if (!is_place || options.rank < options.local_rank) return std::nullopt;
  const int first = options.rank - options.local_rank;
  if (members > options.world_size - first) return std::nullopt;
  return NodeRanks{.first = first, .members = members};
}

tls::Files TlsFiles(const ClientOptions& options) {
  return {.cert = options.tls.cert, .key = options.tls.key, .ca = options.tls.ca};
}

tls::TokenSource TokenOf(const ClientOptions& options) {
  return {.file = options.token_file, .value = Environment("GRADWIRE_TOKEN")};
}

void SayWait(const std::function<void(const std::string& line)>& on_wait, const std::string& line) {
  if (on_wait) return on_wait(line);
  std::cerr << absl::StrCat("gradwire: ", line,
                            "\n");  // one write, not to mix with other ranks' lines
}

absl::Status ClientOptions::Validate() const {
  const ClientOptions effective = WithEnvironment(*this);
  if (effective.address.empty()) {
    return Coded(
        ErrorCode::kNotGiven,
        Bad("address", "empty", "\"unix:/path\", \"host:port\", or the variable GRADWIRE_ADDRESS"));
  }
  for (const char* name : {"GRADWIRE_SHARED_MEMORY", "GRADWIRE_SHARED_GRADIENTS",
                           "GRADWIRE_LOCAL_SOCKET", "GRADWIRE_KEEP_GRADIENTS"}) {
    const std::string value = Environment(name);
    if (value.empty() || value == "on" || value == "off") continue;
    return Bad(absl::StrCat("the variable ", name), absl::StrCat("\"", value, "\""), "on, off");
  }
  const auto addresses = client::AddressesOf(effective.address);
  if (!addresses.ok()) return addresses.status();
  for (const std::string& one : *addresses) {
    if (absl::Status valid = tls::CheckClientFiles(one, TlsFiles(effective)); !valid.ok()) {
      return valid;
    }
  }
  if (!IsSessionName(effective.session)) {
    return Bad("session", absl::StrCat("\"", effective.session, "\""),
               "1 to 128 of A-Z, a-z, 0-9, '.', '_', '-'");
  }
  if (world_size < 1 || world_size > kMaxWorldSize) {
    return Coded(ErrorCode::kWorldSize,
                 Bad("world_size", absl::StrCat(world_size), absl::StrCat("1 to ", kMaxWorldSize)));
  }
  if (rank < -1 || rank >= world_size) {
    return Bad("rank", absl::StrCat(rank),
               absl::StrCat("0 to ", world_size - 1, ", or -1 for any free rank"));
  }
  if (absl::Status valid = CheckNode(*this); !valid.ok()) return valid;
  if (parameters.empty()) {
    return Coded(ErrorCode::kNotGiven,
                 Bad("parameters", "empty", "the model's parameters, one or more"));
  }
  std::unordered_set<std::string> names;
  for (const ParameterSpec& parameter : parameters) {
    if (absl::Status valid = parameter.Validate(); !valid.ok()) return valid;
    if (!names.insert(parameter.name).second) {
      return Coded(ErrorCode::kParameter, absl::InvalidArgumentError(absl::StrCat(
                                              "parameters: \"", parameter.name,
                                              "\" appears twice; names must be unique")));
    }
  }
  if (absl::Status valid = hook.Validate(); !valid.ok()) return valid;
  if (device.index < 0 || (device.kind == DeviceKind::kCpu && device.index > 0)) {
    return Bad("device", absl::StrCat("\"", Name(device), "\""), "\"cpu\", \"cuda:0\" and up");
  }
  const bool named = effective.node_group != "off" && effective.node_group != "auto";
  if (named && !IsSessionName(effective.node_group)) {
    return Bad("node_group", absl::StrCat("\"", effective.node_group, "\""),
               "\"off\", \"auto\", or a name of 1 to 128 of A-Z, a-z, 0-9, '.', '_', '-'");
  }
  if (named && device.kind == DeviceKind::kCpu) {
    return Bad("node_group", absl::StrCat("\"", effective.node_group, "\" with device \"cpu\""),
               "\"off\", \"auto\", or a GPU: members on the CPU are in no node group");
  }
  if (named && (addresses->size() > 1 || client::IsDaemonName(addresses->front()))) {
    return Bad("node_group", absl::StrCat("\"", effective.node_group, "\" with several daemons"),
               "\"off\" or \"auto\"");
  }
  if (absl::Status valid = CheckTimeout("connect_timeout", connect_timeout); !valid.ok())
    return valid;
  if (absl::Status valid = CheckTimeout("join_timeout", join_timeout); !valid.ok()) return valid;
  return CheckTimeout("step_timeout", step_timeout);
}

absl::Status CheckDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets, int rank,
                           std::size_t parameters) {
  if (rank != 0) {
    return Coded(ErrorCode::kDrawPlan, absl::FailedPreconditionError(absl::StrCat(
                                           "draw plan: of rank ", rank, "; allowed: of rank 0")));
  }
  return CheckDrawBuckets(buckets, parameters);
}

}  // namespace gradwire
