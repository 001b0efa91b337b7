#include "server/ctl/report.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/printable.h"
#include "server/ctl/shards.h"
#include "server/ctl/table.h"

namespace gradwire::ctl {
namespace {

// The others' waiting that the member caused.
double WaitSeconds(const v1::MemberStatus& member) {
  return ToSeconds(member.compute_wait_total()) + ToSeconds(member.link_wait_total());
}

double WaitSeconds(const v1::SessionStatus& session) {
  double sum = ToSeconds(session.daemon_wait_total());
  for (const v1::MemberStatus& member : session.members()) sum += WaitSeconds(member);
  return sum;
}

bool Live(const v1::SessionStatus& session) {
  return session.state() == "joining" || session.state() == "running";
}

// Of a leaf daemon: for all its ranks.
int Connected(const v1::SessionStatus& session) {
  int ranks = 0;
  for (const v1::MemberStatus& member : session.members()) {
    if (member.state() == "connected") ranks += std::max(member.ranks(), 1);
  }
  return ranks;
}

// A leaf has those of its node.
int MembersOf(const v1::SessionStatus& session) {
  return session.has_leaf() ? session.leaf().members() : session.world_size();
}

std::string Ranks(const v1::MemberStatus& member) {
  if (member.leaf().empty()) return absl::StrCat(member.rank());
  const std::string last =
      member.ranks() > 1 ? absl::StrCat(" to ", member.rank() + member.ranks() - 1) : "";
  return absl::StrCat(member.rank(), last, " (leaf ", Printable(member.leaf()), ")");
}

std::string Hook(const v1::SessionStatus& session) {
  const std::string& wrapper = session.hook().comm_wrapper();
  const std::string& hook = session.hook().comm_hook();
  const std::string name = hook.empty() ? "no" : hook;
  return Printable(wrapper.empty() || wrapper == "no" ? name
                                                      : absl::StrCat(wrapper, "(", name, ")"));
}

// Whether a later session has the same name.
bool IsSuperseded(const v1::SessionStatus& session, const v1::ListSessionsResponse& sessions) {
  return std::any_of(sessions.sessions().begin(), sessions.sessions().end(),
                     [&session](const v1::SessionStatus& other) {
                       return other.name() == session.name() &&
                              other.generation() > session.generation();
                     });
}

// What is waited for and who is slow, then what has failed last and why.
std::string Headline(const v1::ListSessionsResponse& sessions) {
  std::string live;
  std::string failed;
  for (const v1::SessionStatus& session : sessions.sessions()) {
    if (Live(session)) {
      absl::StrAppend(&live, Printable(session.name()), ": ", Printable(session.waiting_for()),
                      "\n");
      if (!session.slow().empty()) {
        absl::StrAppend(&live, Printable(session.name()), ": ", Printable(session.slow()), "\n");
      }
      if (const std::string others = OtherShards(session); !others.empty()) {
        absl::StrAppend(&live, Printable(session.name()), ": ", others, "\n");
      }
    } else if (session.state() == "failed" && !IsSuperseded(session, sessions)) {
      // The daemon's sentence repeats the session's name, with which this line begins already.
      const std::string prefix = absl::StrCat("session \"", session.name(), "\" failed: ");
      const absl::string_view why = absl::StripPrefix(session.waiting_for(), prefix);
      absl::StrAppend(&failed, Printable(session.name()), " failed: ", Printable(std::string(why)),
                      "\n");
    }
  }
  return (live.empty() ? "No session is running.\n" : live) + failed;
}

std::string Count(std::uint64_t count, const char* of) {
  return absl::StrCat(count, " ", of, count == 1 ? "" : "s");
}

// Empty when nothing is compressed.
std::string CompressionTable(const v1::SessionStatus& session) {
  const auto& lines = session.compression();
  if (std::none_of(lines.begin(), lines.end(), [](const auto& line) { return line.rank() > 0; })) {
    return "";
  }
  std::vector<Row> rows = {{"PARAMETER", "MATRIX RANK", "RATIO", "Q AFTER STEPS"}};
  for (const v1::ParameterStatus& line : lines) {
    const bool compressed = line.rank() > 0;
    rows.push_back({Printable(line.name()), compressed ? absl::StrCat(line.rank()) : "-",
                    absl::StrFormat("%.1f", line.ratio()),
                    !compressed           ? "-"
                    : line.version() == 0 ? "drawn"
                                          : absl::StrCat(line.version())});
  }
  return absl::StrCat("\n", Table(rows));
}

// Means over a bucket's reductions, as rank 0 measured them. Empty when it has not.
std::string BucketTable(const v1::SessionStatus& session) {
  if (session.buckets().empty()) return "";
  std::vector<Row> rows = {{"BUCKET", "PARAMETERS", "REDUCTIONS", "BEFORE", "AFTER", "COMPRESS",
                            "WIRE", "REDUCE", "DECOMPRESS", "RESIDUAL/GRADIENT"}};
  for (const v1::BucketStatus& bucket : session.buckets()) {
    const v1::BucketReport& report = bucket.report();
    const std::uint64_t count = report.reductions();
    const std::uint64_t divisor = std::max<std::uint64_t>(count, 1);
    rows.push_back(
        {Printable(bucket.name()), absl::StrCat(report.parameters()), absl::StrCat(count),
         Bytes(report.gradient_bytes() / divisor), Bytes(report.sent_bytes() / divisor),
         Milliseconds(report.compress_seconds(), count), Milliseconds(report.wire_seconds(), count),
         Milliseconds(report.reduce_seconds(), count),
         Milliseconds(report.decompress_seconds(), count),
         report.gradient_norm() > 0
             ? absl::StrFormat("%.3f", report.residual_norm() / report.gradient_norm())
             : "-"});
  }
  return absl::StrCat("\n", Table(rows));
}

// The last steps, with the member that was waited for longest.
std::string StepTable(const v1::SessionStatus& session) {
  constexpr int kSteps = 5;
  const auto& steps = session.recent_steps();
  if (steps.empty()) return "";
  std::vector<Row> rows = {
      {"STEP", "TIME", "STRAGGLER GAP", "WAITED FOR", "LATE BUCKETS", "LATE BYTES"}};
  for (int i = std::max(0, steps.size() - kSteps); i < steps.size(); ++i) {
    const v1::StepStatus& step = steps[i];
    const auto sum = [](const v1::MemberStep& member) {
      return ToSeconds(member.compute_wait()) + ToSeconds(member.link_wait());
    };
    const auto worst =
        std::max_element(step.members().begin(), step.members().end(),
                         [&](const auto& a, const auto& b) { return sum(a) < sum(b); });
    const bool anybody = worst != step.members().end() && sum(*worst) > 0;
    rows.push_back({absl::StrCat(step.step()), Milliseconds(ToSeconds(step.duration()), 1),
                    Milliseconds(ToSeconds(step.straggler_gap()), 1),
                    anybody ? absl::StrCat("rank ", worst - step.members().begin()) : "-",
                    anybody ? Milliseconds(ToSeconds(worst->compute_wait()), 1) : "-",
                    anybody ? Milliseconds(ToSeconds(worst->link_wait()), 1) : "-"});
  }
  return absl::StrCat("\n", Table(rows));
}

// With the rest of the pause, which `waiting_for` only tells once the open step has ended.
std::string StateLine(const v1::SessionStatus& session) {
  if (!session.has_pause()) return session.state();
  const std::string reason = Printable(session.pause().reason());
  return absl::StrCat(StateWord(session), " by an operator", reason.empty() ? "" : ": ", reason,
                      session.pause().holding() ? "" : "; the open step ends first", "; ",
                      Seconds(session.pause().left()), " left");
}

// Without line feed.
std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  // Scripts can rely on every field, also on those with the value 0.
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  return status.ok() ? text : "null";
}

}  // namespace

