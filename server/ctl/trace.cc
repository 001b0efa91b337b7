#include "server/ctl/trace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradwire::ctl {
namespace {

using Json = nlohmann::ordered_json;
using Event = v1::TimelineEvent;

// Process ids. Viewers take a thread whose id is its process's for the main thread, and draw it
// first, so these are larger than all ids of threads.
constexpr int kDaemon = 10'000;
constexpr int kSteps = 1;  // threads of a process
constexpr int kFirstLane = kSteps + 1;

// What came in one frame took no time that the daemon could see, but a viewer shows it only so.
constexpr std::int64_t kLeast = 1000;
// A shorter pause lies between any two chunks.
constexpr std::int64_t kLeastPause = 100'000;

double Microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }
double Milliseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

struct Row {
  int process = 0;
  int thread = 0;
};

// Events as lines of JSON, in the order in which viewers nest them.
class Lines {
 public:
  void Name(const char* what, Row row, const std::string& name) {
    names_.push_back(Dump({{"ph", "M"},
                           {"name", what},
                           {"pid", row.process},
                           {"tid", row.thread},
                           {"args", {{"name", name}}}}));
  }
  // Where it stands among its like.
  void Sort(const char* what, Row row, int index) {
    names_.push_back(Dump({{"ph", "M"},
                           {"name", what},
                           {"pid", row.process},
                           {"tid", row.thread},
                           {"args", {{"sort_index", index}}}}));
  }
  void Span(Row row, const std::string& name, std::int64_t begin, std::int64_t end, Json args,
            const char* colour = nullptr) {
    const std::int64_t length = std::max<std::int64_t>(end - begin, 0);
    Json event = {{"ph", "X"},
                  {"name", name},
                  {"pid", row.process},
                  {"tid", row.thread},
                  {"ts", Microseconds(begin)},
                  {"dur", Microseconds(length)}};
    if (colour != nullptr) event["cname"] = colour;
    event["args"] = std::move(args);
    lines_.push_back({.begin = begin, .length = length, .text = Dump(event)});
  }
  void Moment(Row row, const std::string& name, std::int64_t at) {
    lines_.push_back({.begin = at,
                      .length = 0,
                      .text = Dump({{"ph", "i"},
                                    {"name", name},
                                    {"pid", row.process},
                                    {"tid", row.thread},
                                    {"ts", Microseconds(at)},
                                    {"s", "p"}})});
  }

  std::string Document(const Json& about) {
    std::stable_sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) {
      return std::pair(a.begin, -a.length) < std::pair(b.begin, -b.length);
    });
    for (Line& line : lines_) names_.push_back(std::move(line.text));
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"otherData\":", Dump(about),
                        ",\"traceEvents\":[\n", absl::StrJoin(names_, ",\n"), "\n]}\n");
  }

 private:
  struct Line {
    std::int64_t begin = 0;
    std::int64_t length = 0;
    std::string text;
  };
  static std::string Dump(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::vector<std::string> names_;
  std::vector<Line> lines_;
};

// Rows of what overlaps: each takes the first one that is free.
class Lanes {
 public:
  int Take(std::int64_t begin, std::int64_t end) {
    const auto found = std::find_if(free_at_.begin(), free_at_.end(),
                                    [begin](std::int64_t free_at) { return free_at <= begin; });
    const auto lane = static_cast<std::size_t>(found - free_at_.begin());
    if (found == free_at_.end()) free_at_.push_back(0);
    free_at_[lane] = end;
    return kFirstLane + static_cast<int>(lane);
  }
  int count() const { return static_cast<int>(free_at_.size()); }

 private:
  std::vector<std::int64_t> free_at_;
};

std::string HookName(const Trace& trace) {
  const std::string& hook = trace.summary.hook().comm_hook();
  return hook.empty() ? "no" : hook;
}

std::string BucketName(const Event& event, std::uint32_t parameters) {
  return parameters > 1 ? absl::StrCat(event.name(), " (+", parameters - 1, ")") : event.name();
}

// What PowerSGD's rounds carry.
std::string RoundName(const v1::HookSpec& hook, std::uint32_t round, std::uint32_t rounds) {
  constexpr std::array kOfTwo = {" {uncompressed, P}", " {Q}"};
  const std::string name = absl::StrCat("round ", round + 1);
  const bool batched = hook.comm_hook() == "batched_power_sgd";
  if (hook.comm_hook() != "power_sgd" && !batched) return name;
  if (rounds != kOfTwo.size() || round >= rounds)
    return name;  // not compressed, or P and Q in turn
  return absl::StrCat(name, batched && round == 0 ? " {P}" : kOfTwo[round]);
}

