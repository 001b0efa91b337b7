#include "hooks/ledger_hook.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "hooks/residuals.h"

namespace gradwire {

std::vector<LedgerRow> After(std::vector<LedgerRow> before, const std::vector<LedgerRow>& change,
                             Verdict verdict, bool dropped) {
  const std::size_t rows = std::min(before.size(), change.size());
  for (std::size_t i = 0; i < rows; ++i) {
    const LedgerRow& more = change[i];
    LedgerRow& row = before[i];
    if (!more.is_finite()) continue;
    row.contributed += more.contributed;
    row.contributed_squares += more.contributed_squares;
    if (verdict == Verdict::kApply) {
      row.applied += more.applied;
      row.residual = more.residual;
      row.residual_squares = more.residual_squares;
      row.rounded_squares += more.rounded_squares;
      continue;
    }
    (dropped ? row.dropped : row.skipped) += more.contributed;
    (dropped ? row.dropped_squares : row.skipped_squares) += more.contributed_squares;
  }
  return before;
}

// ---- One bucket

// Derives from HookRun, not HookRunBase, so that it cannot leave out a call.
class LedgerHook::Run final : public HookRun {
 public:
  Run(LedgerHook& hook, GradBucket& bucket, std::vector<std::size_t> positions,
      std::unique_ptr<HookRun> inner)
      : hook_(hook), bucket_(bucket), positions_(std::move(positions)), inner_(std::move(inner)) {}

  // The first call comes before anybody may write results into the bucket.
  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override {
    if (!std::exchange(begun_, true)) {
      slice_ = context.slice;
      ForEach([](Entry& entry, const Projection& gradient) {
        entry = {.open = true, .gradient = gradient};
      });
    }
    absl::StatusOr<std::optional<RoundPlan>> plan = inner_->Next(context);
    if (plan.ok() && !plan->has_value() && !std::exchange(has_result_, true)) TakeResult();
    return plan;
  }
  absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
    return inner_->Encode(range, out);
  }
  std::span<const std::byte> Raw(ElementRange range) const override { return inner_->Raw(range); }
  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
    return inner_->Decode(range, in);
  }
  absl::Status DecodeInPlace(ElementRange range) override { return inner_->DecodeInPlace(range); }
  std::size_t shared_bytes() const override { return inner_->shared_bytes(); }
  absl::Status Import(std::span<const std::byte> shared) override { return inner_->Import(shared); }
  void Measure() override { inner_->Measure(); }
  std::optional<BucketNorms> norms() const override { return inner_->norms(); }
  std::vector<TensorView> residuals() const override { return inner_->residuals(); }
  void Commit() override { inner_->Commit(); }
  void Abort() override { inner_->Abort(); }

 private:
  // Calls function(entry, projection) for each parameter, with that of what the bucket has now.
  template <class Function>
  void ForEach(Function function) {
    std::size_t numel = 0;
    for (const ParameterSpec& parameter : bucket_.parameters()) numel += parameter.numel();
    const auto [begin, end] = slice_.Of(numel);
    const std::vector<TensorView> tensors = bucket_.gradients();
    std::size_t at = 0;  // of the bucket
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      TensorView part = tensors[i];
      const std::size_t first = std::clamp(begin, at, at + part.numel) - at;
      const std::size_t last = std::clamp(end, at, at + part.numel) - at;
      at += part.numel;
      part.data = static_cast<std::byte*>(part.data) + first * ByteSize(part.dtype);
      part.numel = last - first;
      function(hook_.entries_[positions_[i]],
               hook_.projectors_[positions_[i]].Of(part, first) * (1 / hook_.scale_));
    }
  }

  void TakeResult() {
    ForEach([](Entry& entry, const Projection& mean) { entry.mean = mean; });
    const std::vector<TensorView> residuals = inner_->residuals();
    for (std::size_t i = 0; i < residuals.size(); ++i) {
      // A view without data: the hook keeps no residual of this parameter any more.
      const TensorView& view = residuals[i];
      const Projection residual =
          view.data == nullptr ? Projection{} : hook_.projectors_[positions_[i]].Of(view);
      hook_.entries_[positions_[i]].residual = residual * (1 / hook_.scale_);
    }
  }

  LedgerHook& hook_;
  GradBucket& bucket_;
  const std::vector<std::size_t> positions_;
  const std::unique_ptr<HookRun> inner_;
  Slice slice_;
  bool begun_ = false;
  bool has_result_ = false;
};

// ---- All buckets

LedgerHook::LedgerHook(std::unique_ptr<Hook> inner, std::span<const ParameterSpec> manifest)
    : inner_(std::move(inner)),
      residuals_(manifest.size()),
      expected_(manifest.size()),
      entries_(manifest.size()),
      account_(LedgerRowsOf(manifest.size())) {
  projectors_.reserve(manifest.size());
  for (const ParameterSpec& parameter : manifest) {
    positions_.emplace(parameter.name, projectors_.size());
    projectors_.emplace_back(parameter.name, parameter.numel());
  }
}

LedgerHook::~LedgerHook() = default;

std::size_t LedgerHook::RowOf(std::size_t parameter) const {
  return LedgerRowOf(parameter, projectors_.size());
}

