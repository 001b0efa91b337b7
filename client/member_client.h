// A client before all members have joined, and what a leaf daemon needs of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/addresses.h"
#include "client/runtime/collective_call.h"
#include "client/transport/channel.h"
#include "gradwire/client.h"

namespace gradwire::client {

// Threads and failure: as Client.
class MemberClient : public Client {
 public:
  // Attaches the member, once. The outcome comes when all members have.
  virtual std::shared_ptr<Outcome> Start() = 0;

  // The session has ended elsewhere: tells the daemons why and whom that blames (-1: nobody), and
  // ends it here. From any thread, without waiting.
  virtual void FailElsewhere(const absl::Status& status, int blamed_rank) = 0;

  // Barrier without waiting.
  using Client::Barrier;
  virtual void Barrier(std::function<void(const absl::Status&)> done) = 0;

  // Enters a broadcast that passes through this client. If its root is a rank that this member
  // stands for, Give follows; else MakeRoom. `done` comes after all else that is told of it.
  virtual void Relay(RelayWish wish, std::function<void(const absl::Status&)> done) = 0;
  // The next bytes of it. Kept until all members have them, or the session ends.
  virtual void Give(wire::PayloadRef bytes) = 0;
  // There is room for so many of its bytes in all. All of them have come, and there is room for
  // all: it is over.
  virtual void MakeRoom(std::uint64_t bytes) = 0;
};

// Of a leaf daemon's client.
struct Leaf {
  LeafWish wish{};  // ranks 0: it is a trainer's
  // Once, when the session has ended with an error, whosever it is. On the client's thread.
  std::function<void(const absl::Status& why, int blamed_rank)> failed = {};
};

// The daemons have answered the join; Start follows. `options` are complete: neither they nor the
// hook are looked up in the environment.
absl::StatusOr<std::unique_ptr<MemberClient>> Place(const ClientOptions& options,
                                                    const Daemons& daemons, const Leaf& leaf = {});

// What a leaf daemon does: its addresses may be names.
absl::StatusOr<std::unique_ptr<MemberClient>> PlaceLeaf(const ClientOptions& options,
                                                        const Leaf& leaf);

}  // namespace gradwire::client
