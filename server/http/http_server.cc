#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <microhttpd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "server/net/peer_address.h"

namespace gradwire::server {
namespace {

constexpr unsigned kConnections = 256;
constexpr unsigned kConnectionsPerAddress = 64;
constexpr unsigned kTimeoutSeconds = 5;
constexpr std::size_t kConnectionMemory = std::size_t{16} << 10;  // a request's headers

std::string HeaderOf(MHD_Connection* connection, const char* name) {
  const char* const value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? "" : value;
}

std::string AddressOf(MHD_Connection* connection) {
  const auto* const info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  const auto peer = info == nullptr ? std::nullopt : PeerOf(info->connect_fd);
  return peer ? ToText(*peer) : "";
}

// The page needs nothing from elsewhere, and nobody needs the page in a frame.
constexpr std::pair<const char*, const char*> kHeaders[] = {
    {"Cache-Control", "no-store"},
    {"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
};

MHD_Result Send(MHD_Connection* connection, const HttpResponse& answer) {
  MHD_Response* const response = MHD_create_response_from_buffer(
      answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, "Content-Type", answer.type.c_str());
  for (const auto& [name, value] : kHeaders) MHD_add_response_header(response, name, value);
  // Browsers then ask for a token; others send it as "Bearer".
  if (answer.status == MHD_HTTP_UNAUTHORIZED) {
    MHD_add_response_header(response, "WWW-Authenticate", "Basic realm=\"gradwired\"");
  }
  if (answer.status == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response, "Allow", "GET, HEAD");
  }
  const MHD_Result queued = MHD_queue_response(connection, answer.status, response);
  MHD_destroy_response(response);
  return queued;
}

// The host without its port.
std::string HostIn(const std::string& header) {
  if (header.starts_with('[')) return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.find(':'));
}

bool IsAddress(const std::string& host) {
  in6_addr any{};
  return inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]:");
}

// What the library hands to OnRequest.
struct Site {
  const HttpServer::Handler handler;
  const bool is_loopback;

  bool Answers(const std::string& host_header) const {
    if (!is_loopback || host_header.empty()) return true;
    const std::string host = HostIn(host_header);
    return host == "localhost" || IsAddress(host);
  }
};

MHD_Result OnRequest(void* cls, MHD_Connection* connection, const char* url, const char* method,
                     const char* /*version*/, const char* /*upload*/, std::size_t* upload_size,
                     void** seen) {
  // The first call is before the body; an answer to it would close the connection.
  static char marker;
  if (*seen == nullptr) {
    *seen = &marker;
    return MHD_YES;
  }
  if (*upload_size > 0) {
    *upload_size = 0;  // nobody wants it
    return MHD_YES;
  }
  if (std::strcmp(method, "GET") != 0 && std::strcmp(method, "HEAD") != 0) {
    return Send(connection, {.status = MHD_HTTP_METHOD_NOT_ALLOWED, .body = "only GET and HEAD\n"});
  }
  const Site& site = *static_cast<const Site*>(cls);
  if (!site.Answers(HeaderOf(connection, "Host"))) {
    return Send(connection,
                {.status = MHD_HTTP_MISDIRECTED_REQUEST,
                 .body = "this address is for this host: use localhost or 127.0.0.1\n"});
  }
  const char* verbose = nullptr;
  const MHD_Result has_verbose = MHD_lookup_connection_value_n(
      connection, MHD_GET_ARGUMENT_KIND, "verbose", std::strlen("verbose"), &verbose, nullptr);
  return Send(connection, site.handler({.path = url,
                                        .verbose = has_verbose == MHD_YES,
                                        .authorization = HeaderOf(connection, "Authorization"),
                                        .peer = AddressOf(connection)}));
}

}  // namespace

struct HttpServer::Daemon {
  struct Stop {
    void operator()(MHD_Daemon* daemon) const { MHD_stop_daemon(daemon); }
  };
  std::unique_ptr<Site> site;  // longer than the library's daemon, which refers to it
  std::unique_ptr<MHD_Daemon, Stop> daemon;
};

HttpServer::HttpServer() = default;

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(std::vector<Listener> listeners,
                                                              Handler handler) {
  std::unique_ptr<HttpServer> server(new HttpServer());
  for (const Listener& listener : listeners) {
    // The library closes the descriptor that it is given.
    const int fd = fcntl(listener.fd(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
      return Coded(ErrorCode::kSystem,
                   absl::UnavailableError(absl::StrCat("fcntl: ", std::strerror(errno))));
    auto site = std::make_unique<Site>(
        Site{.handler = handler, .is_loopback = IsLoopback(listener.address())});
    MHD_Daemon* const daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, nullptr, nullptr, &OnRequest, site.get(),
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, kConnections,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, kConnectionsPerAddress, MHD_OPTION_CONNECTION_TIMEOUT,
        kTimeoutSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionMemory, MHD_OPTION_END);
    if (daemon == nullptr) {
      return Coded(ErrorCode::kListen, absl::UnavailableError(absl::StrCat(
                                           "could not serve HTTP on ", listener.address(), ": ",
                                           std::strerror(errno))));
    }
    server->daemons_.push_back(Daemon{.site = std::move(site),
                                      .daemon = std::unique_ptr<MHD_Daemon, Daemon::Stop>(daemon)});
    server->addresses_.push_back(listener.address());
  }
  return server;
}

}  // namespace gradwire::server
