// What a session gives to the recorder: each concluded step with its contributions, as they were
// before the sums were computed, and with the digests of the results that were released.
//
// It sees what the session's core asks its owner for (effects.h) and changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/v1/record.pb.h"
#include "server/core/session_core.h"
#include "server/record/record_sink.h"

namespace gradwire::server {

// The reductions of one event.
struct RecordedReductions {
  RecordSink::Ticket ticket = 0;
  // In the order of the event's ReduceEffects.
  std::vector<v1::RecordedReduction> heads{};
};

class SessionRecording {
 public:
  SessionRecording(const SessionOptions& options, std::shared_ptr<RecordSink> sink);
  // Drops the step that is open; the recording has ended.
  ~SessionRecording();

  SessionRecording(const SessionRecording&) = delete;
  SessionRecording& operator=(const SessionRecording&) = delete;

  // The session's folder among the recordings.
  static std::string FolderOf(const SessionOptions& options);

  // ---- Under the session's lock

  // A frame that the core is about to be given. Buckets without results have no other trace.
  void OnFrame(const wire::Header& header, const SessionCore& core);
  // After an event. Null: it has no reductions.
  std::shared_ptr<const RecordedReductions> OnEffects(const Effects& effects,
                                                      const SessionCore& core);

  // ---- Without it

  // Copies the contributions, which results may be written over: before they are computed. All of
  // them, because what a network has brought is memory that gRPC gives out again.
  void Keep(const RecordedReductions& reductions, const std::vector<ReduceEffect>& effects) const;

 private:
  struct Open {
    RecordSink::Ticket ticket = 0;
    std::int64_t step = 0;
    std::set<std::uint32_t> buckets{};
    v1::RecordedEnd end{};
    // By bucket and round: results that were released. A resume sends some of them again.
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> released{};
  };

  Open& OpenStep(const SessionCore& core, std::int64_t step);
  void Add(RecordKind kind, const google::protobuf::MessageLite& head) const;
  void OnResult(const ResultEffect& result);
  void OnFanOut(const FanOutEffect& fan_out);
  v1::RecordedReduction HeadOf(const ReduceEffect& effect, const SessionCore& core) const;
  void Conclude(const SessionCore& core);

  const SessionOptions options_;
  const std::string folder_;
  const std::shared_ptr<RecordSink> sink_;
  const std::shared_ptr<const std::string> model_;  // of a kModel record, the same in all steps
  bool has_begun_ = false;                          // to record
  std::unique_ptr<Open> open_;                      // null: no step is
  std::uint64_t skipped_ = 0;                       // steps so far
};

}  // namespace gradwire::server
