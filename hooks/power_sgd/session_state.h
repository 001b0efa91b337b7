// The coordinator's state: its parts, and how it is reported, saved and restored.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hooks/coordinator_hook.h"
#include "hooks/power_sgd/draw.h"
#include "hooks/power_sgd/factors.h"
#include "hooks/power_sgd/options.h"
#include "hooks/power_sgd/torch_random.h"

namespace gradwire {

inline constexpr const char* kSessionStateFormat = "gradwire.session_state.1";

// Metadata of CoordinatorHook::OwnState that no file has: factors came from one.
inline constexpr const char* kFromFileKey = "from_file";

// The part of a session that never changes.
struct PowerSgdSession {
  PowerSgdOptions options;
  SharedManifest manifest;

  // The text by which a saved state describes them. A session accepts a state if both are equal.
  std::string OptionsText() const;
  std::string LayoutText() const;
};

struct PowerSgdState {
  std::int64_t iteration = 0;  // steps applied
  NumpyRandomState generator{0};
  std::shared_ptr<const DrawPlan> plan{};
  std::vector<std::uint32_t> seeds{};  // one for each bucket of the plan; empty: nothing is drawn
  FactorTableRef factors{};            // never null
};

// What was drawn and from what, as metadata of a saved state.
std::map<std::string, std::string> DrawMetadata(const PowerSgdState& state);

class PowerSgdSnapshot final : public HookSnapshot {
 public:
  // `state` is the state after the last step; `shown` also has what the open step has drawn.
  PowerSgdSnapshot(std::shared_ptr<const PowerSgdSession> session, PowerSgdState state,
                   FactorTableRef shown)
      : session_(std::move(session)), state_(std::move(state)), shown_(std::move(shown)) {}

  using HookSnapshot::State;
  absl::StatusOr<HookState> State(const OwnsParameter& owns) const override;
  std::vector<ParameterReport> Report() const override;

 private:
  ParameterReport LineOf(std::uint32_t parameter, const LowRankMatrix& matrix, std::size_t numel,
                         std::int64_t version) const;

  const std::shared_ptr<const PowerSgdSession> session_;
  const PowerSgdState state_;
  const FactorTableRef shown_;
};

struct PowerSgdImport final : public HookImport {
  PowerSgdState state;
  bool from_file = false;
};

// InvalidArgument or FailedPrecondition names the part that does not fit the session. Thread-safe.
absl::StatusOr<std::shared_ptr<PowerSgdImport>> ReadPowerSgdState(const PowerSgdSession& session,
                                                                  const HookState& state);

// As CoordinatorHook::ReadCopy. All factors of the copy count as averaged in the last step that was
// applied; members do not know better. Thread-safe.
absl::StatusOr<std::shared_ptr<PowerSgdImport>> ReadPowerSgdCopy(const PowerSgdSession& session,
                                                                 HookState copy,
                                                                 const OwnsParameter& owns);

}  // namespace gradwire
