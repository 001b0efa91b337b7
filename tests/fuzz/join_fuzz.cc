// Any parts in any order: JoinParts must not fall over, asks for memory once and within its limits,
// and a join that it calls complete has the manifest that protobuf would have brought in one.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "proto/wire/join_parts.h"

namespace gradwire::wire {
namespace {

// A first part may ask for much and bring little; the fuzzer's own memory is not the point.
constexpr std::size_t kRoom = std::size_t{1} << 20;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "join_fuzz: %s\n", what);
  std::abort();
}

// Each part is a byte with its length, and so many bytes.
void TestOneJoin(const std::string& bytes) {
  int asked = 0;
  JoinParts parts([&asked](std::size_t wanted) {
    ++asked;
    Require(wanted <= ManifestReader::BytesFor(kMaxParameters, kMaxManifestNameBytes),
            "asks for more than the limits allow");
    return wanted <= kRoom ? absl::OkStatus() : absl::UnavailableError("no room");
  });
  v1::JoinRequest whole;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t wanted = static_cast<unsigned char>(bytes[at++]);
    const std::size_t length = std::min(wanted, bytes.size() - at);
    v1::JoinPart part;
    const bool parsed = part.ParseFromString(bytes.substr(at, length));
    at += length;
    if (!parsed) return;
    const absl::Status status = parts.Add(part);
    Require(asked <= 1, "asks for memory twice");
    if (!status.ok()) return;
    whole.mutable_manifest()->MergeFrom(part.manifest());
  }
  if (!parts.CheckComplete().ok()) return;
  const absl::StatusOr<std::vector<ParameterSpec>> once = FromProto(whole.manifest());
  Require(once.ok() && *once == parts.TakeManifest(), "reads another manifest than in one");
}

}  // namespace
}  // namespace gradwire::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const google::protobuf::LogSilencer silencer;
  gradwire::wire::TestOneJoin(std::string(data, data + size));
  return 0;
}
