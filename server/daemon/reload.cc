#include "server/daemon/reload.h"

#include <spdlog/spdlog.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "server/daemon/config_show.h"
#include "server/daemon/logging.h"

namespace gradwire::server {
namespace {

// Settings that are reloadable and read where they count, such as drain_timeout, need nothing here.
void Apply(const ServerOptions& old, const ServerOptions& changed, Server& server) {
  if (old.max_sessions != changed.max_sessions) server.SetMaxSessions(changed.max_sessions);
  if (old.log_format != changed.log_format) ChangeLogFormat(changed.log_format);
  const auto identity = ParseQuota(changed.identity_quota, QuotaOwner::kIdentity);
  const auto session = ParseQuota(changed.session_quota, QuotaOwner::kSession);
  // Set has checked them.
  if (identity.ok() && session.ok()) server.SetQuotas(*identity, *session);
}

// "max_sessions: 256 -> 5", with the file's key. Values that could not be told from the words
// around them are quoted.
std::string ChangeOf(const Setting& setting, const std::string& before, const std::string& after) {
  const auto unclear = [](const std::string& value) {
    return value.empty() || absl::StrContains(value, ' ');
  };
  const char* const quote = unclear(before) || unclear(after) ? "\"" : "";
  return absl::StrCat(setting.key, ": ", quote, before, quote, " -> ", quote, after, quote);
}

}  // namespace

void Reload(const Flags& flags, Server& server, Configuration& configuration) {
  const Loaded loaded = Load(flags);
  for (const std::string& problem : loaded.problems) {
    spdlog::error("configuration not reloaded: {}", problem);
  }
  if (!loaded.problems.empty()) {
    server.OnReload(Coded(ErrorCode::kConfigFile,
                          absl::InvalidArgumentError(absl::StrJoin(loaded.problems, "; "))),
                    "");
    return;
  }
  ServerOptions& running = configuration.options;
  const ServerOptions& wanted = loaded.configuration.options;
  ServerOptions changed = running;
  std::vector<std::string> applied;
  std::vector<std::string> held;
  for (const Setting& setting : Settings()) {
    const std::string before = Text(setting, running);
    const std::string after = Text(setting, wanted);
    const Origin& origin = loaded.configuration.origins.at(setting.name);
    if (before == after || setting.reloadable) configuration.origins[setting.name] = origin;
    if (before == after) continue;
    const std::string change = ChangeOf(setting, before, after);
    if (!setting.reloadable) {
      held.push_back(change);
    } else if (Set(setting, setting.member(), {after}, changed).ok()) {
      applied.push_back(change);
    }
  }
  // At the more talkative of both levels, so that a change to "error" is in the log too.
  const bool quieter =
      spdlog::level::from_str(changed.log_level) > spdlog::level::from_str(running.log_level);
  if (!quieter) ChangeLogLevel(changed.log_level);
  Apply(running, changed, server);
  for (const std::string& change : applied) spdlog::info("{}", change);
  for (const std::string& change : held) spdlog::warn("{} needs a restart", change);
  spdlog::info(
      "configuration reloaded: {} changed, {} need a restart; TLS files and tokens are "
      "read again whenever they change",
      applied.size(), held.size());
  ChangeLogLevel(changed.log_level);
  running = changed;
  configuration.file = loaded.configuration.file;
  server.SetConfigurationText(ShowYaml(configuration, true));
  server.OnReload(absl::OkStatus(), absl::StrJoin(applied, ", "));
}

}  // namespace gradwire::server
