#include "server/ctl/bundle/tar_gz.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gradwire::ctl {
namespace {

constexpr std::size_t kBlock = 512;

// POSIX.1-1988, ustar: text fields end with a zero byte, numbers are octal digits before one.
struct Header {
  std::array<char, 100> name{};
  std::array<char, 8> mode{};
  std::array<char, 8> uid{};
  std::array<char, 8> gid{};
  std::array<char, 12> size{};
  std::array<char, 12> mtime{};
  std::array<char, 8> checksum{};
  char type = '0';
  std::array<char, 100> link{};
  std::array<char, 6> magic{'u', 's', 't', 'a', 'r', '\0'};
  std::array<char, 2> version{'0', '0'};
  std::array<char, 32> user{};
  std::array<char, 32> group{};
  std::array<char, 8> major{};
  std::array<char, 8> minor{};
  std::array<char, 155> prefix{};
  std::array<char, 12> rest{};
};
static_assert(sizeof(Header) == kBlock);

template <std::size_t n>
void Put(const std::string& text, std::array<char, n>& field) {
  std::copy_n(text.begin(), std::min(text.size(), n - 1), field.begin());
}

template <std::size_t n>
void PutNumber(std::uint64_t value, std::array<char, n>& field) {
  Put(absl::StrFormat("%0*o", static_cast<int>(n) - 1, value), field);
}

std::string HeaderBytes(const std::string& path, std::size_t size, absl::Time now) {
  Header header;
  Put(path, header.name);
  PutNumber(0600, header.mode);
  PutNumber(0, header.uid);
  PutNumber(0, header.gid);
  PutNumber(size, header.size);
  PutNumber(static_cast<std::uint64_t>(std::max<std::int64_t>(absl::ToUnixSeconds(now), 0)),
            header.mtime);
  // The sum of all bytes of the header, in which the sum itself counts as spaces.
  header.checksum.fill(' ');
  std::string bytes(kBlock, '\0');
  std::memcpy(bytes.data(), &header, kBlock);
  const unsigned sum = std::accumulate(bytes.begin(), bytes.end(), 0U, [](unsigned all, char byte) {
    return all + static_cast<unsigned char>(byte);
  });
  const std::string digits = absl::StrFormat("%06o", sum);
  std::copy(digits.begin(), digits.end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(offsetof(Header, checksum)));
  bytes[offsetof(Header, checksum) + digits.size()] = '\0';
  return bytes;
}

std::string Compressed(std::string bytes) {
  constexpr int kGzip = 15 + 16;  // the largest window, with gzip's header
  constexpr int kMemory = 8;
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, kMemory,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return "";  // no memory
  }
  // Room for all of it, so that one call is enough.
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool done = deflate(&stream, Z_FINISH) == Z_STREAM_END;
  out.resize(done ? stream.total_out : 0);
  deflateEnd(&stream);
  return out;
}

}  // namespace

std::string TarGz(const std::string& folder, const std::vector<ArchivedFile>& files,
                  absl::Time now) {
  std::string tar;
  for (const ArchivedFile& file : files) {
    absl::StrAppend(&tar, HeaderBytes(absl::StrCat(folder, "/", file.path), file.text.size(), now),
                    file.text);
    tar.resize((tar.size() + kBlock - 1) / kBlock * kBlock);
  }
  tar.resize(tar.size() + 2 * kBlock);  // two empty blocks end it
  return Compressed(std::move(tar));
}

}  // namespace gradwire::ctl
