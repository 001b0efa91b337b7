#include "client/core/ledger_sending.h"

#include <cstddef>
#include <utility>

#include "base/mutants.h"

namespace gradwire::client {
namespace {

// One with its total, if there is one, and the last two: a member may be a step behind the others.
constexpr std::size_t kSnapshots = 3;

}  // namespace

void LedgerSending::Tell(std::int64_t step, std::uint64_t generation, Effects& effects) {
  if (hook_ == nullptr || (told_ && told_->step == step)) return;
  told_ = wire::LedgerAccount{.step = step,
                              .generation = generation,
                              .before = hook_->account(),
                              .change = hook_->change()};
  if (std::exchange(tells_earlier_, false) && !IsActive(Mutant::kAccountsOfGoneForgotten)) {
    told_->earlier.assign(earlier_.begin(), earlier_.end());
  }
  effects.push_back(SendFrameEffect{*told_});
}

void LedgerSending::Resumed(Effects& effects) const {
  if (told_) effects.push_back(SendFrameEffect{*told_});
}

void LedgerSending::Drop() {
  if (hook_ != nullptr) hook_->Drop();
}

void LedgerSending::Concluded(std::int64_t step, bool dropped) {
  if (hook_ == nullptr || dropped) return;
  earlier_.push_back({.step = step, .own = hook_->account()});
  if (earlier_.size() > kSnapshots) {
    const bool keeps = earlier_[1].total.empty() && !earlier_.front().total.empty();
    earlier_.erase(earlier_.begin() + (keeps ? 1 : 0));
  }
  if (total_ && total_->step == step) earlier_.back().total = std::move(total_->rows);
  total_.reset();
}

// The step may be over here, or about to be.
void LedgerSending::On(const wire::LedgerTotal& total) {
  if (hook_ == nullptr || total.rows.size() != hook_->account().size()) return;
  for (wire::LedgerSnapshot& snapshot : earlier_) {
    if (snapshot.step != total.step) continue;
    snapshot.total = total.rows;
    return;
  }
  total_ = total;
}

void LedgerSending::BeginAnew() {
  told_.reset();
  tells_earlier_ = true;
}

}  // namespace gradwire::client
