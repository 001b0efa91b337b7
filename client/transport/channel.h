// Channels to a daemon, and the two unary calls of a membership.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "client/transport/local_socket.h"
#include "gradwire/client.h"
#include "proto/tls/access_token.h"
#include "proto/tls/pem.h"
#include "proto/wire/member_report.h"

namespace gradwire::client {

class DaemonLookup;

// What a Join returns, checked.
struct JoinResult {
  std::string token;
  int rank = 0;
  std::uint64_t generation = 0;
  std::uint64_t lineage = 0;
  std::int64_t next_step = 0;
  std::size_t chunk_bytes = 0;
  std::uint32_t window_chunks = 0;
  std::uint32_t open_buckets = 0;
  std::size_t memory_bytes = 0;  // 0: the daemon shares no memory
  std::size_t eager_bytes = 0;
  bool bulk_lane = false;          // the daemon accepts a bulk lane
  bool draw_plan = false;          // the daemon accepts a draw plan
  bool parameter_digests = false;  // it compares members' parameters
  bool bundles = false;            // the daemon takes several frames in one message
  bool leaf = false;               // the daemon is a leaf, and runs the hook
  bool gathers = false;            // its session's members are gathering
  std::size_t ledger_rows = 0;     // of the session's ledger; 0: it has none
  LocalSocket local_socket = {};
  absl::Duration heartbeat_interval = absl::ZeroDuration();
  absl::Duration silence_timeout = absl::ZeroDuration();
  absl::Duration resume_grace = absl::ZeroDuration();
};

// Makes channels to one address.
class Dialer {
 public:
  // `host`: what the daemon's certificate is for; empty: the host in the address. Errors: those of
  // the functions in proto/tls.
  static absl::StatusOr<Dialer> Make(const std::string& address, const tls::Files& files,
                                     tls::TokenSource token = {}, std::string host = {});

  // A connection of its own: channels with equal arguments share none. Reads the TLS files and the
  // access token again, because they are replaced; while they do not fit, the last ones that did
  // count.
  std::shared_ptr<grpc::Channel> Dial();

  // For calls on the channel; "": there is none.
  const std::string& access_token() const { return access_token_; }

  // Whether what is sent is encrypted, and so arrives as it was sent.
  bool encrypts() const { return encrypts_; }

 private:
  Dialer(std::string address, tls::Files files, tls::TokenSource token, std::string host)
      : address_(std::move(address)),
        files_(std::move(files)),
        token_(std::move(token)),
        host_(std::move(host)) {}
  absl::Status Read();

  std::string address_;
  tls::Files files_;
  tls::TokenSource token_;
  std::string host_;
  std::string access_token_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  bool encrypts_ = false;
};

// What a member says about its node group. Without a name: it is in none.
struct GroupWish {
  std::string name;
  std::string communicator;
};

// Of a session with several daemons: which of them this one is.
struct ShardWish {
  std::uint32_t number = 0;
  std::vector<std::string> addresses;  // empty: it is the only one
  std::uint64_t life = 0;              // that shard 0 has begun; 0: the session begins
};

// Of a leaf daemon: how many ranks it stands for, from its own on. 0: the member is a trainer.
struct LeafWish {
  int ranks = 0;
  std::string name;
};

struct JoinWish {
  GroupWish group{};
  ShardWish shard{};
  LeafWish leaf{};
  std::string host{};                      // as Dialer's
  std::shared_ptr<DaemonLookup> lookup{};  // where the daemon is later; null: at the same address
  // Of a member that lost the session's daemon; none: it begins.
  std::optional<wire::MemberReport> report{};
};

// Tries until the daemon has answered, or `options.connect_timeout` and the manifest's
// wire::ReadingTime have passed. Says so after 1 s.
absl::StatusOr<JoinResult> JoinSession(const std::shared_ptr<grpc::Channel>& channel,
                                       const ClientOptions& options, const JoinWish& wish,
                                       std::uint64_t start_id, const std::string& access_token);

// A membership, and how to reach its daemon.
struct Joined {
  Dialer dialer;
  std::shared_ptr<grpc::Channel> channel;
  JoinResult membership;
  std::string given_address{};  // JoinNearest: the address before it moved,
  JoinWish wish{};              // and what it was asked with
};

// JoinSession at `options.address`. If the daemon there proves to be on this host and
// `options.local_socket` is on, the membership moves to the daemon's unix socket, which
// `options.address` then names.
absl::StatusOr<Joined> JoinNearest(ClientOptions& options, const JoinWish& wish,
                                   std::uint64_t start_id);

// `token`: the membership's.
absl::Status LeaveSession(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                          std::uint64_t start_id, const std::string& access_token,
                          absl::Duration timeout);

}  // namespace gradwire::client
