#include "server/core/collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "proto/wire/rank_names.h"

namespace gradwire::server {
namespace {

constexpr std::uint64_t kMaxBroadcastBytes = std::uint64_t{1} << 40;
// As much as the largest window of a daemon's own defaults. StreamLimits allows for it.
constexpr std::size_t kLeafAheadBytes = std::size_t{4} << 20;

std::string KindName(wire::CollectiveKind kind) {
  return kind == wire::CollectiveKind::kBarrier ? "barrier" : "broadcast";
}

std::string Describe(const wire::Enter& enter) {
  if (enter.kind == wire::CollectiveKind::kBarrier) return "a barrier";
  return absl::StrCat("a broadcast of ", enter.bytes, " bytes from rank ", enter.root);
}

}  // namespace

Collectives::Collectives(int world_size, std::size_t chunk_bytes, std::uint32_t window_chunks)
    : world_size_(world_size),
      chunk_bytes_(chunk_bytes),
      window_chunks_(window_chunks),
      ahead_(window_chunks),
      in_for_(static_cast<std::size_t>(world_size)),
      elsewhere_(in_for_.size()),
      entered_(elsewhere_),
      through_(elsewhere_),
      received_(in_for_.size() + 1),
      joined_(chunk_bytes) {
  std::iota(in_for_.begin(), in_for_.end(), 0);
}

void Collectives::SetLeaf() {
  leaf_ = true;
  ahead_ = static_cast<std::uint32_t>(std::max<std::size_t>(kLeafAheadBytes / chunk_bytes_, 1));
}

void Collectives::SetElsewhere(int rank, int by) {
  const auto index = static_cast<std::size_t>(rank);
  elsewhere_[index] = entered_[index] = true;
  in_for_[index] = by;
}

void Collectives::GoOnFrom(std::uint64_t number, const std::vector<bool>& through) {
  number_ = number;
  through_ = entered_ = through;
}

std::vector<int> Collectives::AllRanks() const {
  std::vector<int> ranks;
  for (int r = 0; r < world_size_; ++r) {
    if (!elsewhere_[static_cast<std::size_t>(r)]) ranks.push_back(r);
  }
  return ranks;
}

std::uint32_t Collectives::ChunkCount() const {
  return static_cast<std::uint32_t>((open_->bytes + chunk_bytes_ - 1) / chunk_bytes_);
}

std::uint32_t Collectives::EverybodyHere() const {
  std::uint32_t least = sent_;
  for (int r = 0; r < world_size_; ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (r == Source() || elsewhere_[index] || through_[index]) continue;
    least = std::min(least, received_[index]);
  }
  return least;
}

std::uint32_t Collectives::Everybody() const {
  const std::uint32_t here = EverybodyHere();
  return leaf_ && Source() != upstream() ? std::min(here, received_.back()) : here;
}

absl::Status Collectives::CheckEnter(const wire::Enter& enter, const wire::Enter* other) const {
  if (enter.root < 0 || enter.root >= world_size_) {
    return Coded(ErrorCode::kCollective,
                 absl::InvalidArgumentError(absl::StrCat("broadcast root is ", enter.root,
                                                         "; allowed are 0 to ", world_size_ - 1)));
  }
  if (enter.kind == wire::CollectiveKind::kBroadcast &&
      in_for_[static_cast<std::size_t>(enter.root)] < 0) {
    return Coded(ErrorCode::kCollective,
                 absl::FailedPreconditionError(
                     absl::StrCat("broadcast root is ", enter.root,
                                  "; allowed: ranks that the session did not go on without")));
  }
  // A barrier with bytes would wait for chunks that nobody sends.
  if (enter.kind == wire::CollectiveKind::kBarrier && enter.bytes > 0) {
    return Coded(ErrorCode::kCollective, absl::InvalidArgumentError(absl::StrCat(
                                             "barrier of ", enter.bytes, " bytes; allowed: 0")));
  }
  // At most 2^31 chunks, so that a chunk number plus a window fits 32 bits.
  if (enter.bytes > kMaxBroadcastBytes ||
      (enter.bytes + chunk_bytes_ - 1) / chunk_bytes_ > UINT32_MAX / 2) {
    return Coded(ErrorCode::kCollective, absl::InvalidArgumentError(absl::StrCat(
                                             "broadcast of ", enter.bytes, " bytes; at most ",
                                             kMaxBroadcastBytes, " and 2^31 chunks are allowed")));
  }
  if (other != nullptr &&
      (enter.kind != other->kind || enter.root != other->root || enter.bytes != other->bytes)) {
    return Coded(ErrorCode::kCollective,
                 absl::FailedPreconditionError(
                     absl::StrCat("entered ", Describe(enter), " as collective ", enter.number,
                                  "; other members entered ", Describe(*other))));
  }
  return absl::OkStatus();
}

absl::Status Collectives::OnEnter(int rank, const wire::Enter& enter, std::vector<Send>& sends) {
  const auto index = static_cast<std::size_t>(rank);
  if (enter.number < number_ || (enter.number == number_ && open_ && entered_[index])) {
    return absl::OkStatus();  // repeated after a resume
  }
  // For a member other than the root a broadcast ends when it has all chunks, so it may enter the
  // next collective while others still take theirs. The root may not: for it the broadcast ends
  // when all members have all chunks.
  const bool has_all = through_[index] || (begun_ && rank != Source() && sent_ == ChunkCount());
  if (enter.number == number_ + 1 && has_all) {
    const wire::Enter* other = early_.empty() ? nullptr : &early_.begin()->second;
    if (absl::Status status = CheckEnter(enter, other); !status.ok()) return status;
    early_.emplace(rank, enter);
    if (through_[index]) return absl::OkStatus();
    // It has all of the broadcast, even if its stream broke before it said so.
    return OnAck(rank, {.number = number_, .received = sent_}, sends);
  }
  if (enter.number > number_) {
    return absl::FailedPreconditionError(
        absl::StrCat("entered collective ", enter.number, " while ", number_, " is not finished"));
  }
  if (absl::Status status = CheckEnter(enter, open_ ? &*open_ : nullptr); !status.ok()) {
    return status;
  }
  if (!open_) open_ = enter;
  entered_[index] = true;
  MaybeBegin(sends);
  return absl::OkStatus();
}

void Collectives::MaybeBegin(std::vector<Send>& sends) {
  if (!std::all_of(entered_.begin(), entered_.end(), [](bool in) { return in; })) return;
  if (!leaf_) return Begin(sends);
  waits_ = true;
  sends.push_back(Send{.ranks = {upstream()}, .frame = {.header = *open_}});
}

void Collectives::Begin(std::vector<Send>& sends) {
  begun_ = true;
  joined_.Begin(open_->bytes);
  sends.push_back(Send{.ranks = AllRanks(), .frame = {.header = wire::Begin{.number = number_}}});
  MaybeFinish(sends);
}

void Collectives::OnUpstreamBegan(std::vector<Send>& sends) {
  if (std::exchange(waits_, false)) Begin(sends);
}

void Collectives::OnUpstreamBytes(const wire::PayloadRef& bytes, std::vector<Send>& sends) {
  if (!begun_ || Source() != upstream()) return;
  for (const wire::PayloadRef& chunk : joined_.Add(bytes)) Take(chunk, sends);
}

void Collectives::OnUpstreamTook(std::uint64_t bytes, std::vector<Send>& sends) {
  if (!begun_ || Source() == upstream()) return;
  const std::uint32_t chunks =
      bytes < open_->bytes ? static_cast<std::uint32_t>(bytes / chunk_bytes_) : ChunkCount();
  OnAck(upstream(), {.number = number_, .received = std::min(chunks, sent_)}, sends).IgnoreError();
}

void Collectives::OnUpstreamVoid(std::vector<Send>& sends) {
  if (!waits_ && !begun_) return;
  Void(sends);
  if (open_) MaybeBegin(sends);
}

void Collectives::VoidOpen(std::vector<Send>& sends) {
  while (open_) Void(sends);
}

void Collectives::Void(std::vector<Send>& sends) {
  sends.push_back(
      Send{.ranks = AllRanks(), .frame = {.header = wire::CollectiveVoid{.number = number_}}});
  void_ = number_;
  Close();
}

bool Collectives::WaitsForUpstream() const {
  if (waits_) return true;
  if (!leaf_ || !begun_ || EverybodyHere() < sent_) return false;
  return Source() == upstream() || received_.back() < sent_;
}

absl::Status Collectives::OnChunk(int rank, const wire::CollectiveChunk& header,
                                  const wire::PayloadRef& payload, std::vector<Send>& sends) {
  if (header.number < number_) return absl::OkStatus();  // repeated after a resume
  if (header.number > number_ || !open_ || !begun_ || rank != Source()) {
    return absl::FailedPreconditionError(absl::StrCat("sent a chunk of collective ", header.number,
                                                      ", of which it is not the root"));
  }
  if (header.chunk < come_) return absl::OkStatus();  // repeated after a resume
  if (header.chunk != come_ || header.chunk >= ChunkCount()) {
    return absl::OutOfRangeError(absl::StrCat("sent chunk ", header.chunk, " of a broadcast with ",
                                              ChunkCount(), " chunks; expected ", come_));
  }
  // The window rule bounds `held_`: SessionOptions::PayloadBytes reserves one window.
  if (header.chunk >= Everybody() + window_chunks_) {
    return absl::FailedPreconditionError(absl::StrCat("sent chunk ", header.chunk,
                                                      " of a broadcast; the window ends at ",
                                                      Everybody() + window_chunks_));
  }
  const std::size_t expected =
      std::min(chunk_bytes_, static_cast<std::size_t>(open_->bytes) - come_ * chunk_bytes_);
  const std::size_t got = payload == nullptr ? 0 : payload->bytes();
  if (got != expected) {
    return absl::InvalidArgumentError(absl::StrCat("sent ", got, " bytes as chunk ", header.chunk,
                                                   " of a broadcast, which has ", expected));
  }
  Take(payload, sends);
  return absl::OkStatus();
}

void Collectives::Take(const wire::PayloadRef& payload, std::vector<Send>& sends) {
  held_.push_back(payload);
  ++come_;
  PassOn(sends);
  MaybeFinish(sends);
}

void Collectives::PassOn(std::vector<Send>& sends) {
  std::vector<int> others = AllRanks();
  std::erase_if(others, [this](int r) { return through_[static_cast<std::size_t>(r)]; });
  if (leaf_) others.push_back(upstream());
  std::erase(others, Source());
  if (others.empty()) {
    held_.clear();
    sent_ = come_;
    sends.push_back(
        Send{.ranks = {Source()},
             .frame = {.header = wire::CollectiveAck{.number = number_, .received = sent_}}});
    return;
  }
  const std::uint32_t first = Everybody();
  for (; sent_ < come_ && sent_ < first + ahead_; ++sent_) {
    sends.push_back(
        Send{.ranks = others,
             .frame = {.header = wire::CollectiveChunk{.number = number_, .chunk = sent_},
                       .payload = held_[sent_ - first]}});
  }
}

absl::Status Collectives::OnAck(int rank, const wire::CollectiveAck& ack,
                                std::vector<Send>& sends) {
  if (ack.number < number_) return absl::OkStatus();
  if (ack.number > number_ || !open_ || !begun_ || ack.received > sent_) {
    return absl::InvalidArgumentError(absl::StrCat("acknowledged ", ack.received,
                                                   " chunks of collective ", ack.number,
                                                   "; it was sent ", sent_));
  }
  std::uint32_t& received = received_[static_cast<std::size_t>(rank)];
  const std::uint32_t before = Everybody();
  // A count that a resume repeats may be lower than the one that is known.
  received = std::max(received, ack.received);
  const std::uint32_t after = Everybody();
  if (after == before) return absl::OkStatus();
  // Invariant: `held_` begins with chunk Everybody().
  held_.erase(held_.begin(), held_.begin() + (after - before));
  sends.push_back(
      Send{.ranks = {Source()},
           .frame = {.header = wire::CollectiveAck{.number = number_, .received = after}}});
  PassOn(sends);
  MaybeFinish(sends);
  return absl::OkStatus();
}

// Leave may overtake the member's last acknowledgement. A member that was sent all chunks of a
// broadcast has nothing more to do in it, so its Leave acknowledges them. The root is still needed,
// and so is a member that has entered the next collective.
bool Collectives::OnLeave(int rank, std::vector<Send>& sends) {
  if (!open_ || IsThroughBefore(rank)) return true;
  if (!begun_ || rank == Source() || sent_ != ChunkCount() || early_.count(rank) > 0) {
    return false;
  }
  return OnAck(rank, {.number = number_, .received = sent_}, sends).ok();
}

bool Collectives::IsThrough(int rank) const {
  if (!open_ || IsThroughBefore(rank)) return true;
  const auto index = static_cast<std::size_t>(rank);
  return begun_ && rank != Source() && received_[index] == ChunkCount() && early_.count(rank) == 0;
}

void Collectives::MaybeFinish(std::vector<Send>& sends) {
  if (!begun_ || Everybody() != ChunkCount()) return;
  Close();
  // All members are among them only where upstream() was the root: any other one is not through.
  if (open_) MaybeBegin(sends);
}

void Collectives::Close() {
  ++number_;
  open_.reset();
  begun_ = waits_ = false;
  come_ = sent_ = 0;
  held_.clear();
  joined_ = JoinedChunks(chunk_bytes_);
  entered_ = elsewhere_;
  std::fill(through_.begin(), through_.end(), false);
  std::fill(received_.begin(), received_.end(), 0);
  for (const auto& [rank, enter] : early_) {
    open_ = enter;
    entered_[static_cast<std::size_t>(rank)] = true;
  }
  early_.clear();
}

void Collectives::Resume(int rank, std::vector<Send>& sends) const {
  // The member enters again; one that had entered finds out here how far the collective is.
  const auto index = static_cast<std::size_t>(rank);
  const auto send = [&](wire::Header header, wire::PayloadRef payload) {
    sends.push_back(Send{.ranks = {rank},
                         .frame = {.header = std::move(header), .payload = std::move(payload)}});
  };
  // UINT32_MAX means all chunks: their number is forgotten here, and the member knows it.
  if (void_ && *void_ + 1 == number_) {
    send(wire::CollectiveVoid{.number = *void_}, nullptr);
  } else if (number_ > 0) {  // the end of the last one may have been lost
    send(wire::Begin{.number = number_ - 1}, nullptr);
    send(wire::CollectiveAck{.number = number_ - 1, .received = UINT32_MAX}, nullptr);
  }
  if (!begun_) return;
  send(wire::Begin{.number = number_}, nullptr);
  if (rank == Source()) {
    send(wire::CollectiveAck{.number = number_, .received = Everybody()}, nullptr);
    return;
  }
  // What the member lacks is held: its count is never below Everybody(). A root sends again from
  // there by itself.
  const std::uint32_t first = Everybody();
  for (std::uint32_t c = std::max(first, received_[index]); c < sent_; ++c) {
    send(wire::CollectiveChunk{.number = number_, .chunk = c}, held_[c - first]);
  }
}

std::string Collectives::WaitingFor() const {
  if (!open_) return "";
  const std::string name = absl::StrCat(KindName(open_->kind), " ", number_);
  if (WaitsForUpstream()) return absl::StrCat(name, " waits for the upstream daemon");
  if (begun_ && EverybodyHere() == sent_) {
    return absl::StrCat(name, " waits for rank ", open_->root, " to send chunk ", sent_, " of ",
                        ChunkCount());
  }
  std::vector<int> missing;
  for (int r = 0; r < world_size_; ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (elsewhere_[index] || through_[index]) continue;
    if (begun_ ? (r != Source() && received_[index] < sent_) : !entered_[index]) {
      missing.push_back(r);
    }
  }
  return absl::StrCat(name, " waits for ", wire::RankNames(missing),
                      begun_ ? " to take its bytes" : " to enter");
}

std::size_t Collectives::held_bytes() const {
  std::size_t bytes = joined_.held_bytes();
  for (const wire::PayloadRef& payload : held_) bytes += payload->bytes();
  return bytes;
}

}  // namespace gradwire::server
