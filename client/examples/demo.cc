// The demo: a daemon on a unix socket in a private folder, four members that train through it once
// per hook, one process that trains alone, and checks of what came out.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/examples/child_process.h"
#include "client/examples/demo_daemon.h"
#include "client/examples/demo_report.h"

namespace demo {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kMembers = 4;
constexpr std::size_t kLongestSocketPath = 107;  // sockaddr_un
constexpr auto kStartTimeout = std::chrono::seconds(30);
constexpr auto kTrainTimeout = std::chrono::minutes(10);
constexpr auto kLeaveTimeout = std::chrono::seconds(30);
constexpr auto kDrainTimeout = std::chrono::seconds(40);  // more than the daemon takes by default

volatile std::sig_atomic_t interrupted_by = 0;

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { interrupted_by = signal; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // not under nohup
  std::signal(SIGPIPE, SIG_IGN);  // `make demo | head` must still clean up
}

// A folder that only this user can enter; removed with all that is in it.
class PrivateFolder {
 public:
  static absl::StatusOr<PrivateFolder> Make();
  PrivateFolder(PrivateFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  PrivateFolder& operator=(PrivateFolder&&) = delete;
  ~PrivateFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }

  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

absl::StatusOr<PrivateFolder> PrivateFolder::Make() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  const std::string name = "gradwire-demo.XXXXXX";
  std::string path = (error ? fs::path("/tmp") : parent) / name;
  if (path.size() + std::string("/gradwired.sock").size() > kLongestSocketPath) {
    path = fs::path("/tmp") / name;
  }
  if (mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a folder ", path));
  }
  return PrivateFolder(path);
}

// A hook, and what it must do to the bytes on the wire.
struct Row {
  std::string name;
  std::string hook;
  double ratio = 1;
  bool may_be_less = false;
};

std::vector<Row> Rows() {
  const std::string low_rank = ",start_powerSGD_iter=0,matrix_approximation_rank=";
  return {{.name = "no", .hook = "no"},
          {.name = "fp16", .hook = "fp16", .ratio = 0.5},
          {.name = "bf16", .hook = "bf16", .ratio = 0.5},
          {"power_sgd-1", "power_sgd" + low_rank + "1", 1.0 / 20, true},
          {"power_sgd-2", "power_sgd" + low_rank + "2", 1.0 / 20, true},
          {"power_sgd-4", "power_sgd" + low_rank + "4", 1.0 / 20, true},
          {"batched-12", "batched_power_sgd" + low_rank + "12", 1.0 / 20, true}};
}

class Demo {
 public:
  Demo(fs::path programs, std::string data, const PrivateFolder& folder)
      : programs_(std::move(programs)), data_(std::move(data)), folder_(folder) {}

  absl::Status StartDaemon();
  absl::Status StopDaemon();
  absl::StatusOr<HookResult> TrainTogether(const Row& row);
  absl::StatusOr<TrainResult> TrainAlone();

 private:
  absl::StatusOr<ChildProcess> StartTrainer(const std::string& name, bool progress,
                                            const std::vector<std::string>& arguments) const;
  // Waits until `done()`. An error if a trainer ends badly, on a signal, or after `timeout`.
  template <typename Done>
  absl::Status WaitFor(std::vector<ChildProcess>& trainers, Clock::duration timeout, Done done);

  const fs::path programs_;
  const std::string data_;
  const PrivateFolder& folder_;
  std::string address_;
  std::optional<ChildProcess> daemon_;
};

absl::Status Demo::StartDaemon() {
  address_ = "unix:" + folder_.File("gradwired.sock");
  // On SIGTERM the daemon removes its socket, also when the demo itself was killed.
  absl::StatusOr<ChildProcess> process =
      ChildProcess::Start({.words = {programs_ / "gradwired", "--config=", "--listen", address_,
                                     "--log-format", "json"},
                           .log = folder_.File("gradwired.log"),
                           .share_stdout = false,
                           .signal_on_parent_death = SIGTERM});
  if (!process.ok()) return process.status();
  daemon_.emplace(*std::move(process));
  const auto deadline = Clock::now() + kStartTimeout;
  while (interrupted_by == 0) {
    const absl::StatusOr<std::string> version = ServerVersion(address_, /*timeout_ms=*/200);
    if (version.ok()) {
      std::printf("gradwired %s\n  grpc       %s\n", version->c_str(), address_.c_str());
      return absl::OkStatus();
    }
    if (const auto ended = daemon_->Ended()) {
      return absl::UnavailableError(absl::StrCat("gradwired ", *ended, "\n", daemon_->LogTail()));
    }
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "gradwired does not answer: ", version.status().ToString(), "\n", daemon_->LogTail()));
    }
  }
  return absl::CancelledError("interrupted");
}

absl::Status Demo::StopDaemon() {
  daemon_->Stop(kDrainTimeout);
  if (daemon_->succeeded()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("gradwired ", *daemon_->Ended(), "\n", daemon_->LogTail()));
}

absl::StatusOr<ChildProcess> Demo::StartTrainer(const std::string& name, bool progress,
                                                const std::vector<std::string>& arguments) const {
  Command command{
      .words = {programs_ / "train_digits", "--data", data_, "--out", folder_.File(name), "--hold"},
      .log = folder_.File(name + ".log"),
      .share_stdout = progress,
      .signal_on_parent_death = SIGKILL};
  if (progress) command.words.emplace_back("--progress");
  command.words.insert(command.words.end(), arguments.begin(), arguments.end());
  return ChildProcess::Start(command);
}

