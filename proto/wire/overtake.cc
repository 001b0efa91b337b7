#include "proto/wire/overtake.h"

#include <variant>

namespace gradwire::wire {

Weight WeightOf(const Header& header, const Payload* payload) {
  const auto bytes = [&](const std::optional<SharedBytes>& shared) -> std::size_t {
    if (shared) return static_cast<std::size_t>(shared->bytes);
    return payload == nullptr ? 0 : payload->bytes();
  };
  if (const auto* result = std::get_if<Result>(&header)) {
    return {Weight::Kind::kResult, result->id.bucket, bytes(result->shared)};
  }
  if (const auto* contribution = std::get_if<Contribution>(&header)) {
    return {Weight::Kind::kContribution, contribution->id.bucket, bytes(contribution->shared)};
  }
  const auto* announce = std::get_if<Announce>(&header);
  if (announce == nullptr || !announce->eager) return {};
  return {Weight::Kind::kEagerAnnounce, 0, bytes(std::nullopt)};
}

bool MayPass(const Weight& late, const Weight& early) {
  if (late.kind == Weight::Kind::kEagerAnnounce) return early.kind == Weight::Kind::kContribution;
  return late.kind == Weight::Kind::kResult && early.kind == Weight::Kind::kResult &&
         late.bytes <= kSmallPayload && early.bytes > kSmallPayload && late.bucket != early.bucket;
}

}  // namespace gradwire::wire
