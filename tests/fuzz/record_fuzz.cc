// Any records in any order, with checksums that fit: a replay must not fall over, and takes no
// memory that the file does not have.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "server/record/comparison.h"
#include "server/record/replay.h"

namespace gradwire::server {
namespace {

void Append(std::span<const std::byte> bytes, std::string& file) {
  file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Each record is a byte with its kind, two with the bytes of its head, two with those of its
// payload, and so many bytes. A first byte of 0: what follows is a file as it is.
std::string FileOf(std::span<const std::uint8_t> input) {
  std::string file;
  if (!input.empty() && input.front() == 0) {
    Append(std::as_bytes(input.subspan(1)), file);
    return file;
  }
  file = kRecordMagic;
  constexpr std::size_t kSizes = 5;
  while (input.size() >= kSizes) {
    const auto kind = static_cast<RecordKind>(input[0]);
    const std::size_t head_bytes = input[1] | std::size_t{input[2]} << 8;
    const std::size_t payload_bytes = input[3] | std::size_t{input[4]} << 8;
    input = input.subspan(kSizes);
    const auto head = input.first(std::min(head_bytes, input.size()));
    input = input.subspan(head.size());
    const auto payload = input.first(std::min(payload_bytes, input.size()));
    input = input.subspan(payload.size());
    const std::string text(head.begin(), head.end());
    Append(RecordPrefix(kind, text, std::as_bytes(payload)), file);
    file += text;
    Append(std::as_bytes(payload), file);
  }
  return file;
}

void TestOneFile(const std::string& file) {
  MemorySource source(std::as_bytes(std::span(file)));
  const auto report = Replay(source);
  MemorySource again(std::as_bytes(std::span(file)));
  const auto contents = ReadContents(again);
  if (report.ok() != contents.ok()) {
    std::fprintf(stderr, "record_fuzz: a file is whole for the one and not for the other\n");
    std::abort();
  }
  if (contents.ok() && Compare(*contents, *contents)->has_value()) {
    std::fprintf(stderr, "record_fuzz: a step differs from itself\n");
    std::abort();
  }
}

}  // namespace
}  // namespace gradwire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const google::protobuf::LogSilencer silencer;
  gradwire::server::TestOneFile(gradwire::server::FileOf({data, size}));
  return 0;
}
