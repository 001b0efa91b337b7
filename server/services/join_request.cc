#include "server/services/join_request.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/proto_conversion.h"
#include "proto/wire/recovery_frames.h"
#include "server/services/leaf_join.h"

namespace gradwire::server {
namespace {

// A name of DNS and a port, or the path of a socket.
constexpr std::size_t kMaxAddressBytes = 512;

constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);

absl::StatusOr<absl::Duration> Timeout(const google::protobuf::Duration& asked,
                                       const std::string& field, absl::Duration otherwise) {
  absl::StatusOr<absl::Duration> duration = wire::FromProto(asked, field);
  if (!duration.ok()) return duration;
  // An unset field; the daemon's default applies.
  if (*duration == absl::ZeroDuration()) return otherwise;
  return std::min(*duration, kLongestTimeout);
}

absl::Status CheckProtocol(const v1::JoinRequest& request) {
  if (request.min_protocol_version() <= kProtocolVersion &&
      request.max_protocol_version() >= kProtocolVersion) {
    return absl::OkStatus();
  }
  return Coded(ErrorCode::kProtocolVersion,
               absl::UnimplementedError(absl::StrCat(
                   "the member supports protocol versions ", request.min_protocol_version(), " to ",
                   request.max_protocol_version(), "; this daemon supports ", kProtocolVersion)));
}

absl::StatusOr<GroupAsk> GroupOf(const v1::NodeGroupRequest& request, bool wanted) {
  if (!wanted) return GroupAsk{};
  for (const auto& [field, text] :
       {std::pair("name", &request.name()), std::pair("communicator", &request.communicator())}) {
    if (!text->empty() && text->size() <= kMaxSessionNameBytes) continue;
    return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                         "node_group.", field, ": has ", text->size(),
                                         " bytes; allowed: 1 to ", kMaxSessionNameBytes)));
  }
  return GroupAsk{.name = request.name(), .communicator = request.communicator()};
}

absl::Status BadShards(const std::string& what) {
  return Coded(ErrorCode::kShards, absl::InvalidArgumentError(what));
}

absl::Status CheckShards(const v1::ShardRequest& request) {
  const auto count = static_cast<std::uint32_t>(request.addresses_size());
  if (count < 2 || count > kMaxShards) {
    return BadShards(absl::StrCat("shard.addresses: has ", count, "; allowed: 2 to ", kMaxShards));
  }
  if (request.shard() >= count) {
    return BadShards(absl::StrCat("shard.shard: ", request.shard(), "; allowed: 0 to ", count - 1));
  }
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (request.life() > kMost) {
    return BadShards(absl::StrCat("shard.life: ", request.life(), "; allowed: 0 to ", kMost));
  }
  if (request.life() > 0 && request.shard() == 0) {
    return BadShards(
        absl::StrCat("shard.life: ", request.life(), "; allowed: 0 to shard 0, which begins it"));
  }
  std::set<std::string> known;
  for (int i = 0; i < request.addresses_size(); ++i) {
    const std::string& address = request.addresses(i);
    if (address.empty() || address.size() > kMaxAddressBytes) {
      return BadShards(absl::StrCat("shard.addresses[", i, "]: has ", address.size(),
                                    " bytes; allowed: 1 to ", kMaxAddressBytes));
    }
    if (!known.insert(address).second) {
      return BadShards(absl::StrCat("shard.addresses[", i, "]: names ", address, " twice"));
    }
  }
  return absl::OkStatus();
}

// The session checks how many ranks there are.
absl::Status CheckLeaf(const v1::JoinRequest& request) {
  const v1::LeafRequest& leaf = request.leaf();
  if (leaf.ranks() < 1) {
    return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                         "leaf.ranks: ", leaf.ranks(), "; allowed: 1 and up")));
  }
  if (leaf.name().empty() || leaf.name().size() > kMaxSessionNameBytes) {
    return Coded(ErrorCode::kOption, absl::InvalidArgumentError(absl::StrCat(
                                         "leaf.name: has ", leaf.name().size(),
                                         " bytes; allowed: 1 to ", kMaxSessionNameBytes)));
  }
  if (!request.has_node_group()) return absl::OkStatus();
  return Coded(ErrorCode::kOption,
               absl::InvalidArgumentError("leaf: with a node group; allowed: one of the two"));
}

// Whether a network lies between the session's daemons and its members, as far as the first join
// shows it; several daemons are on several hosts.
bool UsesNetwork(const JoinAsk& ask, const Caller& caller) {
  return !ask.addresses.empty() || caller.comes_over_network();
}

