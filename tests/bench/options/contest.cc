#include "tests/bench/options/contest.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <sstream>
#include <thread>

#include "tests/bench/ladder/leftovers.h"
#include "tests/bench/options/member.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {
namespace {

using Arguments = std::vector<std::string>;

constexpr std::chrono::milliseconds kPoll(10);
// A daemon that uses less than a fiftieth of a processor waits; heartbeats cost less.
constexpr double kIdleSeconds = 0.0002;
constexpr int kMostPolls = 200;

struct Option {
  std::string name;
  Arguments daemon = {};
  Arguments member = {};
  // Predicted, in milliseconds of a step of 16 MiB and of many small parameters. Both members work
  // at the same time, each on a core, so that the work of one counts.
  double large_ms = 0;
  double small_ms = 0;
};

Arguments AfterMemberLoss(const std::string& what, Arguments more = {}) {
  Arguments words = {"--on-coordinator-loss", "resume", "--on-member-loss", what};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// All that is off by default, or can be turned off, and that does something in each step. TLS has a
// benchmark of its own; tokens, quotas and the audit log are for joins.
std::vector<Option> Options(const std::string& record) {
  const Arguments fail = {"--on-coordinator-loss", "fail"};
  const Arguments resume = {"--on-coordinator-loss", "resume"};
  Arguments ledger = fail;
  ledger.emplace_back("--ledger");
  Arguments recorded = fail;
  recorded.insert(recorded.end(), {"--record", record, "--record-steps", "4"});
  return {
      {.name = "everything off", .daemon = fail},
      // How far two equal sessions are apart: a price below that is none.
      {.name = "everything off, again", .daemon = fail},
      // READY: two message delays. A whole round of 4 KiB, which has four, takes 0.12 ms.
      {.name = "resume", .daemon = resume, .large_ms = 0.06, .small_ms = 0.06},
      // It says what follows a loss; until then it is `resume`.
      {.name = "on_member_loss wait",
       .daemon = AfterMemberLoss("wait"),
       .large_ms = 0.06,
       .small_ms = 0.06},
      // READY, and one copy of the gradients, at some 10 GB/s: 16.8 MB take 1.7 ms.
      {.name = "resume, keep_gradients",
       .daemon = resume,
       .member = {"--keep-gradients"},
       .large_ms = 1.8,
       .small_ms = 0.1},
      // Members keep their gradients, so that a step can go on as a mean of those who are left.
      {.name = "on_member_loss shrink",
       .daemon = AfterMemberLoss("shrink"),
       .large_ms = 1.8,
       .small_ms = 0.1},
      // Beyond that the daemon takes the time of each step, and sets a timer.
      {.name = "shrink, straggler_multiple 3",
       .daemon = AfterMemberLoss("shrink", {"--straggler-multiple", "3"}),
       .large_ms = 1.8,
       .small_ms = 0.1},
      // compare_gloo took 6.6 to 8 ms more with 11.2 million parameters; 16 MiB are 4.2 million. Of
      // small parameters each is projected twice, and 256 rows are sent.
      {.name = "ledger", .daemon = ledger, .large_ms = 2.7, .small_ms = 1},
      // Measured before with 16 MiB and other work on the cores: 28 ms instead of 13. The daemon
      // copies all contributions and writes them after the step, beside the next one.
      {.name = "record, 4 steps", .daemon = recorded, .large_ms = 15, .small_ms = 0.3},
      // A digest at 9 GB/s of as many bytes as there are gradients; one in 100 steps has it if
      // check_parameters_every is 100.
      {.name = "check_parameters_every 1",
       .daemon = fail,
       .member = {"--check-parameters"},
       .large_ms = 1.9,
       .small_ms = 0.2},
  };
}

struct Turn {
  double ms;
  double daemon_cpu_ms;
};

class Session {
 public:
  Session(const ContestOptions& options, const Load& load, const Option& option, std::size_t number)
      : steps_(load.steps + 1),
        socket_(options.folder + "/" + std::to_string(number) + ".sock"),
        daemon_(DaemonArguments(options, load, option)) {
    daemon_.ReadLine();  // name and version
    std::string address = daemon_.ReadLine();
    address = address.substr(address.find_last_of(' ') + 1);
    for (int rank = 0; rank < kMembers; ++rank) {
      Arguments words = {options.self, "--address", address,  "--rank", std::to_string(rank),
                         "--load",     load.name,   "--role", "member"};
      words.insert(words.end(), option.member.begin(), option.member.end());
      ranks_.emplace_back(words);
    }
    for (Child& rank : ranks_) rank.ReadLine();  // ready
  }
  ~Session() { std::filesystem::remove(socket_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Turn Run() {
    const double cpu = daemon_.CpuSeconds();
    for (Child& rank : ranks_) rank.WriteLine("go");
    double slowest = 0;
    for (Child& rank : ranks_) {
      std::istringstream words(rank.ReadLine());
      std::string done;
      double ms = 0;
      words >> done >> ms;
      slowest = std::max(slowest, ms);
    }
    WaitUntilIdle();
    return {slowest, (daemon_.CpuSeconds() - cpu) * 1e3 / steps_};
  }

 private:
  Arguments DaemonArguments(const ContestOptions& options, const Load& load,
                            const Option& option) const {
    Arguments words = {options.daemon,
                       "--log-level",
                       "error",
                       "--http-listen",
                       "off",
                       "--listen",
                       load.tcp ? "127.0.0.1:0" : "unix:" + socket_};
    words.insert(words.end(), option.daemon.begin(), option.daemon.end());
    return words;
  }

  // A daemon that records writes after the step, which the next session would pay for.
  void WaitUntilIdle() const {
    double before = daemon_.CpuSeconds();
    for (int i = 0; i < kMostPolls; ++i) {
      std::this_thread::sleep_for(kPoll);
      const double now = daemon_.CpuSeconds();
      if (now - before < kIdleSeconds) return;
      before = now;
    }
  }

  const int steps_;
  const std::string socket_;
  Child daemon_;
  std::vector<Child> ranks_;  // they go before the daemon
};

struct Turns {
  std::vector<double> ms;
  std::vector<double> daemon_cpu_ms;
  std::vector<double> ratios;
  std::vector<double> added_ms;

  void Add(const Turn& turn, const Turn& off) {
    ms.push_back(turn.ms);
    daemon_cpu_ms.push_back(turn.daemon_cpu_ms);
    ratios.push_back(turn.ms / off.ms);
    added_ms.push_back(turn.ms - off.ms);
  }
};

}  // namespace

std::vector<Price> MeasurePrices(const ContestOptions& options, const Load& load) {
  const std::string record = options.folder + "/record";
  std::filesystem::create_directory(record);
  const std::vector<Option> all = Options(record);
  std::deque<Session> sessions;
  for (const Option& option : all) sessions.emplace_back(options, load, option, sessions.size());
  std::vector<Turns> turns(all.size());
  for (int i = -1; i < options.repetitions; ++i) {
    for (std::size_t j = 1; j < all.size(); ++j) {
      StopIfTold();
      const Turn off = sessions[0].Run();
      const Turn on = sessions[j].Run();
      if (i < 0) continue;  // warm-up
      turns[0].Add(off, off);
      turns[j].Add(on, off);
    }
  }
  sessions.clear();
  std::filesystem::remove_all(record);
  std::vector<Price> prices;
  for (std::size_t j = 0; j < all.size(); ++j) {
    prices.push_back({.option = all[j].name,
                      .ms = SpreadOf(turns[j].ms),
                      .daemon_cpu_ms = SpreadOf(turns[j].daemon_cpu_ms),
                      .ratio = SpreadOf(turns[j].ratios),
                      .added_ms = SpreadOf(turns[j].added_ms),
                      .predicted_ms = load.is_small() ? all[j].small_ms : all[j].large_ms});
  }
  return prices;
}

}  // namespace gradwire::bench
