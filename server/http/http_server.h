// A small HTTP server for metrics, probes and the status page.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/net/listener.h"

namespace gradwire::server {

struct HttpRequest {
  std::string path;                // without the query
  bool verbose = false;            // the query has "verbose"
  std::string authorization = {};  // the header of this name; "": there is none
  std::string peer = {};           // "10.0.0.5:41234"; "": it has gone
};

struct HttpResponse {
  std::uint16_t status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
};

// Answers GET and HEAD, and nothing else. One thread serves all connections and none of them can
// hold it up: a request that is not complete within 5 s is dropped. Connections are limited, those
// of one address too.
//
// A loopback address answers only requests whose Host is an IP address or "localhost". Otherwise a
// page from elsewhere, in a browser on this host, could read the answers under a name of its own
// that resolves to 127.0.0.1 (DNS rebinding).
class HttpServer {
 public:
  // Called on the server's thread; must not block for long.
  using Handler = std::function<HttpResponse(const HttpRequest& request)>;

  // Serves until the destructor.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(std::vector<Listener> listeners,
                                                           Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the ports that were taken: "127.0.0.1:29611".
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  // The library's daemon; its header is for the implementation.
  struct Daemon;

  HttpServer();

  std::vector<std::string> addresses_;
  std::vector<Daemon> daemons_;
};

}  // namespace gradwire::server