template <typename Done>
absl::Status Demo::WaitFor(std::vector<ChildProcess>& trainers, Clock::duration timeout,
                           Done done) {
  const auto deadline = Clock::now() + timeout;
  while (!done()) {
    if (interrupted_by != 0) return absl::CancelledError("interrupted");
    for (std::size_t rank = 0; rank < trainers.size(); ++rank) {
      const auto ended = trainers[rank].Ended();
      if (ended && !trainers[rank].succeeded()) {
        return absl::AbortedError(absl::StrCat("the trainer of rank ", rank, " ", *ended, "\n",
                                               trainers[rank].LogTail()));
      }
    }
    if (Clock::now() > deadline) return absl::DeadlineExceededError("the trainers take too long");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return absl::OkStatus();
}

absl::StatusOr<HookResult> Demo::TrainTogether(const Row& row) {
  const std::string session = "demo-" + row.name;
  std::vector<std::string> outs;
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < kMembers; ++rank) {
    const std::string name = absl::StrCat(session, ".", rank);
    auto trainer = StartTrainer(
        name, /*progress=*/rank == 0,
        {"--address", address_, "--session", session, "--rank", absl::StrCat(rank), "--world-size",
         absl::StrCat(kMembers), "--hook", row.hook, "--label", row.name});
    if (!trainer.ok()) return trainer.status();
    trainers.push_back(*std::move(trainer));
    outs.push_back(folder_.File(name));
  }
  absl::Status status = WaitFor(trainers, kTrainTimeout, [&] {
    return std::all_of(outs.begin(), outs.end(),
                       [](const std::string& out) { return fs::exists(out + ".summary"); });
  });
  if (!status.ok()) return status;

  // Now, while the members still hold the session open.
  const absl::StatusOr<SessionCounters> counters = Counters(address_, session);
  if (!counters.ok()) return counters.status();
  for (ChildProcess& trainer : trainers) trainer.CloseInput();
  status = WaitFor(trainers, kLeaveTimeout, [&] {
    return std::all_of(trainers.begin(), trainers.end(), [](ChildProcess& trainer) {
      return trainer.Ended() && trainer.succeeded();
    });
  });
  if (!status.ok()) return status;

  HookResult result;
  result.hook = row.name;
  result.expected_ratio = row.ratio;
  result.may_be_less = row.may_be_less;
  for (const std::string& out : outs) {
    auto member = ReadTrainResult(out);
    if (!member.ok()) return member.status();
    if (member->steps_applied != counters->steps_applied) {
      return absl::InternalError(absl::StrCat("the daemon counted ", counters->steps_applied,
                                              " steps, a member ", member->steps_applied));
    }
    result.members.push_back(*std::move(member));
  }
  result.wire_bytes_per_step =
      static_cast<double>(counters->wire_bytes) / static_cast<double>(counters->steps_applied);
  result.fp32_bytes_per_step = static_cast<double>(counters->gradient_bytes) * kMembers;
  return result;
}

absl::StatusOr<TrainResult> Demo::TrainAlone() {
  auto trainer = StartTrainer("single", /*progress=*/true, {"--single"});
  if (!trainer.ok()) return trainer.status();
  trainer->CloseInput();
  std::vector<ChildProcess> trainers;
  trainers.push_back(*std::move(trainer));
  const absl::Status status = WaitFor(
      trainers, kTrainTimeout, [&] { return trainers[0].Ended() && trainers[0].succeeded(); });
  if (!status.ok()) return status;
  return ReadTrainResult(folder_.File("single"));
}

// True if all checks passed.
absl::StatusOr<bool> Run(const fs::path& programs, const std::string& data) {
  const auto begin = Clock::now();
  const absl::StatusOr<PrivateFolder> folder = PrivateFolder::Make();
  if (!folder.ok()) return folder.status();
  Demo demo(programs, data, *folder);
  if (absl::Status status = demo.StartDaemon(); !status.ok()) return status;
  std::printf("demo: %d members train a network on handwritten digits, once per hook\n", kMembers);
  std::fflush(stdout);

  std::vector<HookResult> hooks;
  for (const Row& row : Rows()) {
    auto result = demo.TrainTogether(row);
    if (!result.ok()) return result.status();
    hooks.push_back(*std::move(result));
  }
  const absl::StatusOr<TrainResult> single = demo.TrainAlone();
  if (!single.ok()) return single.status();
  if (absl::Status status = demo.StopDaemon(); !status.ok()) return status;

  const bool passed = Report(hooks, *single);
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  std::printf("demo: %zu parameters, %d steps per hook, %s in %.1f s\n", single->parameters.size(),
              static_cast<int>(single->steps_applied), passed ? "done" : "FAILED", seconds.count());
  return passed;
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  CLI::App app{"Trains a real model on real data through a gradwired of its own, for each hook."};
  std::string data = "client/examples/data/digits.csv";
  app.add_option("--data", data, "The data set as CSV")->check(CLI::ExistingFile)->take_last();
  CLI11_PARSE(app, argc, argv);

  demo::CatchSignals();
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const absl::StatusOr<bool> passed = demo::Run(self.parent_path(), data);
  if (demo::interrupted_by != 0) {
    std::fprintf(stderr, "\ndemo: interrupted\n");
    std::signal(demo::interrupted_by, SIG_DFL);
    std::raise(demo::interrupted_by);
  }
  if (!passed.ok()) std::fprintf(stderr, "\ndemo: %s\n", passed.status().ToString().c_str());
  return passed.ok() && *passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
