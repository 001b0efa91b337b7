#include "server/daemon/log_ring.h"

#include <algorithm>
#include <utility>

namespace gradwire::server {
namespace {

bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Bytes of the character at the front, of which `text` has all; 0: it is no UTF-8. Overlong forms,
// surrogates and what is above U+10FFFF are none.
std::size_t CharacterBytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return 1;
  const std::size_t bytes = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (bytes == 0 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!Continues(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) {
    return 0;
  }
  return bytes;
}

// A string field that is no UTF-8 would make the whole answer unreadable.
std::string Kept(std::string_view line) {
  constexpr std::string_view kCut = "...";
  const bool whole = line.size() <= LogRing::kMostLineBytes;
  const std::size_t room = whole ? line.size() : LogRing::kMostLineBytes - kCut.size();
  std::string kept;
  while (!line.empty()) {
    const std::size_t bytes = CharacterBytes(line);
    const std::size_t taken = std::max<std::size_t>(bytes, 1);
    if (kept.size() + taken > room) break;
    kept.append(bytes == 0 ? "?" : line.substr(0, bytes));
    line.remove_prefix(taken);
  }
  if (!whole) kept.append(kCut);
  return kept;
}

}  // namespace

void LogRing::Add(std::string_view line) {
  std::string kept = Kept(line);
  MutexLock lock(mutex_);
  bytes_ += kept.size();
  lines_.push_back(std::move(kept));
  while (lines_.size() > kMostLines || bytes_ > kMostBytes) {
    bytes_ -= lines_.front().size();
    lines_.pop_front();
  }
}

std::vector<std::string> LogRing::Lines() const {
  MutexLock lock(mutex_);
  return {lines_.begin(), lines_.end()};
}

}  // namespace gradwire::server
