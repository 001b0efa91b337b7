#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "tests/testing/ranks.h"

namespace gradwire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listeners = Listener::Open("127.0.0.1:0");
    ASSERT_TRUE(listeners.ok());
    auto server = HttpServer::Start(*std::move(listeners), [](const HttpRequest& request) {
      if (request.path == "/large") return HttpResponse{.body = std::string(1 << 20, 'x')};
      return HttpResponse{.body = request.path + (request.verbose ? " verbose " : " ") +
                                  request.authorization + "|" + request.peer};
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const std::string& address = server_->addresses().front();
    port_ = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }

  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(port_);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return fd;
  }
  static void Send(const UniqueFd& fd, const std::string& bytes) {
    // The server may have closed the connection already.
    [[maybe_unused]] const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Until the server closes the connection, or says nothing for 10 s.
  static std::string ReadAll(const UniqueFd& fd) {
    std::string text;
    std::array<char, 65536> bytes{};
    pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
    while (poll(&wait, 1, 10'000) == 1) {
      const ssize_t count = recv(fd.get(), bytes.data(), bytes.size(), 0);
      if (count <= 0) break;
      text.append(bytes.data(), static_cast<std::size_t>(count));
    }
    return text;
  }
  std::string Ask(const std::string& first_line, const std::string& headers = "",
                  const std::string& host = "localhost") const {
    const UniqueFd fd = Connect();
    Send(fd, absl::StrCat(first_line, " HTTP/1.1\r\nHost: ", host, "\r\nConnection: close\r\n",
                          headers, "\r\n"));
    return ReadAll(fd);
  }

  std::unique_ptr<HttpServer> server_;
  std::uint16_t port_ = 0;
};

TEST_F(HttpServerTest, HandsRequestsOver) {
  EXPECT_THAT(Ask("GET /livez"), HasSubstr("\r\n\r\n/livez "));
  EXPECT_THAT(Ask("GET /readyz?verbose"), HasSubstr("\r\n\r\n/readyz verbose "));
  EXPECT_THAT(Ask("GET /readyz?verbose=1&x=2"), HasSubstr("/readyz verbose "));
  EXPECT_THAT(Ask("GET /a%20b"), HasSubstr("\r\n\r\n/a b "));
  EXPECT_THAT(Ask("GET /", "Authorization: Bearer t\r\n"), HasSubstr("/ Bearer t|127.0.0.1:"));
  EXPECT_GT(Ask("GET /large").size(), std::size_t{1} << 20);
}

TEST_F(HttpServerTest, TellsBrowsersWhatIsAllowed) {
  const std::string answer = Ask("GET /");
  EXPECT_THAT(answer, HasSubstr("Content-Security-Policy: default-src 'self'"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff"));
}

// A page from elsewhere reaches the address under a name of its own.
TEST_F(HttpServerTest, AnswersNoForeignNameOnLoopback) {
  for (const std::string host : {"localhost", "localhost:29611", "127.0.0.1:29611", "10.0.0.5",
                                 "[::1]:29611", "[fe80::1]"}) {
    EXPECT_THAT(Ask("GET /a", "", host), StartsWith("HTTP/1.1 200")) << host;
  }
  for (const std::string host : {"attacker.example", "attacker.example:29611", "127.0.0.1.example",
                                 "localhost.example", "[attacker.example]", "[", "127.1"}) {
    EXPECT_THAT(Ask("GET /a", "", host), StartsWith("HTTP/1.1 421")) << host;
  }
}

TEST_F(HttpServerTest, OnlyReads) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string answer = Ask(absl::StrCat(method, " /"), "Content-Length: 0\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD"));
  }
  const std::string head = Ask("HEAD /livez");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(head.substr(head.find("\r\n\r\n")), "\r\n\r\n");
}

TEST_F(HttpServerTest, RefusesWhatIsTooLongOrNoRequest) {
  EXPECT_THAT(Ask("GET /", absl::StrCat("X: ", std::string(100'000, 'x'), "\r\n")),
              StartsWith("HTTP/1.1 4"));
  EXPECT_THAT(Ask(absl::StrCat("GET /", std::string(100'000, 'x'))), StartsWith("HTTP/1.1 4"));
  const UniqueFd fd = Connect();
  Send(fd, absl::StrCat(std::string(1000, '\0'), "\r\n\r\n"));
  const std::string answer = ReadAll(fd);
  EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.")) << answer;
  EXPECT_THAT(Ask("GET /livez"), StartsWith("HTTP/1.1 200"));
}

// A probe must be answered whatever others do.
TEST_F(HttpServerTest, SlowOnesDelayNobody) {
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(Connect());
    Send(slow.back(), "GET /livez HTTP/1.1\r\nHo");
  }
  EXPECT_THAT(Ask("GET /livez"), StartsWith("HTTP/1.1 200"));
  // They are dropped, and those above an address' limit at once.
  for (int i = 0; i < 100; ++i) slow.push_back(Connect());
  for (const UniqueFd& fd : slow) EXPECT_EQ(ReadAll(fd).find("200 OK"), std::string::npos);
  slow.clear();
  // Once the server has seen that they are gone.
  EXPECT_TRUE(
      testing::Eventually([this] { return Ask("GET /livez").starts_with("HTTP/1.1 200"); }));
}

}  // namespace
}  // namespace gradwire::server
