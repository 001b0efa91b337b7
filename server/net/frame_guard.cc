#include "server/net/frame_guard.h"

#include <algorithm>
#include <string_view>

namespace gradwire::server {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum Type : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kRstStream = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9
};
constexpr std::uint8_t kEndStream = 0x1;
constexpr std::uint8_t kAck = 0x1;
constexpr std::uint8_t kEndHeaders = 0x4;
constexpr std::uint8_t kPadded = 0x8;
constexpr std::uint8_t kPriority = 0x20;
constexpr std::uint32_t kPriorityBytes = 5;
constexpr std::uint32_t kPrefixBytes = 5;

// What gRPC keeps for a frame, and for a field beside its text.
constexpr std::size_t kFrameCost = 128;
constexpr std::size_t kFieldCost = 128;
constexpr std::uint32_t kStaticEntries = 61;
constexpr std::size_t kStaticEntry = 64;
// The dynamic table: its size, and what it counts for an entry beside its text.
constexpr std::size_t kTableBytes = 4096;
constexpr std::size_t kEntryBytes = 32;

// Of one block: 30 references to the largest entry that the table can have.
constexpr std::size_t kMostOfBlock = std::size_t{128} << 10;
// A call costs some 3 KB, and 16 KB if its token is long.
constexpr double kHeaderBytes = 16 << 20;
constexpr double kHeaderBytesPerSecond = 128 << 20;
// A client that makes one call after the other on a unix socket makes some 4,000 a second. What
// limits those that are open is gRPC, and those that are reset, the small frames.
constexpr double kStreams = 4000;
constexpr double kStreamsPerSecond = 20'000;
// PINGs and SETTINGS that want an answer, resets, and what carries nothing. gRPC's own clients send
// a few PINGs and SETTINGS a second while they measure the link.
constexpr double kSmallFrames = 1000;
constexpr double kSmallFramesPerSecond = 200;
// Window updates and acknowledgements cost time only. A member sends some for each message that it
// gets.
constexpr double kCheapFrames = 200'000;
constexpr double kCheapFramesPerSecond = 200'000;
// gRPC enforces its limit of concurrent streams when the peer has acknowledged it.
constexpr std::size_t kStreamsBeforeSettings = 64;
// A slice, and the frame's header in the buffer that it keeps.
constexpr std::size_t kSliceCost = 64;
// Streams whose messages are incomplete. A client has up to 16 at once, and some that the daemon
// has ended.
constexpr std::size_t kMostMessages = 256;
constexpr std::chrono::seconds kMessageTimeout(60);

constexpr unsigned kMostShift = 21;

}  // namespace

bool Budget::Take(double amount, Clock::time_point now) {
  if (updated_ != Clock::time_point{}) {
    const double seconds = std::chrono::duration<double>(now - updated_).count();
    left_ = std::min(most_, left_ + seconds * per_second_);
  }
  updated_ = now;
  left_ -= amount;
  return left_ >= 0;
}

FrameGuard::FrameGuard(std::size_t most_held)
    : most_held_(most_held),
      small_frames_(kSmallFrames, kSmallFramesPerSecond),
      cheap_frames_(kCheapFrames, kCheapFramesPerSecond),
      streams_(kStreams, kStreamsPerSecond),
      header_bytes_left_(kHeaderBytes, kHeaderBytesPerSecond) {}

const char* FrameGuard::Look(std::span<const std::uint8_t> bytes, Clock::time_point now) {
  now_ = now;
  while (!bytes.empty() && broken_ == nullptr) {
    std::size_t taken = 1;
    switch (part_) {
      case Part::kForeign:
        return nullptr;
      case Part::kPreface:
        // gRPC ends the connection.
        if (bytes[0] != static_cast<std::uint8_t>(kPreface[preface_bytes_])) part_ = Part::kForeign;
        if (++preface_bytes_ == kPreface.size() && part_ == Part::kPreface) part_ = Part::kHeader;
        break;
      case Part::kHeader:
        header_[header_bytes_] = bytes[0];
        if (++header_bytes_ == header_.size()) BeginFrame();
        break;
      case Part::kPayload:
        taken = std::min<std::size_t>(left_, bytes.size());
        if (type_ == kData) OnData(bytes.first(taken));
        if (type_ == kHeaders || type_ == kContinuation) OnHeaders(bytes.first(taken));
        left_ -= static_cast<std::uint32_t>(taken);
        if (left_ == 0) EndFrame();
        break;
    }
    bytes = bytes.subspan(taken);
  }
  return broken_;
}

