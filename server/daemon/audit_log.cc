#include "server/daemon/audit_log.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/thread_name.h"

namespace gradwire::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kSecond(1);
constexpr std::chrono::seconds kBetweenComplaints(60);
// Of one field: peers choose what some of them say.
constexpr std::size_t kMostText = 1024;

// O_NONBLOCK: a pipe that nobody reads must not hang the daemon.
constexpr int kOpenFlags = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;

absl::Status CannotOpen(const std::string& path, int error) {
  return Coded(
      ErrorCode::kAuditLog,
      absl::UnavailableError(absl::StrCat(
          "audit_log \"", path, "\": cannot be opened for writing: ", std::strerror(error))));
}

absl::StatusOr<UniqueFd> OpenFile(const std::string& path) {
  UniqueFd file(open(path.c_str(), kOpenFlags | O_CREAT, 0600));
  if (file.valid()) return file;
  return CannotOpen(path, errno);
}

void Clip(std::string& text) {
  if (text.size() > kMostText) text.resize(kMostText);
}

void PutText(const char* name, const std::string& text, Json& line) {
  if (!text.empty()) line[name] = text;
}

Json Begin(absl::Time time, const std::string& event) {
  return {{"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone())},
          {"event", event}};
}

// ASCII only, and whatever bytes a peer sent become valid JSON.
std::string Text(const Json& line) {
  return absl::StrCat(line.dump(-1, ' ', true, Json::error_handler_t::replace), "\n");
}

std::string CountLine(const std::string& event, std::uint64_t count) {
  Json line = Begin(absl::Now(), event);
  line["count"] = count;
  return Text(line);
}

std::string LineOf(absl::Time time, const AuditEvent& event) {
  Json line = Begin(time, event.event);
  line["outcome"] = event.outcome == AuditEvent::Outcome::kRefused ? "refused" : "ok";
  PutText("identity", event.identity, line);
  PutText("role", event.role, line);
  PutText("certificate", event.certificate, line);
  PutText("peer", event.peer, line);
  PutText("session", event.session, line);
  if (event.rank) line["rank"] = *event.rank;
  PutText("reason", event.reason, line);
  return Text(line);
}

}  // namespace

absl::Status AuditLog::Check(const std::string& path) {
  const UniqueFd file(open(path.c_str(), kOpenFlags));
  if (file.valid()) return absl::OkStatus();
  if (errno != ENOENT) return CannotOpen(path, errno);
  // The start creates the file, so what counts is the folder.
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const char* const folder = parent.empty() ? "." : parent.c_str();
  if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) == 0) return absl::OkStatus();
  return CannotOpen(path, errno);
}

absl::StatusOr<std::shared_ptr<AuditLog>> AuditLog::Open(const std::string& path,
                                                         const Options& options) {
  absl::StatusOr<UniqueFd> file = OpenFile(path);
  if (!file.ok()) return file.status();
  std::shared_ptr<AuditLog> log(new AuditLog(path, options, *std::move(file)));
  log->thread_ = std::thread([self = log.get()] {
    NameThread("gradwire-audit");
    self->Run();
  });
  return log;
}

bool AuditLog::AllowRefusal(Clock::time_point now) {
  if (now >= second_ + kSecond) {
    second_ = now;
    refusals_ = 0;
  }
  return ++refusals_ <= options_.refusals_per_second;
}

void AuditLog::Record(AuditEvent event) {
  for (std::string* text : {&event.identity, &event.certificate, &event.session, &event.reason}) {
    Clip(*text);
  }
  MutexLock lock(mutex_);
  if (stop_) return;
  if (event.outcome == AuditEvent::Outcome::kRefused && !AllowRefusal(Clock::now())) {
    // The writer tells the number when the second is over.
    if (++left_out_ == 1) wake_.NotifyOne();
    return;
  }
  if (queue_.size() >= options_.queue) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queue_.push_back({.time = absl::Now(), .event = std::move(event)});
  wake_.NotifyOne();
}

void AuditLog::Reopen() {
  MutexLock lock(mutex_);
  reopen_ = true;
  wake_.NotifyOne();
}

void AuditLog::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    wake_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
}

AuditLog::Batch AuditLog::Next() {
  MutexLock lock(mutex_);
  while (queue_.empty() && !reopen_ && !stop_) {
    if (left_out_ == 0) {
      wake_.Wait(mutex_);
    } else if (!wake_.WaitUntil(mutex_, second_ + kSecond)) {
      break;
    }
  }
  Batch batch{
      .entries = std::exchange(queue_, {}), .reopen = std::exchange(reopen_, false), .stop = stop_};
  if (stop_ || Clock::now() >= second_ + kSecond) batch.left_out = std::exchange(left_out_, 0);
  return batch;
}

void AuditLog::Run() {
  bool stop = false;
  while (!stop) {
    const Batch batch = Next();
    Write(batch);
    if (batch.reopen) ReopenFile();
    stop = batch.stop;
  }
}

// Line by line: on a full disk, each either fits or counts as dropped.
void AuditLog::Write(const Batch& batch) {
  const auto write_line = [this](const std::string& line) {
    // What came before may have ended in the middle of a line.
    const std::string text = torn_ ? absl::StrCat("\n", line) : line;
    const ssize_t written = write(file_.get(), text.data(), text.size());
    const bool whole = written == static_cast<ssize_t>(text.size());
    if (!whole) OnFailure(written < 0 ? errno : ENOSPC, Clock::now());
    if (written > 0) torn_ = !whole;
    return whole;
  };
  for (const Entry& entry : batch.entries) {
    if (!write_line(LineOf(entry.time, entry.event))) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (batch.left_out > 0) write_line(CountLine("refusals_left_out", batch.left_out));
  const std::uint64_t dropped = dropped_.load(std::memory_order_relaxed);
  if (dropped > told_ && write_line(CountLine("events_dropped", dropped - told_))) told_ = dropped;
}

void AuditLog::OnFailure(int error, Clock::time_point now) {
  if (now < next_complaint_) return;
  next_complaint_ = now + kBetweenComplaints;
  spdlog::error("audit_log \"{}\": cannot be written: {}; events are lost until it can be", path_,
                std::strerror(error));
}

void AuditLog::ReopenFile() {
  absl::StatusOr<UniqueFd> file = OpenFile(path_);
  if (!file.ok()) {
    spdlog::error("{}; the audit log goes on in the old file",
                  std::string(file.status().message()));
    return;
  }
  file_ = *std::move(file);
  torn_ = false;
}

}  // namespace gradwire::server
