#include "tests/testing/http2_frames.h"

namespace gradwire::testing::http2 {
namespace {

std::string BigEndian(std::uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

// RFC 7541, 5.1, with a prefix of 7 bits.
std::string Text(const std::string& text) {
  std::size_t length = text.size();
  if (length < 127) return static_cast<char>(length) + text;
  std::string number = "\x7f";
  for (length -= 127; length >= 128; length /= 128) {
    number += static_cast<char>(length % 128 + 128);
  }
  return number + static_cast<char>(length) + text;
}

}  // namespace

std::string Frame(Type type, int flags, std::uint32_t stream, const std::string& payload) {
  return BigEndian(static_cast<std::uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + BigEndian(stream, 4) + payload;
}

std::string Begin() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, ""); }

std::string Literal(const std::string& name, const std::string& value, bool stored) {
  return std::string(1, stored ? '\x40' : '\0') + Text(name) + Text(value);
}

std::string CallHeaders(const std::string& path) {
  return Literal(":method", "POST") + Literal(":scheme", "http") + Literal(":path", path) +
         Literal(":authority", "test") + Literal("te", "trailers") +
         Literal("content-type", "application/grpc");
}

}  // namespace gradwire::testing::http2
