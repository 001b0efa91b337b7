#include "tests/bench/ladder/compare.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "tests/bench/ladder/leftovers.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {
namespace {

struct Samples {
  std::vector<double> gb_per_s;
  std::vector<double> cpu_s_per_gb;
  std::vector<double> ms;
  std::vector<double> p50_us;
  std::vector<double> p99_us;
};

std::vector<std::string> CommandLine(const std::vector<std::string>& prefix,
                                     const ChildSettings& settings) {
  std::vector<std::string> line = prefix;
  line.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  line.emplace_back("--child");
  line.push_back(nlohmann::json(settings).dump());
  return line;
}

// The processes of one case.
class Team {
 public:
  Team(const Case& of, const std::string& socket) : case_(of) {
    ChildSettings client = of.client;
    client.members = of.members;
    if (!of.server.role.empty()) {
      ChildSettings server = of.server;
      server.members = of.members;
      server.address = of.transport == "unix" ? "unix:" + socket : of.listen;
      children_.emplace_back(CommandLine(of.server_prefix, server));
      client.address = children_.back().ReadLine();
    }
    const std::size_t first = children_.size();
    for (client.rank = 0; client.rank < of.members; ++client.rank) {
      children_.emplace_back(CommandLine(of.client_prefix, client));
    }
    servers_ = first;
    for (std::size_t i = servers_; i < children_.size(); ++i) children_[i].ReadLine();
  }

  // One run, into the samples.
  void Run(Samples& samples) {
    const double cpu = CpuSeconds();
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = servers_; i < children_.size(); ++i) children_[i].WriteLine("go");
    std::vector<std::string> answers;
    for (std::size_t i = servers_; i < children_.size(); ++i) {
      answers.push_back(children_[i].ReadLine());
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    const auto rounds = static_cast<double>(case_.client.rounds);
    const double gigabytes =
        static_cast<double>(case_.client.bytes) * static_cast<double>(case_.members) * rounds / 1e9;
    samples.gb_per_s.push_back(gigabytes / elapsed.count());
    samples.cpu_s_per_gb.push_back((CpuSeconds() - cpu) / gigabytes);
    samples.ms.push_back(elapsed.count() * 1e3 / rounds);
    std::istringstream answer(answers[0]);
    std::string done;
    double p50 = 0;
    double p99 = 0;
    if (!(answer >> done >> p50 >> p99)) return;
    samples.p50_us.push_back(p50);
    samples.p99_us.push_back(p99);
  }

 private:
  double CpuSeconds() const {
    double seconds = 0;
    for (const Child& child : children_) seconds += child.CpuSeconds();
    return seconds;
  }

  const Case& case_;
  std::size_t servers_ = 0;
  std::vector<Child> children_;  // the server, if there is one, then the clients
};

Row MakeRow(const Case& of, const Samples& samples) {
  Row row{.rung = of.rung,
          .what = of.what,
          .transport = of.transport,
          .members = of.members,
          .bytes = of.client.bytes};
  if (!samples.p50_us.empty()) {
    row.p50_us = SpreadOf(samples.p50_us);
    row.p99_us = SpreadOf(samples.p99_us);
    return row;
  }
  row.gb_per_s = SpreadOf(samples.gb_per_s);
  row.cpu_s_per_gb = SpreadOf(samples.cpu_s_per_gb);
  row.ms = SpreadOf(samples.ms);
  return row;
}

void SetRatios(Row& row, const Row& below) {
  row.below = below.key();
  if (row.p50_us) {
    row.ratio_to_below = row.p50_us->median / below.p50_us->median;
    return;
  }
  row.ratio_to_below = row.gb_per_s->median / below.gb_per_s->median;
  row.cpu_ratio_to_below = row.cpu_s_per_gb->median / below.cpu_s_per_gb->median;
}

}  // namespace

std::vector<Row> Compare(const std::vector<Case>& cases, const Plan& plan,
                         const std::vector<Row>& known) {
  std::vector<Team> teams;
  teams.reserve(cases.size());
  std::vector<std::string> sockets;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    sockets.push_back(plan.folder + "/" + std::to_string(i) + ".sock");
    teams.emplace_back(cases[i], sockets.back());
  }
  std::vector<Samples> samples(cases.size());
  for (int run = -1; run < plan.repetitions; ++run) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      StopIfTold();
      Samples warm_up;
      teams[i].Run(run < 0 ? warm_up : samples[i]);
    }
  }
  for (const std::string& socket : sockets) unlink(socket.c_str());
  std::vector<Row> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) rows.push_back(MakeRow(cases[i], samples[i]));
  std::vector<Row> all = known;
  all.insert(all.end(), rows.begin(), rows.end());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto below = std::find_if(all.begin(), all.end(),
                                    [&](const Row& row) { return row.key() == cases[i].below; });
    if (below == all.end()) continue;
    SetRatios(rows[i], *below);
  }
  return rows;
}

}  // namespace gradwire::bench
