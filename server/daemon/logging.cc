#include "server/daemon/logging.h"

#include <grpc/support/log.h>
#include <spdlog/formatter.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/printable.h"
#include "base/sync.h"
#include "server/daemon/line_limit.h"
#include "server/daemon/log_ring.h"
#include "server/session/log_scope.h"

namespace gradwire::server {
namespace {

// Of a string in JSON.
std::string Quoted(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\"", "\\\""}, {"\\", "\\\\"}});
}

// What the line is about, in JSON.
std::string Fields(const LogFields* fields) {
  if (fields == nullptr) return "";
  std::string text;
  if (!fields->session.empty()) {
    absl::StrAppend(&text, ",\"session\":\"", Printable(Quoted(fields->session)), "\"");
  }
  if (fields->generation) absl::StrAppend(&text, ",\"generation\":", *fields->generation);
  if (fields->step) absl::StrAppend(&text, ",\"step\":", *fields->step);
  if (fields->rank) absl::StrAppend(&text, ",\"rank\":", *fields->rank);
  return text;
}

constexpr int kGrpcLinesPerSecond = 5;

// Each broken handshake is a line of gRPC's.
void TakeGrpcLine(gpr_log_func_args* line) {
  // Never destroyed: gRPC's threads may outlive main.
  static LineLimit& limit = *new LineLimit(kGrpcLinesPerSecond);
  const std::optional<int> left_out = limit.Allow(std::chrono::steady_clock::now());
  if (!left_out) return;
  if (*left_out > 0) spdlog::warn("gRPC: {} more lines", *left_out);
  // To gRPC an error is what its user did not expect. The daemon goes on.
  const bool debug = line->severity == GPR_LOG_SEVERITY_DEBUG;
  spdlog::log(debug ? spdlog::level::debug : spdlog::level::warn, "gRPC: {}", line->message);
}

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(bool json) : json_(json) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ",
                                              absl::FromChrono(message.time), absl::UTCTimeZone());
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string level_text(level.data(), level.size());
    const std::string said(message.payload.data(), message.payload.size());
    // Messages quote what members sent.
    const std::string text = Printable(json_ ? Quoted(said) : said);
    const std::string line =
        json_ ? absl::StrCat("{\"time\":\"", time, "\",\"level\":\"", level_text,
                             "\",\"message\":\"", text, "\"", Fields(LogScope::current()), "}\n")
              : absl::StrCat(time, " ", level_text, " ", text, "\n");
    out.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(json_);
  }

 private:
  const bool json_;
};

// Never destroyed: threads may log until the process ends.
LogRing& Ring() {
  static LogRing& ring = *new LogRing();
  return ring;
}

class RingSink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    MutexLock lock(mutex_);
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    Ring().Add({line.data(), line.size() - 1});  // without its end
  }
  void flush() override {}
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    MutexLock lock(mutex_);
    formatter_ = std::move(formatter);
  }

 private:
  Mutex mutex_;
  std::unique_ptr<spdlog::formatter> formatter_ GRADWIRE_GUARDED_BY(mutex_) =
      std::make_unique<LineFormatter>(false);
};

}  // namespace

void SetUpLog(const std::string& level, const std::string& format) {
  const spdlog::sinks_init_list sinks = {std::make_shared<spdlog::sinks::stderr_sink_mt>(),
                                         std::make_shared<RingSink>()};
  auto logger = std::make_shared<spdlog::logger>("gradwired", sinks);
  logger->set_formatter(std::make_unique<LineFormatter>(format == "json"));
  logger->set_level(spdlog::level::from_str(level));
  // Every line at once, so that the last ones survive a crash.
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(TakeGrpcLine);
}

void ChangeLogLevel(const std::string& level) {
  spdlog::default_logger_raw()->set_level(spdlog::level::from_str(level));
}

std::vector<std::string> LastLogLines() { return Ring().Lines(); }

// Each sink exchanges it under its lock; another logger could not be set while threads use this
// one.
void ChangeLogFormat(const std::string& format) {
  spdlog::default_logger_raw()->set_formatter(std::make_unique<LineFormatter>(format == "json"));
}

}  // namespace gradwire::server
