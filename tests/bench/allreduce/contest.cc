#include "tests/bench/allreduce/contest.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include "tests/bench/ladder/limited_link.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {
namespace {

using Arguments = std::vector<std::string>;

// A round over a limited link takes long.
constexpr int kLinkRepetitions = 3;

// The daemon, on both kinds of socket; at the server's end of a link, if there is one.
class Daemon {
 public:
  explicit Daemon(const ContestOptions& options, const LimitedLink* link = nullptr)
      : socket_(options.folder + "/gradwire.sock"), child_(Words(options, link)) {
    child_.ReadLine();  // name and version
    for (std::string* address : {&unix_, &tcp_}) {
      const std::string line = child_.ReadLine();
      *address = line.substr(line.find_last_of(' ') + 1);
    }
  }
  ~Daemon() { unlink(socket_.c_str()); }

  const std::string& Address(const std::string& path) const { return path == "tcp" ? tcp_ : unix_; }
  double CpuSeconds() const { return child_.CpuSeconds(); }

 private:
  static Arguments Words(const ContestOptions& options, const LimitedLink* link) {
    Arguments words = link == nullptr ? Arguments{} : link->AtServer();
    const std::string host = link == nullptr ? "127.0.0.1" : link->server_address();
    for (const std::string& word :
         {options.daemon, std::string("--log-level"), std::string("error"), std::string("--listen"),
          "unix:" + options.folder + "/gradwire.sock", std::string("--listen"), host + ":0"}) {
      words.push_back(word);
    }
    if (link != nullptr) words.emplace_back("--insecure");
    return words;
  }

  const std::string socket_;
  Child child_;
  std::string unix_;
  std::string tcp_;
};

struct Contender {
  std::string rung;
  std::string what;
  std::string path;
  std::vector<Child> ranks{};
  const Child* server = nullptr;   // of the echo
  const Daemon* daemon = nullptr;  // ours
  std::vector<double> seconds{};
  std::vector<double> cpu_seconds{};

