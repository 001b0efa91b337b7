#include "server/core/bucket.h"

#include <algorithm>
#include <utility>

#include "base/mutants.h"
#include "proto/wire/digest.h"

namespace gradwire::server {

Bucket::Bucket(std::shared_ptr<const Common> common,
               std::shared_ptr<const Contributors> contributors, Announced announced,
               std::uint32_t attempt)
    : common_(std::move(common)),
      contributors_(std::move(contributors)),
      parameters_(
          std::make_shared<const std::vector<std::uint32_t>>(std::move(announced.parameters))),
      what_(std::move(announced)),
      announced_(contributors_->world_size()),
      granted_(announced_.size()),
      eager_(announced_.size()) {
  for (std::size_t r = 0; r < announced_.size(); ++r) {
    announced_[r] = granted_[r] = !contributors_->has(r);
  }
  if (!plans().empty()) BeginRound(0, attempt);
}

bool Bucket::IsAnnouncedByAll() const {
  return std::find(announced_.begin(), announced_.end(), false) == announced_.end();
}

std::vector<int> Bucket::Unannounced() const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < announced_.size(); ++r) {
    if (!announced_[r]) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

bool Bucket::IsGrantedToAll() const {
  return std::find(granted_.begin(), granted_.end(), false) == granted_.end();
}

void Bucket::TellMissed(int rank) {
  told_.resize(announced_.size());
  told_[Index(rank)] = true;
}

void Bucket::Miss(int rank) {
  missed_.resize(announced_.size());
  missed_[Index(rank)] = announced_[Index(rank)] = true;
}

std::vector<int> Bucket::Missed() const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < missed_.size(); ++r) {
    if (missed_[r]) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

bool Bucket::HasMissedUngranted() const {
  for (std::size_t r = 0; r < missed_.size(); ++r) {
    if (missed_[r] && !granted_[r]) return true;
  }
  return false;
}

// One that misses the bucket is granted nothing: it sends no bytes.
bool Bucket::WaitsForGrant() const {
  for (std::size_t r = 0; r < granted_.size(); ++r) {
    if (announced_[r] && !granted_[r] && !IsMissedBy(static_cast<int>(r))) return true;
  }
  return false;
}

wire::RoundId Bucket::IdOf(std::uint32_t round) const {
  return {.step = step(), .attempt = rounds_[round].attempt(), .bucket = id(), .round = round};
}

std::size_t Bucket::ChunkCount() const {
  std::size_t chunks = 0;
  for (const RoundPlan& plan : plans()) {
    chunks += wire::ChunkLayout(plan, common_->chunk_bytes, what_.slice).chunk_count();
  }
  return chunks;
}

std::size_t Bucket::RawBytes(std::uint32_t chunk) const {
  return round().layout().Range(chunk).numel() * ByteSize(gradient_type());
}

// Both sides pass over rounds without elements at once, so that they agree which round is open.
void Bucket::BeginRound(std::uint32_t number, std::uint32_t attempt) {
  for (;; ++number) {
    rounds_.emplace_back(attempt,
                         wire::ChunkLayout(plans()[number], common_->chunk_bytes, what_.slice),
                         contributors_, common_->window_chunks);
    if (!round().finished() || number + 1 == plans().size()) return;
  }
}

void Bucket::Advance(std::uint32_t attempt) {
  // One of no elements has nothing to wait for but the announcements.
  if (reduced_ || (!IsAnnouncedByAll() && !IsActive(Mutant::kEmptyBucketNotAwaited))) return;
  while (has_rounds() && round().finished() && rounds_.size() < plans().size()) {
    BeginRound(static_cast<std::uint32_t>(rounds_.size()), attempt);
  }
  reduced_ = !has_rounds() || round().finished();
}

bool Bucket::IsReducingAll() const {
  if (rounds_.empty() || rounds_.size() != plans().size()) return false;
  for (std::uint32_t c = 0; c < round().chunk_count(); ++c) {
    if (!round().IsReducing(c)) return false;
  }
  return true;
}

// A round of which something was reduced goes on with what it has: results may lie in the place of
// contributions, which nobody could send again.
void Bucket::Restart(std::uint32_t attempt) {
  if (reduced_ || !has_rounds() || round().goes_on()) return;
  const std::uint32_t number = round_number();
  rounds_.pop_back();
  BeginRound(number, attempt);
}

// Only a bucket of one round and one chunk may be eager (CheckEager), so its complete round frees
// all its eager bytes. They are returned once.
std::size_t Bucket::Acknowledge(int rank, Round& its, std::uint32_t received) {
  its.Acknowledge(rank, received);
  if (received < its.chunk_count()) return 0;
  return std::exchange(eager_[Index(rank)], 0);
}

// Limited to released results: a round that goes on still has results to come.
std::size_t Bucket::AcknowledgeAll(int rank) {
  std::size_t eager = 0;
  for (Round& one : rounds_) {
    if (!one.HasAll(rank)) eager += Acknowledge(rank, one, one.released());
  }
  return eager;
}

bool Bucket::HasAll(int rank) const {
  return std::all_of(rounds_.begin(), rounds_.end(),
                     [rank](const Round& one) { return one.HasAll(rank); });
}

bool Bucket::IsAcknowledged() const {
  return reduced_ && std::all_of(rounds_.begin(), rounds_.end(),
                                 [](const Round& one) { return one.AllHaveAll(); });
}

void Bucket::AddDigest(std::uint64_t digest) { digest_ = wire::CombineDigests(digest_, digest); }

void Bucket::ForgetContributions() {
  for (Round& one : rounds_) one.ForgetContributions();
}

std::size_t Bucket::held_bytes() const {
  std::size_t bytes = 0;
  for (const Round& one : rounds_) bytes += one.held_bytes();
  return bytes;
}

void Bucket::TakeResults(std::vector<ResultRef>& results) {
  for (Round& one : rounds_) one.TakeResults(results);
}

std::size_t Bucket::BytesFor(std::size_t parameters, std::size_t members) {
  // Four bits and an eager count for each member.
  return sizeof(Bucket) + parameters * sizeof(std::uint32_t) + members * (sizeof(std::size_t) + 1);
}

}  // namespace gradwire::server
