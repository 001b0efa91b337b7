#include "client/transport/channel.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "client/options.h"
#include "gradwire/v1/aggregation.grpc.pb.h"
#include "proto/tls/channel_credentials.h"
#include "proto/wire/join_parts.h"
#include "proto/wire/local_proof.h"
#include "proto/wire/process_setup.h"
#include "proto/wire/proto_conversion.h"
#include "proto/wire/recovery_frames.h"
#include "proto/wire/status.h"

namespace gradwire::client {
namespace {

constexpr std::uint32_t kProtocolVersion = 1;
constexpr int kMiB = 1 << 20;
constexpr std::uint32_t kMaxWindow = 4096;
constexpr std::uint64_t kMaxMemoryBytes = std::uint64_t{4} << 30;
constexpr absl::Duration kShortestHeartbeat = absl::Milliseconds(1);
constexpr absl::Duration kLongest = absl::Hours(24);
constexpr std::chrono::milliseconds kBetweenTries(50);
constexpr std::chrono::seconds kConnectWait(1);
// After this time without an answer, JoinSession reports the wait once.
constexpr std::chrono::seconds kSilentWait(1);

// Everything but the manifest, which JoinOnce adds.
v1::JoinRequest MakeRequest(const ClientOptions& options, const JoinWish& wish,
                            std::uint64_t start_id) {
  v1::JoinRequest request;
  request.set_min_protocol_version(kProtocolVersion);
  request.set_max_protocol_version(kProtocolVersion);
  request.set_session(options.session);
  request.set_world_size(options.world_size);
  request.set_rank(options.rank);
  request.set_start_id(start_id);
  *request.mutable_hook() = wire::ToProto(options.hook);
  *request.mutable_join_timeout() = wire::ToProto(options.join_timeout);
  *request.mutable_step_timeout() = wire::ToProto(options.step_timeout);
  if (!wish.group.name.empty()) {
    request.mutable_node_group()->set_name(wish.group.name);
    request.mutable_node_group()->set_communicator(wish.group.communicator);
  }
  if (!wish.shard.addresses.empty()) {
    request.mutable_shard()->set_shard(wish.shard.number);
    request.mutable_shard()->set_life(wish.shard.life);
    request.mutable_shard()->mutable_addresses()->Add(wish.shard.addresses.begin(),
                                                      wish.shard.addresses.end());
  }
  if (const std::optional<NodeRanks> node = NodeOf(options)) {
    request.mutable_node()->set_first_rank(node->first);
    request.mutable_node()->set_members(node->members);
  }
  if (wish.report) *request.mutable_report() = wire::ToProto(*wish.report);
  if (wish.leaf.ranks > 0) {
    request.mutable_leaf()->set_ranks(wish.leaf.ranks);
    request.mutable_leaf()->set_name(wish.leaf.name);
  }
  return request;
}

// Upper bound of the parameter's size in a message.
std::size_t MessageBytes(const ParameterSpec& spec) {
  constexpr std::size_t kFields = 24;
  constexpr std::size_t kDimension = 10;
  return kFields + spec.name.size() + kDimension * spec.shape.size();
}

// Sends the manifest in parts, each of which is freed once it is written: a model of a million
// parameters exceeds the size limit of one message.
grpc::Status JoinInParts(v1::AggregationService::Stub& stub, grpc::ClientContext& context,
                         const v1::JoinRequest& request, std::span<const ParameterSpec> manifest,
                         v1::JoinResponse& response) {
  const auto writer = stub.JoinInParts(&context, &response);
  v1::JoinPart part;
  *part.mutable_request() = request;
  part.set_parameters(manifest.size());
  std::uint64_t name_bytes = 0;
  for (const ParameterSpec& spec : manifest) name_bytes += spec.name.size();
  part.set_name_bytes(name_bytes);
  bool open = writer->Write(part);
  for (std::size_t next = 0; open && next < manifest.size();) {
    part.Clear();
    for (std::size_t bytes = 0; next < manifest.size(); ++next) {
      bytes += MessageBytes(manifest[next]);
      if (bytes > wire::kJoinPartBytes) break;
      *part.add_manifest() = wire::ToProto(manifest[next]);
    }
    open = writer->Write(part);
  }
  // A daemon that refuses a part ends the call at once; Finish returns its reason.
  if (open) writer->WritesDone();
  return writer->Finish();
}

grpc::Status JoinOnce(v1::AggregationService::Stub& stub, grpc::ClientContext& context,
                      const v1::JoinRequest& request, const ClientOptions& options,
                      v1::JoinResponse& response) {
  std::size_t bytes = 0;
  for (const ParameterSpec& spec : options.parameters) bytes += MessageBytes(spec);
  if (bytes > wire::kJoinPartBytes) {
    return JoinInParts(stub, context, request, options.parameters, response);
  }
  v1::JoinRequest whole = request;
  for (const ParameterSpec& spec : options.parameters) *whole.add_manifest() = wire::ToProto(spec);
  return stub.Join(&context, whole, &response);
}

// The answer's sizes become allocations, loops and timers here, so none of them is taken unchecked.
absl::StatusOr<JoinResult> Checked(const v1::JoinResponse& response, const ClientOptions& options) {
  const auto bad = [&](const std::string& what) {
    return Coded(ErrorCode::kBadAnswer,
                 absl::InternalError(absl::StrCat("the daemon at ", options.address,
                                                  " answered the join with ", what)));
  };
  JoinResult membership{.token = response.token(),
                        .rank = response.rank(),
                        .generation = response.generation(),
                        .lineage = response.lineage(),
                        .next_step = response.next_step(),
                        .chunk_bytes = response.chunk_bytes(),
                        .window_chunks = response.window_chunks(),
                        .open_buckets = response.open_buckets(),
                        .memory_bytes = std::min(response.memory_bytes(), kMaxMemoryBytes),
                        .eager_bytes = std::min(response.eager_bytes(), kMaxMemoryBytes),
                        .bulk_lane = response.bulk_lane(),
                        .draw_plan = response.draw_plan(),
                        .parameter_digests = response.parameter_digests(),
                        .bundles = response.bundles(),
                        .leaf = response.leaf(),
                        .gathers = response.gathers(),
                        .ledger_rows = response.ledger_rows(),
                        .local_socket = {.path = response.local_socket().path(),
                                         .key = response.local_socket().key()}};
  const auto heartbeat = wire::FromProto(response.heartbeat_interval(), "heartbeat_interval");
  const auto silence = wire::FromProto(response.silence_timeout(), "silence_timeout");
  const auto grace = wire::FromProto(response.resume_grace(), "resume_grace");
  for (const auto* duration : {&heartbeat, &silence, &grace}) {
    if (!duration->ok()) return bad(std::string(duration->status().message()));
  }
  membership.heartbeat_interval = *heartbeat;
  membership.silence_timeout = std::min(*silence, kLongest);
  membership.resume_grace = std::min(*grace, kLongest);
  if (response.protocol_version() != kProtocolVersion) {
    return bad(absl::StrCat("protocol_version ", response.protocol_version()));
  }
  if (membership.rank < 0 || membership.rank >= options.world_size) {
    return bad(absl::StrCat("rank ", membership.rank));
  }
  if (membership.leaf && !NodeOf(options)) {
    return bad("\"leaf\", which did not know this member's node");
  }
  if (membership.next_step < 0) return bad(absl::StrCat("next_step ", membership.next_step));
  if (membership.chunk_bytes == 0 || membership.chunk_bytes % 8 != 0 ||
      membership.chunk_bytes > kMaxChunkBytes) {
    return bad(absl::StrCat("chunk_bytes ", membership.chunk_bytes));
  }
  if (membership.window_chunks == 0 || membership.window_chunks > kMaxWindow) {
    return bad(absl::StrCat("window_chunks ", membership.window_chunks));
  }
  if (membership.open_buckets == 0 || membership.open_buckets > kMaxWindow) {
    return bad(absl::StrCat("open_buckets ", membership.open_buckets));
  }
  if (membership.heartbeat_interval < kShortestHeartbeat ||
      membership.heartbeat_interval >= membership.silence_timeout) {
    return bad(
        absl::StrCat("heartbeat_interval ", absl::FormatDuration(membership.heartbeat_interval),
                     " and silence_timeout ", absl::FormatDuration(membership.silence_timeout)));
  }
  return membership;
}

bool Encrypts(const ClientOptions& options) {
  return !options.tls.ca.empty() && !tls::IsUnixSocket(options.address);
}

// What the user may look at.
std::string AskFor(const std::string& error, const ClientOptions& options) {
  if (FindCode(error) == ErrorCode::kDraining) return "is it to be started again?";
  std::string hint = tls::Hint(error, Encrypts(options));
  return hint.empty() ? "is gradwired running there?" : hint;
}

}  // namespace

absl::Status Dialer::Read() {
  auto credentials = tls::ChannelCredentials(address_, files_);
  if (!credentials.ok()) return credentials.status();
  absl::StatusOr<std::string> token = tls::ReadAccessToken(token_);
  if (!token.ok()) return token.status();
  const bool encrypts = !files_.ca.empty() && !tls::IsUnixSocket(address_);
  if (absl::Status safe = tls::CheckTokenTravelsSafely(!token->empty(), encrypts, address_);
      !safe.ok()) {
    return safe;
  }
  credentials_ = *std::move(credentials);
  access_token_ = *std::move(token);
  encrypts_ = encrypts;
  return absl::OkStatus();
}

absl::StatusOr<Dialer> Dialer::Make(const std::string& address, const tls::Files& files,
                                    tls::TokenSource token, std::string host) {
  wire::KeepGrpc();
  wire::KeepFreedMemory();
  Dialer dialer(address, files, std::move(token), std::move(host));
  if (absl::Status read = dialer.Read(); !read.ok()) return read;
  return dialer;
}

std::shared_ptr<grpc::Channel> Dialer::Dial() {
  Read().IgnoreError();
  constexpr int max_message = static_cast<int>(kMaxChunkBytes) + 64 * 1024;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_message);
  arguments.SetMaxSendMessageSize(max_message);
  // Joins are repeated below, and streams resume by themselves; gRPC's retries would keep copies of
  // messages.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Otherwise channels to one address share one connection, and the bulk lane is to have its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // No DNS lookups for service configs, and no detour through the proxy of an environment variable.
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // gRPC uses the minimum backoff as the timeout of a connection attempt. The other two are short,
  // so that a member finds a restarted daemon soon.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A chunk of 1 MiB fits one read. As in the daemon: without the probe for the bandwidth-delay
  // product a connection's window stays at 64 KiB.
  arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, kMiB);
  arguments.SetInt(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 * kMiB);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  tls::ExpectHost(host_, arguments);
  return grpc::CreateCustomChannel(address_, credentials_, arguments);
}

