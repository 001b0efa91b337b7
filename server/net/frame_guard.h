// Bounds what the frames of one HTTP/2 connection can make gRPC 1.51 hold, before gRPC parses them.
//
// gRPC limits a header block's size for each frame, not for the block, and only as the peer has
// acknowledged: a peer that never ends a block makes it hold up to 16 MB for each HEADERS or
// CONTINUATION frame, or 8 KB for each 11 bytes, because one byte may refer to a header of 4 KB. It
// answers PINGs with GOAWAY frames that it keeps if the peer does not read. It compares a message
// with its limit once all of it is there. All limits here are far above what clients send that
// gRPC serves: it refuses calls with more than 8 KiB of metadata, and messages above its limit.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace gradwire::server {

// Amounts that may be taken at once, and in a second.
class Budget {
 public:
  using Clock = std::chrono::steady_clock;

  Budget(double most, double per_second) : most_(most), per_second_(per_second), left_(most) {}

  bool Take(double amount, Clock::time_point now);

 private:
  const double most_;
  const double per_second_;
  double left_;
  Clock::time_point updated_{};
};

// Thread-compatible. It sees what a client sends, without TLS, from the first byte on.
class FrameGuard {
 public:
  using Clock = Budget::Clock;

  // `most_held`: bytes of incomplete messages, of all streams together.
  explicit FrameGuard(std::size_t most_held);

  // What the bytes break; null: nothing. Once they have broken something it stays so, and gRPC must
  // not get the bytes.
  const char* Look(std::span<const std::uint8_t> bytes, Clock::time_point now);

 private:
  enum class Part : std::uint8_t { kPreface, kHeader, kPayload, kForeign };
  // Of a header field: RFC 7541, section 6.
  enum class Field : std::uint8_t { kBegin, kNumber, kLength, kText };
  enum class Number : std::uint8_t { kIndexed, kNameIndex, kLength, kTableSize };
  // A message that has begun.
  struct Message {
    std::uint32_t prefix_bytes = 0;  // of the five that precede it
    std::uint32_t left = 0;
    std::size_t held = 0;
    Clock::time_point touched{};
  };

  void BeginFrame();
  void EndFrame();
  void OnData(std::span<const std::uint8_t> bytes);
  void OnHeaders(std::span<const std::uint8_t> bytes);
  void OnFieldByte(std::uint8_t byte);
  void BeginNumber(Number what, std::uint8_t byte, unsigned bits);
  void OnNumber();
  void OnText();
  void Charge(std::size_t cost);
  void BeginHeaders();
  void TakeSmallFrame();
  void Forget(std::uint32_t stream);
  void ForgetOld();
  bool HoldsTooMuch() const;

  const std::size_t most_held_;
  const char* broken_ = nullptr;
  Clock::time_point now_{};
  Part part_ = Part::kPreface;
  std::size_t preface_bytes_ = 0;

  std::array<std::uint8_t, 9> header_{};  // of the frame
  std::size_t header_bytes_ = 0;
  std::uint32_t left_ = 0;  // of its payload
  std::uint8_t type_ = 0;
  std::uint8_t flags_ = 0;
  std::uint32_t stream_ = 0;
  std::uint32_t last_stream_ = 0;
  std::uint32_t priority_left_ = 0;  // bytes that precede the block

  Field field_ = Field::kBegin;
  Number number_ = Number::kIndexed;
  std::uint32_t value_ = 0;  // of the number, and then the bytes that are left of the text
  unsigned shift_ = 0;
  bool huffman_ = false;
  bool is_name_ = false;
  bool is_stored_ = false;          // in the dynamic table
  std::size_t entry_cost_ = 0;      // of the field
  std::size_t largest_stored_ = 0;  // of all fields that a reference may mean
  std::size_t block_cost_ = 0;

  std::map<std::uint32_t, Message> messages_;  // incomplete ones, by their streams
  std::size_t held_ = 0;                       // of them
  bool settings_acknowledged_ = false;
  std::size_t streams_before_ = 0;
  Budget small_frames_;
  Budget cheap_frames_;
  Budget streams_;
  Budget header_bytes_left_;
};

}  // namespace gradwire::server
