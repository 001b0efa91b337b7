#include "proto/wire/shard_frames.h"

namespace gradwire::wire {

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
}

Prepared Get(const v1::Prepared& message, Checker& check) {
  return {.step = check.Step(message.step()),
          .verdict = GetVerdict(message.verdict(), check),
          .digest = message.digest()};
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

}  // namespace gradwire::wire
