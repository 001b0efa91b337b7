#include "proto/wire/recovery_frames.h"

#include "proto/wire/shard_frames.h"

namespace gradwire::wire {

void Set(const Recovery& recovery, v1::Recovery& message) {
  message.set_session_key(recovery.session_key);
  message.set_lineage(recovery.lineage);
  message.set_grace_milliseconds(recovery.grace_milliseconds);
}

Recovery Get(const v1::Recovery& message, Checker& check) {
  check.Count("recovery.session_key", message.session_key().size(), kSessionKeyBytes,
              kSessionKeyBytes);
  return {.session_key = message.session_key(),
          .lineage = message.lineage(),
          .grace_milliseconds = message.grace_milliseconds()};
}

v1::MemberReport ToProto(const MemberReport& report) {
  v1::MemberReport message;
  message.set_session_key(report.session_key);
  message.set_lineage(report.lineage);
  message.set_step(report.step);
  if (report.last) message.set_last(static_cast<v1::StepVerdict>(*report.last));
  message.set_has_contributed(report.has_contributed);
  message.set_may_have_results(report.may_have_results);
  if (report.ready) {
    message.mutable_ready()->set_step(report.step);
    message.mutable_ready()->set_verdict(static_cast<v1::StepVerdict>(report.ready->verdict));
    message.mutable_ready()->set_digest(report.ready->digest);
  }
  message.set_collectives(report.collectives);
  message.set_chunk_bytes(report.chunk_bytes);
  message.set_window_chunks(report.window_chunks);
  message.set_eager_bytes(report.eager_bytes);
  return message;
}

absl::StatusOr<MemberReport> FromProto(const v1::MemberReport& message) {
  Checker check("report");
  check.Count("session_key", message.session_key().size(), kSessionKeyBytes, kSessionKeyBytes);
  MemberReport report{.session_key = message.session_key(),
                      .lineage = message.lineage(),
                      // Two steps more are counted.
                      .step = check.Range("step", message.step(), std::int64_t{0}, kMaxInt64 - 2),
                      .has_contributed = message.has_contributed(),
                      .may_have_results = message.may_have_results(),
                      .collectives = message.collectives(),
                      .chunk_bytes = message.chunk_bytes(),
                      .window_chunks = message.window_chunks(),
                      .eager_bytes = message.eager_bytes()};
  if (message.last() != v1::STEP_VERDICT_UNSPECIFIED) {
    report.last = GetVerdict(message.last(), check);
  }
  if (message.has_ready()) {
    report.ready = {.verdict = GetVerdict(message.ready().verdict(), check),
                    .digest = message.ready().digest()};
  }
  if (!check.status().ok()) return check.status();
  return report;
}

}  // namespace gradwire::wire
