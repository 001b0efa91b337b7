#include "server/ctl/doctor/doctor.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/printable.h"
#include "server/ctl/doctor/model.h"
#include "server/ctl/explain.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {
namespace {

using nlohmann::json;
using server::kExitFailed;
using server::kExitOk;
using server::kExitUnavailable;
using server::kExitUsage;

constexpr int kCalls = 5;
// More members would fill the link no better, and the processors of this host more.
constexpr int kMostMeasured = 4;
constexpr absl::Duration kMostSkew = absl::Minutes(1);

struct Wanted {
  std::vector<ParameterSpec> parameters;
  std::vector<HookSpec> hooks;
};

absl::StatusOr<Wanted> Read(const ModelFlags& flags) {
  Wanted wanted;
  auto parameters = flags.shapes.empty() ? ModelByName(flags.model) : ParseShapes(flags.shapes);
  if (!parameters.ok()) return parameters.status();
  wanted.parameters = *std::move(parameters);
  for (const std::string& text : flags.hooks) {
    auto hook = HookFromText(text);
    if (!hook.ok()) return hook.status();
    wanted.hooks.push_back(*std::move(hook));
  }
  return wanted;
}

int Refuse(const absl::Status& status, int code) {
  PrintFailure(ErrorCode::kCtl, Printable(std::string(status.message())));
  return code;
}

int CodeOf(const absl::Status& status) {
  const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return silent ? kExitUnavailable : kExitFailed;
}

std::string Rate(double bytes_per_second) {
  return absl::StrFormat("%.1f MB/s (%.0f Mbit/s)", bytes_per_second / 1e6,
                         bytes_per_second / 125e3);
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%.2f ms", seconds * 1e3); }

std::string Megabytes(std::uint64_t bytes) {
  return absl::StrFormat("%.2f MB", static_cast<double>(bytes) / 1e6);
}

std::string ModelLine(const ModelFlags& flags, const Wanted& wanted) {
  const std::size_t elements = Elements(wanted.parameters);
  return absl::StrCat(flags.shapes.empty() ? flags.model : "shapes", ", ", wanted.parameters.size(),
                      " parameters, ", Megabytes(elements * sizeof(float)), " of gradients, ",
                      flags.members, " members");
}

// For those who wait. Standard output only has results.
void Progress(const std::string& doing) {
  std::cerr << "gradwirectl: " << Printable(doing) << " ...\n" << std::flush;
}

// What doctor found out. Each check is printed as soon as it is known.
class Findings {
 public:
  explicit Findings(const Print& print) : print_(print) {}

  void Ok(const std::string& name, const std::string& text) { Add("ok", name, text); }
  // Nothing is wrong yet, but an operator wants to know.
  void Note(const std::string& name, const std::string& text) { Add("note", name, text); }
  int Fail(const std::string& name, const absl::Status& status) {
    Add("FAIL", name, CodedText(ErrorCode::kCtl, Printable(std::string(status.message()))));
    Show();
    return CodeOf(status);
  }

  json& document() { return document_; }
  bool as_table() const { return print_ == nullptr; }
  void Show() const {
    if (print_ != nullptr) print_(document_.dump(2) + "\n");
  }

 private:
  void Add(const std::string& result, const std::string& name, const std::string& text) {
    if (print_ != nullptr) {
      document_["checks"].push_back({{"check", name}, {"result", result}, {"text", text}});
    } else {
      std::cout << absl::StrFormat("%-5s %-11s %s\n", result, name, text) << std::flush;
    }
  }

  const Print& print_;
  json document_ = {{"checks", json::array()}};
};

void CheckTls(const Target& target, Findings& findings) {
  const bool local = target.address.starts_with("unix:") || target.address.starts_with("127.") ||
                     target.address.starts_with("localhost");
  if (target.address.starts_with("unix:")) {
    findings.Ok("tls", "not needed: a unix socket of this host");
  } else if (!target.tls.ca.empty()) {
    findings.Ok(
        "tls",
        absl::StrCat("encrypted; the daemon's certificate fits the address and ", target.tls.ca,
                     target.tls.cert.empty() ? "" : "; this tool shows " + target.tls.cert));
  } else if (local) {
    findings.Ok("tls", "off, and the address is of this host");
  } else {
    findings.Note("tls", "off: the network can read and change what members send; see --tls-ca");
  }
}

void CheckServer(const Target& target, Findings& findings) {
  const absl::Time asked = absl::Now();
  const auto server = GetServer(target);
  const absl::Time answered = absl::Now();
  if (!server.ok()) {
    findings.Note(
        "versions",
        CodedText(ErrorCode::kCtl,
                  absl::StrCat("gradwirectl ", GRADWIRE_VERSION, "; gradwired does not tell: ",
                               Printable(std::string(server.status().message())))));
    return;
  }
  const std::string versions =
      absl::StrCat("gradwirectl ", GRADWIRE_VERSION, ", gradwired ", Printable(server->version()));
  if (server->version() == GRADWIRE_VERSION) {
    findings.Ok("versions", versions);
  } else {
    findings.Note("versions", absl::StrCat(versions, ": they differ"));
  }
  const absl::Time theirs =
      absl::FromUnixSeconds(server->now().seconds()) + absl::Nanoseconds(server->now().nanos());
  const absl::Duration ahead = theirs - (asked + (answered - asked) / 2);
  const std::string skew =
      absl::StrFormat("the daemon's is %.3f s %s", absl::ToDoubleSeconds(absl::AbsDuration(ahead)),
                      ahead < absl::ZeroDuration() ? "behind" : "ahead");
  if (!server->has_now()) {
    findings.Note("clock", "the daemon does not tell its time");
  } else if (absl::AbsDuration(ahead) > kMostSkew) {
    findings.Note("clock", skew + "; certificates may seem expired, or not valid yet");
  } else {
    findings.Ok("clock", skew);
  }
}

// One line of the prediction.
struct Forecast {
  std::string hook;
  StepCost cost;
  double seconds = 0;
};

absl::StatusOr<std::vector<Forecast>> Predict(const Wanted& wanted, int members, const Link& link) {
  const auto plain = MeasureCost({}, wanted.parameters);
  if (!plain.ok()) return plain.status();
  std::vector<Forecast> all;
  for (const HookSpec& hook : wanted.hooks) {
    Progress(absl::StrCat("measuring what hook ", hook.ToString(), " computes in a step"));
    auto cost = MeasureCost(hook, wanted.parameters);
    if (!cost.ok()) return cost.status();
    // The measured rate of the link includes what the hook "no" computes.
    cost->compute_seconds = std::max(0.0, cost->compute_seconds - plain->compute_seconds);
    all.push_back(
        {.hook = hook.ToString(), .cost = *cost, .seconds = StepSeconds(*cost, members, link)});
  }
  return all;
}

void PrintForecasts(const std::vector<Forecast>& all, const ModelFlags& flags, const Wanted& wanted,
                    Findings& findings) {
  if (!findings.as_table()) {
    json& rows = findings.document()["predictions"] = json::array();
    for (const Forecast& one : all) {
      rows.push_back({{"hook", one.hook},
                      {"rounds", one.cost.rounds.size()},
                      {"bytes", one.cost.bytes()},
                      {"compute_seconds", one.cost.compute_seconds},
                      {"step_seconds", one.seconds}});
    }
    findings.Show();
    return;
  }
  std::cout << "\nOne step without overlap, to be expected for " << ModelLine(flags, wanted)
            << ",\nif all reach the daemon over one link as fast as this one:\n\n"
            << absl::StrFormat("%12s %7s %12s  %s\n", "step", "rounds", "each sends", "hook");
  for (const Forecast& one : all) {
    std::cout << absl::StrFormat("%9.1f ms %7d %12s  %s\n", one.seconds * 1e3,
                                 one.cost.rounds.size(), Megabytes(one.cost.bytes()), one.hook);
  }
  const auto best = std::min_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  if (all.size() > 1) {
    std::cout << "\nFastest: " << best->hook << ", "
              << absl::StrFormat("%.1f", all.front().seconds / best->seconds)
              << " times as fast as " << all.front().hook << ". `gradwirectl bench` measures it.\n";
  }
}

}  // namespace

absl::StatusOr<absl::Duration> Reach(const Target& target) {
  absl::Duration fastest = absl::InfiniteDuration();
  for (int i = 0; i < kCalls; ++i) {
    const absl::Time begin = absl::Now();
    const auto serving = IsServing(target, "");
    if (!serving.ok()) return serving.status();
    if (!*serving)
      return Coded(ErrorCode::kDraining,
                   absl::FailedPreconditionError("the daemon is not serving; does it drain?"));
    fastest = std::min(fastest, absl::Now() - begin);
  }
  return fastest;
}

std::vector<std::string> DefaultHooks() { return {"no", "fp16", "power_sgd"}; }

int Doctor(const Target& target, const ModelFlags& flags, const Print& print) {
  const auto wanted = Read(flags);
  if (!wanted.ok()) return Refuse(wanted.status(), kExitUsage);
  Findings findings(print);
  Progress(absl::StrCat("connecting to ", target.address));
  const auto reach = Reach(target);
  if (!reach.ok()) return findings.Fail("address", reach.status());
  findings.Ok("address", absl::StrCat(target.address, " answers a new connection in ",
                                      Milliseconds(absl::ToDoubleSeconds(*reach))));
  CheckTls(target, findings);
  CheckServer(target, findings);
  const std::string session = ScratchSession();
  const int members = std::min(flags.members, kMostMeasured);
  Progress(absl::StrCat("measuring round trip and bandwidth with ", members,
                        members == 1 ? " member" : " members"));
  const auto link =
      MeasureLink(target, session, members, Elements(wanted->parameters) * sizeof(float));
  if (!link.ok()) return findings.Fail("training", link.status());
  findings.Ok("training", absl::StrCat("joined, trained in and left sessions ", session, "-*"));
  findings.Ok("round trip", absl::StrCat(Milliseconds(link->round_trip_seconds), ", smallest step ",
                                         Milliseconds(link->step_seconds)));
  findings.Ok("bandwidth", Rate(link->bytes_per_second));
  const auto forecasts = Predict(*wanted, flags.members, *link);
  if (!forecasts.ok()) return findings.Fail("prediction", forecasts.status());
  if (!findings.as_table()) {
    findings.document()["link"] = {{"bytes_per_second", link->bytes_per_second},
                                   {"round_trip_seconds", link->round_trip_seconds},
                                   {"smallest_step_seconds", link->step_seconds}};
  }
  PrintForecasts(*forecasts, flags, *wanted, findings);
  return kExitOk;
}

int RunBench(const Target& target, const ModelFlags& flags, const Print& print) {
  const auto wanted = Read(flags);
  if (!wanted.ok()) return Refuse(wanted.status(), kExitUsage);
  const std::string session = ScratchSession();
  json rows = json::array();
  if (print == nullptr) {
    std::cout << ModelLine(flags, *wanted) << ", " << flags.steps << " steps each\n\n"
              << absl::StrFormat("%12s  %21s %12s %12s  %s\n", "median step", "fastest .. slowest",
                                 "gradients/s", "each sends", "hook")
              << std::flush;
  }
  for (std::size_t i = 0; i < wanted->hooks.size(); ++i) {
    const HookSpec& hook = wanted->hooks[i];
    const auto result = Bench(target,
                              {.session = absl::StrCat(session, "-", i),
                               .members = flags.members,
                               .steps = flags.steps,
                               .parameters = wanted->parameters},
                              hook);
    if (!result.ok()) return Refuse(result.status(), CodeOf(result.status()));
    const auto gradients = static_cast<double>(result->gradient_bytes);
    if (print != nullptr) {
      rows.push_back({{"hook", hook.ToString()},
                      {"step_seconds", result->step_seconds},
                      {"fastest_seconds", result->fastest},
                      {"slowest_seconds", result->slowest},
                      {"gradient_bytes", result->gradient_bytes},
                      {"sent_bytes", result->sent_bytes}});
      continue;
    }
    std::cout << absl::StrFormat("%9.1f ms  %6.1f .. %8.1f ms %7.1f MB/s %12s  %s\n",
                                 result->step_seconds * 1e3, result->fastest * 1e3,
                                 result->slowest * 1e3, gradients / result->step_seconds / 1e6,
                                 Megabytes(result->sent_bytes), hook.ToString())
              << std::flush;
  }
  if (print != nullptr) {
    const json document = {{"members", flags.members}, {"steps", flags.steps}, {"results", rows}};
    print(document.dump(2) + "\n");
  }
  return kExitOk;
}

}  // namespace gradwire::ctl
