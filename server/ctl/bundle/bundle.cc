#include "server/ctl/bundle/bundle.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "proto/tls/access_token.h"
#include "server/ctl/bundle/host_facts.h"
#include "server/ctl/doctor/doctor.h"
#include "server/ctl/report.h"

namespace gradwire::ctl {
namespace {

constexpr char kVisible[] =
    "Names of sessions, parameters and hosts, addresses and paths of files can be read in it. "
    "Tokens and keys are not in it.";

// Of all sessions' files; a few large models have some MiB each.
constexpr std::size_t kMostSessionBytes = std::size_t{256} << 20;

bool IsSilent(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

class Gathering {
 public:
  Gathering(const Target& target, absl::Time now) : target_(target), now_(now) {
    bundle_.files.push_back({.path = "README.txt", .text = ""});
    secrets_.push_back(EnvironmentToken());
    auto token = tls::ReadAccessToken({.file = target.token_file});
    if (token.ok()) secrets_.push_back(*std::move(token));
  }

  Bundle Run() {
    Add("host.txt", HostFacts());
    Add("environment.txt", EnvironmentFacts());
    AddDaemon();
    bundle_.files.front().text = Readme();
    return std::move(bundle_);
  }

 private:
  // Nothing should have written a token to a log; if something did, it ends here.
  void Add(const std::string& path, std::string text) {
    for (const std::string& secret : secrets_) {
      if (!secret.empty()) text = absl::StrReplaceAll(text, {{secret, "(the access token)"}});
    }
    bundle_.files.push_back({.path = path, .text = std::move(text)});
  }

  void Miss(const std::string& what, const absl::Status& why) {
    bundle_.missing.push_back(absl::StrCat(what, ": ", Printable(std::string(why.message()))));
  }

  void AddDaemon() {
    const auto server = GetServer(target_);
    Add("versions.json", VersionsJson(GRADWIRE_VERSION, server.ok() ? server->version() : ""));
    if (IsSilent(server.status())) {
      return Miss("all that the daemon tells",
                  absl::Status(server.status().code(),
                               absl::StrCat("no daemon answers at ", target_.address, ": ",
                                            std::string(server.status().message()))));
    }
    if (server.ok()) {
      Add("server.json", MessageJson(*server));
    } else {
      Miss("server.json", server.status());
    }
    AddReach();
    AddSessions();
    AddDiagnostics();
  }

  void AddReach() {
    const auto serving = IsServing(target_, "");
    if (serving.ok()) {
      Add("health.txt", *serving ? "serving\n" : "not serving\n");
    } else {
      Miss("health.txt", serving.status());
    }
    const auto reach = Reach(target_);
    if (reach.ok()) {
      Add("round-trip.txt", absl::StrFormat("a new connection is answered in %.3f ms\n",
                                            absl::ToDoubleMilliseconds(*reach)));
    } else {
      Miss("round-trip.txt", reach.status());
    }
  }

  // Files are numbered: a session's name is what somebody else chose.
  void AddSessions() {
    const auto sessions = ListSessions(target_);
    if (!sessions.ok()) return Miss("why.txt and sessions", sessions.status());
    Add("why.txt", Why(*sessions));
    Add("sessions.txt", SessionsTable(*sessions));
    std::size_t bytes = 0;
    for (int i = 0; i < sessions->sessions_size(); ++i) {
      const std::string path = absl::StrCat("sessions/", i, ".json");
      if (bytes > kMostSessionBytes) {
        return Miss(absl::StrCat(path, " and later ones"),
                    Coded(ErrorCode::kCtlFile,
                          absl::ResourceExhaustedError("the file would be too large")));
      }
      const auto session = GetSession(target_, sessions->sessions(i).name());
      if (session.ok()) {
        Add(path, SessionJson(*session));
        bytes += bundle_.files.back().text.size();
      } else if (IsSilent(session.status())) {  // each further one would cost a deadline
        return Miss(absl::StrCat(path, " and later ones"), session.status());
      } else {
        Miss(path, session.status());
      }
    }
  }

  void AddDiagnostics() {
    const auto diagnostics = GetDiagnostics(target_);
    if (!diagnostics.ok()) {
      return Miss("the daemon's configuration, log and figures", diagnostics.status());
    }
    Add("daemon/configuration.yaml", diagnostics->configuration());
    Add("daemon/log.txt", absl::StrCat(absl::StrJoin(diagnostics->log(), "\n"),
                                       diagnostics->log().empty() ? "" : "\n"));
    Add("daemon/process.json", MessageJson(diagnostics->process()));
    std::string addresses;
    for (const std::string& address : diagnostics->addresses()) {
      absl::StrAppend(&addresses, "grpc  ", Printable(address), "\n");
    }
    for (const std::string& address : diagnostics->http_addresses()) {
      absl::StrAppend(&addresses, "http  http://", Printable(address), "/\n");
    }
    Add("daemon/addresses.txt", addresses);
  }

  std::string Readme() const {
    std::string text = absl::StrCat(
        "gradwirectl ", GRADWIRE_VERSION, " wrote this at ",
        absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now_, absl::UTCTimeZone()), ", for the daemon at ",
        Printable(target_.address), ".\n", kVisible,
        "\nhost.txt and environment.txt are of the host on which gradwirectl ran, not of the "
        "daemon's.\n");
    if (bundle_.missing.empty()) return text;
    absl::StrAppend(&text, "\nMissing:\n");
    for (const std::string& line : bundle_.missing) absl::StrAppend(&text, "  ", line, "\n");
    return text;
  }

  const Target& target_;
  const absl::Time now_;
  Bundle bundle_;
  std::vector<std::string> secrets_;
};

}  // namespace

Bundle Gather(const Target& target, absl::Time now) { return Gathering(target, now).Run(); }

std::string Archive(const Bundle& bundle, const std::string& name, absl::Time now) {
  return TarGz(name, bundle.files, now);
}

std::string BundleName(absl::Time now) {
  return absl::StrCat("gradwire-debug-",
                      absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()));
}

std::string Summary(const Bundle& bundle, const std::string& file) {
  std::string text = absl::StrCat("wrote ", file, ":\n");
  for (const ArchivedFile& one : bundle.files) {
    absl::StrAppend(&text, absl::StrFormat("%9d  %s\n", one.text.size(), one.path));
  }
  for (const std::string& line : bundle.missing) absl::StrAppend(&text, "missing: ", line, "\n");
  return absl::StrCat(text, kVisible, "\n");
}

std::string SummaryJson(const Bundle& bundle, const std::string& file) {
  nlohmann::ordered_json document = {
      {"file", file}, {"entries", nlohmann::ordered_json::array()}, {"missing", bundle.missing}};
  for (const ArchivedFile& one : bundle.files) {
    document["entries"].push_back({{"path", one.path}, {"bytes", one.text.size()}});
  }
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace gradwire::ctl
