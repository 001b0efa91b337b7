#include "tests/bench/ladder/table.h"

#include <cstdio>
#include <fstream>

namespace gradwire::bench {
namespace {

nlohmann::json Json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

std::string Text(const Spread& spread) {
  const int decimals = spread.median < 1 ? 3 : spread.median < 10 ? 2 : 1;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f (%.*f to %.*f)", decimals, spread.median, decimals,
                spread.min, decimals, spread.max);
  return text;
}

std::string Text(const std::optional<double>& ratio) {
  if (!ratio) return "";
  char text[16];
  std::snprintf(text, sizeof text, "%.2f", *ratio);
  return text;
}

}  // namespace

void PrintRows(const std::string& title, const std::vector<Row>& rows) {
  if (rows.empty()) return;
  const bool latency = rows[0].p50_us.has_value();
  std::printf("\n%s\n%-7s %-46s %-6s %2s  %-24s %-24s", title.c_str(), "rung", "what", "path", "N",
              latency ? "p50 us" : "GB/s", latency ? "p99 us" : "CPU s/GB");
  std::printf("%s\n", latency ? " ratio to" : "     ms  ratio  CPU's to");
  for (const Row& row : rows) {
    const std::string first = Text(latency ? *row.p50_us : *row.gb_per_s);
    const std::string second = Text(latency ? *row.p99_us : *row.cpu_s_per_gb);
    std::printf("%-7s %-46s %-6s %2zu  %-24s %-24s ", row.rung.c_str(), row.what.c_str(),
                row.transport.c_str(), row.members, first.c_str(), second.c_str());
    if (!latency) std::printf("%6.1f  ", row.ms->median);
    std::printf("%5s ", Text(row.ratio_to_below).c_str());
    if (!latency) std::printf(" %5s ", Text(row.cpu_ratio_to_below).c_str());
    std::printf("%s\n", row.below.c_str());
  }
  std::fflush(stdout);
}

nlohmann::json JsonOf(const std::vector<Row>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json item = {{"rung", row.rung},
                           {"what", row.what},
                           {"transport", row.transport},
                           {"members", row.members},
                           {"bytes", row.bytes}};
    const auto add = [&item](const char* name, const std::optional<Spread>& spread) {
      if (spread) item[name] = Json(*spread);
    };
    add("gb_per_s", row.gb_per_s);
    add("cpu_s_per_gb", row.cpu_s_per_gb);
    add("ms", row.ms);
    add("p50_us", row.p50_us);
    add("p99_us", row.p99_us);
    if (row.ratio_to_below) {
      item["below"] = row.below;
      item["ratio_to_below"] = *row.ratio_to_below;
    }
    if (row.cpu_ratio_to_below) item["cpu_ratio_to_below"] = *row.cpu_ratio_to_below;
    list.push_back(std::move(item));
  }
  return list;
}

bool WriteRows(const std::string& path, const std::string& benchmark,
               const std::vector<Row>& rows) {
  std::ofstream file(path);
  file << nlohmann::json{{"benchmark", benchmark}, {"rows", JsonOf(rows)}}.dump(1) << "\n";
  file.close();
  return static_cast<bool>(file);
}

}  // namespace gradwire::bench
