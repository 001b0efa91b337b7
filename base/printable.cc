#include "base/printable.h"

#include <cstddef>

namespace gradwire {
namespace {

unsigned char ByteAt(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

void AppendEscape(unsigned char code, std::string& out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\u00";
  out += kDigits[code >> 4U];
  out += kDigits[code & 0xfU];
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const unsigned char byte = ByteAt(text, i);
    const unsigned char next = ByteAt(text, i + 1);
    if (byte < 0x20 || byte == 0x7f) {
      AppendEscape(byte, out);
    } else if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {
      AppendEscape(next, out);  // UTF-8 of U+0080 to U+009F
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace gradwire