void FrameGuard::BeginFrame() {
  header_bytes_ = 0;
  const auto at = [&](std::size_t i) { return std::uint32_t{header_[i]}; };
  left_ = at(0) << 16 | at(1) << 8 | at(2);
  type_ = header_[3];
  flags_ = header_[4];
  stream_ = (at(5) << 24 | at(6) << 16 | at(7) << 8 | at(8)) & 0x7fffffffU;
  part_ = Part::kPayload;
  switch (type_) {
    case kData:
      if (left_ == 0 && (flags_ & kEndStream) == 0) TakeSmallFrame();
      break;
    case kHeaders:
      BeginHeaders();
      break;
    case kContinuation:
      Charge(kFrameCost);
      break;
    case kSettings:
    case kPing:
      if ((flags_ & kAck) == 0) {
        TakeSmallFrame();
        break;
      }
      settings_acknowledged_ |= type_ == kSettings;
      [[fallthrough]];
    case kWindowUpdate:
      if (!cheap_frames_.Take(1, now_)) broken_ = "more than 200,000 window updates a second";
      break;
    default:
      TakeSmallFrame();
  }
  // gRPC does not know padding: it would take it for a message or for headers.
  if ((type_ == kData || type_ == kHeaders) && (flags_ & kPadded) != 0) broken_ = "padded frames";
  if (left_ == 0) EndFrame();
}

void FrameGuard::BeginHeaders() {
  block_cost_ = 0;
  field_ = Field::kBegin;
  priority_left_ = (flags_ & kPriority) != 0 ? kPriorityBytes : 0;
  Charge(kFrameCost);
  if (stream_ <= last_stream_) return;
  last_stream_ = stream_;
  if (!streams_.Take(1, now_)) broken_ = "more than 20,000 new streams a second";
  if (!settings_acknowledged_ && ++streams_before_ > kStreamsBeforeSettings) {
    broken_ = "more than 64 streams without an acknowledgement of the settings";
  }
}

void FrameGuard::EndFrame() {
  part_ = Part::kHeader;
  if ((type_ == kHeaders || type_ == kContinuation) && (flags_ & kEndHeaders) != 0) {
    if (!header_bytes_left_.Take(static_cast<double>(block_cost_), now_)) {
      broken_ = "more than 128 MiB of headers a second";
    }
    field_ = Field::kBegin;
    block_cost_ = 0;
  }
  const bool ends = (type_ == kData || type_ == kHeaders) && (flags_ & kEndStream) != 0;
  if (ends || type_ == kRstStream) Forget(stream_);
}

void FrameGuard::Forget(std::uint32_t stream) {
  const auto found = messages_.find(stream);
  if (found == messages_.end()) return;
  held_ -= found->second.held;
  messages_.erase(found);
}

void FrameGuard::OnData(std::span<const std::uint8_t> bytes) {
  Message& message = messages_[stream_];
  message.held += kSliceCost;
  held_ += kSliceCost;
  while (!bytes.empty()) {
    if (message.prefix_bytes < kPrefixBytes) {
      // The first byte says whether it is compressed.
      if (message.prefix_bytes++ > 0) message.left = message.left << 8 | bytes[0];
      bytes = bytes.subspan(1);
      if (message.prefix_bytes < kPrefixBytes) continue;
    } else {
      const std::size_t taken = std::min<std::size_t>(message.left, bytes.size());
      message.left -= static_cast<std::uint32_t>(taken);
      message.held += taken;
      held_ += taken;
      bytes = bytes.subspan(taken);
    }
    if (message.left > 0) continue;
    held_ -= message.held;
    message = {};
  }
  message.touched = now_;
  if (message.prefix_bytes == 0) messages_.erase(stream_);
  if (HoldsTooMuch()) ForgetOld();
  if (HoldsTooMuch()) broken_ = "incomplete messages that are too many or too large";
}

