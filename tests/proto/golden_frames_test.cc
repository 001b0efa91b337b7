// The bytes of version 1, one file per kind of frame. A change here breaks clients that are out
// there. The files are the fuzzer's seeds too: their first byte is its choice of slices.
//
// GRADWIRE_WRITE_GOLDEN=1 writes the files that are missing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "proto/wire/codec.h"
#include "tests/proto/frame_samples.h"

namespace gradwire::wire {
namespace {

std::string Golden(std::size_t index, const Header& header) {
  return static_cast<char>(index) + Joined(Serialize(header, MakePayload(Pattern(index * 5))));
}

TEST(GoldenFramesTest, BytesStayTheSame) {
  const std::filesystem::path folder = GRADWIRE_GOLDEN_FRAMES;
  for (const Sample& sample : AllSamples()) {
    const std::filesystem::path path = folder / sample.name;
    const std::string expected = Golden(sample.header.index(), sample.header);
    if (std::getenv("GRADWIRE_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(path)) {
      std::filesystem::create_directories(folder);
      std::ofstream(path, std::ios::binary) << expected;
    }
    std::ifstream file(path, std::ios::binary);
    ASSERT_TRUE(file.is_open()) << path;
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(bytes, expected) << sample.name;
    const absl::StatusOr<Frame> frame = Parse(Cut(bytes.substr(1), {}), {});
    ASSERT_TRUE(frame.ok()) << sample.name << ": " << frame.status();
    EXPECT_TRUE(frame->header == sample.header) << sample.name;
  }
}

}  // namespace
}  // namespace gradwire::wire
