// A broadcast or barrier that the program has entered.
//
// A broadcast may pass through: a leaf daemon's client has its bytes piece by piece. If the root is
// behind the leaf, the client is given them, and keeps those that not all members have; else they
// come to the leaf, as far as it has room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "client/core/given_bytes.h"
#include "client/runtime/completion.h"
#include "proto/wire/frame.h"

namespace gradwire::client {

// A broadcast that passes through, and what is told of it, on the client's thread and in this
// order.
struct RelayWish {
  int root = 0;
  std::uint64_t bytes = 0;
  std::uint64_t room = 0;  // for bytes that come; MakeRoom makes more
  std::function<void()> began = {};
  // The next bytes, of any size. The sender does not go on for longer than its window where there
  // is no room for them.
  std::function<void(const wire::PayloadRef& bytes)> came = {};
  // How many of the bytes that were given the client has, or all members have. All of them only
  // when all members have them.
  std::function<void(std::uint64_t bytes)> taken = {};
};

// One Broadcast or Barrier. `data` must stay valid until the outcome is there.
struct CollectiveCall {
  wire::CollectiveKind kind = wire::CollectiveKind::kBarrier;
  int root = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::optional<RelayWish> relay{};  // it passes through: there is no `data`
  GivenBytes given{};                // where it does
  Outcome outcome;
};

}  // namespace gradwire::client