bool FrameGuard::HoldsTooMuch() const {
  return held_ > most_held_ || messages_.size() > kMostMessages;
}

// A client need not say any more on a stream that the daemon has ended.
void FrameGuard::ForgetOld() {
  std::erase_if(messages_, [&](const auto& entry) {
    const bool old = now_ - entry.second.touched > kMessageTimeout;
    if (old) held_ -= entry.second.held;
    return old;
  });
}

void FrameGuard::OnHeaders(std::span<const std::uint8_t> bytes) {
  const std::size_t skipped = std::min<std::size_t>(priority_left_, bytes.size());
  priority_left_ -= static_cast<std::uint32_t>(skipped);
  bytes = bytes.subspan(skipped);
  while (!bytes.empty() && broken_ == nullptr) {
    if (field_ != Field::kText) {
      OnFieldByte(bytes[0]);
      bytes = bytes.subspan(1);
      continue;
    }
    const std::size_t taken = std::min<std::size_t>(value_, bytes.size());
    value_ -= static_cast<std::uint32_t>(taken);
    bytes = bytes.subspan(taken);
    if (value_ == 0) OnText();
  }
}

void FrameGuard::OnFieldByte(std::uint8_t byte) {
  switch (field_) {
    case Field::kBegin:
      entry_cost_ = 0;
      is_stored_ = false;
      if ((byte & 0x80) != 0) return BeginNumber(Number::kIndexed, byte, 7);
      is_stored_ = (byte & 0xc0) == 0x40;
      if (is_stored_) return BeginNumber(Number::kNameIndex, byte, 6);
      if ((byte & 0xe0) == 0x20) return BeginNumber(Number::kTableSize, byte, 5);
      return BeginNumber(Number::kNameIndex, byte, 4);
    case Field::kLength:
      huffman_ = (byte & 0x80) != 0;
      return BeginNumber(Number::kLength, byte, 7);
    case Field::kNumber:
      value_ += std::uint32_t{byte & 0x7fU} << shift_;
      if ((byte & 0x80) == 0) return OnNumber();
      shift_ += 7;
      if (shift_ > kMostShift) broken_ = "a number in a header that is far too large";
      return;
    case Field::kText:
      return;
  }
}

void FrameGuard::BeginNumber(Number what, std::uint8_t byte, unsigned bits) {
  const std::uint8_t mask = static_cast<std::uint8_t>((1U << bits) - 1);
  number_ = what;
  value_ = byte & mask;
  shift_ = 0;
  field_ = Field::kNumber;
  if (value_ < mask) OnNumber();
}

void FrameGuard::OnNumber() {
  switch (number_) {
    case Number::kTableSize:
      field_ = Field::kBegin;
      return Charge(kFieldCost);
    case Number::kIndexed:
      field_ = Field::kBegin;
      return Charge(kFieldCost + (value_ > kStaticEntries ? largest_stored_ : kStaticEntry));
    case Number::kNameIndex:
      field_ = Field::kLength;
      is_name_ = value_ == 0;
      if (!is_name_) entry_cost_ = value_ > kStaticEntries ? largest_stored_ : kStaticEntry;
      return Charge(kFieldCost + entry_cost_);
    case Number::kLength: {
      // No code of the Huffman table has less than 5 bits.
      const std::size_t bytes = huffman_ ? std::size_t{value_} * 8 / 5 : value_;
      entry_cost_ += bytes;
      Charge(bytes);
      field_ = Field::kText;
      if (value_ == 0) OnText();
    }
  }
}

void FrameGuard::OnText() {
  field_ = is_name_ ? Field::kLength : Field::kBegin;
  if (!is_name_ && is_stored_) {
    largest_stored_ = std::max(largest_stored_, std::min(entry_cost_ + kEntryBytes, kTableBytes));
  }
  is_name_ = false;
}

void FrameGuard::Charge(std::size_t cost) {
  block_cost_ += cost;
  if (block_cost_ > kMostOfBlock) broken_ = "a block of headers of more than 128 KiB";
}

void FrameGuard::TakeSmallFrame() {
  if (!small_frames_.Take(1, now_)) {
    broken_ = "more than 200 PING, SETTINGS and empty frames a second";
  }
}

}  // namespace gradwire::server
