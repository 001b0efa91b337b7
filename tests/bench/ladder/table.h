// Rows on the terminal and in a JSON file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/ladder/compare.h"

namespace gradwire::bench {

// One line per row under a heading; throughput, or latency if the first row has that.
void PrintRows(const std::string& title, const std::vector<Row>& rows);

nlohmann::json JsonOf(const std::vector<Row>& rows);

// Whether the file could be written.
bool WriteRows(const std::string& path, const std::string& benchmark, const std::vector<Row>& rows);

}  // namespace gradwire::bench
