#include "proto/wire/overtake.h"

#include <variant>

namespace gradwire::wire {

Weight WeightOf(const Header& header, const Payload* payload) {
  if (const auto* result = std::get_if<Result>(&header)) {
    const std::size_t inlined = payload == nullptr ? 0 : payload->bytes();
    return {Weight::Kind::kResult, result->id.bucket,
            result->shared ? static_cast<std::size_t>(result->shared->bytes) : inlined};
  }
  if (std::holds_alternative<Contribution>(header)) return {.kind = Weight::Kind::kContribution};
  const auto* announce = std::get_if<Announce>(&header);
  if (announce == nullptr || !announce->eager) return {};
  return {.kind = Weight::Kind::kEagerAnnounce};
}

bool MayPass(const Weight& late, const Weight& early) {
  if (late.kind == Weight::Kind::kEagerAnnounce) return early.kind == Weight::Kind::kContribution;
  return late.kind == Weight::Kind::kResult && early.kind == Weight::Kind::kResult &&
         late.bytes <= kSmallPayload && early.bytes > kSmallPayload && late.bucket != early.bucket;
}

}  // namespace gradwire::wire
