// Which version of the hook's shared state each member has.
//
// Kept by groups of parameters that were announced as one bucket, with one version and one bit for
// each member: a bucket's contributions touch one group, however many parameters it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradwire::server {

// Not thread-safe. Parameters are positions in the manifest.
class StateVersions {
 public:
  StateVersions(std::size_t parameters, std::size_t members);

  // These parameters are a bucket from now on. A member has of it what it had of all of them.
  void Place(std::span<const std::uint32_t> bucket);

  // Of the bucket that begins with `parameter`, as it was placed last. No version is 0.
  bool Has(int rank, std::uint32_t parameter, std::uint64_t version) const;
  void Set(int rank, std::uint32_t parameter, std::uint64_t version);

  // Nobody has anything.
  void Clear();

  // Upper bound of what one takes.
  static std::size_t BytesFor(std::size_t parameters, std::size_t members);

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static std::size_t Words(std::size_t members) { return (members + 63) / 64; }

  struct Group {
    std::uint64_t version = 0;
    std::uint32_t parameters = 0;  // that belong to it; 0: it is free
  };
  using Bits = std::span<std::uint64_t>;

  std::uint32_t NewGroup();
  Bits bits(std::uint32_t group) { return Bits(bits_).subspan(group * words_, words_); }
  std::span<const std::uint64_t> bits(std::uint32_t group) const {
    return std::span<const std::uint64_t>(bits_).subspan(group * words_, words_);
  }

  const std::size_t words_;
  std::vector<std::uint32_t> group_of_;  // by parameter
  std::vector<Group> groups_;
  std::vector<std::uint64_t> bits_;  // by group, a bit for each member that has its version
  std::vector<std::uint32_t> free_;
};

}  // namespace gradwire::server
