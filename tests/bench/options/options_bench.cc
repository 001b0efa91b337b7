// The price of each option in a step of two members: its time beside that of a session with
// everything off, in turn, and the daemon's processor time. Daemons and members are processes of
// their own.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "proto/wire/process_setup.h"
#include "tests/bench/ladder/leftovers.h"
#include "tests/bench/options/contest.h"
#include "tests/bench/options/load.h"
#include "tests/bench/options/member.h"

namespace gradwire::bench {
namespace {

std::string Text(const Spread& spread, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f (%.*f to %.*f)", decimals, spread.median, decimals,
                spread.min, decimals, spread.max);
  return text;
}

void Print(const Load& load, const std::vector<Price>& prices) {
  std::printf("\n%s, in %zu buckets: turns of %d steps\n", load.title.c_str(), kBuckets,
              load.steps);
  std::printf("%-30s %-24s %-22s %9s %10s  %s\n", "", "step ms", "ratio", "added ms", "predicted",
              "daemon CPU ms");
  for (const Price& price : prices) {
    const bool off = &price == &prices.front();
    std::printf("%-30s %-24s ", price.option.c_str(), Text(price.ms, 2).c_str());
    if (off) {
      std::printf("%-22s %9s %10s", "", "", "");
    } else {
      std::printf("%-22s %9.2f %10.2f", Text(price.ratio, 2).c_str(), price.added_ms.median,
                  price.predicted_ms);
    }
    std::printf("  %s\n", Text(price.daemon_cpu_ms, 2).c_str());
  }
  std::fflush(stdout);
}

nlohmann::json ToJson(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

nlohmann::json ToJson(const Load& load, const Price& price) {
  return {{"load", load.name},
          {"option", price.option},
          {"ms", ToJson(price.ms)},
          {"ratio", ToJson(price.ratio)},
          {"added_ms", ToJson(price.added_ms)},
          {"predicted_added_ms", price.predicted_ms},
          {"daemon_cpu_ms", ToJson(price.daemon_cpu_ms)}};
}

int RunAll(ContestOptions options, const std::vector<std::string>& loads, const std::string& json) {
  std::signal(SIGPIPE, SIG_IGN);
  options.folder = TemporaryFolder();
  std::printf("the price of options: %d members, medians of %d turns, min to max in brackets\n",
              kMembers, options.repetitions);
  std::printf(
      "ratio, added: to the turn before it, with everything off; predicted: before it was "
      "measured\n");
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& name : loads) {
    const Load& load = LoadOf(name);
    const std::vector<Price> prices = MeasurePrices(options, load);
    Print(load, prices);
    for (const Price& price : prices) rows.push_back(ToJson(load, price));
  }
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << nlohmann::json{{"benchmark", "options"},
                         {"members", kMembers},
                         {"repetitions", options.repetitions},
                         {"rows", rows}}
              .dump(1)
       << "\n";
  file.close();
  return file ? 0 : 1;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  using namespace gradwire::bench;
  gradwire::wire::SkipDeadlockDetection();  // as the Python package does
  ContestOptions options;
  options.self = std::filesystem::read_symlink("/proc/self/exe").string();
  options.daemon = std::filesystem::path(options.self).replace_filename("gradwired").string();
  MemberSettings member;
  std::string role = "parent";
  std::string json;
  std::vector<std::string> loads;
  for (const Load& load : Loads()) loads.push_back(load.name);
  CLI::App app{"The price of options"};
  app.add_option("--loads", loads, "what a step reduces")->check(CLI::IsMember(loads));
  app.add_option("--repetitions", options.repetitions, "counted turns of each option")
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", json, "also write the tables here");
  app.add_option("--daemon", options.daemon, "path of gradwired");
  app.add_option("--role", role)->group("");
  app.add_option("--address", member.address)->group("");
  app.add_option("--load", member.load)->group("");
  app.add_option("--rank", member.rank)->group("");
  app.add_flag("--keep-gradients", member.keep_gradients)->group("");
  app.add_flag("--check-parameters", member.check_parameters)->group("");
  CLI11_PARSE(app, argc, argv);
  return role == "member" ? RunMember(member) : RunAll(options, loads, json);
}