absl::StatusOr<JoinResult> JoinSession(const std::shared_ptr<grpc::Channel>& channel,
                                       const ClientOptions& options, const JoinWish& wish,
                                       std::uint64_t start_id, const std::string& access_token) {
  const auto stub = v1::AggregationService::NewStub(channel);
  const v1::JoinRequest request = MakeRequest(options, wish, start_id);
  const auto begin = std::chrono::system_clock::now();
  const absl::Duration reading = wire::ReadingTime(options.parameters.size());
  const absl::Duration allowed = options.connect_timeout + reading;
  const auto deadline = begin + absl::ToChronoNanoseconds(allowed);
  // The first tries end here, so that the wait is reported even if a connection hangs. A Join is
  // idempotent: a daemon that took one whose answer came too late gives the next one the same.
  std::chrono::system_clock::time_point end_of_try =
      std::min(deadline, begin + kSilentWait + absl::ToChronoNanoseconds(reading));
  std::string last_error = "no answer";
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(end_of_try);
    tls::AddAccessToken(access_token, context);
    v1::JoinResponse response;
    const grpc::Status status = JoinOnce(*stub, context, request, options, response);
    if (status.ok()) return Checked(response, options);
    const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    // A gRPC server that shuts down cancels new calls. Another daemon may take its place.
    const bool ending = status.error_code() == grpc::StatusCode::CANCELLED;
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE && !late && !ending)
      return wire::FromGrpc(status);
    if (!late) {
      last_error = ending ? "the daemon is ending" : std::string(wire::FromGrpc(status).message());
    }
    const auto now = std::chrono::system_clock::now();
    if (now + kBetweenTries >= deadline) {
      return Coded(
          tls::UnreachableCode(last_error, Encrypts(options)),
          absl::UnavailableError(absl::StrCat("could not join through ", options.address,
                                              " within ", absl::FormatDuration(allowed), ": ",
                                              last_error, "; ", AskFor(last_error, options))));
    }
    if (now >= end_of_try) {
      const std::string who = options.rank < 0 ? "a member" : absl::StrCat("rank ", options.rank);
      SayWait(options.on_wait,
              CodedText(tls::UnreachableCode(last_error, Encrypts(options)),
                        absl::StrCat(who, " waits up to ", absl::FormatDuration(allowed),
                                     " for gradwired at ", options.address, ": ", last_error, "; ",
                                     AskFor(last_error, options))));
      end_of_try = deadline;
    }
    std::this_thread::sleep_for(kBetweenTries);
    // Waits in a call instead of sleeping longer, because gRPC connects only while a thread waits
    // in one.
    channel->WaitForConnected(std::min(end_of_try, now + kConnectWait));
  }
}

