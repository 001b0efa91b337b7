// The files of the status page, which are part of the program.
#pragma once

#include <array>
#include <string_view>

namespace gradwire::server::page {

struct File {
  std::string_view path;  // of the request
  std::string_view type;
  std::string_view content;
};

extern const std::array<File, 3> kFiles;

}  // namespace gradwire::server::page
