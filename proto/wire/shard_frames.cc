#include "proto/wire/shard_frames.h"

#include <cstddef>
#include <optional>

#include "base/error_code.h"
#include "proto/wire/checks.h"

namespace gradwire::wire {

std::string Shortened(const std::string& text) {
  if (text.size() <= kMaxMessageBytes) return text;
  const std::optional<ErrorCode> code = FindCode(text);
  std::size_t end = kMaxMessageBytes - (code ? kCodeBytes : 0);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return code ? RecodedText(*code, text.substr(0, end)) : text.substr(0, end);
}

Verdict GetVerdict(v1::StepVerdict verdict, Checker& check) {
  const bool known = verdict == v1::STEP_VERDICT_APPLY || verdict == v1::STEP_VERDICT_SKIP;
  check.Enumerator("verdict", verdict, known, "1 to 2");
  return known ? static_cast<Verdict>(verdict) : Verdict::kSkip;
}

void Set(const Prepared& prepared, v1::Header& out) {
  v1::Prepared& message = *out.mutable_prepared();
  message.set_step(prepared.step);
  message.set_verdict(static_cast<v1::StepVerdict>(prepared.verdict));
  message.set_digest(prepared.digest);
  message.set_reason(Shortened(prepared.reason));
}

Prepared Get(const v1::Prepared& message, Checker& check) {
  return {.step = check.Step(message.step()),
          .verdict = GetVerdict(message.verdict(), check),
          .digest = message.digest(),
          .reason = Shortened(message.reason())};
}

void Set(const Ready& ready, v1::Header& out) {
  v1::Ready& message = *out.mutable_ready();
  message.set_step(ready.step);
  message.set_generation(ready.generation);
  message.set_verdict(static_cast<v1::StepVerdict>(ready.verdict));
  message.set_digest(ready.digest);
}

Ready Get(const v1::Ready& message, Checker& check) {
  return {.step = check.Step(message.step()),
          .generation = message.generation(),
          .verdict = GetVerdict(message.verdict(), check),
          .digest = message.digest()};
}

void Set(const Concluded& concluded, v1::Header& out) {
  v1::Concluded& message = *out.mutable_concluded();
  message.set_step(concluded.step);
  message.set_generation(concluded.generation);
  message.set_verdict(static_cast<v1::StepVerdict>(concluded.verdict));
}

Concluded Get(const v1::Concluded& message, Checker& check) {
  return {.step = check.Step(message.step()),
          .generation = message.generation(),
          .verdict = GetVerdict(message.verdict(), check)};
}

void Set(const GatherAgain& again, v1::Header& out) {
  v1::GatherAgain& message = *out.mutable_gather_again();
  message.set_generation(again.generation);
  message.set_shard(again.shard);
}

GatherAgain Get(const v1::GatherAgain& message, Checker& /*check*/) {
  return {.generation = message.generation(), .shard = message.shard()};
}

void Set(const ParameterDigest& digest, v1::Header& out) {
  v1::ParameterDigest& message = *out.mutable_parameter_digest();
  message.set_step(digest.step);
  message.set_generation(digest.generation);
  message.set_digest(digest.digest);
}

ParameterDigest Get(const v1::ParameterDigest& message, Checker& check) {
  return {.step = check.Step(message.step()),
          .generation = message.generation(),
          .digest = message.digest()};
}

}  // namespace gradwire::wire