  double CpuSeconds() const {
    double sum = 0;
    for (const Child& rank : ranks) sum += rank.CpuSeconds();
    if (server != nullptr) sum += server->CpuSeconds();
    if (daemon != nullptr) sum += daemon->CpuSeconds();
    return sum;
  }
};

// Processes whose environment allows shared memory or does not.
Child Start(Arguments arguments, const std::string& path) {
  if (path != "shm") arguments.insert(arguments.begin(), {"env", "GRADWIRE_SHARED_MEMORY=off"});
  return Child(arguments);
}

Arguments MemberArguments(const ContestOptions& options, const Daemon& daemon,
                          const std::string& role, const std::string& session,
                          const std::string& path, int rank, int members) {
  return {options.self,
          "--role",
          role,
          "--address",
          daemon.Address(path),
          "--session",
          session,
          "--rank",
          std::to_string(rank),
          "--world-size",
          std::to_string(members),
          "--bytes",
          std::to_string(options.mebibytes << 20),
          "--shares-memory",
          path == "shm" ? "1" : "0"};
}

Contender Ours(const ContestOptions& options, const Daemon& daemon, const std::string& path,
               const std::string& hook, const std::string& gradients, int members) {
  const bool own = gradients == "own";
  Contender made{.rung = path == "shm" ? "L8" : "L7",
                 .what = "gradwire, " + hook + (own ? "" : ", gradients in shared memory"),
                 .path = path,
                 .daemon = &daemon};
  const std::string session = path + "-" + hook + "-" + gradients + "-" + std::to_string(members);
  for (int rank = 0; rank < members; ++rank) {
    Arguments arguments = MemberArguments(options, daemon, "bulk", session, path, rank, members);
    arguments.insert(arguments.end(), {"--hook", hook, "--gradients", gradients});
    made.ranks.push_back(Start(arguments, path));
  }
  return made;
}

Contender Gloo(const ContestOptions& options, const std::string& hook, int members) {
  Contender made{.rung = "gloo", .what = "torch, " + hook, .path = "tcp"};
  const std::string store = options.folder + "/store-" + hook + "-" + std::to_string(members);
  for (int rank = 0; rank < members; ++rank) {
    made.ranks.emplace_back(Arguments{options.python, options.gloo, "--rank", std::to_string(rank),
                                      "--world-size", std::to_string(members), "--store", store,
                                      "--mebibytes", std::to_string(options.mebibytes), "--hook",
                                      hook});
  }
  return made;
}

Contender Echo(const ContestOptions& options, Child& server, const std::string& path, int members) {
  Contender made{.rung = "L6", .what = "plain gRPC echo", .path = path, .server = &server};
  const std::string address = server.ReadLine();
  for (int rank = 0; rank < members; ++rank) {
    made.ranks.emplace_back(Arguments{options.self, "--role", "echo-client", "--address", address,
                                      "--bytes", std::to_string(options.mebibytes << 20)});
  }
  return made;
}

void Measure(std::vector<Contender>& contenders, int repetitions) {
  for (Contender& contender : contenders) {
    for (Child& rank : contender.ranks) rank.ReadLine();  // ready
  }
  for (int i = -2; i < repetitions; ++i) {
    for (Contender& contender : contenders) {
      const double cpu = contender.CpuSeconds();
      const double seconds = RunOnce(contender.ranks);
      if (i < 0) continue;  // warm-up
      contender.seconds.push_back(seconds);
      contender.cpu_seconds.push_back(contender.CpuSeconds() - cpu);
    }
  }
}

Row RowOf(const Contender& contender, std::size_t bytes) {
  const std::size_t members = contender.ranks.size();
  const double gigabytes = static_cast<double>(bytes * members) / 1e9;
  std::vector<double> rates;
  std::vector<double> cpu;
  std::vector<double> ms;
  for (std::size_t i = 0; i < contender.seconds.size(); ++i) {
    rates.push_back(gigabytes / contender.seconds[i]);
    cpu.push_back(contender.cpu_seconds[i] / gigabytes);
    ms.push_back(contender.seconds[i] * 1e3);
  }
  return {.rung = contender.rung,
          .what = contender.what,
          .transport = contender.path,
          .members = members,
          .bytes = bytes,
          .gb_per_s = SpreadOf(rates),
          .cpu_s_per_gb = SpreadOf(cpu),
          .ms = SpreadOf(ms)};
}

// Time of `other` over that of `one`.
Spread RatioOf(const Contender& one, const Contender& other) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < one.seconds.size(); ++i) {
    ratios.push_back(other.seconds[i] / one.seconds[i]);
  }
  return SpreadOf(ratios);
}

}  // namespace

Contest CompareBulk(const ContestOptions& options, int members) {
  const Daemon daemon(options);
  std::map<std::string, std::unique_ptr<Child>> echo_servers;
  std::vector<Contender> contenders;
  for (const std::string path : {"tcp", "unix"}) {
    const std::string address =
        path == "tcp" ? "127.0.0.1:0" : "unix:" + options.folder + "/echo.sock";
    auto& server = echo_servers[path];
    server = std::make_unique<Child>(
        Arguments{options.self, "--role", "echo-server", "--address", address});
    contenders.push_back(Echo(options, *server, path, members));
  }
  std::map<std::string, std::size_t> gloo;
  for (const std::string hook : {"no", "fp16"}) {
    if (!options.gloo.empty()) {
      gloo[hook] = contenders.size();
      contenders.push_back(Gloo(options, hook, members));
    }
    for (const std::string path : {"tcp", "unix", "shm"}) {
      contenders.push_back(Ours(options, daemon, path, hook, "own", members));
    }
    contenders.push_back(Ours(options, daemon, "shm", hook, "shared", members));
  }
  Measure(contenders, options.repetitions);
  unlink((options.folder + "/echo.sock").c_str());

  Contest contest;
  for (const Contender& one : contenders) {
    Row row = RowOf(one, options.mebibytes << 20);
    if (one.daemon != nullptr) {
      const std::string hook = one.what.find("fp16") == std::string::npos ? "no" : "fp16";
      const std::string what = one.path + ": " + one.what;
      if (const auto found = gloo.find(hook); found != gloo.end()) {
        const Contender& torch = contenders[found->second];
        row.below = "torch + gloo, " + hook;
        contest.ratios.push_back({what + " / torch + gloo", members, RatioOf(one, torch)});
        row.ratio_to_below = contest.ratios.back().ratio.median;
      }
      if (one.path != "shm" && hook == "no") {
        const Contender& echo = contenders[one.path == "tcp" ? 0 : 1];
        contest.ratios.push_back({what + " / plain gRPC echo", members, RatioOf(one, echo)});
      }
    }
    contest.rows.push_back(std::move(row));
  }
  return contest;
}

