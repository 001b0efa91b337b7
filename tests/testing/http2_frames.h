// HTTP/2 frames by hand, for peers that misuse them.
#pragma once

#include <cstdint>
#include <string>

namespace gradwire::testing::http2 {

enum Type : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9
};
constexpr int kAck = 1;
constexpr int kEndStream = 1;
constexpr int kEndHeaders = 4;

std::string Frame(Type type, int flags, std::uint32_t stream, const std::string& payload);

// The preface and settings that every client begins with.
std::string Begin();

// A header as HPACK text. `stored`: later headers may refer to it; the last one so is "\xbe".
std::string Literal(const std::string& name, const std::string& value, bool stored = false);

// Of a gRPC call.
std::string CallHeaders(const std::string& path);

}  // namespace gradwire::testing::http2
