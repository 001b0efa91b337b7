#include "server/daemon/status_source.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/daemon/audit_log.h"
#include "server/daemon/logging.h"
#include "server/daemon/ports.h"
#include "server/daemon/server.h"
#include "server/http/pages.h"
#include "server/http/process_figures.h"
#include "server/rpc/clock.h"
#include "server/services/services.h"
#include "server/session/registry.h"

namespace gradwire::server {
namespace {

constexpr char kAutoAddress[] = "127.0.0.1:29611";
// The ticker runs every 100 ms. Slow sessions do not delay it by so much; a daemon that hangs does.
constexpr absl::Duration kHangs = absl::Seconds(30);

ProbePart Ticks(const Heart& heart) {
  const absl::Duration ago = MonotonicNow() - heart.last();
  return {.name = "ticks",
          .problem =
              ago < kHangs
                  ? ""
                  : absl::StrCat("the last one was ",
                                 absl::FormatDuration(absl::Trunc(ago, absl::Seconds(1))), " ago")};
}

std::vector<RefusalCount> RefusedJoins(const JoinRefusals& refusals) {
  std::vector<RefusalCount> counts;
  for (std::size_t i = 0; i < JoinRefusals::kReasons.size(); ++i) {
    counts.push_back({.reason = JoinRefusals::kReasons[i].name, .count = refusals.count(i)});
  }
  return counts;
}

std::vector<RefusalCount> QuotaRefusals(const QuotaLedger& ledger) {
  std::vector<RefusalCount> counts;
  for (std::size_t i = 0; i < kQuotaKinds; ++i) {
    const auto kind = static_cast<QuotaKind>(i);
    counts.push_back({.reason = Name(kind), .count = ledger.refusals(kind)});
  }
  return counts;
}

}  // namespace

void Diagnostics::SetConfiguration(std::string text) {
  MutexLock lock(mutex_);
  configuration_ = std::move(text);
}

void Diagnostics::Fill(const Server& server, v1::GetDiagnosticsResponse& response) const {
  {
    MutexLock lock(mutex_);
    response.set_configuration(configuration_);
  }
  for (std::string& line : LastLogLines()) response.add_log(std::move(line));
  for (const std::string& address : server.addresses()) response.add_addresses(address);
  for (const std::string& address : server.http_addresses()) response.add_http_addresses(address);
  const ProcessFigures figures = ReadProcessFigures();
  v1::ProcessStatus& process = *response.mutable_process();
  process.set_cpu_seconds(figures.cpu_seconds);
  process.set_resident_bytes(figures.resident_bytes);
  process.set_open_descriptors(figures.open_descriptors);
  process.set_max_descriptors(figures.max_descriptors);
  process.set_start_time_seconds(figures.start_time_seconds);
}

StatusSource MakeStatusSource(const Registry& registry, const Services& services,
                              const Ports& ports, const Heart& heart, const AuditLog* audit) {
  return {.figures =
              [&registry, &services, &ports, audit] {
                Figures figures{.server = services.DescribeServer(),
                                .sessions = registry.List(MonotonicNow()),
                                .ports = ports.figures(),
                                .closed_sessions = registry.closed_total(),
                                .failed_sessions = registry.failed_total(),
                                .refused_joins = RefusedJoins(services.refused_joins()),
                                .quota_refusals = QuotaRefusals(registry.ledger())};
                if (audit != nullptr) figures.audit_dropped = audit->dropped();
                figures.record_left_out = registry.record_left_out();
                return figures;
              },
          .session = [&registry](
                         const std::string& name) { return registry.Status(name, MonotonicNow()); },
          .admit = [&ports](const std::string& header,
                            const std::string& peer) { return ports.AdmitReader(header, peer); },
          .live = [&heart] { return std::vector<ProbePart>{Ticks(heart)}; },
          .ready =
              [&registry, &heart] {
                return std::vector<ProbePart>{
                    Ticks(heart),
                    {.name = "joins", .problem = registry.draining() ? "the daemon drains" : ""}};
              }};
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServeStatus(const ServerOptions& options,
                                                        StatusSource source) {
  if (options.http_listen == "off") return nullptr;
  const bool any = options.http_listen == "auto";
  auto listeners = Listener::Open(any ? kAutoAddress : options.http_listen);
  if (!listeners.ok() && any) {
    spdlog::warn("no metrics and no status page: {}; --http-listen names another address",
                 std::string(listeners.status().message()));
    return nullptr;
  }
  if (!listeners.ok()) return listeners.status();
  return HttpServer::Start(*std::move(listeners),
                           [source = std::move(source)](const HttpRequest& request) {
                             return Respond(source, request);
                           });
}

}  // namespace gradwire::server
