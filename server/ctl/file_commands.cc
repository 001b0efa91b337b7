#include "server/ctl/file_commands.h"

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "server/ctl/bundle/bundle.h"
#include "server/ctl/explain.h"
#include "server/ctl/failures.h"
#include "server/ctl/files.h"
#include "server/ctl/report.h"
#include "server/ctl/trace.h"
#include "server/daemon/exit_codes.h"

namespace gradwire::ctl {

using server::kExitFailed;
using server::kExitOk;

namespace {

// What keeps the steps waiting, for those who wait for them here.
void AnnounceWait(const Flags& flags, const v1::SessionStatus& session) {
  if (session.state() != "joining" && !session.has_pause()) return;
  std::cerr << "gradwirectl: session \"" << Printable(session.name()) << "\" " << Doing(session)
            << "; waiting up to " << absl::FormatDuration(absl::Seconds(flags.wait_s))
            << " for its steps\n";
}

int NoStepTraced(const Flags& flags, const Trace& trace) {
  std::string message = absl::StrCat("traced ", TraceOutcome(trace, flags.steps));
  const AskedSession session = AskSession(flags.targets(), flags.session);
  if (session.answers > 0 && trace.summary.end() == v1::TRACE_END_TIME) {
    absl::StrAppend(&message, "; session \"", Printable(flags.session), "\" ",
                    Doing(session.status));
  }
  PrintFailure(ErrorCode::kNoStepTraced,
               RecodedText(ErrorCode::kNoStepTraced,
                           message + (trace.events.empty() ? "; nothing is written" : "")));
  return kExitFailed;
}

}  // namespace

int Export(const Flags& flags) {
  const auto state = ExportWhole(flags.state_targets(), flags.session);
  if (!state.ok()) return Failed(flags.address, state.status());
  if (absl::Status written = WriteFile(flags.file, *state); !written.ok()) {
    return FailedHere(written);
  }
  std::cout << "exported the state of session " << flags.session << ", " << state->size()
            << " bytes, to " << flags.file << "\n";
  return kExitOk;
}

int Import(const Flags& flags) {
  const auto state = ReadFile(flags.file);
  if (!state.ok()) return FailedHere(state.status());
  const auto iteration = ImportWhole(flags.state_targets(), flags.session, *state);
  if (!iteration.ok()) return Failed(flags.address, iteration.status());
  std::cout << "imported " << flags.file << ", " << state->size() << " bytes, into session "
            << flags.session << "; its iteration is " << *iteration << "\n";
  return kExitOk;
}

// Standard output is the file's, if that is asked for.
int TraceSteps(const Flags& flags) {
  const bool to_stdout = flags.file == "-";
  const std::string file = flags.file.empty() ? flags.session + ".trace.json" : flags.file;
  const AskedSession session = AskSession(flags.targets(), flags.session);
  if (session.answers == 0) return AllFailed(session.failures);
  // Before the wait for the steps, which nobody wants to repeat.
  if (absl::Status good = CheckWritable(file); !to_stdout && !good.ok()) return FailedHere(good);
  AnnounceWait(flags, session.status);
  const auto traces =
      TraceAll(flags.targets(), flags.session, flags.steps, absl::Seconds(flags.wait_s));
  if (!traces.ok()) return Failed(flags.address, traces.status());
  const Trace& shortest = Shortest(*traces);
  if (shortest.events.empty()) return NoStepTraced(flags, shortest);
  const std::string json = TraceJson(*traces);
  if (to_stdout) {
    std::cout << json << std::flush;
  } else if (absl::Status written = WriteFile(file, json); !written.ok()) {
    return FailedHere(written);
  }
  if (shortest.summary.complete_steps() == 0) return NoStepTraced(flags, shortest);
  (to_stdout ? std::cerr : std::cout)
      << "traced " << TraceOutcome(shortest, flags.steps) << "\n"
      << (to_stdout ? ""
                    : absl::StrCat("open ", file, " in chrome://tracing or ui.perfetto.dev\n"));
  return kExitOk;
}

// What the daemon does not tell does not stop the file from being written.
int WriteBundle(const Flags& flags) {
  const absl::Time now = absl::Now();
  const std::string name = BundleName(now);
  const std::string file = flags.file.empty() ? name + ".tar.gz" : flags.file;
  const Bundle bundle = Gather(flags.target(), now);
  const std::string archive = Archive(bundle, name, now);
  // For containers that have no other way out.
  const bool to_output = file == "-";
  if (to_output) {
    std::cout << archive << std::flush;
  } else if (absl::Status written = WriteFile(file, archive); !written.ok()) {
    return FailedHere(written);
  }
  (to_output ? std::cerr : std::cout)
      << (flags.table() ? Summary(bundle, file) : flags.Document(SummaryJson(bundle, file)));
  return std::cout ? kExitOk : kExitFailed;
}

}  // namespace gradwire::ctl
