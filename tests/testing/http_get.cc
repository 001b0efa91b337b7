#include "tests/testing/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace gradwire::testing {

std::string HttpGet(const std::string& address, const std::string& path, const std::string& token) {
  constexpr int kWaitMs = 10'000;
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return "";
  const std::string request = absl::StrCat(
      "GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
      token.empty() ? "" : absl::StrCat("Authorization: Bearer ", token, "\r\n"), "\r\n");
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  std::array<char, 65536> bytes{};
  pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
  while (poll(&wait, 1, kWaitMs) == 1) {
    const ssize_t count = recv(fd.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) break;
    answer.append(bytes.data(), static_cast<std::size_t>(count));
  }
  const std::size_t body = answer.find("\r\n\r\n");
  const bool ok = answer.rfind("HTTP/1.1 200", 0) == 0 && body != std::string::npos;
  return ok ? answer.substr(body + 4) : "";
}

}  // namespace gradwire::testing
