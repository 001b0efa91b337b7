#include "server/ctl/shards.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "server/ctl/table.h"

namespace gradwire::ctl {
namespace {

// As the daemons say who is slow: below this nobody notices.
constexpr double kLeastWait = 1e-3;   // seconds in a step
constexpr double kLeastShare = 0.05;  // of a step

using google::protobuf::Duration;

bool IsSharded(const v1::SessionStatus& session) { return session.shard().addresses_size() > 0; }

// "shard 2 (c:29610)".
std::string ShardName(const v1::ShardStatus& status, std::uint32_t shard) {
  const int at = static_cast<int>(shard);
  const std::string address = at < status.addresses_size() ? status.addresses(at) : "?";
  return absl::StrCat("shard ", shard, " (", Printable(address), ")");
}

std::string ShardName(const v1::SessionStatus& part) {
  return ShardName(part.shard(), part.shard().shard());
}

void TakeLonger(const Duration& other, Duration& longest) {
  if (ToSeconds(other) > ToSeconds(longest)) longest = other;
}

void MergeMember(const v1::MemberStatus& from, v1::MemberStatus& to) {
  if (to.state() == "connected") to.set_state(from.state());
  to.set_contribution_bytes_total(to.contribution_bytes_total() + from.contribution_bytes_total());
  to.set_missed_steps_total(std::max(to.missed_steps_total(), from.missed_steps_total()));
  TakeLonger(from.compute_wait_total(), *to.mutable_compute_wait_total());
  TakeLonger(from.link_wait_total(), *to.mutable_link_wait_total());
  if (from.has_last_heard()) TakeLonger(from.last_heard(), *to.mutable_last_heard());
  if (to.transport().find(from.transport()) == std::string::npos) {
    to.set_transport(
        absl::StrCat(to.transport(), to.transport().empty() ? "" : ", ", from.transport()));
  }
}

void MergeStep(const v1::StepStatus& from, v1::StepStatus& to) {
  TakeLonger(from.duration(), *to.mutable_duration());
  TakeLonger(from.straggler_gap(), *to.mutable_straggler_gap());
  TakeLonger(from.daemon_wait(), *to.mutable_daemon_wait());
  for (int r = 0; r < std::min(from.members_size(), to.members_size()); ++r) {
    v1::MemberStep& member = *to.mutable_members(r);
    TakeLonger(from.members(r).compute_wait(), *member.mutable_compute_wait());
    TakeLonger(from.members(r).link_wait(), *member.mutable_link_wait());
  }
}

void MergeSteps(const v1::SessionStatus& from, v1::SessionStatus& to) {
  for (v1::StepStatus& step : *to.mutable_recent_steps()) {
    for (const v1::StepStatus& other : from.recent_steps()) {
      if (other.step() == step.step()) MergeStep(other, step);
    }
  }
}

// With slices each daemon has a part of every bucket, otherwise each has buckets of its own.
void MergeBuckets(const v1::SessionStatus& from, v1::SessionStatus& to) {
  for (const v1::BucketStatus& bucket : from.buckets()) {
    const auto same =
        std::find_if(to.mutable_buckets()->begin(), to.mutable_buckets()->end(),
                     [&](const v1::BucketStatus& one) { return one.name() == bucket.name(); });
    if (same == to.mutable_buckets()->end()) {
      *to.add_buckets() = bucket;
      continue;
    }
    v1::BucketReport& report = *same->mutable_report();
    const v1::BucketReport& other = bucket.report();
    report.set_sent_bytes(report.sent_bytes() + other.sent_bytes());
    report.set_received_bytes(report.received_bytes() + other.received_bytes());
    report.set_compress_seconds(std::max(report.compress_seconds(), other.compress_seconds()));
    report.set_wire_seconds(std::max(report.wire_seconds(), other.wire_seconds()));
    report.set_reduce_seconds(std::max(report.reduce_seconds(), other.reduce_seconds()));
    report.set_decompress_seconds(
        std::max(report.decompress_seconds(), other.decompress_seconds()));
  }
}

void MergeInto(const v1::SessionStatus& from, v1::SessionStatus& to) {
  to.set_contribution_bytes_total(to.contribution_bytes_total() + from.contribution_bytes_total());
  to.set_result_bytes_total(to.result_bytes_total() + from.result_bytes_total());
  to.set_duplicate_chunks_total(to.duplicate_chunks_total() + from.duplicate_chunks_total());
  to.set_reserved_bytes(to.reserved_bytes() + from.reserved_bytes());
  to.set_resumes_total(to.resumes_total() + from.resumes_total());
  to.set_attempt(std::max(to.attempt(), from.attempt()));
  TakeLonger(from.longest_lock_hold(), *to.mutable_longest_lock_hold());
  TakeLonger(from.daemon_wait_total(), *to.mutable_daemon_wait_total());
  for (int r = 0; r < std::min(from.members_size(), to.members_size()); ++r) {
    MergeMember(from.members(r), *to.mutable_members(r));
  }
  for (const v1::ParameterStatus& line : from.compression()) *to.add_compression() = line;
  if (!to.has_pause() && from.has_pause()) *to.mutable_pause() = from.pause();
  MergeSteps(from, to);
  MergeBuckets(from, to);
}

// The part whose word counts for the session: one that has failed, that lacks members, or that the
// others wait for.
const v1::SessionStatus& Speaker(const std::vector<v1::SessionStatus>& parts) {
  for (const char* state : {"failed", "joining"}) {
    for (const v1::SessionStatus& part : parts) {
      if (part.state() == state) return part;
    }
  }
  const auto prepared = [](const v1::SessionStatus& part) { return part.shard().prepared(); };
  const auto open = std::find_if_not(parts.begin(), parts.end(), prepared);
  return open == parts.end() ? parts.front() : *open;
}

std::uint64_t StepsOf(const v1::SessionStatus& part) {
  return part.steps_applied_total() + part.steps_skipped_total();
}

}  // namespace

v1::SessionStatus MergeShards(std::vector<v1::SessionStatus> parts) {
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.shard().shard() < b.shard().shard(); });
  v1::SessionStatus merged = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) MergeInto(parts[i], merged);
  const v1::SessionStatus& speaker = Speaker(parts);
  merged.set_state(speaker.state());
  const bool some_wait = std::any_of(parts.begin(), parts.end(),
                                     [](const auto& part) { return part.shard().prepared(); });
  // Whom the others wait for has to be said; of a failure all say the same.
  merged.set_waiting_for(some_wait && speaker.state() == "running"
                             ? absl::StrCat(ShardName(speaker), ": ", speaker.waiting_for())
                             : speaker.waiting_for());
  for (v1::SessionStatus& part : parts) *merged.add_parts() = std::move(part);
  const std::string slowest = SlowestShard(merged);
  merged.set_slow(
      absl::StrCat(slowest, slowest.empty() || merged.slow().empty() ? "" : "; ", merged.slow()));
  return merged;
}