Json Sent(const Event& event) {
  return {{"step", event.step()}, {"bytes", event.bytes()}, {"chunks", event.chunks()}};
}

class Drawing {
 public:
  // Its processes have the ids from `daemon` on.
  Drawing(const Trace& trace, int daemon, Lines& lines)
      : trace_(trace), daemon_(daemon), lines_(lines) {
    for (const Event& event : trace.events) Sort(event);
  }

  void Draw() {
    DrawSteps();
    for (const Key& key : order_) DrawBucket(buckets_.at(key));
    for (const Event& event : trace_.events) {
      if (event.kind() == v1::TIMELINE_KIND_SUM) DrawSum(event);
    }
    DrawNames();
  }

 private:
  using Key = std::tuple<std::int64_t, int, std::uint32_t>;                 // step, rank, bucket
  using RoundKey = std::tuple<std::int64_t, std::uint32_t, std::uint32_t>;  // step, bucket, round
  struct Round {
    const Event* contribute = nullptr;
    const Event* result = nullptr;
  };
  struct Bucket {
    const Event* grant = nullptr;
    std::map<std::uint32_t, Round> rounds;
  };
  // A phase of a bucket, before its row is known.
  struct Phase {
    std::string name;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    Json args;
    bool waits = false;
  };

  static RoundKey KeyOf(const Event& event) {
    return {event.step(), event.bucket(), event.round()};
  }

  void Sort(const Event& event) {
    last_ = std::max(last_, event.end_ns());
    const Key key(event.step(), event.rank(), event.bucket());
    switch (event.kind()) {
      case v1::TIMELINE_KIND_GRANT:
        order_.push_back(key);
        buckets_[key].grant = &event;
        parameters_[event.bucket()] = event.parameters();
        rounds_[{event.step(), event.bucket()}] = event.rounds();
        break;
      case v1::TIMELINE_KIND_CONTRIBUTE: {
        buckets_[key].rounds[event.round()].contribute = &event;
        const Event*& latest = latest_[KeyOf(event)];
        if (latest == nullptr || event.begin_ns() >= latest->begin_ns()) latest = &event;
        break;
      }
      case v1::TIMELINE_KIND_RESULT:
        buckets_[key].rounds[event.round()].result = &event;
        break;
      case v1::TIMELINE_KIND_SUM:
        sums_[KeyOf(event)] = &event;
        break;
      case v1::TIMELINE_KIND_STEP:
        begins_[event.step()] = event.begin_ns();
        break;
      default:
        break;
    }
  }

  int ProcessOf(int rank) const { return daemon_ + 1 + rank; }

  // A span that the recording did not see the end of.
  std::int64_t EndOf(const Event& event) const { return event.ended() ? event.end_ns() : last_; }

  void DrawSteps() {
    for (const Event& event : trace_.events) {
      const Row row{.process = ProcessOf(std::max(event.rank(), -1)), .thread = kSteps};
      if (event.kind() == v1::TIMELINE_KIND_BROKEN) {
        lines_.Moment(row, "connection lost", event.begin_ns());
      } else if (event.kind() == v1::TIMELINE_KIND_RESUMED) {
        lines_.Moment(row, "connection resumed", event.begin_ns());
      } else if (event.kind() == v1::TIMELINE_KIND_STEP ||
                 event.kind() == v1::TIMELINE_KIND_MEMBER_STEP) {
        const char* const verdict = !event.ended()                             ? "unfinished"
                                    : event.verdict() == v1::STEP_VERDICT_SKIP ? "skip"
                                                                               : "apply";
        Json args = {{"step", event.step()}, {"verdict", verdict}};
        if (event.rank() >= 0) {
          args["ms after the first member"] =
              Milliseconds(event.begin_ns() - begins_[event.step()]);
        }
        lines_.Span(row, absl::StrCat("step ", event.step(), ": ", verdict), event.begin_ns(),
                    EndOf(event), std::move(args));
      }
    }
  }

