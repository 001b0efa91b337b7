#include "client/core/hand_over.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutants.h"
#include "hooks/residuals.h"
#include "hooks/safetensors.h"
#include "proto/wire/owned_payload.h"

namespace gradwire::client {
namespace {

// That the daemon lets be under way.
constexpr std::uint64_t kPieces = 4;
// Of the file, besides its values.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr std::size_t kMostForEachParameter = 4096;
// A batched hook pads a bucket to a square, so that it has less than twice the elements, in fp64 at
// most.
constexpr std::size_t kMostForEachElement = 2 * sizeof(double);
constexpr std::size_t kMostAtOnce = 4;
// Whoever asks again does so at once.
constexpr std::size_t kMostRemembered = 64;
constexpr std::size_t kMostRefusal = 1000;

std::size_t MostBytes(const std::vector<ParameterSpec>& manifest) {
  std::size_t bytes = kMostBytes;
  for (const ParameterSpec& parameter : manifest) {
    bytes += kMostForEachParameter + kMostForEachElement * parameter.numel();
  }
  return bytes;
}

std::vector<std::byte> FileOf(const HookState& state) {
  const std::string file = WriteSafetensors(state);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

// ---- The side that leaves

void ResidualGiving::Begin(std::uint64_t id, std::vector<std::byte> file, std::vector<int> heirs,
                           Effects& effects) {
  id_ = id;
  members_ = std::move(heirs);
  outcome_ = {};
  files_.clear();
  if (!file.empty()) files_.push_back({.content = std::move(file)});
  if (!late_.kept().empty()) {
    files_.push_back({.is_late = true, .content = FileOf(late_.State(options_.manifest))});
  }
  BeginNext(effects);
}

void ResidualGiving::BeginNext(Effects& effects) {
  if (files_.empty()) return effects.push_back(outcome_);
  heirs_.assign(members_.begin(), members_.end());
  sent_ = received_ = 0;
  may_be_taken_ = has_begun_anew_ = false;
  reasons_.clear();
  if (heirs_.empty()) return End(-1, "no other member is there", effects);
  SendMore(effects);
}

int ResidualGiving::Cancel() {
  heirs_.clear();
  files_.clear();
  return outcome_.rank;
}

void ResidualGiving::On(const wire::HandOverAnswer& answer, Effects& effects) {
  if (!open() || answer.id != id_ || answer.rank != heirs_.front()) return;
  if (answer.taken) return End(answer.rank, "", effects);
  if (!answer.refusal.empty()) {
    // Another one would add them once more, if this one did, and its answer is lost.
    if (may_be_taken_ || (has_begun_anew_ && HasSentAll())) {
      return End(
          -1,
          absl::StrCat("perhaps rank ", answer.rank, " has them; it answered: ", answer.refusal),
          effects);
    }
    absl::StrAppend(&reasons_, reasons_.empty() ? "" : "; ", answer.refusal);
    heirs_.pop_front();
    has_begun_anew_ = false;
    if (heirs_.empty()) return End(-1, reasons_, effects);
    sent_ = received_ = 0;
    return SendMore(effects);
  }
  if (answer.received == 0) return Resumed(effects);  // the other one has a new stream
  received_ = std::max(received_, std::min(answer.received, sent_));
  SendMore(effects);
}

void ResidualGiving::Resumed(Effects& effects) {
  if (!open()) return;
  may_be_taken_ |= HasSentAll();
  has_begun_anew_ = true;
  sent_ = received_ = 0;
  SendMore(effects);
}

bool ResidualGiving::HasSentAll() const { return sent_ == files_.front().content.size(); }

void ResidualGiving::SendMore(Effects& effects) {
  const std::vector<std::byte>& file = files_.front().content;
  const std::uint64_t size = file.size();
  const std::uint64_t most = options_.chunk_bytes;
  while (sent_ < size && std::min(sent_ + most, size) <= received_ + kPieces * most) {
    const auto piece = std::span(file).subspan(sent_, std::min(most, size - sent_));
    effects.push_back(
        SendFrameEffect{.header = wire::HandOver{.generation = options_.generation,
                                                 .id = id_,
                                                 .rank = heirs_.front(),
                                                 .offset = sent_,
                                                 .bytes = size},
                        .payload = wire::OwnedPayload::Make({piece.begin(), piece.end()})});
    sent_ += piece.size();
  }
}

void ResidualGiving::End(int rank, const std::string& reason, Effects& effects) {
  heirs_.clear();
  const bool is_late = files_.front().is_late;
  files_.pop_front();
  ++id_;
  // Whoever has them contributes them from now on. A hook that has given its state takes one.
  if (rank >= 0 && is_late) {
    late_.Clear();
  } else if (rank >= 0) {
    const absl::Status given = options_.ledger != nullptr
                                   ? options_.ledger->GiveAway(options_.manifest)
                                   : GiveAway(options_.manifest, *hook_);
    given.IgnoreError();
  }
  if (outcome_.rank < 0) outcome_.rank = rank;
  if (!reason.empty()) {
    absl::StrAppend(&outcome_.reason, outcome_.reason.empty() ? "" : "; ",
                    is_late ? "late gradients: " : "", reason);
  }
  BeginNext(effects);
}

// ---- The side that stays

ResidualTaking::ResidualTaking(const MemberOptions& options, Hook* hook, LateGradients& late)
    : options_(options), hook_(hook), late_(late), most_bytes_(MostBytes(options.manifest)) {}

void ResidualTaking::On(const wire::HandOver& piece, const wire::Payload* payload, bool is_between,
                        Effects& effects) {
  wire::HandOverAnswer answer{.id = piece.id, .rank = piece.rank};
  if (HasTaken(piece.id)) {
    answer.received = piece.bytes;
    answer.taken = true;
    return Answer(std::move(answer), effects);
  }
  answer.refusal = WhyNot(piece.rank, piece);
  if (!answer.refusal.empty()) return Answer(std::move(answer), effects);
  if (piece.offset == 0) coming_.insert_or_assign(piece.rank, Coming{.id = piece.id});
  const auto found = coming_.find(piece.rank);
  if (found == coming_.end()) return;
  Coming& coming = found->second;
  // It follows a piece that was refused, or lost with a stream.
  if (coming.id != piece.id || piece.offset != coming.file.content().size()) return;
  absl::Status added = coming.file.Add(piece.offset, piece.bytes, payload);
  answer.received = coming.file.content().size();
  if (added.ok() && coming.file.complete()) {
    added = Take(std::exchange(coming, {}), is_between);
    answer.taken = added.ok();
  }
  if (!added.ok() || answer.taken) coming_.erase(piece.rank);
  if (answer.taken) {
    taken_.push_back(piece.id);
    if (taken_.size() > kMostRemembered) taken_.pop_front();
  }
  if (!added.ok()) {
    answer.refusal =
        absl::StrCat("rank ", options_.rank,
                     " does not take them: ", added.message().substr(0, kMostRefusal / 2));
  }
  Answer(std::move(answer), effects);
}

bool ResidualTaking::HasTaken(std::uint64_t id) const {
  if (IsActive(Mutant::kHandedOverTwice)) return false;
  return std::ranges::count(taken_, id) > 0;
}

std::string ResidualTaking::WhyNot(int from, const wire::HandOver& piece) const {
  const std::string self = absl::StrCat("rank ", options_.rank);
  if (closed_) return absl::StrCat(self, " leaves, too");
  if (is_newcomer_) return absl::StrCat(self, " is new, and has applied no step yet");
  if (piece.bytes > most_bytes_) {
    return absl::StrCat(self, " takes at most ", most_bytes_, " bytes for this model, not ",
                        piece.bytes);
  }
  if (coming_.size() >= kMostAtOnce && !coming_.contains(from)) {
    return absl::StrCat(self, " takes those of ", kMostAtOnce, " other members");
  }
  return "";
}

absl::Status ResidualTaking::Take(Coming coming, bool is_between) {
  const std::vector<std::byte> file = coming.file.Take();
  absl::StatusOr<HookState> read =
      ReadSafetensors({reinterpret_cast<const char*>(file.data()), file.size()});
  if (!read.ok()) return read.status();
  if (LateGradients::IsLate(*read)) return TakeLate(*read);
  // What does not fit is refused while its member still has it.
  if (absl::Status fits = AddResiduals(hook_->State(), *read).status(); !fits.ok()) return fits;
  if (options_.ledger != nullptr && !IsActive(Mutant::kHandOverForgotten)) {
    options_.ledger->Expect(*read);
  }
  waiting_.push_back(*std::move(read));
  if (is_between) Add();
  return absl::OkStatus();
}

absl::Status ResidualTaking::TakeLate(const HookState& late) {
  if (options_.device != nullptr && options_.device->id().kind != DeviceKind::kCpu) {
    return absl::FailedPreconditionError("its gradients lie on a GPU, where none are late");
  }
  return late_.Take(late, options_.manifest);
}

// What was fit before the step is fit after it: a step changes values only. A device that fails
// meanwhile fails the next step, too, and the ledger counts these as lost.
void ResidualTaking::Add() {
  for (const HookState& residuals : std::exchange(waiting_, {})) AddNow(residuals).IgnoreError();
}

absl::Status ResidualTaking::AddNow(const HookState& residuals) {
  if (IsActive(Mutant::kHandOverForgotten)) return absl::OkStatus();
  return options_.ledger != nullptr ? options_.ledger->TakeOver(residuals, options_.manifest)
                                    : TakeOver(residuals, options_.manifest, *hook_);
}

void ResidualTaking::Answer(wire::HandOverAnswer answer, Effects& effects) const {
  answer.generation = options_.generation;
  if (answer.refusal.size() > kMostRefusal) answer.refusal.resize(kMostRefusal);
  effects.push_back(SendFrameEffect{answer});
}

}  // namespace gradwire::client
