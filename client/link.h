// A member's connection to its daemon: one stream at a time, a new one when it breaks, heartbeats,
// and the decision that the daemon is lost. Belongs to the SDK thread.
#pragma once

#include <grpcpp/channel.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/channel.h"
#include "client/inbox.h"
#include "client/poller.h"
#include "client/stream.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

class Link {
 public:
  Link(std::string address, Membership membership, std::uint64_t start_id,
       std::shared_ptr<Inbox> inbox);

  // Begins a stream with its Hello. `memory`: the attachment of shared memory; 0: none.
  void Open(std::shared_ptr<grpc::Channel> channel, std::int64_t step, std::uint64_t memory);

  // Queues a frame, a small bucket's before the chunks of large ones. Without a stream it is
  // dropped: what still matters is announced after a resume.
  void Send(wire::Header header, wire::PayloadRef payload = nullptr);

  // Hands the stream what it can take. After each event.
  void PumpWrites();

  void OnHeard();
  void OnWrite(bool ok);
  void OnReadOn();
  void OnReadEnd();
  // This process itself stood still, so that the daemon cannot be blamed for silence.
  void OnOwnPause() { last_heard_ = Clock::now(); }
  // An error says why there will be no other stream.
  absl::Status OnStreamEnd(const absl::Status& status);

  // Heartbeat, silence, the end of a resume's grace. An error: the daemon is lost.
  absl::Status CheckTimers(Clock::time_point now);
  Clock::time_point NextTimer() const;
  // Whether it is time for another stream: make a channel and Open.
  bool WantsStream(Clock::time_point now) const;

  // The daemon has until `deadline` to end the stream, which is broken then.
  void Close(Clock::time_point deadline);
  bool closed() const { return closing_ && stream_ == nullptr; }

  std::string Daemon() const;  // "the daemon at ADDRESS"

 private:
  Clock::time_point LostDeadline() const;

  const std::string address_;
  const Membership membership_;
  const std::uint64_t start_id_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<Poller> poller_;
  const Clock::duration heartbeat_interval_;
  const Clock::duration silence_timeout_;

  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<ExchangeStream> stream_;
  Clock::time_point opened_at_;
  std::deque<wire::Frame> outgoing_;
  bool writing_ = false;
  bool broken_ = false;  // the stream takes no more writes
  Clock::time_point next_heartbeat_;
  Clock::time_point last_heard_;

  std::optional<Clock::time_point>
      lost_at_;  // when the stream broke, until the daemon is heard again
  std::string lost_because_;
  Clock::time_point retry_at_;

  bool closing_ = false;
  bool cancelled_ = false;
  Clock::time_point close_deadline_;
};

}  // namespace gradwire::client