  // Each phase begins where the one before it ends, or later.
  std::vector<Phase> PhasesOf(const Bucket& bucket) const {
    std::vector<Phase> phases;
    std::int64_t at = bucket.grant->begin_ns();
    const auto add = [&](std::string name, std::int64_t begin, std::int64_t end, Json args,
                         bool waits = false) {
      begin = std::max(begin, at);
      at = std::max(begin + kLeast, end);
      phases.push_back({std::move(name), begin, at, std::move(args), waits});
    };
    const Event& grant = *bucket.grant;
    if (EndOf(grant) > grant.begin_ns()) {
      add("waits for grant", grant.begin_ns(), EndOf(grant), {{"step", grant.step()}}, true);
    }
    for (auto it = bucket.rounds.begin(); it != bucket.rounds.end(); ++it) {
      const auto& [number, round] = *it;
      if (round.contribute == nullptr) continue;  // it came before an attempt that was repeated
      const Event& sent = *round.contribute;
      const std::string name = RoundName(trace_.summary.hook(), number, grant.rounds());
      const auto found = sums_.find(KeyOf(sent));
      const Event* const sum = found == sums_.end() ? nullptr : found->second;
      const std::int64_t summed = sum == nullptr ? last_ : sum->begin_ns();
      const std::string waits = absl::StrCat(name, ": waits for ", LastRank(sent));
      // With a full window, a member waits in the middle of the round.
      const std::int64_t pause = std::max(sent.before_sums_ns(), sent.begin_ns());
      if (summed < sent.end_ns() && summed - pause > kLeastPause) {
        add(name + ": contribute", sent.begin_ns(), pause, Sent(sent));
        add(waits, pause, summed, {{"step", sent.step()}}, true);
        add(name + ": contribute the rest", summed, sent.end_ns(), Sent(sent));
      } else {
        add(name + ": contribute", sent.begin_ns(), sent.end_ns(), Sent(sent));
      }
      if (summed > at) add(waits, at, summed, {{"step", sent.step()}}, true);
      if (sum == nullptr) break;
      add(name + ": sum", sum->begin_ns(), EndOf(*sum), Sent(*sum));
      if (round.result == nullptr) break;
      AddResult(name, *round.result, std::next(it), bucket, add);
    }
    return phases;
  }

  // Whose first bytes of the round came last.
  std::string LastRank(const Event& sent) const {
    const Event& latest = *latest_.at(KeyOf(sent));
    return &latest == &sent ? "others" : absl::StrCat("rank ", latest.rank());
  }

  // Who sends the next round has all results of this one.
  template <class Add>
  static void AddResult(const std::string& name, const Event& result,
                        std::map<std::uint32_t, Round>::const_iterator next, const Bucket& bucket,
                        const Add& add) {
    std::int64_t end = result.end_ns();
    if (next != bucket.rounds.end() && next->second.contribute != nullptr) {
      end = std::min(end, next->second.contribute->begin_ns());
    }
    Json args = Sent(result);
    args["acknowledged"] = result.ended() ? "yes" : result.eager() ? "with a later frame" : "no";
    add(name + ": result", result.begin_ns(), end, std::move(args));
  }

  void DrawBucket(const Bucket& bucket) {
    if (bucket.grant == nullptr) return;
    const Event& grant = *bucket.grant;
    std::vector<Phase> phases = PhasesOf(bucket);
    const std::int64_t end = phases.empty() ? grant.begin_ns() : phases.back().end;
    Lanes& lanes = lanes_[grant.rank()];
    const Row row{.process = ProcessOf(grant.rank()), .thread = lanes.Take(grant.begin_ns(), end)};
    lines_.Span(row, BucketName(grant, grant.parameters()), grant.begin_ns(), end,
                {{"step", grant.step()},
                 {"parameters", grant.parameters()},
                 {"rounds", grant.rounds()},
                 {"eager", grant.eager()}});
    for (Phase& phase : phases) {
      lines_.Span(row, phase.name, phase.begin, phase.end, std::move(phase.args),
                  phase.waits ? "grey" : nullptr);
    }
  }

  void DrawSum(const Event& sum) {
    const std::int64_t end = EndOf(sum);
    const Row row{.process = daemon_, .thread = lanes_[-1].Take(sum.begin_ns(), end)};
    Json args = Sent(sum);
    args["busy ms"] = Milliseconds(sum.busy_ns());
    const std::string round =
        RoundName(trace_.summary.hook(), sum.round(), rounds_[{sum.step(), sum.bucket()}]);
    lines_.Span(row, absl::StrCat(BucketName(sum, parameters_[sum.bucket()]), " ", round),
                sum.begin_ns(), end, std::move(args));
  }

  void DrawProcess(int process, const std::string& name, const char* lane, int lanes) {
    lines_.Name("process_name", {process, 0}, name);
    lines_.Sort("process_sort_index", {process, 0}, process);
    lines_.Name("thread_name", {process, kSteps}, "steps");
    lines_.Sort("thread_sort_index", {process, kSteps}, kSteps);
    for (int i = 0; i < lanes; ++i) {
      const Row row{.process = process, .thread = kFirstLane + i};
      lines_.Name("thread_name", row, i == 0 ? lane : absl::StrCat(lane, " ", i + 1));
      lines_.Sort("thread_sort_index", row, row.thread);
    }
  }

