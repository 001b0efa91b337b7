#pragma once

namespace gradwire::server {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace gradwire::server