// Members that lost their daemon go on with its settings, whoever of them comes first.
absl::Status TakeSettings(const ServerOptions& options, const wire::MemberReport& report,
                          SessionOptions& session) {
  const auto check = [](const char* field, std::size_t value, std::size_t most) {
    if (value <= most) return absl::OkStatus();
    return Coded(ErrorCode::kResume,
                 absl::InvalidArgumentError(absl::StrCat("report.", field, " is ", value,
                                                         "; allowed here are at most ", most)));
  };
  const std::uint32_t window = std::max(options.window_chunks, options.network_window_chunks);
  absl::Status fits = check("chunk_bytes", report.chunk_bytes, options.chunk_bytes);
  if (fits.ok()) fits = check("window_chunks", report.window_chunks, window);
  if (fits.ok()) fits = check("eager_bytes", report.eager_bytes, options.eager_bytes);
  session.chunk_bytes = report.chunk_bytes;
  session.window_chunks = report.window_chunks;
  session.eager_bytes = report.eager_bytes;
  return fits;
}

}  // namespace

absl::StatusOr<JoinAsk> AskOf(const v1::JoinRequest& request, Manifest manifest) {
  if (absl::Status status = CheckProtocol(request); !status.ok()) return status;
  // 0 is protobuf's default: the field was not set.
  if (request.start_id() == 0)
    return Coded(ErrorCode::kNotAMember,
                 absl::InvalidArgumentError("start_id is 0; allowed: any other random number"));
  absl::StatusOr<HookSpec> spec = wire::FromProto(request.hook());
  if (!spec.ok()) return spec.status();
  absl::StatusOr<GroupAsk> group = GroupOf(request.node_group(), request.has_node_group());
  if (!group.ok()) return group.status();
  if (request.has_shard()) {
    if (absl::Status status = CheckShards(request.shard()); !status.ok()) return status;
    if (request.has_node_group()) {
      return BadShards("shard: with a node group; allowed: one of the two");
    }
  }
  if (request.has_leaf()) {
    if (absl::Status status = CheckLeaf(request); !status.ok()) return status;
  }
  std::optional<wire::MemberReport> report;
  if (request.has_report()) {
    absl::StatusOr<wire::MemberReport> read = wire::FromProto(request.report());
    if (!read.ok()) return Coded(ErrorCode::kResume, read.status());
    report = *std::move(read);
  }
  const auto& addresses = request.shard().addresses();
  return JoinAsk{
      .world_size = request.world_size(),
      .rank = request.rank(),
      .start_id = request.start_id(),
      .spec = *std::move(spec),
      .manifest = std::move(manifest),
      .group = *std::move(group),
      .shard = request.shard().shard(),
      .life = request.shard().life(),
      .addresses = {addresses.begin(), addresses.end()},
      .leaf_ranks = request.leaf().ranks(),
      .leaf = request.leaf().name(),
      .node = {.first = request.node().first_rank(), .members = request.node().members()},
      .report = std::move(report)};
}

absl::StatusOr<SessionOptions> SessionOf(const ServerOptions& options,
                                         const v1::JoinRequest& request, const JoinAsk& ask,
                                         const Caller& caller) {
  const auto join = Timeout(request.join_timeout(), "join_timeout", options.join_timeout);
  if (!join.ok()) return join.status();
  const auto step = Timeout(request.step_timeout(), "step_timeout", options.step_timeout);
  if (!step.ok()) return step.status();
  SessionOptions session{.name = request.session(),
                         .world_size = ask.world_size,
                         .spec = ask.spec,
                         .manifest = ask.manifest,
                         .shard = {.number = ask.shard, .addresses = ask.addresses}};
  const bool network = UsesNetwork(ask, caller);
  session.chunk_bytes =
      network ? std::min(options.chunk_bytes, options.network_chunk_bytes) : options.chunk_bytes;
  session.window_chunks = network ? options.network_window_chunks : options.window_chunks;
  session.open_buckets = options.open_buckets;
  session.eager_bytes = options.eager_bytes;
  if (ask.report) {
    if (absl::Status taken = TakeSettings(options, *ask.report, session); !taken.ok()) return taken;
  }
  if (options.is_leaf()) {
    if (absl::Status leaf = MakeLeaf(ask, options.upstream, session); !leaf.ok()) return leaf;
  }
  session.join_timeout = *join;
  session.step_timeout = *step;
  session.ledger = options.ledger;
  session.token_timeout = options.token_timeout + wire::ReadingTime(ask.manifest.size());
  session.resume_grace = options.resume_grace;
  session.silence_timeout = options.silence_timeout;
  if (options.on_coordinator_loss == "resume")
    session.coordinator_grace = options.coordinator_grace;
  if (options.on_member_loss != "fail") session.member_grace = options.member_grace;
  if (options.on_member_loss == "shrink") {
    session.shrinks_to = std::max(options.min_members, 1);
    session.shrink_after = options.shrink_after;
    session.may_be_minority = options.min_members > 0;
  }
  session.straggler_multiple = options.straggler_multiple;
  session.straggler_share = options.straggler_share;
  return session;
}

}  // namespace gradwire::server