namespace {

// Rounds of 4 KiB by the members of one session after the other, all of one daemon.
class TinyContest {
 public:
  TinyContest(const ContestOptions& options, int members, const LimitedLink* link)
      : options_(options), members_(members), link_(link), daemon_(options, link) {}

  std::vector<Child> Ranks(const std::string& role, const std::string& session,
                           const std::string& path, const std::string& gradients = "own") {
    std::vector<Child> made;
    for (int rank = 0; rank < members_; ++rank) {
      Arguments arguments = MemberArguments(options_, daemon_, role, session, path, rank, members_);
      arguments.insert(arguments.end(), {"--gradients", gradients});
      if (link_ != nullptr) {
        const Arguments at_client = link_->AtClient();
        arguments.insert(arguments.begin(), at_client.begin(), at_client.end());
      }
      made.push_back(Start(arguments, path));
    }
    for (Child& child : made) child.ReadLine();  // ready
    return made;
  }

  // `bulk`: one of their rounds at a time for as long as the tiny ones run.
  void Measure(const std::string& what, const std::string& transport, std::vector<Child>& tiny,
               std::vector<Child>* bulk = nullptr) {
    std::vector<double> p50;
    std::vector<double> p99;
    for (int i = -1; i < options_.repetitions; ++i) {
      for (Child& child : tiny) child.WriteLine("go");
      while (bulk != nullptr && !tiny.front().HasLine()) RunOnce(*bulk);
      std::vector<std::string> answers;
      for (Child& child : tiny) answers.push_back(child.ReadLine());
      std::istringstream words(answers.front());
      std::string done;
      double median = 0;
      double slow = 0;
      words >> done >> median >> slow;
      if (i < 0 || median == 0) continue;
      p50.push_back(median);
      p99.push_back(slow);
    }
    if (p50.empty()) return;
    rows_.push_back({.rung = "L9",
                     .what = what,
                     .transport = transport,
                     .members = static_cast<std::size_t>(members_),
                     .bytes = 4096,
                     .p50_us = SpreadOf(p50),
                     .p99_us = SpreadOf(p99)});
  }

  std::vector<Row> rows() && { return std::move(rows_); }

 private:
  const ContestOptions options_;
  const int members_;
  const LimitedLink* const link_;
  const Daemon daemon_;
  std::vector<Row> rows_;
};

}  // namespace

std::vector<Row> MeasureTiny(const ContestOptions& options, int members) {
  TinyContest contest(options, members, nullptr);
  for (const std::string path : {"shm", "tcp"}) {
    std::vector<Child> tiny = contest.Ranks("tiny", "tiny-" + path, path);
    contest.Measure("4 KiB all-reduce", path, tiny);
    std::vector<Child> bulk = contest.Ranks("bulk", "bulk-" + path, path);
    contest.Measure("4 KiB beside another session's bulk", path, tiny, &bulk);
    std::vector<Child> mixed = contest.Ranks("tiny-beside", "mixed-" + path, path);
    contest.Measure("4 KiB beside bulk of the same members", path, mixed);
    if (path != "shm") continue;
    std::vector<Child> shared = contest.Ranks("tiny-beside", "shared-" + path, path, "shared");
    contest.Measure("4 KiB beside their bulk in shared memory", path, shared);
  }
  return std::move(contest).rows();
}

std::vector<Row> MeasureTinyOnLink(ContestOptions options, int members, const std::string& rate) {
  const LimitedLink link(rate);
  if (!link.problem().empty()) {
    std::printf("rounds over %s are left out: %s\n", rate.c_str(), link.problem().c_str());
    return {};
  }
  options.repetitions = std::min(options.repetitions, kLinkRepetitions);
  TinyContest contest(options, members, &link);
  std::vector<Child> tiny = contest.Ranks("tiny", "tiny", "tcp");
  contest.Measure("4 KiB all-reduce", rate, tiny);
  std::vector<Child> mixed = contest.Ranks("tiny-beside", "mixed", "tcp");
  contest.Measure("4 KiB beside bulk of the same members", rate, mixed);
  return std::move(contest).rows();
}

}  // namespace gradwire::bench
