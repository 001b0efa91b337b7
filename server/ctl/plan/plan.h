// `gradwirectl plan`: what its options say, and what it prints. Asks no daemon.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/ctl/plan/plan_model.h"
#include "server/ctl/report.h"

namespace gradwire::ctl {

// What the command line asks for. The texts are checked when they are used.
struct PlanFlags {
  std::string hosts = "4";
  std::string members_per_host = "1";
  std::string cores = "4";
  std::string link = "1Gbit/s";
  std::string round_trip = "0.2ms";
  std::string model = "resnet18";
  std::string shapes = {};  // instead of a model
  std::string hook = "no";
  std::string compute = {};  // seconds; empty: unknown
  bool scale = false;
};

// "1Gbit/s", "100mbit": bytes per second. InvalidArgument names what is allowed.
absl::StatusOr<double> ParseRate(const std::string& text);

absl::StatusOr<Site> ReadSite(const PlanFlags& flags);

// The model is a name, a number of parameters such as 25000000 or 7B, or a file with shapes. Reads
// the file.
absl::StatusOr<Workload> ReadWorkload(const PlanFlags& flags);

// Prints to standard output, as a table or, if `print` is there, with it. Returns an exit code: 0,
// or 2 for a wrong value.
int RunPlan(const PlanFlags& flags, const Print& print);

}  // namespace gradwire::ctl
