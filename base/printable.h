// Text from other processes, made safe to show.
#pragma once

#include <string>
#include <string_view>

namespace gradwire {

// `text` is UTF-8. Each control character becomes \u and its four hexadecimal digits, as in JSON,
// so that nothing looks like another line or acts on a terminal: the ASCII ones, and U+0080 to
// U+009F, which some terminals take for escape sequences.
std::string Printable(std::string_view text);

}  // namespace gradwire
