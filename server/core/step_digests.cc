#include "server/core/step_digests.h"

#include <algorithm>

namespace gradwire::server {
namespace {

template <typename Entries>
auto FirstFrom(const Entries& entries, std::int64_t step) {
  return std::ranges::lower_bound(entries, step, {}, &StepDigests::Entry::step);
}

}  // namespace

void StepDigests::Conclude(const wire::StepDone& done) {
  chain_.Advance(done);
  if (chain_.known()) Append(done.step, chain_.Before(done.step + 1));
}

void StepDigests::GoOnFrom(std::int64_t step, std::uint64_t chain) {
  chain_ = wire::StepChain(step, chain);
  if (step > 0 && chain_.known()) Append(step - 1, chain);
}

std::uint64_t StepDigests::Before(std::int64_t step) const {
  return step == 0 ? 0 : Find(step - 1).value_or(0);
}

void StepDigests::Append(std::int64_t step, std::uint64_t chain) {
  recent_.push_back({.step = step, .chain = chain});
  if (recent_.size() <= kRecent) return;
  Thin(recent_.front());
  recent_.pop_front();
}

void StepDigests::Thin(const Entry& oldest) {
  if (oldest.step % spacing_ != 0) return;
  earlier_.push_back(oldest);
  if (earlier_.size() <= kEarlier) return;
  spacing_ *= 2;
  std::erase_if(earlier_, [this](const Entry& entry) { return entry.step % spacing_ != 0; });
}

std::optional<std::uint64_t> StepDigests::Find(std::int64_t step) const {
  const std::vector<Entry> found = Range(step, 1);
  if (found.empty() || found.front().step != step) return std::nullopt;
  return found.front().chain;
}

std::vector<StepDigests::Entry> StepDigests::Range(std::int64_t first, std::size_t count) const {
  std::vector<Entry> entries;
  const auto add = [&](const auto& from) {
    for (auto it = FirstFrom(from, first); it != from.end() && entries.size() < count; ++it) {
      entries.push_back(*it);
    }
  };
  add(earlier_);
  add(recent_);
  return entries;
}

}  // namespace gradwire::server
