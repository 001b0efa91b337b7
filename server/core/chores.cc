#include "server/core/chores.h"

#include <memory>
#include <utility>

namespace gradwire::server {

void Chores::Begin(Effects& effects) {
  if (hook_ == nullptr || under_way_) return;
  std::shared_ptr<HookChore> chore = hook_->TakeChore();
  if (chore == nullptr) return;
  under_way_ = true;
  effects.push_back(ChoreEffect{.chore = std::move(chore)});
}

void Chores::OnDone(Effects& effects) {
  under_way_ = false;
  Begin(effects);
}

}  // namespace gradwire::server
