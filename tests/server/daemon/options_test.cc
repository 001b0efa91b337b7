#include "server/daemon/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;

std::string Problem(const ServerOptions& options) {
  return std::string(options.Validate().message());
}

TEST(ServerOptionsTest, DefaultsAreValid) { EXPECT_EQ(Problem({}), ""); }

TEST(ServerOptionsTest, NamesTheFieldTheValueAndWhatIsAllowed) {
  EXPECT_THAT(Problem({.max_connections = 0}), HasSubstr("max_connections is 0; allowed are 1 to"));
  EXPECT_THAT(Problem({.max_sessions = -3}), HasSubstr("max_sessions is -3"));
  EXPECT_THAT(Problem({.memory_limit = "lots"}),
              HasSubstr("memory_limit is \"lots\"; allowed are amounts of memory"));
  EXPECT_THAT(Problem({.memory_limit = "80"}),
              HasSubstr("memory_limit is \"80\"; allowed are amounts of memory from 32MiB on"));
  EXPECT_THAT(Problem({.chunk_bytes = 100}),
              HasSubstr("chunk_bytes is 100; allowed are multiples of 8"));
  EXPECT_THAT(Problem({.window_chunks = 0}), HasSubstr("window_chunks is 0"));
  EXPECT_THAT(Problem({.open_buckets = 0}), HasSubstr("open_buckets is 0"));
  EXPECT_THAT(Problem({.drain_timeout = absl::ZeroDuration()}), HasSubstr("drain_timeout is 0"));
  EXPECT_THAT(Problem({.log_level = "loud"}),
              HasSubstr("log_level is \"loud\"; allowed are debug"));
  EXPECT_THAT(Problem({.log_format = "xml"}), HasSubstr("log_format is \"xml\""));
  EXPECT_THAT(Problem({.listen = {}}), HasSubstr("listen is empty"));
}

TEST(ServerOptionsTest, RefusesAddressesThatOthersCanReachUnlessInsecure) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "192.0.2.1:29610"}) {
    const absl::Status refused = ServerOptions{.listen = {address}}.Validate();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--insecure"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--tls-cert"));
    EXPECT_TRUE((ServerOptions{.listen = {address}, .insecure = true}.Validate().ok())) << address;
    const tls::Files files = {.cert = "tls.crt", .key = "tls.key"};
    EXPECT_TRUE((ServerOptions{.listen = {address}, .tls = files}.Validate().ok())) << address;
  }
  for (const char* address : {"127.0.0.1:0", "127.3.2.1:0", "[::1]:0", "localhost:0", "unix:/x"}) {
    EXPECT_TRUE((ServerOptions{.listen = {address}}.Validate().ok())) << address;
  }
}

TEST(ServerOptionsTest, AdminAddressesAreAddressesOfTheirOwn) {
  EXPECT_EQ(Problem({.admin_listen = {"127.0.0.1:0", "unix:/x"}}), "");
  EXPECT_THAT(Problem({.admin_listen = {"0.0.0.0:0"}}), HasSubstr("--insecure"));
  EXPECT_EQ(Problem({.admin_listen = {"0.0.0.0:0"}, .insecure = true}), "");
  EXPECT_THAT(Problem({.admin_listen = {"nowhere"}}), HasSubstr("allowed are host:port"));
  EXPECT_THAT(Problem({.listen = {"unix:/x"}, .admin_listen = {"unix:/y", "unix:/x"}}),
              HasSubstr("admin_listen has unix:/x, and listen has it too"));
  EXPECT_EQ(Problem({.listen = {"127.0.0.1:0"}, .admin_listen = {"127.0.0.1:0"}}), "");
  EXPECT_EQ((ServerOptions{.max_connections = 100}.AllConnections()), 100);
  EXPECT_EQ((ServerOptions{.admin_listen = {"unix:/x"}, .max_connections = 100}.AllConnections()),
            164);
}

TEST(ServerOptions, AnUpstreamIsAnotherDaemon) {
  EXPECT_EQ(Problem({.upstream = "root:29610"}), "");
  EXPECT_EQ(Problem({.upstream = "root-{0..3}:29610"}), "");
  EXPECT_EQ(Problem({.upstream = "dns-all:///root:29610?n=4"}), "");
  for (const char* bad : {"nonsense", "root:99999", "root-{0..}:1", "a:1,b"}) {
    EXPECT_THAT(Problem({.upstream = bad}), HasSubstr("upstream")) << bad;
  }
  EXPECT_THAT(Problem({.listen = {"unix:/x"}, .upstream = "unix:/x"}),
              HasSubstr("this daemon's own address"));
}

TEST(ServerOptionsTest, ASocketsModeIsOneOfThree) {
  EXPECT_EQ(ServerOptions{}.SocketMode(), 0600U);
  EXPECT_EQ(ServerOptions{.socket_mode = "0660"}.SocketMode(), 0660U);
  EXPECT_EQ(Problem({.socket_mode = "0666"}), "");
  EXPECT_THAT(Problem({.socket_mode = "0777"}),
              HasSubstr("socket_mode is \"0777\"; allowed are 0600, 0660 and 0666"));
}

TEST(ServerOptionsTest, StatusPagesAreForThisHostUnlessInsecure) {
  for (const char* address : {"off", "auto", "127.0.0.1:0", "[::1]:0"}) {
    EXPECT_EQ(Problem({.http_listen = address}), "") << address;
  }
  // TLS is for members; it does not make these pages private.
  const tls::Files files = {.cert = "tls.crt", .key = "tls.key"};
  EXPECT_THAT(Problem({.insecure = true, .tls = files, .http_listen = "0.0.0.0:0"}),
              HasSubstr("--insecure-http"));
  EXPECT_EQ(Problem({.http_listen = "0.0.0.0:0", .insecure_http = true}), "");
  EXPECT_THAT(Problem({.http_listen = "unix:/x"}),
              HasSubstr("allowed are host:port, off and auto"));
  EXPECT_THAT(Problem({.http_listen = "nowhere"}), HasSubstr("nowhere"));
}

TEST(ServerOptionsTest, OneBadAddressAmongGoodOnesIsRefused) {
  EXPECT_THAT(Problem({.listen = {"127.0.0.1:0", "0.0.0.0:1"}}), HasSubstr("0.0.0.0:1"));
}

TEST(ServerOptionsTest, ACertificateHasItsKey) {
  EXPECT_EQ(Problem({.tls = {.cert = "c"}}),
            "tls_key is empty, and tls_cert is not; allowed: both or neither [GW111]");
  EXPECT_EQ(Problem({.tls = {.key = "k"}}),
            "tls_cert is empty, and tls_key is not; allowed: both or neither [GW111]");
  EXPECT_EQ(
      Problem({.tls = {.ca = "ca"}}),
      "tls_client_ca is set, and tls_cert is not; allowed: with tls_cert and tls_key [GW602]");
}

}  // namespace
}  // namespace gradwire::server
