// The list of all settings.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/limits.h"
#include "client/addresses.h"
#include "server/access/quota_limits.h"
#include "server/core/session_options.h"
#include "server/daemon/settings.h"

namespace gradwire::server {
namespace {

// With less, no session fits, and gRPC refuses connections.
constexpr std::size_t kLeastMemory = std::size_t{32} << 20;
constexpr char kPaths[] = "paths, and \"\" for none";

template <auto Member>
Field At(ServerOptions& options) {
  return &(options.*Member);
}

template <auto Files, auto Member>
Field AtTls(ServerOptions& options) {
  return &(options.*Files.*Member);
}

using Options = ServerOptions;

bool NamesUpstream(const Options& options) {
  const auto addresses = client::AddressesOf(options.upstream);
  return addresses.ok() &&
         std::all_of(addresses->begin(), addresses->end(), [](const std::string& one) {
           return client::IsDaemonName(one) || client::IsAddress(one);
         });
}

std::vector<Setting> AccessSettings() {
  return {
      {.name = "listen",
       .key = "listen",
       .placeholder = "ADDRESS",
       .help = "Address: host:port, [v6]:port or unix:/path; may be repeated",
       .field = At<&Options::listen>,
       .allowed = "addresses: host:port, [v6]:port and unix:/path"},
      {.name = "admin-listen",
       .key = "admin_listen",
       .placeholder = "ADDRESS",
       .help = "Address for admin calls, which the others then refuse; may be repeated",
       .field = At<&Options::admin_listen>,
       .may_be_empty = true,
       .allowed = "addresses: host:port, [v6]:port and unix:/path"},
      {.name = "socket-mode",
       .key = "socket_mode",
       .placeholder = "MODE",
       .help = "Mode of the unix sockets of --listen; with 0660 or 0666 other users need a line in "
               "--tokens, or a token",
       .field = At<&Options::socket_mode>,
       .choices = {"0600", "0660", "0666"}},
      {.name = "insecure",
       .key = "insecure",
       .help = "Allow addresses that other hosts can reach without TLS",
       .field = At<&Options::insecure>},
      {.name = "tls-cert",
       .key = "tls.cert",
       .placeholder = "PATH",
       .help = "Certificate for TCP addresses, a PEM file; turns on TLS",
       .field = AtTls<&Options::tls, &tls::Files::cert>,
       .allowed = kPaths},
      {.name = "tls-key",
       .key = "tls.key",
       .placeholder = "PATH",
       .help = "The certificate's private key, a PEM file",
       .field = AtTls<&Options::tls, &tls::Files::key>,
       .allowed = kPaths},
      {.name = "tls-client-ca",
       .key = "tls.client_ca",
       .placeholder = "PATH",
       .help = "Authorities of clients' certificates, a PEM file; clients without one are refused",
       .field = AtTls<&Options::tls, &tls::Files::ca>,
       .allowed = kPaths},
      {.name = "tokens",
       .key = "tokens",
       .placeholder = "PATH",
       .help = "Lines of name, role, sessions and token or user: who may do what",
       .field = At<&Options::tokens>,
       .allowed = kPaths},
      {.name = "http-listen",
       .key = "http.listen",
       .placeholder = "ADDRESS",
       .help = "Address of metrics, probes and the status page: host:port, off, or auto "
               "(127.0.0.1:29611 if it is free)",
       .field = At<&Options::http_listen>,
       .allowed = "host:port, off and auto"},
      {.name = "insecure-http",
       .key = "http.insecure",
       .help = "Allow an HTTP address that other hosts can reach; it is read-only, not encrypted",
       .field = At<&Options::insecure_http>},
  };
}

// Of a leaf.
std::vector<Setting> UpstreamSettings() {
  return {
      {.name = "upstream",
       .key = "upstream.address",
       .placeholder = "ADDRESS",
       .help = "Be a leaf: add up the gradients of this host's members, and be one member of the "
               "session of the daemon, or of the shards, at this address",
       .field = At<&Options::upstream>,
       .valid =
           [](const Options& options) {
             return options.upstream.empty() || NamesUpstream(options);
           },
       .allowed = "addresses as clients take them, such as host:port, unix:/path and "
                  "host-{0..3}:port, and \"\" for none"},
      {.name = "upstream-tls-ca",
       .key = "upstream.tls_ca",
       .placeholder = "PATH",
       .help = "Certificates that have signed the upstream's, a PEM file; turns on TLS",
       .field = AtTls<&Options::upstream_tls, &tls::Files::ca>,
       .allowed = kPaths},
      {.name = "upstream-tls-cert",
       .key = "upstream.tls_cert",
       .placeholder = "PATH",
       .help = "This leaf's certificate for the upstream, a PEM file",
       .field = AtTls<&Options::upstream_tls, &tls::Files::cert>,
       .allowed = kPaths},
      {.name = "upstream-tls-key",
       .key = "upstream.tls_key",
       .placeholder = "PATH",
       .help = "That certificate's private key, a PEM file",
       .field = AtTls<&Options::upstream_tls, &tls::Files::key>,
       .allowed = kPaths},
      {.name = "upstream-token-file",
       .key = "upstream.token_file",
       .placeholder = "PATH",
       .help = "File with this leaf's access token for the upstream",
       .field = At<&Options::upstream_token_file>,
       .allowed = kPaths},
  };
}

std::vector<Setting> ResourceSettings() {
  return {
      {.name = "max-connections",
       .key = "max_connections",
       .placeholder = "NUMBER",
       .help = "Maximum number of connections; further ones are reset",
       .field = At<&Options::max_connections>,
       .low = 1,
       .high = 1'000'000},
      {.name = "max-sessions",
       .key = "max_sessions",
       .placeholder = "NUMBER",
       .help = "Maximum number of sessions",
       .field = At<&Options::max_sessions>,
       .reloadable = true,
       .low = 1,
       .high = 1'000'000},
      {.name = "memory-limit",
       .key = "memory_limit",
       .placeholder = "SIZE",
       .help = "Memory that all sessions may reserve, such as 2GiB or 80%",
       .field = At<&Options::memory_limit>,
       .valid =
           [](const Options& options) {
             const auto bytes = options.MemoryBytes();
             return bytes.ok() && *bytes >= kLeastMemory;
           },
       .allowed = "amounts of memory from 32MiB on, such as 512MiB, 2GB and 80%"},
      {.name = "chunk-bytes",
       .key = "chunk_bytes",
       .placeholder = "SIZE",
       .help = "Size of a chunk, the unit of one message",
       .field = At<&Options::chunk_bytes>,
       .low = 64,
       .high = kMaxChunkBytes,
       .multiple = 8},
      {.name = "network-chunk-bytes",
       .key = "network_chunk_bytes",
       .placeholder = "SIZE",
       .help = "Size of a chunk at most, if a session's first member comes over a network",
       .field = At<&Options::network_chunk_bytes>,
       .low = 64,
       .high = kMaxChunkBytes,
       .multiple = 8},
      {.name = "window-chunks",
       .key = "window_chunks",
       .placeholder = "NUMBER",
       .help = "Chunks a member may send beyond acknowledged results",
       .field = At<&Options::window_chunks>,
       .low = 1,
       .high = 1024},
      {.name = "network-window-chunks",
       .key = "network_window_chunks",
       .placeholder = "NUMBER",
       .help = "The same, if a session's first member comes over a network",
       .field = At<&Options::network_window_chunks>,
       .low = 1,
       .high = 1024},
      {.name = "open-buckets",
       .key = "open_buckets",
       .placeholder = "NUMBER",
       .help = "Buckets of a session that are reduced at once",
       .field = At<&Options::open_buckets>,
       .low = 1,
       .high = 1024},
      {.name = "reduce",
       .key = "reduce",
       .placeholder = "DEVICES",
       .help = "What computes the sums: cpu, cuda (all GPUs), or cuda:0,1 (these GPUs)",
       .field = At<&Options::reduce>,
       .valid = [](const Options& options) { return options.Gpus().ok(); },
       .allowed = "cpu, cuda, and cuda:0,2 with each GPU once"},
      {.name = "cuda-library",
       .key = "cuda_library",
       .placeholder = "PATH",
       .help = "Path of libgradwire_cuda.so, if it is not where it was installed",
       .field = At<&Options::cuda_library>,
       .allowed = kPaths},
  };
}

std::vector<Setting> RecoverySettings() {
  return {
      {.name = "on-coordinator-loss",
       .key = "on_coordinator_loss",
       .placeholder = "WHAT",
       .help =
           "What becomes of a session whose daemon is lost: fail; or resume, where members wait "
           "for the next daemon and go on",
       .field = At<&Options::on_coordinator_loss>,
       .choices = {"fail", "resume"}},
      {.name = "coordinator-grace",
       .key = "coordinator_grace",
       .placeholder = "DURATION",
       .help = "With resume: how long members look for a daemon, and a daemon waits for members",
       .field = At<&Options::coordinator_grace>},
      {.name = "on-member-loss",
       .key = "on_member_loss",
       .placeholder = "WHAT",
       .help =
           "What becomes of a session that loses a member: fail; wait, where another process takes "
           "its place; or shrink, where the others go on without it (both with "
           "--on-coordinator-loss resume)",
       .field = At<&Options::on_member_loss>,
       .choices = {"fail", "wait", "shrink"}},
      {.name = "member-grace",
       .key = "member_grace",
       .placeholder = "DURATION",
       .help =
           "With wait: how long a lost member's place is held. With shrink: how long members wait "
           "for others if they are too few to go on",
       .field = At<&Options::member_grace>},
      {.name = "min-members",
       .key = "min_members",
       .placeholder = "NUMBER",
       .help =
           "With shrink: the least members that go on; 0: a majority of those who concluded the "
           "last step, which is needed anyway without --arbiter",
       .field = At<&Options::min_members>,
       .low = 0,
       .high = kMaxWorldSize},
      {.name = "arbiter",
       .key = "arbiter",
       .placeholder = "PATH",
       .help = "With shrink: a folder that all daemons share that may take a session over; with "
               "it --min-members may be less than a majority",
       .field = At<&Options::arbiter>,
       .allowed = kPaths},
      {.name = "shrink-after",
       .key = "shrink_after",
       .placeholder = "DURATION",
       .help = "With shrink: how long members that gather wait for others",
       .field = At<&Options::shrink_after>},
      {.name = "straggler-multiple",
       .key = "straggler_multiple",
       .placeholder = "NUMBER",
       .help = "With shrink: a step goes on without gradients of members that are late by this "
               "multiple of the steps' median; they count in the next step. 0: it waits for all",
       .field = At<&Options::straggler_multiple>,
       .valid =
           [](const Options& options) {
             return CheckStraggler(options.straggler_multiple, kMostStragglerShare).ok();
           },
       .allowed = "0, and 1.5 to 1000"},
      {.name = "straggler-share",
       .key = "straggler_share",
       .placeholder = "NUMBER",
       .help = "The part of its last 100 steps that may go on without a member's gradients",
       .field = At<&Options::straggler_share>,
       .valid =
           [](const Options& options) { return CheckStraggler(0, options.straggler_share).ok(); },
       .allowed = "numbers above 0, and at most 0.5"},
      {.name = "ledger",
       .key = "ledger",
       .help = "Members keep account of what becomes of their gradients, which gradwirectl session "
               "ledger adds up",
       .field = At<&Options::ledger>},
  };
}

std::vector<Setting> QuotaSettings() {
  return {
      {.name = "identity-quota",
       .key = "quota.identity",
       .placeholder = "WORDS",
       .help = "What each identity may use, such as "
               "sessions=16,members=256,memory=2GiB,streams=512,joins=50",
       .field = At<&Options::identity_quota>,
       .reloadable = true,
       .check =
           [](const Options& options) {
             return ParseQuota(options.identity_quota, QuotaOwner::kIdentity).status();
           },
       .allowed = "words such as sessions=16,members=256,memory=2GiB,streams=512,joins=50, and "
                  "\"\" for no limit"},
      {.name = "session-quota",
       .key = "quota.session",
       .placeholder = "WORDS",
       .help = "What each session may use, such as members=1024,memory=8GiB,streams=2048,joins=50",
       .field = At<&Options::session_quota>,
       .reloadable = true,
       .check =
           [](const Options& options) {
             return ParseQuota(options.session_quota, QuotaOwner::kSession).status();
           },
       .allowed = "words such as members=1024,memory=8GiB,streams=2048,joins=50, and \"\" for no "
                  "limit"},
  };
}

std::vector<Setting> ProcessSettings() {
  return {
      {.name = "drain-timeout",
       .key = "drain_timeout",
       .placeholder = "DURATION",
       .help = "Time for sessions that end with the daemon to finish after SIGTERM",
       .field = At<&Options::drain_timeout>,
       .reloadable = true},
      // Of the parent that holds the pipe. In a file it would end every daemon that a service
      // manager starts, because its standard input is /dev/null.
      {.name = "stop-on-eof",
       .key = "",
       .help = "Drain when standard input ends, as on SIGTERM; for a parent that holds a pipe",
       .field = At<&Options::stop_on_eof>},
      {.name = "log-level",
       .key = "log.level",
       .placeholder = "LEVEL",
       .help = "debug, info, warning or error",
       .field = At<&Options::log_level>,
       .reloadable = true,
       .choices = {"debug", "info", "warning", "error"}},
      {.name = "log-format",
       .key = "log.format",
       .placeholder = "FORMAT",
       .help = "text or json",
       .field = At<&Options::log_format>,
       .reloadable = true,
       .choices = {"text", "json"}},
      {.name = "audit-log",
       .key = "audit.log",
       .placeholder = "PATH",
       .help = "File for a line of JSON for each event that matters to security; SIGHUP opens it "
               "again",
       .field = At<&Options::audit_log>,
       .allowed = kPaths},
      {.name = "record",
       .key = "record",
       .placeholder = "PATH",
       .help = "Directory for recordings of the last steps of each session, which gradwirectl "
               "replay computes again",
       .field = At<&Options::record>,
       .allowed = kPaths},
      {.name = "record-steps",
       .key = "record_steps",
       .placeholder = "NUMBER",
       .help = "With --record: how many steps of each session are kept",
       .field = At<&Options::record_steps>,
       .low = 1,
       .high = 10'000},
      {.name = "record-sessions",
       .key = "record_sessions",
       .placeholder = "NUMBER",
       .help = "With --record: how many sessions that have ended keep their recordings",
       .field = At<&Options::record_sessions>,
       .low = 1,
       .high = 10'000},
  };
}

template <typename... Lists>
std::vector<Setting> Joined(Lists... lists) {
  std::vector<Setting> all;
  (std::move(lists.begin(), lists.end(), std::back_inserter(all)), ...);
  return all;
}

}  // namespace

const std::vector<Setting>& Settings() {
  static const auto& settings =
      *new std::vector<Setting>(Joined(AccessSettings(), UpstreamSettings(), ResourceSettings(),
                                       RecoverySettings(), QuotaSettings(), ProcessSettings()));
  return settings;
}

}  // namespace gradwire::server
