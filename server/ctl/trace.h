// Recorded steps of a session as a file in Chrome's trace event format, for chrome://tracing and
// ui.perfetto.dev.
//
// The viewer shows the daemon as one process, with the session's steps and the sums, and each
// member as another, with its steps and its buckets. Buckets that overlap in time lie in rows of
// their own. Within a bucket, each round's phases follow one another: a phase that overlaps with
// the one before it (chunks are summed while later ones arrive) is shown from that one's end on.
#pragma once

#include <string>
#include <vector>

#include "gradwire/v1/admin.pb.h"

namespace gradwire::ctl {

struct Trace {
  std::string daemon{};  // its name if the session has several
  v1::TraceSummary summary;
  std::vector<v1::TimelineEvent> events;  // by their begin
};

// One JSON document with one event in each line, those of one begin from the longest to the
// shortest.
std::string TraceJson(const Trace& trace);
// Of several daemons of one session: each has its own processes, and is shifted in time so that the
// first step that all have recorded begins at one moment, because their clocks differ.
std::string TraceJson(const std::vector<Trace>& traces);

// How far the recording came, and why it ended if not with the last of the `asked` steps.
std::string TraceOutcome(const Trace& trace, int asked);
// The one that came least far. At least one.
const Trace& Shortest(const std::vector<Trace>& traces);

}  // namespace gradwire::ctl
