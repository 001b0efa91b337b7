#include "server/http/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cstddef>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/http/process_figures.h"

namespace gradwire::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr int kMembersWithSeries = 1000;

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + static_cast<double>(duration.nanos()) / 1e9;
}

// Families in the order in which they are first named.
class Families {
 public:
  void Counter(const std::string& name, const std::string& help, double value, Labels labels = {}) {
    Add(name, help, MetricType::Counter, std::move(labels)).counter.value = value;
  }
  void Gauge(const std::string& name, const std::string& help, double value, Labels labels = {}) {
    Add(name, help, MetricType::Gauge, std::move(labels)).gauge.value = value;
  }
  void Histogram(const std::string& name, const std::string& help,
                 const v1::StepHistogram& histogram, Labels labels) {
    ClientMetric::Histogram& to =
        Add(name, help, MetricType::Histogram, std::move(labels)).histogram;
    std::uint64_t count = 0;
    for (int i = 0; i < histogram.bounds_size(); ++i) {
      count += histogram.counts(i);
      to.bucket.push_back({.cumulative_count = count, .upper_bound = histogram.bounds(i)});
    }
    if (histogram.counts_size() > histogram.bounds_size()) {
      count += histogram.counts(histogram.bounds_size());
    }
    to.sample_count = count;
    to.sample_sum = histogram.sum();
  }

  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  ClientMetric& Add(const std::string& name, const std::string& help, MetricType type,
                    Labels labels) {
    const auto [found, is_new] = index_.try_emplace(name, families_.size());
    if (is_new) families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
    std::vector<ClientMetric>& metrics = families_[found->second].metric;
    metrics.emplace_back();
    metrics.back().label = std::move(labels);
    return metrics.back();
  }

  std::vector<MetricFamily> families_;
  std::map<std::string, std::size_t> index_;
};

void AddServer(const Figures& figures, Families& to) {
  const v1::GetServerResponse& server = figures.server;
  to.Gauge("gradwire_build_info", "The daemon's version.", 1, {{"version", server.version()}});
  to.Gauge("gradwire_draining", "1 while the daemon drains.", server.draining() ? 1 : 0);
  to.Gauge("gradwire_connections", "Open connections.", server.connections());
  to.Gauge("gradwire_memory_reserved_bytes", "Memory that sessions have reserved.",
           static_cast<double>(server.reserved_bytes()));
  to.Gauge("gradwire_memory_limit_bytes", "Memory that sessions may reserve.",
           static_cast<double>(server.memory_limit_bytes()));
  std::map<std::string, int> states = {{"joining", 0}, {"running", 0}};
  for (const v1::SessionStatus& session : figures.sessions) {
    if (const auto found = states.find(session.state()); found != states.end()) ++found->second;
  }
  for (const auto& [state, count] : states) {
    to.Gauge("gradwire_sessions", "Sessions that have not ended.", count, {{"state", state}});
  }
  const std::string ended = "Sessions that have ended.";
  to.Counter("gradwire_sessions_ended_total", ended, static_cast<double>(figures.closed_sessions),
             {{"reason", "closed"}});
  to.Counter("gradwire_sessions_ended_total", ended, static_cast<double>(figures.failed_sessions),
             {{"reason", "failed"}});
}

void AddRefusals(const Figures& figures, Families& to) {
  for (const RefusalCount& one : figures.refused_joins) {
    to.Counter("gradwire_refused_joins_total", "Joins that were refused.",
               static_cast<double>(one.count), {{"reason", one.reason}});
  }
  for (const RefusalCount& one : figures.quota_refusals) {
    to.Counter("gradwire_quota_refusals_total", "Joins above a quota of an identity or a session.",
               static_cast<double>(one.count), {{"quota", one.reason}});
  }
  to.Counter("gradwire_audit_dropped_total", "Events that did not fit into the audit log.",
             static_cast<double>(figures.audit_dropped));
  to.Counter("gradwire_record_left_out_total", "Steps that were not recorded with --record.",
             static_cast<double>(figures.record_left_out));
}

void AddPorts(const PortFigures& ports, Families& to) {
  const std::string calls = "Calls that were refused.";
  to.Counter("gradwire_refused_calls_total", calls,
             static_cast<double>(ports.unauthenticated_calls), {{"reason", "unauthenticated"}});
  to.Counter("gradwire_refused_calls_total", calls, static_cast<double>(ports.denied_calls),
             {{"reason", "permission_denied"}});
  to.Counter("gradwire_refused_connections_total", "Connections above a limit of number or rate.",
             static_cast<double>(ports.refused_connections));
  to.Counter("gradwire_connections_without_call_total",
             "Connections that ended before their first call: failed or slow handshakes, probes.",
             static_cast<double>(ports.connections_without_call));
  const std::string cut = "Connections that were cut because of what they cost.";
  const std::pair<const char*, std::uint64_t> reasons[] = {
      {"too_much", ports.cut_too_much},
      {"too_slow", ports.cut_too_slow},
      {"too_many_peers", ports.cut_too_many_peers},
      {"no_call", ports.cut_no_call},
      {"too_many_calls", ports.cut_too_many_calls},
      {"frames", ports.cut_frames}};
  for (const auto& [reason, count] : reasons) {
    to.Counter("gradwire_cut_connections_total", cut, static_cast<double>(count),
               {{"reason", reason}});
  }
  if (ports.certificate_expiry) {
    to.Gauge("gradwire_tls_certificate_expiry_timestamp_seconds",
             "When the daemon's certificate expires.",
             absl::ToDoubleSeconds(*ports.certificate_expiry - absl::UnixEpoch()));
  }
}

