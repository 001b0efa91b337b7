// A member's connection to its daemon: one stream at a time, optionally with a bulk lane, new
// streams when they break, heartbeats, and the decision that the daemon is lost. Only the SDK
// thread may use it.
#pragma once

#include <grpcpp/channel.h>

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/core/reconnect.h"
#include "client/transport/channel.h"
#include "client/transport/event_queue.h"
#include "proto/wire/frame.h"
#include "proto/wire/lane_sender.h"

namespace gradwire::client {

class ExchangeStream;
class Poller;

class DaemonConnection {
 public:
  DaemonConnection(std::string address, JoinResult membership, std::uint64_t start_id,
                   std::shared_ptr<EventQueue> events, std::shared_ptr<Poller> poller);

  // Begins a stream with its Hello. `memory`: the attachment of shared memory; 0: none. `bulk`: the
  // channel of its bulk lane, another one; null: there is none. `may_miss`: Hello.may_miss.
  void Open(std::shared_ptr<grpc::Channel> channel, const std::shared_ptr<grpc::Channel>& bulk,
            const std::string& access_token, std::int64_t step, std::uint64_t memory,
            bool may_miss);

  // False: bulk lanes to this daemon fail or break soon. Everything also works without one.
  bool may_have_bulk() const;
  // A step is over.
  void OnProgress() {
    if (bulk_is_there_) bulk_failures_ = 0;
  }

  // The session outlives the daemon: from now on a lost one is looked for so long, and silence does
  // not end the member.
  void SetGrace(Clock::duration grace);

  // Queues a frame; small buckets overtake the chunks of large ones (wire::LaneSender). Without a
  // stream the frame is dropped: the member announces what still matters after a resume.
  void Send(wire::Header header, wire::PayloadRef payload = nullptr);

  // Writes as much as the streams can take. Call it after each event.
  void PumpWrites();

  // False: the frame belongs to an earlier connection and is ignored.
  bool OnHeard(const Source& from);
  void OnWrite(const Source& from, bool ok);
  void OnReadOn(const ReadOn& lanes);
  void OnReadEnd(const Source& from);
  // An error is the reason why no other stream will be opened.
  absl::Status OnStreamEnd(const Source& from, const absl::Status& status);

  // Handles heartbeats, silence and the end of the resume grace. An error: the daemon is lost.
  absl::Status CheckTimers(Clock::time_point now);
  Clock::time_point NextTimer() const;
  // Whether it is time for another stream: create channels and call Open.
  bool WantsStream(Clock::time_point now) const;

  // The daemon has until `deadline` to end the stream; then the stream is broken.
  void Close(Clock::time_point deadline);
  // The same after one more frame; what waits to be sent is dropped.
  void CloseWith(wire::Header last, Clock::time_point deadline);
  // CloseWith was called in time: the frame may still be on its way.
  bool has_last_words() const { return has_last_words_; }
  bool closed() const { return closing_ && !open(); }
  // It is being looked for, because of this.
  bool lost() const { return reconnect_.lost(); }
  // The daemon has ended the last stream without an error: the member has left.
  bool ended_well() const { return ended_well_; }
  const std::string& lost_because() const { return lost_because_; }

  std::string Daemon() const;  // "the daemon at ADDRESS"

 private:
  using Streams = std::array<std::shared_ptr<ExchangeStream>, wire::kLanes>;

  // Of this connection. A cancelled stream whose socket takes nothing ends late, and nobody waits
  // for it: it owns everything that it touches.
  bool IsCurrent(const Source& from) const {
    return from.connection == connection_ && stream(from.lane) != nullptr;
  }
  bool open() const { return stream(wire::Lane::kMain) != nullptr; }
  const std::shared_ptr<ExchangeStream>& stream(wire::Lane lane) const {
    return streams_[wire::Index(lane)];
  }
  // One lane is broken, so nothing is written to the other either. Both end soon.
  void Break(wire::Lane lane);
  Clock::duration Patience() const;
  absl::Status CheckBroken(Clock::time_point now);
  absl::Status EndConnection(const absl::Status& status);
  void Cancel();
  void CheckBulk(Clock::time_point now);
  absl::Status CheckClosing(Clock::time_point now);
  Clock::time_point LostDeadline() const;

  const std::string address_;
  const JoinResult membership_;
  const std::uint64_t start_id_;
  const std::shared_ptr<EventQueue> events_;
  const std::shared_ptr<Poller> poller_;
  const Clock::duration heartbeat_interval_;
  const Clock::duration silence_timeout_;
  const Clock::duration resume_grace_;
  Reconnect<Clock::time_point, Clock::duration> reconnect_;
  bool outlives_daemon_ = false;

  std::shared_ptr<grpc::Channel> channel_;
  std::uint64_t connection_ = 0;
  Streams streams_;
  // The session's windows bound what waits here.
  wire::LaneSender<wire::Frame> sender_;
  Clock::time_point opened_at_;
  std::optional<wire::Lane> broken_;  // the lane that broke first: nothing is written any more
  bool ending_ = false;               // after the break: the streams have been cancelled
  Clock::time_point end_by_;          // after the break: when to cancel, then when to abandon
  bool stream_is_there_ = false;      // a frame has arrived on the stream
  bool bulk_is_there_ = false;        // a frame has arrived on the bulk lane
  int bulk_failures_ = 0;             // consecutive
  Clock::time_point next_heartbeat_;

  bool ended_well_ = false;
  std::string lost_because_;

  bool closing_ = false;
  bool has_last_words_ = false;
  bool cancelled_ = false;
  Clock::time_point close_deadline_;
};

}  // namespace gradwire::client