std::string SessionsTable(const v1::ListSessionsResponse& sessions) {
  if (sessions.sessions_size() == 0) return "";
  std::vector<Row> rows = {
      {"SESSION", "STATE", "GENERATION", "STEP", "MEMBERS", "HOOK", "RECEIVED", "SENT"}};
  for (const v1::SessionStatus& session : sessions.sessions()) {
    rows.push_back({Printable(session.name()), StateWord(session),
                    absl::StrCat(session.generation()), absl::StrCat(session.step()),
                    absl::StrCat(Connected(session), "/", MembersOf(session)), Hook(session),
                    Bytes(session.contribution_bytes_total()),
                    Bytes(session.result_bytes_total())});
  }
  return Table(rows);
}

std::string StatusTable(const v1::GetServerResponse& server,
                        const v1::ListSessionsResponse& sessions) {
  return ServersTable(NamedServers{{"", server}}, sessions);
}

std::string ServersTable(const NamedServers& servers, const v1::ListSessionsResponse& sessions) {
  std::string text = absl::StrCat(Headline(sessions), "\n");
  for (const auto& [address, server] : servers) {
    absl::StrAppend(&text, servers.size() > 1 ? Printable(address) : "",
                    servers.size() > 1 ? ": " : "", "gradwired ", server.version(),
                    server.draining() ? ", draining" : "", ", up ", Seconds(server.uptime()), ", ",
                    Count(server.sessions(), "session"), ", ",
                    Count(server.connections(), "connection"), ", ", Bytes(server.reserved_bytes()),
                    " of ", Bytes(server.memory_limit_bytes()), " reserved\n");
  }
  const std::string table = SessionsTable(sessions);
  if (!table.empty()) absl::StrAppend(&text, "\n", table);
  return text;
}

std::string SessionsJson(const v1::ListSessionsResponse& sessions) {
  std::string text = "[";
  for (int i = 0; i < sessions.sessions_size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ",", Json(sessions.sessions(i)));
  }
  return text + "]\n";
}

std::string StatusJson(const v1::GetServerResponse& server,
                       const v1::ListSessionsResponse& sessions) {
  const std::string list = SessionsJson(sessions);
  return absl::StrCat("{\"server\":", Json(server), ",\"sessions\":", absl::StripSuffix(list, "\n"),
                      "}\n");
}

