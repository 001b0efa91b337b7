// How `gradwirectl replay` shows what it found. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "server/record/comparison.h"
#include "server/record/replay.h"

namespace gradwire::ctl {

// "step 41: 12 buckets, 3 members, digest 0x…: as recorded", and a line for each difference.
std::string ReplayText(const server::ReplayReport& report);
nlohmann::ordered_json ReplayJson(const std::string& path, const server::ReplayReport& report);

// "step 41: rank 1 has contributed something else: bucket [w], …".
std::string DifferenceText(std::int64_t step, const server::StepDifference& difference);
nlohmann::ordered_json DifferenceJson(std::int64_t step, const server::StepDifference& difference);

}  // namespace gradwire::ctl