  void DrawNames() {
    const v1::TraceSummary& summary = trace_.summary;
    const std::string of = trace_.daemon.empty() ? "" : absl::StrCat(" ", trace_.daemon);
    DrawProcess(daemon_,
                absl::StrCat("daemon", of, ": session ", summary.session(), ", ", HookName(trace_)),
                "sums", lanes_[-1].count());
    for (int rank = 0; rank < summary.world_size(); ++rank) {
      DrawProcess(ProcessOf(rank), absl::StrCat("rank ", rank, of.empty() ? "" : " at", of),
                  "buckets", lanes_[rank].count());
    }
  }

  const Trace& trace_;
  const int daemon_;
  Lines& lines_;
  std::int64_t last_ = 0;  // end of the recording
  std::vector<Key> order_;
  std::map<Key, Bucket> buckets_;
  std::map<RoundKey, const Event*> sums_;
  std::map<RoundKey, const Event*> latest_;  // contributions
  std::map<std::uint32_t, std::uint32_t> parameters_;
  std::map<std::pair<std::int64_t, std::uint32_t>, std::uint32_t> rounds_;
  std::map<std::int64_t, std::int64_t> begins_;
  std::map<int, Lanes> lanes_;  // by rank; -1: the daemon's
};

// When the step begins in this recording; 0: it is not there.
std::int64_t BeginOf(const Trace& trace, std::int64_t step) {
  for (const Event& event : trace.events) {
    if (event.kind() == v1::TIMELINE_KIND_STEP && event.step() == step) return event.begin_ns();
  }
  return 0;
}

// The first step that all have begins on all daemons at once: members send to all at a time.
std::vector<Trace> Align(std::vector<Trace> traces) {
  std::int64_t first = 0;
  for (const Trace& trace : traces) first = std::max(first, trace.summary.first_step());
  std::int64_t latest = 0;
  for (const Trace& trace : traces) latest = std::max(latest, BeginOf(trace, first));
  for (Trace& trace : traces) {
    const std::int64_t shift = latest - BeginOf(trace, first);
    if (shift == 0) continue;
    for (Event& event : trace.events) {
      event.set_begin_ns(event.begin_ns() + shift);
      event.set_end_ns(event.end_ns() + shift);
      if (event.before_sums_ns() != 0) event.set_before_sums_ns(event.before_sums_ns() + shift);
    }
  }
  return traces;
}

}  // namespace

std::string TraceJson(const Trace& trace) { return TraceJson(std::vector<Trace>{trace}); }

std::string TraceJson(const std::vector<Trace>& traces) {
  const std::vector<Trace> aligned = Align(traces);
  Lines lines;
  int process = kDaemon;
  bool truncated = false;
  for (const Trace& trace : aligned) {
    Drawing(trace, process, lines).Draw();
    process += 1 + trace.summary.world_size();
    truncated |= trace.summary.end() == v1::TRACE_END_FULL;
  }
  const Trace& shortest = Shortest(aligned);
  const v1::TraceSummary& summary = shortest.summary;
  Json about = {{"session", summary.session()},
                {"hook", HookName(shortest)},
                {"members", summary.world_size()},
                {"first step", summary.first_step()},
                {"complete steps", summary.complete_steps()},
                {"truncated", truncated}};
  if (traces.size() > 1) about["daemons"] = traces.size();
  return lines.Document(about);
}

const Trace& Shortest(const std::vector<Trace>& traces) {
  return *std::min_element(traces.begin(), traces.end(), [](const Trace& a, const Trace& b) {
    return a.summary.complete_steps() < b.summary.complete_steps();
  });
}

std::string TraceOutcome(const Trace& trace, int asked) {
  const v1::TraceSummary& summary = trace.summary;
  const std::string steps = absl::StrCat(summary.complete_steps(), " of ", asked, " steps");
  switch (summary.end()) {
    case v1::TRACE_END_COMPLETE:
      return steps;
    case v1::TRACE_END_FULL:
      return absl::StrCat(steps, "; truncated: the daemon keeps no more events of one trace");
    case v1::TRACE_END_SESSION:
      return absl::StrCat(steps, "; the session ended before the others");
    default:
      return absl::StrCat(steps, "; step ", summary.first_step() + summary.complete_steps(),
                          " did not end in time, and --wait gives more");
  }
}

}  // namespace gradwire::ctl
