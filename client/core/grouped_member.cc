#include "client/core/grouped_member.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/mutants.h"
#include "client/core/member.h"

namespace gradwire::client {

GroupedMember::GroupedMember(const MemberOptions& options, Hook* hook, bool whole_buckets)
    : options_(options),
      hook_(hook),
      whole_buckets_(whole_buckets),
      member_(std::make_unique<Member>(options, hook)),
      parameters_(options_.manifest) {}

GroupedMember::~GroupedMember() = default;

void GroupedMember::SetNode(int index, int members) {
  behind_leaf_ = true;
  member_->SetGroup(index, members);
}

std::int64_t GroupedMember::step() const { return member_->step(); }

const absl::Status& GroupedMember::failure() const { return member_->failure(); }

std::uint64_t GroupedMember::lineage() const { return member_->lineage(); }

absl::Status GroupedMember::WithOutcome(absl::Status status) const {
  return member_->WithOutcome(std::move(status));
}

// A leaf has results only when it has a whole bucket, for which its own window suffices.
void GroupedMember::SetWindow(std::uint32_t chunks) {
  if (!behind_leaf_) member_->SetWindow(chunks);
}

bool GroupedMember::has_chunks() const { return member_->has_chunks(); }

std::optional<std::uint32_t> GroupedMember::BucketId(const GradBucket& bucket) const {
  return member_->BucketId(bucket);
}

// ---- Calls

absl::Status GroupedMember::StartBucket(Ticket ticket, GradBucket& bucket, Effects& effects,
                                        bool measure) {
  if (!grouped()) return member_->StartBucket(ticket, bucket, effects, {.measure = measure});
  if (failed()) return failure();
  if (ended_) {
    return Coded(ErrorCode::kTwiceInStep, absl::FailedPreconditionError(absl::StrCat(
                                              "step ", users_step(), " was ended by this member")));
  }
  absl::StatusOr<std::vector<std::uint32_t>> positions = parameters_.Map(bucket, users_step());
  if (!positions.ok()) return positions.status();
  parameters_.Use(*positions);
  by_id_[positions->front()] = ticket;
  Bucket& started = buckets_[ticket];
  started = {.bucket = &bucket,
             .parameters = *positions,
             .shares = shares_->Divide(bucket, *positions),
             .measure = measure};
  sent_ |= !awaits_welcome();
  if (!awaits_welcome()) Begin(ticket, started, effects);
  return absl::OkStatus();
}

void GroupedMember::Begin(Ticket ticket, Bucket& bucket, Effects& effects) {
  if (!IsAlone()) return effects.push_back(SendFrameEffect{FrameOf(bucket)});
  if (bucket.orders > 0) return;  // it began after the report of a lost daemon's member
  ++bucket.orders;
  tasks_.push_back({.ticket = ticket});
  Advance(effects);
}

wire::GroupBucket GroupedMember::FrameOf(const Bucket& bucket) const {
  return {.step = step(), .generation = options_.generation, .parameters = bucket.parameters};
}

// The coordinator takes the end for granted: that no share of this member is to come. So it is told
// once the last exchange is over.
absl::Status GroupedMember::EndStep(Effects& effects) {
  if (!grouped()) return member_->EndStep(effects);
  if (failed()) return failure();
  if (ended_) {
    return Coded(ErrorCode::kTwiceInStep, absl::FailedPreconditionError(absl::StrCat(
                                              "step ", users_step(), " was ended before")));
  }
  ended_ = true;
  MaybeEnd(effects);
  return absl::OkStatus();
}

// A share's memory is not the one that the daemon has.
void GroupedMember::SendAhead(std::uint32_t id) {
  if (!grouped()) member_->SendAhead(id);
}

absl::Status GroupedMember::CheckParameters(std::uint64_t digest, Effects& effects) {
  return member_->CheckParameters(digest, effects);
}

absl::Status GroupedMember::SetDrawPlan(const DrawBuckets& buckets, Effects& effects) {
  return member_->SetDrawPlan(buckets, effects);
}

absl::StatusOr<std::uint64_t> GroupedMember::Enter(wire::CollectiveKind kind, int root,
                                                   std::size_t bytes, Effects& effects) {
  return member_->Enter(kind, root, bytes, effects);
}

MemberCollectives& GroupedMember::collectives() { return member_->collectives(); }

void GroupedMember::SendNext(Effects& effects) {
  if (!grouped()) return member_->SendNext(effects);
  Effects inner;
  member_->SendNext(inner);
  Take(inner, effects);
}

// A session with several shards has no node groups, so that nothing waits for a group here.
void GroupedMember::SayReady(Verdict verdict, std::uint64_t digest, Effects& effects) {
  member_->SayReady(verdict, digest, effects);
}

void GroupedMember::ConcludeAs(const StepDoneEffect& lead, Effects& effects) {
  member_->ConcludeAs(lead, effects);
}

void GroupedMember::AskToGather(std::uint32_t lost_shard, Effects& effects) {
  member_->AskToGather(lost_shard, effects);
}

void GroupedMember::FailElsewhere(const absl::Status& status, int blamed_rank, Effects& effects) {
  member_->FailElsewhere(status, blamed_rank, effects);
}

void GroupedMember::Fail(const absl::Status& status, Effects& effects) {
  Effects inner;
  member_->Fail(status, inner);
  Take(inner, effects);
}

void GroupedMember::Expose(std::uint32_t id) { member_->Expose(id); }

std::int64_t GroupedMember::steps_reduced_again() const { return member_->steps_reduced_again(); }

bool GroupedMember::outlives_daemon() const { return member_->outlives_daemon(); }
bool GroupedMember::shrinks() const { return member_->roster() != nullptr; }

bool GroupedMember::awaits_welcome() const { return member_->awaits_welcome(); }

std::string GroupedMember::Progress() const {
  for (const auto& [ticket, bucket] : buckets_) {
    if (bucket.exchanged && bucket.open_shares > 0) continue;  // the inner member says more
    return absl::StrCat("step ", users_step(), ": bucket of ",
                        options_.manifest[bucket.parameters.front()].name,
                        " waits for its node group");
  }
  return member_->Progress();
}

// ---- Frames

void GroupedMember::Receive(const wire::Frame& frame, Effects& effects) {
  if (failed()) return;
  absl::Status status;
  if (const auto* order = std::get_if<wire::GroupOrder>(&frame.header)) {
    status = On(*order, effects);
  } else if (const auto* id = std::get_if<wire::GroupId>(&frame.header)) {
    status = On(*id, effects);
  } else {
    const auto* welcome = std::get_if<wire::Welcome>(&frame.header);
    const bool goes_on = welcome != nullptr && welcomed_ && awaits_welcome();
    if (welcome != nullptr) status = On(*welcome, effects);
    if (!status.ok()) return Fail(status, effects);
    if (!grouped()) return member_->Receive(frame, effects);
    Effects inner;
    member_->Receive(frame, inner);
    if (goes_on && !failed()) GoOn(effects);
    Take(inner, effects);
  }
  if (!status.ok()) Fail(status, effects);
}

absl::Status GroupedMember::On(const wire::GroupId& id, Effects& effects) {
  if (!grouped() || IsAlone() || index_ == 0) {
    return Coded(
        ErrorCode::kBadAnswer,
        absl::InternalError("the coordinator sent the name of a node group's communicator"));
  }
  if (id_.empty()) Connect(id.id, effects);  // else repeated after a resume
  return absl::OkStatus();
}

void GroupedMember::NameGroup(const std::string& id, Effects& effects) {
  if (failed()) return;
  effects.push_back(SendFrameEffect{wire::GroupId{.generation = options_.generation, .id = id}});
  Connect(id, effects);
}

void GroupedMember::Connect(const std::string& id, Effects& effects) {
  id_ = id;
  effects.push_back(ConnectEffect{.id = id});
}

// A resume repeats the orders of the step.
absl::Status GroupedMember::On(const wire::GroupOrder& order, Effects& effects) {
  if (order.step < step() || (order.step == step() && order.number < next_order_)) {
    return absl::OkStatus();
  }
  const auto found = by_id_.find(order.bucket);
  const bool known = found != by_id_.end() && !done_;
  if (!grouped() || IsAlone() || !known || order.step != step() || order.number != next_order_) {
    return Coded(ErrorCode::kBadAnswer,
                 absl::InternalError(absl::StrCat(
                     "the coordinator sent order ", order.number, " for bucket ", order.bucket,
                     " in step ", order.step, "; expected order ", next_order_, " in step ", step(),
                     ", for a bucket that is open here")));
  }
  Bucket& bucket = buckets_.at(found->second);
  // First to exchange it, then to gather it.
  if (bucket.orders != (order.gather ? 1 : 0)) {
    return Coded(ErrorCode::kBadAnswer,
                 absl::InternalError(absl::StrCat("the coordinator sent the order to ",
                                                  order.gather ? "gather" : "exchange", " bucket ",
                                                  order.bucket, " in step ", order.step, " after ",
                                                  bucket.orders, " other orders for it")));
  }
  ++bucket.orders;
  ++next_order_;
  tasks_.push_back({.ticket = found->second, .gather = order.gather});
  Advance(effects);
  return absl::OkStatus();
}

// ---- What the group does together

// One thing at a time, in order: all members of the group do the same.
void GroupedMember::Advance(Effects& effects) {
  if (busy_ || tasks_.empty()) return;
  const Task task = tasks_.front();
  if (task.gather && buckets_.at(task.ticket).open_shares > 0) return;  // its results come
  tasks_.pop_front();
  busy_ = true;
  if (task.gather) {
    effects.push_back(GatherEffect{.ticket = task.ticket});
  } else {
    effects.push_back(ExchangeEffect{.ticket = task.ticket});
  }
}

void GroupedMember::Exchanged(Ticket ticket, std::span<GradBucket* const> own, Effects& effects) {
  if (failed()) return;
  busy_ = false;
  Bucket& bucket = buckets_.at(ticket);
  bucket.exchanged = true;
  bucket.open_shares = own.size();
  std::size_t next = 0;
  for (const BucketShare& share : bucket.shares) {
    if (OwnerOf(share.share) != index_) continue;
    const Ticket inner_ticket = next_share_++;
    users_ticket_[inner_ticket] = ticket;
    Effects inner;
    const absl::Status started = member_->StartBucket(
        inner_ticket, *own[next++], inner, {.measure = bucket.measure, .share = share.share});
    // A share without elements may have its result at once.
    Take(inner, effects);
    if (!started.ok()) Fail(started, effects);
    if (failed()) return;
  }
  if (IsAlone() && IsActive(Mutant::kAloneGathersInTurn)) {
    tasks_.push_back({.ticket = ticket, .gather = true});
  }
  MaybeEnd(effects);
  Advance(effects);
}

void GroupedMember::Gathered(Ticket ticket, Effects& effects) {
  if (failed()) return;
  busy_ = false;
  const auto found = buckets_.find(ticket);
  const std::uint32_t id = found->second.parameters.front();
  by_id_.erase(id);
  buckets_.erase(found);
  effects.push_back(BucketDoneEffect{.ticket = ticket, .status = absl::OkStatus(), .bucket = id});
  MaybeEnd(effects);
  Advance(effects);
}

void GroupedMember::MaybeEnd(Effects& effects) {
  const bool all_exchanged = std::all_of(buckets_.begin(), buckets_.end(),
                                         [](const auto& entry) { return entry.second.exchanged; });
  const bool may_tell = all_exchanged || IsActive(Mutant::kEndToldEarly);
  if (ended_ && !told_ended_ && !done_ && may_tell) {
    told_ended_ = true;
    Effects inner;
    const absl::Status told = member_->EndStep(inner);
    Take(inner, effects);
    if (!told.ok()) return Fail(told, effects);
  }
  if (!buckets_.empty() && !IsActive(Mutant::kStepEndsBeforeGather)) return;
  if (prepared_) effects.push_back(*std::exchange(prepared_, std::nullopt));
  if (!done_) return;
  parameters_.Clear();
  ended_ = false;
  told_ended_ = false;
  effects.push_back(*std::exchange(done_, std::nullopt));
}

// ---- What the inner member asks for

void GroupedMember::Take(Effects& inner, Effects& effects) {
  // Shares of a step that is dropped have no results, although they are done.
  const bool drops = std::any_of(inner.begin(), inner.end(), [](const Effect& effect) {
    const auto* done = std::get_if<StepDoneEffect>(&effect);
    return done != nullptr && done->dropped;
  });
  if (drops) users_ticket_.clear();
  for (Effect& effect : inner) {
    std::visit([&](auto& one) { Pass(one, effects); }, effect);
  }
}

void GroupedMember::Pass(BucketDoneEffect& effect, Effects& effects) {
  if (!grouped()) return effects.push_back(std::move(effect));
  const auto found = users_ticket_.find(effect.ticket);
  if (found == users_ticket_.end() || !effect.status.ok()) return;  // FailedEffect ends the bucket
  const Ticket users_bucket = found->second;
  Bucket& bucket = buckets_.at(users_bucket);
  users_ticket_.erase(found);
  effects.push_back(ShareDoneEffect{.bucket = effect.bucket, .norms = effect.norms});
  if (--bucket.open_shares > 0) return;
  // Nobody orders it. Not before its results are here: the next exchange would wait behind it, and
  // the results perhaps for that.
  if (IsAlone() && !IsActive(Mutant::kAloneGathersInTurn)) {
    tasks_.push_back({.ticket = users_bucket, .gather = true});
  }
  Advance(effects);
}

// The inner member is in the next step now; the user's buckets may still be on their way through
// the group.
void GroupedMember::Pass(StepDoneEffect& effect, Effects& effects) {
  if (!grouped()) return effects.push_back(effect);
  if (effect.dropped) Drop(effects);
  if (effect.verdict == Verdict::kApply) ForgetShares();
  // A share of its own would be announced in the next step. One that has none of a bucket may hear
  // of the exchange's end later than those who have.
  for (const auto& [ticket, bucket] : buckets_) {
    const bool has_share =
        std::any_of(bucket.shares.begin(), bucket.shares.end(),
                    [this](const BucketShare& share) { return OwnerOf(share.share) == index_; });
    if (bucket.exchanged || !has_share) continue;
    return Fail(
        Coded(ErrorCode::kBadAnswer,
              absl::InternalError(absl::StrCat("the coordinator sent the end of step ", effect.step,
                                               " before all buckets were exchanged"))),
        effects);
  }
  next_order_ = 0;
  sent_ = false;
  prepared_.reset();
  done_ = effect;
  MaybeEnd(effects);
}

void GroupedMember::Pass(FailedEffect& effect, Effects& effects) {
  for (const auto& [ticket, bucket] : buckets_) {
    effects.push_back(BucketDoneEffect{
        .ticket = ticket, .status = effect.status, .bucket = bucket.parameters.front()});
  }
  buckets_.clear();
  by_id_.clear();
  users_ticket_.clear();
  tasks_.clear();
  done_.reset();
  prepared_.reset();
  effects.push_back(std::move(effect));
}

void GroupedMember::Pass(PreparedEffect& effect, Effects& effects) {
  prepared_ = effect;
  MaybeEnd(effects);
}

}  // namespace gradwire::client