namespace {

// A daemon on this host answers at once unless the host is very busy; then TCP is no worse.
constexpr std::chrono::milliseconds kProofTimeout(500);
constexpr std::chrono::seconds kMoveTimeout(2);

absl::StatusOr<Joined> JoinAt(const ClientOptions& options, const JoinWish& wish,
                              std::uint64_t start_id) {
  absl::StatusOr<Dialer> dialer =
      Dialer::Make(options.address, TlsFiles(options), TokenOf(options), wish.host);
  if (!dialer.ok()) return dialer.status();
  std::shared_ptr<grpc::Channel> channel = dialer->Dial();
  auto membership = JoinSession(channel, options, wish, start_id, dialer->access_token());
  if (!membership.ok()) return membership.status();
  return Joined{.dialer = *std::move(dialer),
                .channel = std::move(channel),
                .membership = *std::move(membership)};
}

// Binds the membership to who this process is on that connection.
absl::Status Move(const JoinResult& membership, std::uint64_t start_id, const Dialer& dialer,
                  const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kMoveTimeout);
  tls::AddAccessToken(dialer.access_token(), context);
  v1::MoveRequest request;
  request.set_token(membership.token);
  request.set_start_id(start_id);
  request.set_proof(wire::ProofOf(membership.local_socket.key, membership.token));
  v1::MoveResponse response;
  return wire::FromGrpc(
      v1::AggregationService::NewStub(channel)->Move(&context, request, &response));
}

}  // namespace