absl::StatusOr<std::unique_ptr<HookRun>> LedgerHook::Start(GradBucket& bucket, std::int64_t step) {
  std::vector<std::size_t> positions;
  for (const ParameterSpec& parameter : bucket.parameters()) {
    const auto found = positions_.find(parameter.name);
    if (found == positions_.end()) {
      return absl::InvalidArgumentError("parameter \"" + parameter.name +
                                        "\" is not one of the ledger's");
    }
    positions.push_back(found->second);
  }
  absl::StatusOr<std::unique_ptr<HookRun>> run = inner_->Start(bucket, step);
  if (!run.ok()) return run.status();
  return std::make_unique<Run>(*this, bucket, std::move(positions), *std::move(run));
}

std::vector<LedgerRow> LedgerHook::change() const {
  std::vector<LedgerRow> rows(account_.size());
  for (std::size_t p = 0; p < projectors_.size(); ++p) {
    LedgerRow& row = rows[RowOf(p)];
    const Entry& entry = entries_[p];
    Projection residual = residuals_[p];
    double rounded = residual.squares;
    if (entry.open) {
      if (entry.residual) residual = *entry.residual;
      row.contributed += entry.gradient.value;
      row.contributed_squares += entry.gradient.squares;
      row.applied += entry.mean.value;
      rounded += entry.gradient.squares + entry.mean.squares + residual.squares;
      row.rounded_squares += rounded;
    }
    row.residual += residual.value + expected_[p].value;
    row.residual_squares += residual.squares + expected_[p].squares;
  }
  return rows;
}

void LedgerHook::EndStep(Verdict verdict) {
  inner_->EndStep(verdict);
  const bool dropped = std::exchange(drops_, false);
  account_ = After(std::move(account_), change(), verdict, dropped);
  for (std::size_t p = 0; p < entries_.size(); ++p) {
    const Entry& entry = entries_[p];
    if (verdict == Verdict::kApply && entry.residual) residuals_[p] = *entry.residual;
  }
  std::fill(entries_.begin(), entries_.end(), Entry());
}

template <class Take>
void LedgerHook::ForEachResidual(HookState state, double scale, Take take) const {
  constexpr std::string_view kPrefix = "residual/";
  for (StateTensor& tensor : state.tensors) {
    if (!tensor.name.starts_with(kPrefix)) continue;
    const auto found = positions_.find(tensor.name.substr(kPrefix.size()));
    if (found == positions_.end()) continue;
    const std::size_t numel = tensor.data.size() / ByteSize(tensor.dtype);
    take(found->second,
         projectors_[found->second].Of({tensor.dtype, tensor.data.data(), numel}) * (1 / scale));
  }
}

void LedgerHook::SetResidual(std::size_t parameter, const Projection& residual) {
  LedgerRow& row = account_[RowOf(parameter)];
  row.residual += residual.value - residuals_[parameter].value;
  row.residual_squares += residual.squares - residuals_[parameter].squares;
  residuals_[parameter] = residual;
}

absl::Status LedgerHook::LoadState(const HookState& state,
                                   std::span<const ParameterSpec> manifest) {
  if (absl::Status loaded = inner_->LoadState(state, manifest); !loaded.ok()) return loaded;
  const auto contribute = [this](std::size_t p, const Projection& residual) {
    account_[RowOf(p)].contributed += residual.value - residuals_[p].value;
    SetResidual(p, residual);
  };
  for (std::size_t p = 0; p < residuals_.size(); ++p) contribute(p, {});
  // The hook may have converted the state to its own loss scale.
  ForEachResidual(inner_->State(), scale_, contribute);
  return absl::OkStatus();
}

void LedgerHook::Hold(std::size_t parameter, const Projection& residual, double factor) {
  LedgerRow& row = account_[RowOf(parameter)];
  row.residual += factor * residual.value;
  row.residual_squares += factor * residual.squares;
  row.lost -= factor * residual.value;
  row.lost_squares -= factor * residual.squares;
  expected_[parameter].value += factor * residual.value;
  expected_[parameter].squares += factor * residual.squares;
}

void LedgerHook::Expect(const HookState& more) {
  const absl::StatusOr<double> scale = LossScaleOf(more);
  if (!scale.ok()) return;
  ForEachResidual(more, *scale,
                  [this](std::size_t p, const Projection& residual) { Hold(p, residual, 1); });
}

absl::Status LedgerHook::TakeOver(const HookState& more, std::span<const ParameterSpec> manifest) {
  absl::Status taken = gradwire::TakeOver(more, manifest, *inner_);
  const absl::StatusOr<double> scale = LossScaleOf(more);
  if (scale.ok()) {
    ForEachResidual(more, *scale, [&](std::size_t p, const Projection& residual) {
      Hold(p, residual, -1);
      if (!taken.ok()) return;
      account_[RowOf(p)].lost -= residual.value;
      account_[RowOf(p)].lost_squares -= residual.squares;
    });
  }
  if (!taken.ok()) return taken;
  ForEachResidual(inner_->State(), scale_, [this](std::size_t p, const Projection& sum) {
    account_[RowOf(p)].rounded_squares += sum.squares;
    SetResidual(p, sum);
  });
  return absl::OkStatus();
}

absl::Status LedgerHook::GiveAway(std::span<const ParameterSpec> manifest) {
  if (absl::Status given = gradwire::GiveAway(manifest, *inner_); !given.ok()) return given;
  for (std::size_t p = 0; p < residuals_.size(); ++p) {
    account_[RowOf(p)].lost += residuals_[p].value;
    account_[RowOf(p)].lost_squares += residuals_[p].squares;
    SetResidual(p, {});
  }
  return absl::OkStatus();
}

void LedgerHook::SetLossScale(double scale) {
  scale_ = scale;
  inner_->SetLossScale(scale);
}

}  // namespace gradwire
