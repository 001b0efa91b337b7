#include "proto/wire/state_calls.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>

#include "proto/tls/access_token.h"
#include "proto/wire/status.h"

namespace gradwire::wire {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

std::chrono::system_clock::time_point In(absl::Duration timeout) {
  return std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
}

}  // namespace

absl::StatusOr<std::string> FetchState(v1::AdminService::StubInterface& stub,
                                       const std::string& session, const std::string& access_token,
                                       absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(In(timeout));
  tls::AddAccessToken(access_token, context);
  v1::ExportStateRequest request;
  request.set_session(session);
  const auto reader = stub.ExportState(&context, request);
  std::string state;
  v1::ExportStateResponse piece;
  while (reader->Read(&piece)) state += piece.data();
  if (const grpc::Status status = reader->Finish(); !status.ok()) return FromGrpc(status);
  return state;
}

absl::StatusOr<std::int64_t> ReplaceState(v1::AdminService::StubInterface& stub,
                                          const std::string& session, const std::string& state,
                                          std::uint32_t shards, const std::string& access_token,
                                          absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(In(timeout));
  tls::AddAccessToken(access_token, context);
  v1::ImportStateResponse response;
  const auto writer = stub.ImportState(&context, &response);
  v1::ImportStateRequest piece;
  piece.set_session(session);
  piece.set_shards(shards);
  std::size_t sent = 0;
  // An empty state still needs one message: it names the session.
  do {
    const std::size_t bytes = std::min(kPiece, state.size() - sent);
    piece.set_data(state.data() + sent, bytes);
    sent += bytes;
    if (!writer->Write(piece)) break;  // the status says why
    piece.clear_session();
    piece.clear_shards();
  } while (sent < state.size());
  writer->WritesDone();
  if (const grpc::Status status = writer->Finish(); !status.ok()) return FromGrpc(status);
  return response.iteration();
}

}  // namespace gradwire::wire
