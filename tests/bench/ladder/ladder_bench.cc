// How fast data moves, rung by rung, from memcpy over sockets to gRPC and a hand-written
// aggregator; and, with --sweep, what settings of gRPC move it fastest. No Gradwire in it but the
// kernel that sums.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/ladder/child_settings.h"
#include "tests/bench/ladder/ladder.h"
#include "tests/bench/ladder/leftovers.h"
#include "tests/bench/ladder/sweep.h"
#include "tests/bench/ladder/table.h"

int main(int argc, char** argv) {
  namespace bench = gradwire::bench;
  bench::Plan plan;
  std::string api = "both";
  std::string question;
  std::string json;
  std::string child;
  CLI::App app{"Data movement from memcpy to gRPC, rung by rung"};
  app.add_option("--repetitions", plan.repetitions, "counted runs of each case")
      ->check(CLI::PositiveNumber);
  app.add_option("--api", api, "of gRPC in the ladder: cq, callback or both")
      ->check(CLI::IsMember({"cq", "callback", "both"}));
  std::vector<std::string> questions = bench::SweepQuestions();
  questions.emplace_back("all");
  app.add_option("--sweep", question, "answer a question about settings instead; all if none named")
      ->expected(0, 1)
      ->default_str("all")
      ->check(CLI::IsMember(questions));
  app.add_option("--json", json, "also write the rows here");
  app.add_option("--child", child)->group("");
  CLI11_PARSE(app, argc, argv);
  if (!child.empty()) {
    return bench::RunChild(nlohmann::json::parse(child).get<bench::ChildSettings>());
  }

  const bool sweep = app.count("--sweep") > 0;
  if (sweep && app.count("--repetitions") == 0) plan.repetitions = 5;
  std::signal(SIGPIPE, SIG_IGN);
  plan.folder = bench::TemporaryFolder();
  std::printf(
      "medians of %d runs that take turns, least to most in brackets; payload counts once\n",
      plan.repetitions);
  const std::vector<bench::Row> rows = sweep
                                           ? bench::Sweep(plan, question.empty() ? "all" : question)
                                           : bench::ClimbLadder(plan, api);
  if (json.empty()) return 0;
  const bool written = bench::WriteRows(json, sweep ? "ladder_sweep" : "ladder", rows);
  if (!written) std::fprintf(stderr, "bench: cannot write %s\n", json.c_str());
  return written ? 0 : 1;
}
