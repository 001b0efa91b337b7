// Tables and figures of gradwirectl's output.
#pragma once

#include <google/protobuf/duration.pb.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::ctl {

using Row = std::vector<std::string>;

// Columns two spaces apart. Lines have no trailing spaces.
std::string Table(const std::vector<Row>& rows);

// "3.0 MiB".
std::string Bytes(std::uint64_t bytes);

double ToSeconds(const google::protobuf::Duration& duration);
// "1.5 s".
std::string Seconds(const google::protobuf::Duration& duration);
// "0.25 ms", of each of so many.
std::string Milliseconds(double seconds, std::uint64_t count);

}  // namespace gradwire::ctl