v1::ListSessionsResponse MergeSessions(const std::vector<v1::ListSessionsResponse>& lists) {
  using Key = std::tuple<std::string, std::string, std::size_t>;  // name, daemons, how many before
  std::vector<std::vector<v1::SessionStatus>> groups;
  std::map<Key, std::size_t> group_of;
  for (const v1::ListSessionsResponse& list : lists) {
    std::map<std::tuple<std::string, std::string, std::uint32_t>, std::size_t> seen;
    for (const v1::SessionStatus& session : list.sessions()) {
      if (!IsSharded(session)) {
        groups.push_back({session});
        continue;
      }
      const std::string daemons = absl::StrJoin(session.shard().addresses(), ",");
      const std::size_t before = seen[{session.name(), daemons, session.shard().shard()}]++;
      const auto [at, is_new] =
          group_of.emplace(Key(session.name(), daemons, before), groups.size());
      if (is_new) groups.emplace_back();
      groups[at->second].push_back(session);
    }
  }
  v1::ListSessionsResponse merged;
  for (std::vector<v1::SessionStatus>& group : groups) {
    *merged.add_sessions() =
        IsSharded(group.front()) ? MergeShards(std::move(group)) : std::move(group.front());
  }
  return merged;
}

// All daemons of a step begin and end it together, so that the others' waits tell how much longer
// this one took.
std::string SlowestShard(const v1::SessionStatus& merged) {
  if (merged.parts_size() < 2) return "";
  const auto waited = [](const v1::SessionStatus& part) {
    return ToSeconds(part.shard().others_wait_total());
  };
  const auto slowest =
      std::min_element(merged.parts().begin(), merged.parts().end(),
                       [&](const auto& a, const auto& b) { return waited(a) < waited(b); });
  double others = 0;
  std::uint64_t steps = UINT64_MAX;
  for (const v1::SessionStatus& part : merged.parts()) {
    others += waited(part) - waited(*slowest);
    steps = std::min(steps, StepsOf(part));
  }
  if (steps == 0) return "";
  const double each = others / (merged.parts_size() - 1) / static_cast<double>(steps);
  if (each < kLeastWait ||
      each * static_cast<double>(steps) < kLeastShare * merged.step_duration().sum()) {
    return "";
  }
  return absl::StrFormat("%s is the slowest: the others waited %.1f ms a step for it",
                         ShardName(*slowest), 1e3 * each);
}

std::string OtherShards(const v1::SessionStatus& session) {
  if (!IsSharded(session)) return "";
  const auto& addresses = session.shard().addresses();
  std::set<std::uint32_t> asked;
  for (const v1::SessionStatus& part : session.parts()) asked.insert(part.shard().shard());
  if (asked.empty()) asked.insert(session.shard().shard());
  if (asked.size() == static_cast<std::size_t>(addresses.size())) return "";
  std::vector<std::string> names;
  for (const std::uint32_t shard : asked) names.push_back(absl::StrCat(shard));
  return absl::StrCat("this is shard ", absl::StrJoin(names, ", "), " of ", addresses.size(),
                      "; ask all with --address=", Printable(absl::StrJoin(addresses, ",")));
}

std::string ShardTable(const v1::SessionStatus& session) {
  if (!IsSharded(session)) return "";
  std::vector<Row> rows = {{"SHARD", "DAEMON", "STATE", "STEP", "TENSORS", "GRADIENTS", "RECEIVED",
                            "SENT", "WAITED FOR OTHERS"}};
  const auto add = [&rows](const v1::SessionStatus& part) {
    const v1::ShardStatus& shard = part.shard();
    const int at = static_cast<int>(shard.shard());
    rows.push_back({absl::StrCat(shard.shard()),
                    at < shard.addresses_size() ? Printable(shard.addresses(at)) : "?",
                    part.state(), absl::StrCat(part.step()),
                    shard.slices() ? "slices" : absl::StrCat(shard.tensors()),
                    Bytes(shard.gradient_bytes()), Bytes(part.contribution_bytes_total()),
                    Bytes(part.result_bytes_total()), Seconds(shard.others_wait_total())});
  };
  for (const v1::SessionStatus& part : session.parts()) add(part);
  if (session.parts().empty()) add(session);
  return absl::StrCat(Table(rows), "\n");
}

}  // namespace gradwire::ctl
