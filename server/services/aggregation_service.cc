#include "server/services/aggregation_service.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/proto_conversion.h"
#include "server/access/permissions.h"
#include "server/rpc/clock.h"
#include "server/services/bulk_lane.h"
#include "server/services/join_upload.h"
#include "server/services/member_exchange.h"
#include "server/services/watch_stream.h"
#include "server/session/registry.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

// A name of DNS and a port, or the path of a socket.
constexpr std::size_t kMaxAddressBytes = 512;

constexpr std::uint32_t kProtocolVersion = 1;
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
  const auto& addresses = request.shard().addresses();
  return JoinAsk{.world_size = request.world_size(),
                 .rank = request.rank(),
                 .start_id = request.start_id(),
                 .spec = *std::move(spec),
                 .manifest = std::move(manifest),
                 .group = *std::move(group),
                 .shard = request.shard().shard(),
                 .addresses = {addresses.begin(), addresses.end()}};
}

// Whether a network lies between the session's daemons and its members, as far as the first join
// shows it; several daemons are on several hosts.
bool UsesNetwork(const JoinAsk& ask, const Caller& caller) {
  return !ask.addresses.empty() || caller.comes_over_network();
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
  session.join_timeout = *join;
  session.step_timeout = *step;
  session.token_timeout = options.token_timeout + wire::ReadingTime(ask.manifest.size());
  session.resume_grace = options.resume_grace;
  session.silence_timeout = options.silence_timeout;
  return session;
}

}  // namespace

AggregationService::AggregationService(const ServerOptions& options,
                                       std::shared_ptr<Registry> registry,
                                       std::shared_ptr<PeriodicTasks> ticks,
                                       std::function<bool()> has_room, Invitation invitation)
    : options_(options),
      stream_limits_(StreamLimits::Of(options)),
      shares_memory_(options.ListensOnUnixSocket()),
      registry_(std::move(registry)),
      upload_memory_(std::make_shared<MemoryBudget>(JoinUploadMemory(registry_->memory_limit()))),
      ticks_(std::move(ticks)),
      has_room_(std::move(has_room)),
      invitation_(std::move(invitation)) {}

void AggregationService::AddTo(Methods& methods) {
  methods.AddUnaryOf<v1::JoinRequest, v1::JoinResponse>(
      [this](const v1::JoinRequest& request, v1::JoinResponse& response, const Caller& caller) {
        if (absl::Status may = Admit(caller); !may.ok()) {
          OnRefused(caller, request.session(), may);
          return may;
        }
        // Reading and comparing a large manifest takes long, so another thread polls meanwhile.
        RpcThreads::YieldLeadership();
        return Join(request, wire::FromProto(request.manifest()), response, caller);
      });
  const JoinUpload::Handler join = [this](const v1::JoinRequest& request,
                                          std::vector<ParameterSpec> manifest,
                                          v1::JoinResponse& response, const Caller& caller) {
    return Join(request, std::move(manifest), response, caller);
  };
  // The session is not known yet.
  const JoinUpload::Gate gate = {
      .admit = [this](const Caller& caller) { return Admit(caller); },
      .on_refused = [this](const Caller& caller,
                           const absl::Status& why) { OnRefused(caller, "", why); }};
  methods.Add<v1::JoinPart, v1::JoinResponse, JoinUpload>(MethodKind::kClientStream, join, gate,
                                                          upload_memory_, ticks_);
  methods.AddUnaryOf<v1::MoveRequest, v1::MoveResponse>(
      [this](const auto& request, auto& /*response*/, const Caller& caller) {
        return Move(request, caller);
      });
  methods.AddUnaryOf<v1::LeaveRequest, v1::LeaveResponse>(
      [this](const auto& request, auto& /*response*/, const Caller& caller) {
        return Leave(request, caller);
      });
  methods.Add<v1::WatchRequest, v1::WatchResponse, WatchStream>(MethodKind::kServerStream,
                                                                registry_, ticks_);
  // Registered by name and handled as byte buffers, so that payloads are not copied.
  const auto pairs = std::make_shared<LanePairs>();
  methods.AddNamed<v1::Frame, v1::Frame, MemberExchange>("Exchange", MethodKind::kBothStream,
                                                         stream_limits_, registry_, pairs, ticks_);
  methods.AddNamed<v1::Frame, v1::Frame, BulkLane>("ExchangeBulk", MethodKind::kBothStream,
                                                   stream_limits_, registry_, pairs, ticks_);
}

absl::Status AggregationService::Admit(const Caller& caller) {
  return registry_->ledger().AdmitJoin(caller.holder(), MonotonicNow());
}

void AggregationService::OnRefused(const Caller& caller, const std::string& session,
                                   const absl::Status& why) {
  refusals_.Count(why.code());
  if (AuditSink* const audit = registry_->audit(); audit != nullptr) {
    audit->Record(EventOf("join", caller, session, why));
  }
}

