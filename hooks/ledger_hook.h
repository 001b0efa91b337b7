// A hook that keeps a member's account in the ledger: what became of the gradients that it was
// given. The account is of this member's own values, so that the sum of all members' accounts shows
// whether anything was lost, or counted twice, by whomever.
//
// Only for gradients in the processor's memory. As a hook it does what the one inside does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/hooks/hook.h"
#include "hooks/ledger_row.h"
#include "hooks/projection.h"

namespace gradwire {

// A member's account after a step that began with `before` and adds `change` to it. `dropped`: it
// is a SKIP because a daemon or a member was lost. A row of `change` that is not finite belongs to
// a step that was skipped for it, and counts as nothing.
std::vector<LedgerRow> After(std::vector<LedgerRow> before, const std::vector<LedgerRow>& change,
                             Verdict verdict, bool dropped);

class LedgerHook final : public Hook {
 public:
  LedgerHook(std::unique_ptr<Hook> inner, std::span<const ParameterSpec> manifest);
  ~LedgerHook() override;

  // After the last step. LedgerRowsOf the manifest.
  const std::vector<LedgerRow>& account() const { return account_; }
  // What the open step adds, as far as its buckets have results: `contributed`, `applied`,
  // `rounded_squares`, and their squares; `residual` and `residual_squares` as they are if it is
  // applied.
  std::vector<LedgerRow> change() const;
  // EndStep follows, and the step is dropped.
  void Drop() { drops_ = true; }

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t step) const override {
    return inner_->Plan(parameters, step);
  }
  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override;
  void EndStep(Verdict verdict) override;
  HookState State() const override { return inner_->State(); }
  // The account's residuals are those of the state, as if they had been contributed.
  absl::Status LoadState(const HookState& state, std::span<const ParameterSpec> manifest) override;
  HookState Copy() const override { return inner_->Copy(); }
  void Reset(std::int64_t iteration) override { inner_->Reset(iteration); }
  void Forget(std::span<const std::string> parameters) override { inner_->Forget(parameters); }
  // ---- Residuals that go from one member to another (hooks/residuals.h). What this member has
  // taken over, it counts as a loss that is made good, and what it has given away as lost: in the
  // sum of both accounts nothing has changed.
  // This member holds them, although the hook does not have them yet: TakeOver follows.
  void Expect(const HookState& more);
  // What was expected. After an error it is lost.
  absl::Status TakeOver(const HookState& more, std::span<const ParameterSpec> manifest);
  absl::Status GiveAway(std::span<const ParameterSpec> manifest);

  // The account is of gradients without the scale.
  void SetLossScale(double scale) override;

 private:
  class Run;
  // Of one parameter in the open step.
  struct Entry {
    bool open = false;  // a bucket has it
    Projection gradient{};
    Projection mean{};
    std::optional<Projection> residual{};  // none: the hook leaves it as it is
  };

  std::size_t RowOf(std::size_t parameter) const;
  // Calls take(position, projection) for each residual of the state, without its loss scale.
  template <class Take>
  void ForEachResidual(HookState state, double scale, Take take) const;
  void SetResidual(std::size_t parameter, const Projection& residual);
  // Of one that is held besides the hook's; factor -1: is not any more.
  void Hold(std::size_t parameter, const Projection& residual, double factor);

  const std::unique_ptr<Hook> inner_;
  absl::flat_hash_map<std::string, std::size_t> positions_;  // in the manifest
  std::vector<Projector> projectors_;                        // by position
  std::vector<Projection> residuals_;                        // by position
  std::vector<Projection> expected_;  // by position: the hook does not have them yet
  std::vector<Entry> entries_;        // by position
  std::vector<LedgerRow> account_;
  double scale_ = 1;
  bool drops_ = false;
};

}  // namespace gradwire
