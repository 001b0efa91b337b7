#include "server/ctl/plan/plan.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/printable.h"
#include "server/ctl/doctor/model.h"
#include "server/ctl/explain.h"
#include "server/ctl/files.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostElementsPlanned = 1'000'000'000'000;
constexpr std::size_t kMostShapesBytes = std::size_t{1} << 20;
constexpr double kLeastRate = 1e6;  // bits per second
constexpr double kMostRate = 1e12;
constexpr absl::Duration kMostRoundTrip = absl::Seconds(10);
constexpr double kMostComputeSeconds = 86400;
constexpr int kScaleHosts[] = {1, 4, 16, 64, 256, 1024, 4096};

absl::Status Wrong(const std::string& field, const std::string& value, const std::string& allowed) {
  return Coded(ErrorCode::kCtlUsage,
               absl::InvalidArgumentError(
                   absl::StrCat(field, " is \"", Printable(value), "\"; allowed are ", allowed)));
}

absl::StatusOr<int> ParseCount(const std::string& field, const std::string& text, int most) {
  int value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= 1 && value <= most) return value;
  return Wrong(field, text, absl::StrCat("1 to ", most));
}

// "25000000", "350M", "7B". nullopt: it is no number, so it is a name.
std::optional<std::uint64_t> ParseElements(std::string text) {
  std::uint64_t unit = 1;
  if (!text.empty()) {
    const char last = absl::ascii_toupper(static_cast<unsigned char>(text.back()));
    unit = last == 'K' ? 1'000 : last == 'M' ? 1'000'000 : last == 'B' ? 1'000'000'000 : 1;
    if (unit > 1) text.pop_back();
  }
  std::uint64_t count = 0;
  if (text.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(text.front()))) return {};
  if (!absl::SimpleAtoi(text, &count)) return {};
  if (count > std::numeric_limits<std::uint64_t>::max() / unit) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return count * unit;
}

absl::StatusOr<std::vector<ParameterSpec>> ReadShapes(const PlanFlags& flags) {
  if (!flags.shapes.empty()) return ParseShapes(flags.shapes);
  auto known = ModelByName(flags.model);
  if (known.ok()) return known;
  const auto text = ReadFile(flags.model, kMostShapesBytes);
  if (!text.ok()) {
    return Wrong("model", flags.model,
                 absl::StrCat(absl::StrJoin(ModelNames(), ", "),
                              ", a number of parameters such as 25000000 or 7B, and a file with "
                              "shapes such as 64x3x7x7,64,12*768x768 (",
                              std::string(text.status().message()), ")"));
  }
  // One line for each shape reads better.
  std::string shapes(absl::StripAsciiWhitespace(*text));
  return ParseShapes(absl::StrReplaceAll(shapes, {{",\n", ","}, {"\n", ","}}));
}

std::string Milliseconds(double seconds) {
  return seconds < 1e-3  ? absl::StrFormat("%.2f ms", seconds * 1e3)
         : seconds < 1   ? absl::StrFormat("%.3g ms", seconds * 1e3)
         : seconds < 100 ? absl::StrFormat("%.3g s", seconds)
                         : absl::StrFormat("%.0f s", seconds);
}

std::string Megabytes(double bytes) {
  return bytes < 1e10 ? absl::StrFormat("%.2f MB", bytes / 1e6)
                      : absl::StrFormat("%.1f GB", bytes / 1e9);
}

std::string LimitWord(Limit limit) {
  switch (limit) {
    case Limit::kLink:
      return "link";
    case Limit::kProcessor:
      return "processor";
    case Limit::kRoundTrips:
      return "round trips";
  }
  return "";
}

std::string About(const PlanFlags& flags, const Site& site, const Workload& workload) {
  return absl::StrCat(
      flags.shapes.empty() ? Printable(flags.model) : "shapes", ", ",
      Megabytes(workload.gradient_bytes()), " of gradients; hook ", Printable(flags.hook),
      ", of which a member sends ", Megabytes(static_cast<double>(workload.cost().bytes())),
      " in a step\n", flags.scale ? "" : absl::StrCat("hosts: ", site.hosts, "; "),
      site.members_per_host, site.members_per_host == 1 ? " member" : " members", " and ",
      site.cores, site.cores == 1 ? " core" : " cores", " on each host; links of ",
      Printable(flags.link), ", round trip ", Printable(flags.round_trip), "\n");
}

