// A member that speaks the protocol by hand, through generated code and without the SDK, so that it
// can say what the SDK never would.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/client.h"
#include "gradwire/v1/aggregation.grpc.pb.h"

namespace gradwire::testing {

class RawMember {
 public:
  // Each stream and call ends by itself after this long.
  static constexpr absl::Duration kTimeout = absl::Seconds(20);

  explicit RawMember(const std::string& address);
  explicit RawMember(std::shared_ptr<grpc::Channel> channel);
  ~RawMember();

  static v1::JoinRequest MakeJoin(const ClientOptions& options);

  absl::StatusOr<v1::JoinResponse> Join(const v1::JoinRequest& request);
  absl::Status Leave(const std::string& token, std::uint64_t start_id);

  void OpenStream();
  // ExchangeBulk instead, the other lane of another RawMember's stream.
  void OpenBulk();
  bool Send(const v1::Frame& frame);
  std::optional<v1::Frame> Read();
  // Reads until a frame of this kind comes; nullopt: the stream ended before.
  std::optional<v1::Frame> ReadUntil(v1::Header::BodyCase kind);
  absl::Status Finish();
  // The stream breaks.
  void Cancel();

  // Join, stream, Hello. The Welcome is not awaited.
  absl::StatusOr<v1::JoinResponse> Begin(const ClientOptions& options);
  // Announces the one-segment bucket of `parameters`, waits for the grant, returns its round.
  absl::StatusOr<v1::RoundId> Announce(const v1::JoinResponse& joined,
                                       const std::vector<std::uint32_t>& parameters,
                                       std::uint64_t numel);

  // How the daemon ended the session: its Failure frame, or else the stream's status.
  absl::Status AwaitFailure();

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AggregationService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Frame, v1::Frame>> stream_;
};

}  // namespace gradwire::testing
