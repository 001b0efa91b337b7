#include "server/ctl/plan/plan_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/limits.h"

namespace gradwire::ctl {
namespace {

// As many extra hosts as that for each host of members may be recommended.
constexpr int kHostsPerExtra = 8;
// A simpler topology is preferred unless it takes so much longer.
constexpr double kMuchLonger = 1.1;

int MembersOfShards(const Site& site, const Topology& topology) {
  return topology.leaves ? site.hosts : site.hosts * site.members_per_host;
}

// What one shard has to do with a member, in numbers that both links and processors need.
struct Flow {
  double members = 0;          // of the shards
  double members_on_host = 0;  // of those
  double all = 0;              // bytes that a member sends, to all shards
  double part = 0;             // to the one that gets most
  double chunks = 0;           // the same part, in frames
  double remote = 0;           // members whose bytes reach a shard over its link
};

absl::StatusOr<Flow> FlowOf(const Site& site, const Workload& workload, const Topology& topology) {
  const auto part = workload.BusiestShardBytes(static_cast<std::uint32_t>(topology.shards));
  if (!part.ok()) return part.status();
  Flow flow{.members = static_cast<double>(MembersOfShards(site, topology)),
            .members_on_host = topology.leaves ? 1.0 : site.members_per_host,
            .all = static_cast<double>(workload.cost().bytes()),
            .part = *part};
  // Each round of each bucket ends in a chunk of its own.
  const auto buckets = static_cast<double>(workload.buckets().count);
  flow.chunks =
      static_cast<double>(workload.cost().rounds.size()) * buckets + flow.part / site.chunk_bytes;
  const bool beside = topology.placement == Placement::kMembersHosts;
  flow.remote = flow.members - (beside ? flow.members_on_host : 0);
  return flow;
}

void AddLinks(const Flow& flow, const Site& site, const Topology& topology, Forecast& forecast) {
  const double alone = flow.members_on_host * flow.all;
  if (topology.placement == Placement::kOwnHosts) {
    forecast.member_link_bytes = alone;
    forecast.daemon_link_bytes = flow.members * flow.part;
    return;
  }
  // The host's members send to all other shards, and the daemon sends results to all other hosts.
  const double both = flow.members_on_host * (flow.all - flow.part) + flow.remote * flow.part;
  forecast.daemon_link_bytes = both;
  forecast.member_link_bytes = topology.shards < site.hosts ? std::max(alone, both) : both;
}

// Of the busiest link, with the time in which one of its directions has no work yet.
double LinkSeconds(const Flow& flow, const Site& site, const Workload& workload,
                   const Forecast& forecast) {
  const double share = workload.buckets().largest_share;
  const double idle = flow.remote * std::min(kIdleChunks * site.chunk_bytes, share * flow.part);
  const double busiest = std::max(forecast.member_link_bytes, forecast.daemon_link_bytes);
  const double seconds = (busiest + idle) / (kPayloadShare * site.link_bytes_per_second);
  // A member sends a window of chunks for each open bucket, and then waits for results.
  const auto open =
      static_cast<double>(std::min<std::size_t>(kOpenBuckets, workload.buckets().count));
  const double windows = flow.part / (open * site.window_chunks * site.chunk_bytes);
  return std::max(seconds, windows * site.round_trip_seconds);
}

// Seconds of one core on a host with members, and of one daemon of the shards.
struct Work {
  double hook = 0;  // and all else that a bucket needs before any of it is sent
  double host = 0;  // hooks and leaf included
  double daemon = 0;
};

Work WorkOf(const Flow& flow, const Site& site, const Workload& workload,
            const Topology& topology) {
  // Where all members are on the daemon's host, payloads travel in shared memory, and frames only
  // refer to them.
  const bool shared = flow.remote == 0;
  const double member_byte = shared ? kSharedMemberSecondsPerByte : kMemberSecondsPerByte;
  const double daemon_byte = shared ? kSharedDaemonSecondsPerByte : kDaemonSecondsPerByte;
  const double chunks = shared ? 0 : flow.chunks;
  Work work;
  const double member =
      2 * flow.all * member_byte + 2 * chunks * topology.shards * kMemberSecondsPerChunk;
  const bool divides = topology.shards > 1 && workload.divides_by_matrix();
  const double copies = divides ? 2 * workload.gradient_bytes() * kDivideSecondsPerByte : 0;
  work.hook = flow.members_on_host * (workload.cost().compute_seconds + copies);
  if (topology.leaves) {
    work.hook += 2 * site.members_per_host * workload.gradient_bytes() * kLeafSecondsPerByte;
  }
  work.host = flow.members_on_host * member + work.hook;
  work.daemon = flow.members * (2 * flow.part * daemon_byte + 2 * chunks * kDaemonSecondsPerChunk);
  return work;
}

double OnCores(double seconds, int cores) { return seconds / (cores * kCoreUse); }

double ProcessorSeconds(const Work& work, const Site& site, const Topology& topology) {
  if (site.one_machine) {
    return OnCores(site.hosts * work.host + topology.shards * work.daemon, site.cores);
  }
  const double host = OnCores(work.host, site.cores);
  const double daemon = OnCores(work.daemon, std::min(site.cores, kMostDaemonCores));
  return topology.placement == Placement::kOwnHosts ? std::max(host, daemon) : host + daemon;
}

double LatencySeconds(const Flow& flow, const Site& site, const Workload& workload,
                      const Topology& topology) {
  const auto& rounds = workload.cost().rounds;
  double trips = std::max<double>(1, static_cast<double>(rounds.size()));
  if (!rounds.empty()) {
    const auto first =
        static_cast<double>(rounds.front().streamed_bytes + rounds.front().whole_bytes);
    // A large bucket waits for the daemon's grant.
    if (first * workload.buckets().largest_share > kEagerBytes) trips += 1;
  }
  // Members say Ready to the first shard, which ends the step.
  if (topology.shards > 1) trips += 1;
  const double far =
      flow.remote > 0 ? site.round_trip_seconds + kLocalStepSeconds : kLocalStepSeconds;
  return trips * far + (topology.leaves ? trips * kLocalStepSeconds : 0);
}

std::vector<Topology> Candidates(const Site& site) {
  std::vector<Topology> all;
  for (const bool leaves : {false, true}) {
    // On one host a leaf would only be one daemon more.
    if (leaves && (site.members_per_host == 1 || site.hosts == 1)) continue;
    const Topology star{.leaves = leaves};
    all.push_back(star);
    const int most = std::min(MembersOfShards(site, star), static_cast<int>(kMaxShards));
    for (int shards = 2; shards <= most; shards *= 2) {
      all.push_back({.shards = shards, .leaves = leaves});
    }
    all.push_back({.placement = Placement::kMembersHosts,
                   .shards = std::min(site.hosts, static_cast<int>(kMaxShards)),
                   .leaves = leaves});
  }
  return all;
}

std::string Took(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.3g ms", seconds * 1e3)
                     : absl::StrFormat("%.3g s", seconds);
}

const char* Because(Limit limit) {
  switch (limit) {
    case Limit::kLink:
      return "the busiest link";
    case Limit::kProcessor:
      return "the processors";
    case Limit::kRoundTrips:
      return "round trips";
  }
  return "";
}

bool Allowed(const Site& site, const Topology& topology) {
  return topology.ExtraHosts() <= std::max(1, site.hosts / kHostsPerExtra);
}

bool NearlyAsFast(const Forecast& one, const Forecast& fastest, double compute_seconds) {
  return compute_seconds + one.seconds <= kMuchLonger * (compute_seconds + fastest.seconds);
}

// The sentence compares with the fastest, or with a star if it is the fastest.
std::string Reason(const Site& site, double compute_seconds, const Plan& plan, const Forecast& best,
                   const Forecast& fastest) {
  const Forecast& first = plan.forecasts.front();
  std::string why = absl::StrCat(best.topology.Name(site), ": ");
  if (&best == &fastest && &best != &first) {
    absl::StrAppend(
        &why, absl::StrFormat("%.1f", first.seconds / best.seconds), " times as fast as ",
        first.topology.Name(site), ", with at most ",
        absl::StrFormat("%.2f MB instead of %.2f MB",
                        std::max(best.member_link_bytes, best.daemon_link_bytes) / 1e6,
                        std::max(first.member_link_bytes, first.daemon_link_bytes) / 1e6),
        " over one link");
  } else if (&best == &fastest) {
    absl::StrAppend(&why, "nothing else is faster, and the limit is ", Because(best.limit));
  } else {
    absl::StrAppend(&why, "it has ", best.topology.Daemons(site),
                    best.topology.Daemons(site) == 1 ? " daemon" : " daemons",
                    " and steps take at most a tenth longer than with the fastest, ",
                    fastest.topology.Name(site));
  }
  const auto faster =
      std::min_element(plan.forecasts.begin(), plan.forecasts.end(),
                       [](const Forecast& a, const Forecast& b) { return a.seconds < b.seconds; });
  if (!Allowed(site, faster->topology) && !NearlyAsFast(best, *faster, compute_seconds)) {
    absl::StrAppend(&why, "; ", faster->topology.Name(site), " take ", Took(faster->seconds),
                    " but need ", faster->topology.ExtraHosts(), " more hosts");
  }
  return why + ".";
}

void Recommend(const Site& site, double compute_seconds, Plan& plan) {
  const Forecast* fastest = nullptr;
  for (const Forecast& one : plan.forecasts) {
    if (!Allowed(site, one.topology)) continue;
    if (fastest == nullptr || one.seconds < fastest->seconds) fastest = &one;
  }
  const Forecast* best = fastest;
  for (const Forecast& one : plan.forecasts) {
    if (!Allowed(site, one.topology) || !NearlyAsFast(one, *fastest, compute_seconds)) continue;
    if (one.topology.Daemons(site) < best->topology.Daemons(site)) best = &one;
  }
  plan.recommended = static_cast<std::size_t>(best - plan.forecasts.data());
  plan.why = Reason(site, compute_seconds, plan, *best, *fastest);
}

}  // namespace

std::string Topology::Name(const Site& site) const {
  std::string name;
  if (placement == Placement::kMembersHosts) {
    name = shards == 1           ? "a daemon on the members' host"
           : shards < site.hosts ? absl::StrCat(shards, " shards on members' hosts")
                                 : "shards on the members' hosts";
  } else {
    name = shards == 1 ? "star" : absl::StrCat(shards, " shards on own hosts");
  }
  return leaves ? absl::StrCat("leaves and ", name) : name;
}

int Topology::Daemons(const Site& site) const { return shards + (leaves ? site.hosts : 0); }

absl::StatusOr<Forecast> Predict(const Site& site, const Workload& workload,
                                 const Topology& topology) {
  const auto flow = FlowOf(site, workload, topology);
  if (!flow.ok()) return flow.status();
  Forecast forecast{.topology = topology};
  AddLinks(*flow, site, topology, forecast);
  const Work work = WorkOf(*flow, site, workload, topology);
  const double link = LinkSeconds(*flow, site, workload, forecast);
  const double processor = ProcessorSeconds(work, site, topology);
  const double latency = LatencySeconds(*flow, site, workload, topology);
  forecast.seconds = std::max(link, processor) + latency;
  // So does a leaf, which takes in a whole bucket before it sends any of it.
  if (workload.computes_first() || topology.leaves) {
    // Other buckets travel while the largest is computed, but they are not enough to fill the link.
    const double hook = OnCores(site.one_machine ? site.hosts * work.hook : work.hook, site.cores);
    const double alone = std::max(0.0, 2 * workload.buckets().largest_share - 1);
    forecast.seconds += alone * std::min(link, hook);
  }
  forecast.limit = latency > std::max(link, processor) ? Limit::kRoundTrips
                   : link >= processor                 ? Limit::kLink
                                                       : Limit::kProcessor;
  return forecast;
}

absl::StatusOr<Plan> MakePlan(const Site& site, const Workload& workload, double compute_seconds) {
  Plan plan;
  bool takes_shards = true;
  for (const Topology& topology : Candidates(site)) {
    const int members = MembersOfShards(site, topology);
    if (members > kMaxWorldSize) {
      plan.left_out.push_back(
          {topology.Name(site),
           absl::StrCat(members, " members; a session has at most ", kMaxWorldSize)});
      continue;
    }
    auto forecast = Predict(site, workload, topology);
    if (!forecast.ok()) {
      if (topology.shards == 1) return forecast.status();
      // The same for every number of them.
      if (takes_shards)
        plan.left_out.push_back({"shards", std::string(forecast.status().message())});
      takes_shards = false;
      continue;
    }
    plan.forecasts.push_back(*std::move(forecast));
  }
  Recommend(site, compute_seconds, plan);
  return plan;
}

}  // namespace gradwire::ctl