json ToJson(const Site& site, const Forecast& one, std::optional<double> compute) {
  json row = {{"topology", one.topology.Name(site)},
              {"shards", one.topology.shards},
              {"leaves", one.topology.leaves},
              {"daemons", one.topology.Daemons(site)},
              {"extra_hosts", one.topology.ExtraHosts()},
              {"member_link_bytes", one.member_link_bytes},
              {"daemon_link_bytes", one.daemon_link_bytes},
              {"communication_seconds", one.seconds},
              {"limit", LimitWord(one.limit)}};
  if (compute) row["step_seconds"] = *compute + one.seconds;
  return row;
}

void PrintPlan(const Site& site, const Plan& plan, std::optional<double> compute) {
  std::cout << absl::StrFormat("%14s %s%14s %14s  %-11s %s\n", "communication",
                               compute ? absl::StrFormat("%9s ", "step") : "", "member link",
                               "daemon link", "limited by", "topology");
  for (const Forecast& one : plan.forecasts) {
    std::cout << absl::StrFormat(
        "%14s %s%14s %14s  %-11s %s\n", Milliseconds(one.seconds),
        compute ? absl::StrFormat("%9s ", Milliseconds(*compute + one.seconds)) : "",
        Megabytes(one.member_link_bytes), Megabytes(one.daemon_link_bytes), LimitWord(one.limit),
        one.topology.Name(site));
  }
  for (const LeftOut& one : plan.left_out) {
    std::cout << "left out: " << one.topology << ": " << Printable(one.why) << "\n";
  }
  std::cout << "\nRecommended: " << plan.why << "\n";
}

// The fastest of a kind, for one column of the scale.
const Forecast* Fastest(const Plan& plan, bool (*is_kind)(const Topology&)) {
  const Forecast* best = nullptr;
  for (const Forecast& one : plan.forecasts) {
    if (is_kind(one.topology) && (best == nullptr || one.seconds < best->seconds)) best = &one;
  }
  return best;
}

std::string Cell(const Forecast* one, bool with_shards) {
  if (one == nullptr) return "-";
  const std::string took = Milliseconds(one->seconds);
  return with_shards ? absl::StrCat(took, " (", one->topology.shards, ")") : took;
}

int PrintScale(const PlanFlags& flags, Site site, const Workload& workload, const Print& print) {
  const bool groups = site.members_per_host > 1;
  json rows = json::array();
  std::string text = absl::StrFormat(
      "%6s %10s %17s %16s%s  %s\n", "hosts", "star", "own hosts (K)", "members' hosts",
      groups ? absl::StrFormat("%17s", "leaves (K)") : "", "recommended");
  for (const int hosts : kScaleHosts) {
    site.hosts = hosts;
    const auto plan = MakePlan(site, workload);
    if (!plan.ok()) {
      PrintFailure(ErrorCode::kCtlUsage, Printable(std::string(plan.status().message())));
      return server::kExitUsage;
    }
    const Forecast& best = plan->forecasts[plan->recommended];
    const Forecast* const star = Fastest(*plan, [](const Topology& one) {
      return !one.leaves && one.shards == 1 && one.placement == Placement::kOwnHosts;
    });
    const Forecast* const own = Fastest(*plan, [](const Topology& one) {
      return !one.leaves && one.shards > 1 && one.placement == Placement::kOwnHosts;
    });
    const Forecast* const beside = Fastest(*plan, [](const Topology& one) {
      return !one.leaves && one.placement == Placement::kMembersHosts;
    });
    const Forecast* const leaves = Fastest(*plan, [](const Topology& one) { return one.leaves; });
    absl::StrAppend(&text,
                    absl::StrFormat("%6d %10s %17s %16s%s  %s\n", hosts, Cell(star, false),
                                    Cell(own, true), Cell(beside, false),
                                    groups ? absl::StrFormat("%17s", Cell(leaves, true)) : "",
                                    best.topology.Name(site)));
    json row = {{"hosts", hosts}, {"recommended", ToJson(site, best, {})}};
    row["topologies"] = json::array();
    for (const Forecast& one : plan->forecasts) row["topologies"].push_back(ToJson(site, one, {}));
    rows.push_back(row);
  }
  if (print != nullptr) {
    print(json{{"scale", rows}}.dump(2) + "\n");
  } else {
    std::cout << "Communication of a step: " << About(flags, site, workload) << "\n" << text;
  }
  return server::kExitOk;
}

}  // namespace