absl::StatusOr<Joined> JoinNearest(ClientOptions& options, const JoinWish& wish,
                                   std::uint64_t start_id) {
  absl::StatusOr<Joined> joined = JoinAt(options, wish, start_id);
  if (joined.ok()) {
    joined->given_address = options.address;
    joined->wish = wish;
  }
  if (!joined.ok() || !options.local_socket || tls::IsUnixSocket(options.address)) return joined;
  const JoinResult& membership = joined->membership;
  const LocalSocket& socket = membership.local_socket;
  if (!CheckIsSameDaemon(socket, start_id, std::chrono::steady_clock::now() + kProofTimeout).ok())
    return joined;
  absl::StatusOr<Dialer> dialer =
      Dialer::Make(socket.address(), TlsFiles(options), TokenOf(options));
  if (!dialer.ok()) return joined;
  std::shared_ptr<grpc::Channel> channel = dialer->Dial();
  if (!Move(membership, start_id, *dialer, channel).ok()) {
    // The daemon may have moved it all the same, so that the TCP connection would be a stranger's.
    // If this fails too, the stream's own error says why.
    Move(membership, start_id, joined->dialer, joined->channel).IgnoreError();
    return joined;
  }
  options.address = socket.address();
  joined->dialer = *std::move(dialer);
  joined->channel = std::move(channel);
  return joined;
}

absl::Status LeaveSession(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                          std::uint64_t start_id, const std::string& access_token,
                          absl::Duration timeout) {
  const auto stub = v1::AggregationService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  tls::AddAccessToken(access_token, context);
  v1::LeaveRequest request;
  request.set_token(token);
  request.set_start_id(start_id);
  v1::LeaveResponse response;
  return wire::FromGrpc(stub->Leave(&context, request, &response));
}

}  // namespace gradwire::client