absl::Status AggregationService::Join(const v1::JoinRequest& request,
                                      absl::StatusOr<std::vector<ParameterSpec>> manifest,
                                      v1::JoinResponse& response, const Caller& caller) {
  absl::Status joined =
      manifest.ok() ? TryJoin(request, *std::move(manifest), response, caller) : manifest.status();
  if (!joined.ok()) {
    OnRefused(caller, request.session(), joined);
  } else if (AuditSink* const audit = registry_->audit(); audit != nullptr) {
    AuditEvent event = EventOf("join", caller, request.session(), joined);
    event.rank = response.rank();
    audit->Record(std::move(event));
  }
  return joined;
}

absl::Status AggregationService::TryJoin(const v1::JoinRequest& request, Manifest manifest,
                                         v1::JoinResponse& response, const Caller& caller) {
  if (absl::Status may = CheckSession(caller, request.session()); !may.ok()) return may;
  absl::Status fast = registry_->ledger().AdmitJoinTo(request.session(), MonotonicNow());
  if (!fast.ok()) return fast;
  absl::StatusOr<JoinAsk> ask = AskOf(request, std::move(manifest));
  if (!ask.ok()) return ask.status();
  absl::StatusOr<SessionOptions> session = SessionOf(options_, request, *ask, caller);
  if (!session.ok()) return session.status();
  const absl::StatusOr<Registry::Joined> joined =
      registry_->Join(*session, *ask, MonotonicNow(), caller.identity, caller.holder());
  if (!joined.ok()) return joined.status();
  const SessionOptions& granted = joined->member.session->options();
  response.set_protocol_version(kProtocolVersion);
  response.set_token(joined->token);
  response.set_rank(joined->member.rank);
  response.set_generation(granted.generation);
  response.set_lineage(granted.lineage);
  response.set_next_step(joined->next_step);
  response.set_chunk_bytes(granted.chunk_bytes);
  response.set_window_chunks(granted.window_chunks);
  response.set_open_buckets(granted.open_buckets);
  response.set_eager_bytes(granted.eager_bytes);
  // A bulk lane is a second connection. Near the connection limit, members do without it so that
  // others can join; so they do where a quota leaves them one stream.
  response.set_bulk_lane(has_room_() && joined->member.session->GrantLane(
                                            joined->member.rank, ask->start_id, caller.holder()));
  response.set_draw_plan(true);
  // Memory can be offered on a unix socket only (SCM_RIGHTS).
  if (shares_memory_) response.set_memory_bytes(granted.StagingBytes());
  if (invitation_.invite) {
    invitation_.invite(request.start_id(), *response.mutable_local_socket());
  }
  *response.mutable_token_timeout() = wire::ToProto(granted.token_timeout);
  *response.mutable_heartbeat_interval() = wire::ToProto(options_.heartbeat_interval);
  *response.mutable_silence_timeout() = wire::ToProto(granted.silence_timeout);
  *response.mutable_resume_grace() = wire::ToProto(granted.resume_grace);
  return absl::OkStatus();
}

absl::Status AggregationService::Move(const v1::MoveRequest& request, const Caller& caller) {
  absl::StatusOr<MemberHandle> moved =
      absl::UnimplementedError("this daemon has no unix socket to move to");
  if (invitation_.check) {
    if (absl::Status proven = invitation_.check(request); proven.ok()) {
      moved = registry_->Move(
          request.token(), request.start_id(), caller.identity,
          [&caller](const std::string& session) { return CheckSession(caller, session); });
    } else {
      moved = proven;
    }
  }
  if (AuditSink* const audit = registry_->audit(); audit != nullptr) {
    const std::string session = moved.ok() ? moved->session->options().name : "";
    AuditEvent event = EventOf("move", caller, session, moved.status());
    if (moved.ok()) event.rank = moved->rank;
    audit->Record(std::move(event));
  }
  return moved.status();
}

absl::Status AggregationService::Leave(const v1::LeaveRequest& request, const Caller& caller) {
  AuditSink* const audit = registry_->audit();
  // Before it is gone.
  absl::StatusOr<MemberHandle> member = absl::UnknownError("");
  if (audit != nullptr) {
    member = registry_->Find(request.token(), request.start_id(), caller.identity);
  }
  absl::Status left =
      registry_->Leave(request.token(), request.start_id(), MonotonicNow(), caller.identity);
  if (audit == nullptr) return left;
  AuditEvent event =
      EventOf("leave", caller, member.ok() ? member->session->options().name : "", left);
  if (member.ok()) event.rank = member->rank;
  audit->Record(std::move(event));
  return left;
}

}  // namespace gradwire::server
