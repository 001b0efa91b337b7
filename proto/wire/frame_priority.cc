#include "proto/wire/frame_priority.h"

#include <optional>
#include <type_traits>
#include <variant>

namespace gradwire::wire {
namespace {

using Kind = SendPriority::Kind;
using Scope = SendPriority::Scope;

SendPriority OfBucket(const RoundId& id, Kind kind = Kind::kOther, std::size_t bytes = 0) {
  return {
      .kind = kind, .scope = Scope::kBucket, .step = id.step, .bucket = id.bucket, .bytes = bytes};
}

std::size_t BytesOf(const std::optional<SharedBytes>& shared, const Payload* payload) {
  if (shared) return static_cast<std::size_t>(shared->bytes);
  return payload == nullptr ? 0 : payload->bytes();
}

SendPriority Of(const Result& result, const Payload* payload) {
  return OfBucket(result.id, Kind::kResult, BytesOf(result.shared, payload));
}
SendPriority Of(const Contribution& contribution, const Payload* payload) {
  return OfBucket(contribution.id, Kind::kContribution, BytesOf(contribution.shared, payload));
}
SendPriority Of(const Announce& announce, const Payload*) {
  const std::uint32_t bucket = announce.parameters.empty() ? 0 : announce.parameters.front();
  return OfBucket({.step = announce.step, .bucket = bucket},
                  announce.eager ? Kind::kEagerAnnounce : Kind::kOther);
}
SendPriority Of(const Ack& ack, const Payload*) { return OfBucket(ack.id); }
SendPriority Of(const Grant& grant, const Payload*) { return OfBucket(grant.id); }
SendPriority Of(const Missed& missed, const Payload*) { return OfBucket(missed.id); }
SendPriority Of(const SharedState& state, const Payload*) { return OfBucket(state.id); }
SendPriority Of(const EndStep& end, const Payload*) {
  return {.scope = Scope::kStep, .step = end.step};
}
// Before all that follows it.
SendPriority Of(const ParameterDigest& digest, const Payload*) {
  return {.scope = Scope::kStep, .step = digest.step};
}

template <typename Header>
SendPriority Of(const Header&, const Payload*) {
  // Collectives mix freely with steps; a failure is not to wait for what it makes useless.
  constexpr bool alone =
      std::is_same_v<Header, Heartbeat> || std::is_same_v<Header, BucketReport> ||
      std::is_same_v<Header, Enter> || std::is_same_v<Header, Begin> ||
      std::is_same_v<Header, CollectiveChunk> || std::is_same_v<Header, CollectiveAck> ||
      std::is_same_v<Header, CollectiveVoid> || std::is_same_v<Header, Failure> ||
      std::is_same_v<Header, HandOver> || std::is_same_v<Header, HandOverAnswer>;
  return {.scope = alone ? Scope::kNone : Scope::kAll};
}

}  // namespace

SendPriority PriorityOf(const Header& header, const Payload* payload) {
  return std::visit([payload](const auto& one) { return Of(one, payload); }, header);
}

}  // namespace gradwire::wire