void AddMembers(const v1::SessionStatus& session, const std::string& name, Families& to) {
  const std::string help = "Waiting of others that a member caused, by late buckets or late bytes.";
  for (const v1::MemberStatus& member : session.members()) {
    const std::string rank = absl::StrCat(member.rank());
    to.Counter("gradwire_member_wait_seconds_total", help, Seconds(member.compute_wait_total()),
               {{"session", name}, {"rank", rank}, {"cause", "compute"}});
    to.Counter("gradwire_member_wait_seconds_total", help, Seconds(member.link_wait_total()),
               {{"session", name}, {"rank", rank}, {"cause", "link"}});
    to.Counter("gradwire_member_missed_steps_total",
               "Steps that went on without some of a member's gradients, because it was late.",
               static_cast<double>(member.missed_steps_total()),
               {{"session", name}, {"rank", rank}});
  }
}

void AddSession(const v1::SessionStatus& session, absl::Time now, Families& to) {
  const std::string name = Printable(session.name());
  const Labels label = {{"session", name}};
  std::map<std::string, int> states = {{"connected", 0}, {"joined", 0}, {"absent", 0}, {"lost", 0}};
  for (const v1::MemberStatus& member : session.members()) {
    if (const auto found = states.find(member.state()); found != states.end()) ++found->second;
  }
  for (const auto& [state, count] : states) {
    to.Gauge("gradwire_members", "Members by state.", count, {{"session", name}, {"state", state}});
  }
  const std::string steps = "Steps that have ended.";
  to.Counter("gradwire_steps_total", steps, static_cast<double>(session.steps_applied_total()),
             {{"session", name}, {"outcome", "applied"}});
  to.Counter("gradwire_steps_total", steps, static_cast<double>(session.steps_skipped_total()),
             {{"session", name}, {"outcome", "skipped"}});
  to.Gauge("gradwire_step", "The number of the open step.", static_cast<double>(session.step()),
           label);
  to.Gauge("gradwire_session_paused_seconds",
           "How long the session stays paused by an operator; 0: it is not paused.",
           Seconds(session.pause().left()), label);
  if (session.has_last_step_ago()) {
    to.Gauge("gradwire_last_step_timestamp_seconds", "When the last step ended.",
             absl::ToDoubleSeconds(now - absl::UnixEpoch()) - Seconds(session.last_step_ago()),
             label);
  }
  to.Histogram("gradwire_step_duration_seconds", "From a step's first frame to its last result.",
               session.step_duration(), label);
  to.Histogram("gradwire_step_wait_seconds",
               "From the first to the last member that had all its gradients in a step.",
               session.straggler_gap(), label);
  to.Counter("gradwire_daemon_wait_seconds_total", "Waiting for the daemon's own work.",
             Seconds(session.daemon_wait_total()), label);
  to.Counter("gradwire_contribution_bytes_total", "Payload that members sent, counted once.",
             static_cast<double>(session.contribution_bytes_total()), label);
  to.Counter("gradwire_result_bytes_total", "Payload that was sent to members.",
             static_cast<double>(session.result_bytes_total()), label);
  to.Counter("gradwire_duplicate_chunks_total", "Chunks that members sent again.",
             static_cast<double>(session.duplicate_chunks_total()), label);
  to.Counter("gradwire_resumes_total", "Streams that members opened again after a broken one.",
             static_cast<double>(session.resumes_total()), label);
}

void AddProcess(Families& to) {
  const ProcessFigures process = ReadProcessFigures();
  to.Counter("process_cpu_seconds_total", "Processor time of the daemon.", process.cpu_seconds);
  to.Gauge("process_resident_memory_bytes", "Resident memory of the daemon.",
           static_cast<double>(process.resident_bytes));
  to.Gauge("process_open_fds", "Open descriptors of the daemon.",
           static_cast<double>(process.open_descriptors));
  to.Gauge("process_max_fds", "Limit of open descriptors.",
           static_cast<double>(process.max_descriptors));
  to.Gauge("process_start_time_seconds", "When the daemon began.", process.start_time_seconds);
}

}  // namespace

std::string MetricsText(const Figures& figures, absl::Time now) {
  Families families;
  AddServer(figures, families);
  AddPorts(figures.ports, families);
  AddRefusals(figures, families);
  int members = 0;
  // Of two sessions of one name, the newer one comes first.
  std::map<std::string, bool> seen;
  for (const v1::SessionStatus& session : figures.sessions) {
    const bool live = session.state() == "joining" || session.state() == "running";
    if (!live || !seen.emplace(session.name(), true).second) continue;
    AddSession(session, now, families);
    members += session.members_size();
    if (members <= kMembersWithSeries) AddMembers(session, Printable(session.name()), families);
  }
  AddProcess(families);
  return families.Text();
}

}  // namespace gradwire::server