absl::StatusOr<double> ParseRate(const std::string& text) {
  std::string number = absl::AsciiStrToLower(text);
  if (absl::EndsWith(number, "/s")) number.resize(number.size() - 2);
  double unit = 0;
  for (const auto& [word, bits] : {std::pair{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}}) {
    if (!absl::EndsWith(number, word)) continue;
    unit = bits;
    number.resize(number.size() - 4);
  }
  double value = 0;
  const bool good = unit > 0 && absl::SimpleAtod(number, &value) && value * unit >= kLeastRate &&
                    value * unit <= kMostRate;
  if (good) return value * unit / 8;
  return Wrong("link", text, "1Mbit/s to 1000Gbit/s, such as 100Mbit/s or 2.5Gbit/s");
}

absl::StatusOr<Site> ReadSite(const PlanFlags& flags) {
  const auto hosts = ParseCount("hosts", flags.hosts, kMostHosts);
  if (!hosts.ok()) return hosts.status();
  const auto members = ParseCount("members-per-host", flags.members_per_host, kMostMembersPerHost);
  if (!members.ok()) return members.status();
  const auto cores = ParseCount("cores", flags.cores, kMostCores);
  if (!cores.ok()) return cores.status();
  const auto rate = ParseRate(flags.link);
  if (!rate.ok()) return rate.status();
  absl::Duration round_trip;
  if (!absl::ParseDuration(flags.round_trip, &round_trip) || round_trip < absl::ZeroDuration() ||
      round_trip > kMostRoundTrip) {
    return Wrong("round-trip", flags.round_trip, "0 to 10s, such as 0.2ms");
  }
  return Site{.hosts = *hosts,
              .members_per_host = *members,
              .link_bytes_per_second = *rate,
              .round_trip_seconds = absl::ToDoubleSeconds(round_trip),
              .cores = *cores};
}

absl::StatusOr<Workload> ReadWorkload(const PlanFlags& flags) {
  const auto hook = HookFromText(flags.hook);
  if (!hook.ok()) return hook.status();
  if (flags.shapes.empty()) {
    if (const auto elements = ParseElements(flags.model)) {
      if (*elements < 1 || *elements > kMostElementsPlanned) {
        return Wrong("model", flags.model, "1 to 1000B parameters");
      }
      return Workload::OfElements(*hook, *elements);
    }
  }
  auto shapes = ReadShapes(flags);
  if (!shapes.ok()) return shapes.status();
  return Workload::Make(*hook, *std::move(shapes));
}

int RunPlan(const PlanFlags& flags, const Print& print) {
  const auto refuse = [](const absl::Status& status) {
    PrintFailure(ErrorCode::kCtlUsage, Printable(std::string(status.message())));
    return server::kExitUsage;
  };
  const auto site = ReadSite(flags);
  if (!site.ok()) return refuse(site.status());
  std::optional<double> compute;
  double seconds = 0;
  if (!flags.compute.empty()) {
    if (!absl::SimpleAtod(flags.compute, &seconds) || !(seconds >= 0) ||
        seconds > kMostComputeSeconds) {
      return refuse(Wrong("compute", flags.compute, "0 to 86400 seconds, such as 0.25"));
    }
    compute = seconds;
  }
  const auto workload = ReadWorkload(flags);
  if (!workload.ok()) return refuse(workload.status());
  if (flags.scale) return PrintScale(flags, *site, *workload, print);
  const auto plan = MakePlan(*site, *workload, compute.value_or(0));
  if (!plan.ok()) return refuse(plan.status());
  if (print == nullptr) {
    std::cout << "Expected of a step without overlap with the backward pass: "
              << About(flags, *site, *workload)
              << "Bytes are the payload in each direction of the busiest link.\n\n";
    PrintPlan(*site, *plan, compute);
    return server::kExitOk;
  }
  json document = {{"topologies", json::array()}, {"left_out", json::array()}};
  for (const Forecast& one : plan->forecasts) {
    document["topologies"].push_back(ToJson(*site, one, compute));
  }
  for (const LeftOut& one : plan->left_out) {
    document["left_out"].push_back({{"topology", one.topology}, {"why", one.why}});
  }
  document["recommended"] = plan->forecasts[plan->recommended].topology.Name(*site);
  document["why"] = plan->why;
  print(document.dump(2) + "\n");
  return server::kExitOk;
}

}  // namespace gradwire::ctl