std::string ServersJson(const NamedServers& servers, const v1::ListSessionsResponse& sessions) {
  std::string text = "{\"servers\":[";
  for (const auto& [address, server] : servers) {
    absl::StrAppend(&text, text.back() == '[' ? "" : ",",
                    "{\"address\":", nlohmann::json(Printable(address)).dump(),
                    ",\"server\":", Json(server), "}");
  }
  const std::string list = SessionsJson(sessions);
  return absl::StrCat(text, "],\"sessions\":", absl::StripSuffix(list, "\n"), "}\n");
}

std::string StateWord(const v1::SessionStatus& session) {
  if (!session.has_pause()) return session.state();
  return session.pause().holding() ? "paused" : "pausing";
}

std::string Doing(const v1::SessionStatus& session) {
  const std::string why = Printable(session.waiting_for());
  return absl::StrCat("is ", session.has_pause() ? StateLine(session) : session.state(),
                      session.has_pause() || why.empty() ? "" : ": ",
                      session.has_pause() ? "" : why);
}

std::string SessionTable(const v1::SessionStatus& session) {
  std::string text =
      absl::StrCat(Printable(session.name()), ": ", Printable(session.waiting_for()), "\n",
                   Printable(session.slow()), session.slow().empty() ? "\n" : "\n\n");
  const std::string others = OtherShards(session);
  if (!others.empty()) absl::StrAppend(&text, others, "\n\n");
  std::vector<Row> facts = {
      {"state", StateLine(session)},
      {"generation", absl::StrCat(session.generation())},
      {"lineage", absl::StrFormat("%016x", session.lineage())},
      {"step", absl::StrCat(session.step(), ", attempt ", session.attempt())},
      {"steps",
       absl::StrCat(session.steps_applied_total(), " applied, ", session.steps_skipped_total(),
                    " skipped", session.last_skip().empty() ? "" : "; the last was ",
                    Printable(session.last_skip()))},
      {"iteration", absl::StrCat(session.iteration())},
      {"hook", absl::StrCat(Hook(session), session.has_leaf() ? ", of the node's mean" : "")},
      {"parameters", absl::StrCat(session.parameters(), ", ", Bytes(session.gradient_bytes()),
                                  " of gradients in a step")},
      {"received", Bytes(session.contribution_bytes_total())},
      {"sent", Bytes(session.result_bytes_total())},
      {"duplicates", absl::StrCat(session.duplicate_chunks_total(), " chunks")},
      {"reserved", Bytes(session.reserved_bytes())}};
  if (!session.last_drift().empty()) facts.push_back({"drift", Printable(session.last_drift())});
  std::vector<std::string> missed;
  for (const v1::MemberStatus& member : session.members()) {
    if (member.missed_steps_total() == 0) continue;
    missed.push_back(absl::StrCat("rank ", member.rank(), " ", member.missed_steps_total()));
  }
  if (!missed.empty()) facts.push_back({"missed steps", absl::StrJoin(missed, ", ")});
  text += Table(facts);
  std::vector<Row> rows = {{"RANK", "STATE", "TRANSPORT", "LAST HEARD", "RECEIVED", "LATE BUCKETS",
                            "LATE BYTES", "SHARE"}};
  const double waits = WaitSeconds(session);
  for (const v1::MemberStatus& member : session.members()) {
    if (member.state() == "elsewhere") continue;
    const std::string heard = member.has_last_heard()
                                  ? absl::StrCat(Seconds(member.last_heard()), " ago")
                                  : (member.state() == "absent" ? "never" : "-");
    rows.push_back(
        {Ranks(member), member.state(), member.transport().empty() ? "-" : member.transport(),
         heard, Bytes(member.contribution_bytes_total()), Seconds(member.compute_wait_total()),
         Seconds(member.link_wait_total()),
         waits > 0 ? absl::StrFormat("%.0f%%", 100 * WaitSeconds(member) / waits) : "-"});
  }
  return absl::StrCat(text, "\n", ShardTable(session), Table(rows), StepTable(session),
                      BucketTable(session), CompressionTable(session));
}

std::string Why(const v1::ListSessionsResponse& sessions) { return Headline(sessions); }

// Those that Headline names, and the other ones that ended.
std::string WhyJson(const v1::ListSessionsResponse& sessions) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const v1::SessionStatus& session : sessions.sessions()) {
    all.push_back({{"session", session.name()},
                   {"state", session.state()},
                   {"why", session.waiting_for()},
                   {"slow", session.slow()}});
  }
  return all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string VersionsJson(const std::string& tool, const std::string& daemon) {
  nlohmann::ordered_json versions = {{"gradwirectl", tool}, {"gradwired", nullptr}};
  if (!daemon.empty()) versions["gradwired"] = daemon;
  return versions.dump() + "\n";
}

std::string MessageJson(const google::protobuf::Message& message) { return Json(message) + "\n"; }

std::string SessionJson(const v1::SessionStatus& session) { return MessageJson(session); }

}  // namespace gradwire::ctl
