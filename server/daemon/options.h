// The daemon's configuration as one struct. settings.h has the table of those that users can set.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls/pem.h"

namespace gradwire::server {

struct ServerOptions {
  // "host:port" (port 0: any), "[v6]:port", "unix:/path".
  std::vector<std::string> listen = {"127.0.0.1:29610"};
  // Where admin calls are served, in the same forms. Empty: on the addresses of members.
  std::vector<std::string> admin_listen = {};
  // Of the unix sockets of `listen`: "0600", "0660" or "0666". Those of `admin_listen` have 0600.
  std::string socket_mode = "0600";
  // Allows addresses that other hosts can reach without TLS.
  bool insecure = false;
  // The daemon is a leaf: it adds up its members' gradients and is one member of the session at
  // this address, in the forms that clients take. Empty: it is none.
  std::string upstream = {};
  tls::Files upstream_tls = {};
  std::string upstream_token_file = {};
  bool is_leaf() const { return !upstream.empty(); }
  // What TCP addresses use; the files are read again when they change. Without a certificate: no
  // TLS. With `ca`: clients must have a certificate that it has signed.
  tls::Files tls = {};
  // Who may do what: see TokenTable. Read again when it changes. Empty: everybody who can connect
  // may do everything, but for other users of this host on a unix socket.
  std::string tokens = {};
  // Where metrics, probes and the status page are: "host:port", "off", or "auto", which is port
  // 29611 of this host if it is free.
  std::string http_listen = "off";
  // Allows an address for them that other hosts can reach. They are read-only, and not encrypted.
  bool insecure_http = false;
  // What an identity without a quota of its own, and a session, may use: see ParseQuota. Empty: no
  // limit.
  std::string identity_quota = {};
  std::string session_quota = {};
  // A file that gets a line for each event that matters to security; empty: none.
  std::string audit_log = {};
  int max_connections = 4096;  // a member may have two
  int max_sessions = 256;
  // Upper bound of what all sessions together may make the daemon hold. "80%" is a part of the
  // memory that this process may use.
  std::string memory_limit = "80%";

  // Of every new session. A chunk with its header stays just below 1 MiB, which gRPC writes at
  // once.
  std::size_t chunk_bytes = (std::size_t{1} << 20) - 4096;
  std::uint32_t window_chunks = 4;
  // The same of a session with a network between the daemon and its members: small chunks keep a
  // link busy in both directions. Chunks are never larger than chunk_bytes.
  std::size_t network_chunk_bytes = std::size_t{64} << 10;
  std::uint32_t network_window_chunks = 16;
  std::uint32_t open_buckets = 4;
  std::size_t eager_bytes = std::size_t{64} << 10;
  absl::Duration join_timeout = absl::Minutes(5);   // if the first member's join names none
  absl::Duration step_timeout = absl::Minutes(30);  // if the first member's join names none

  absl::Duration token_timeout = absl::Seconds(5);
  absl::Duration hello_timeout = absl::Seconds(5);
  absl::Duration resume_grace = absl::Seconds(1);
  // What becomes of a session whose daemon is lost: "fail", or "resume", where its members wait for
  // the next one so long.
  std::string on_coordinator_loss = "fail";
  absl::Duration coordinator_grace = absl::Seconds(60);
  // What becomes of a session that loses a member: "fail", or "wait", where another process may
  // come in its place so long. That needs on_coordinator_loss "resume".
  std::string on_member_loss = "fail";
  absl::Duration member_grace = absl::Minutes(10);
  int min_members = 0;
  // A folder that daemons share, where they claim rosters of sessions that shrink, so that a
  // minority may go on; empty: rosters need a majority.
  std::string arbiter = {};
  absl::Duration shrink_after = absl::Seconds(10);
  // With "shrink": how long a step waits for members that are late, as a multiple of the steps'
  // median, and the part of its steps that may go on without a member's gradients. 0: as long as it
  // takes.
  double straggler_multiple = 0;
  double straggler_share = 0.1;
  // Sessions keep account of what becomes of all gradients.
  bool ledger = false;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration silence_timeout = absl::Seconds(15);
  absl::Duration handshake_timeout = absl::Seconds(3);
  // What a stream that ended has to take what was sent before.
  absl::Duration close_timeout = absl::Seconds(2);
  absl::Duration drain_timeout = absl::Seconds(30);

  // What computes the sums: "cpu", "cuda" (all GPUs), or "cuda:0,2".
  std::string reduce = "cpu";
  // Sums of fewer bytes are computed on the processor, where they are sooner done.
  std::size_t reduce_least_bytes = std::size_t{256} << 10;
  std::string cuda_library = "";  // libgradwire_cuda.so; empty: where it is looked for

  std::string log_level = "info";   // debug, info, warning, error
  std::string log_format = "text";  // text, json
  // A directory for recordings of the last steps of each session; empty: none are made.
  std::string record = {};
  int record_steps = 8;     // of each session
  int record_sessions = 8;  // that have ended, and whose recordings stay

  bool stop_on_eof = false;  // drain when standard input ends

  // For `admin_listen`, in addition to `max_connections`.
  static constexpr int kAdminConnections = 64;
  int AllConnections() const {
    return max_connections + (admin_listen.empty() ? 0 : kAdminConnections);
  }

  mode_t SocketMode() const;

  // Whether members of this host can reach it through a unix socket.
  bool ListensOnUnixSocket() const;

  // `memory_limit` in bytes of this machine. InvalidArgument: it is no amount.
  absl::StatusOr<std::size_t> MemoryBytes() const;

  // GPUs of `reduce` by number; empty: those that there are ("cuda"), or none ("cpu").
  // InvalidArgument: it is neither.
  absl::StatusOr<std::vector<int>> Gpus() const;

  struct Problem {
    std::string setting;  // its name in Settings(); empty: a field that users cannot set
    absl::Status status;
  };
  // The first value that does not fit the others, such as a certificate without its key. Looks up
  // the names in `listen`.
  std::optional<Problem> FindConflict() const;

  // InvalidArgument or FailedPrecondition names the field, the value and what is allowed. Includes
  // FindConflict.
  absl::Status Validate() const;
};

}  // namespace gradwire::server
