#include "server/services/aggregation_service.h"

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
  response.set_bundles(true);
  response.set_parameter_digests(true);
  // A leaf's members keep nothing that is drawn.
  response.set_draw_plan(!granted.leaf.is_leaf());
  response.set_leaf(granted.leaf.is_leaf());
  response.set_gathers(granted.gathers);
  response.set_ledger_rows(static_cast<std::uint32_t>(granted.LedgerRows()));
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
  if (audit == nullptr || absl::IsUnavailable(left)) return left;  // it asks again
  AuditEvent event =
      EventOf("leave", caller, member.ok() ? member->session->options().name : "", left);
  if (member.ok()) event.rank = member->rank;
  audit->Record(std::move(event));
  return left;
}

}  // namespace gradwire::server
