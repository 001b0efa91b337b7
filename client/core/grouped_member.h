// A member together with its node group: calls and frames in, effects out, as Member, which does
// the step protocol.
//
// In a session with node groups a bucket goes this way: all of the group have it; each member adds
// up its shares for all (ExchangeEffect); these go through the hook to the coordinator as buckets
// of their own, one contribution for each group; and all members get all results (GatherEffect).
// The group does these things together, in an order that the coordinator gives; a member that is
// alone in its group needs none.
//
// The hook sees as many contributors as there are groups, and gradients x = S * groups / members,
// where S is the group's sum in the order of ranks: so the mean over the groups is the mean over
// all members, of groups of any size. Residuals are those of x; where the session goes on without
// some members, shares change hands, and the residual of one stays with who had it, for the next
// time that it has it, as x was weighted then. In a session without node groups
// this class only passes on; in one with leaf daemons it tells the hook how many contribute.
//
// In a session that outlives its daemon a member is READY when it has everything, gathered: nobody
// could order a gathering that the lost daemon has not. The group connects anew with each daemon,
// and a step of which anything was sent is never finished with another one (server/core/
// gathering.h): what its group has added up or gathered of it is nobody's.
//
// Not thread-safe. Failure: as Member.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/core/bucket_shares.h"
#include "client/core/effects.h"
#include "client/core/member_options.h"
#include "client/core/step_parameters.h"
#include "hooks/draw_buckets.h"
#include "proto/wire/member_report.h"

namespace gradwire::client {

class Member;
class MemberCollectives;

class GroupedMember {
 public:
  // `hook` outlives the member. `whole_buckets`: it cannot do with parts of a bucket.
  GroupedMember(const MemberOptions& options, Hook* hook, bool whole_buckets);
  ~GroupedMember();

  GroupedMember(const GroupedMember&) = delete;
  GroupedMember& operator=(const GroupedMember&) = delete;

  // The daemon is a leaf: the hook's contributors are the `members` of this node, of which this is
  // number `index`. Before everything else.
  void SetNode(int index, int members);

  // ---- As Member's. The step ends when its buckets have their results from the group.
  absl::Status StartBucket(Ticket ticket, GradBucket& bucket, Effects& effects,
                           bool measure = false);
  void SendAhead(std::uint32_t id);
  void Expose(std::uint32_t id);
  std::optional<std::uint32_t> BucketId(const GradBucket& bucket) const;
  absl::Status EndStep(Effects& effects);
  absl::Status CheckParameters(std::uint64_t digest, Effects& effects);
  absl::Status SetDrawPlan(const DrawBuckets& buckets, Effects& effects);
  absl::StatusOr<std::uint64_t> Enter(wire::CollectiveKind kind, int root, std::size_t bytes,
                                      Effects& effects);
  MemberCollectives& collectives();
  void Receive(const wire::Frame& frame, Effects& effects);
  void Resumed(Effects& effects);
  wire::MemberReport Report() const;
  void Rejoined(std::uint64_t generation, Effects& effects);
  std::int64_t steps_reduced_again() const;
  absl::StatusOr<bool> TakePast(std::int64_t step, const GradBucket& bucket);
  absl::Status EndPast(std::int64_t step);
  bool HasBegunPast(std::int64_t step) const;
  void SetLossScale(double scale);
  void DropLate();
  bool has_late() const;
  std::int64_t missed_steps() const;
  bool outlives_daemon() const;
  std::uint64_t lineage() const;
  bool shrinks() const;
  bool awaits_welcome() const;
  void SetWindow(std::uint32_t chunks);
  bool has_chunks() const;
  void SendNext(Effects& effects);
  void SayReady(Verdict verdict, std::uint64_t digest, Effects& effects);
  void ConcludeAs(const StepDoneEffect& lead, Effects& effects);
  void AskToGather(std::uint32_t lost_shard, Effects& effects);
  void HandOver(std::uint64_t id, std::vector<std::byte> file, Effects& effects);
  int CancelHandOver();
  void SetLeaving(bool leaving);
  void FailElsewhere(const absl::Status& status, int blamed_rank, Effects& effects);
  void Fail(const absl::Status& status, Effects& effects);
  // Of the protocol, which may be ahead of the user's.
  std::int64_t step() const;
  bool failed() const { return !failure().ok(); }
  const absl::Status& failure() const;
  std::string Progress() const;
  // As Member's.
  absl::Status WithOutcome(absl::Status status) const;

  // ---- Node groups
  // Whether the session has some. Known with the WelcomeEffect.
  bool grouped() const { return group_.has_value(); }
  const std::optional<wire::NodeGroup>& group() const { return group_; }
  // In a session with leaf daemons: how many contribute. 0: it has none. Known with the
  // WelcomeEffect.
  std::uint32_t leaf_groups() const { return leaf_groups_; }
  // And for how many ranks together, also with node groups. Both may change with each Welcome of a
  // further daemon.
  int members() const { return members_; }
  // This member's position in its group.
  std::size_t index() const { return index_; }
  // The position of the member that has a share.
  std::size_t OwnerOf(std::uint32_t share) const { return owners_[share]; }
  // How the bucket of an ExchangeEffect or a GatherEffect is divided.
  const std::vector<BucketShare>& SharesOf(Ticket ticket) const {
    return buckets_.at(ticket).shares;
  }
  GradBucket& BucketOf(Ticket ticket) { return *buckets_.at(ticket).bucket; }

  // Answers. `own`: this member's shares of the bucket, in the order of SharesOf. They stay valid
  // until the StepDoneEffect.
  void NameGroup(const std::string& id, Effects& effects);
  void Exchanged(Ticket ticket, std::span<GradBucket* const> own, Effects& effects);
  void Gathered(Ticket ticket, Effects& effects);

 private:
  struct Bucket {
    GradBucket* bucket = nullptr;
    std::vector<std::uint32_t> parameters;
    std::vector<BucketShare> shares;
    bool measure = false;
    int orders = 0;  // to exchange it, which a member alone does untold, and then to gather it
    bool exchanged = false;
    std::size_t open_shares = 0;  // of this member, without their results
  };
  struct Task {
    Ticket ticket = 0;
    bool gather = false;
  };

  // Passes on what the inner member asks for.
  void Take(Effects& inner, Effects& effects);
  void Pass(BucketDoneEffect& effect, Effects& effects);
  void Pass(StepDoneEffect& effect, Effects& effects);
  void Pass(FailedEffect& effect, Effects& effects);
  void Pass(PreparedEffect& effect, Effects& effects);
  template <class Other>
  void Pass(Other& effect, Effects& effects) {
    effects.push_back(std::move(effect));
  }

  absl::Status On(const wire::GroupOrder& order, Effects& effects);
  absl::Status On(const wire::GroupId& id, Effects& effects);
  absl::Status On(const wire::Welcome& welcome, Effects& effects);
  absl::Status Join(const wire::NodeGroup& group);
  // ---- With a further daemon (grouped_member_rejoin.cc)
  // Notes which parameters have gone to other members, and which have come back in time.
  void NoteShares(std::span<const std::size_t> owners_before, std::size_t index_before);
  // A step was applied.
  void ForgetShares();
  absl::Status CheckSamePlace(const wire::Welcome& welcome) const;
  void GoOn(Effects& effects);
  // The step was dropped: its buckets are done, with whatever is in them.
  void Drop(Effects& effects);
  void Connect(const std::string& id, Effects& effects);
  wire::GroupBucket FrameOf(const Bucket& bucket) const;
  // Alone the member exchanges it, in its own order; with others when the coordinator says so,
  // which is told of it.
  void Begin(Ticket ticket, Bucket& bucket, Effects& effects);
  bool IsAlone() const { return group_->ranks.size() == 1; }
  // A step whose results are not all here yet is behind the protocol's.
  std::int64_t users_step() const { return step() - (done_ ? 1 : 0); }
  // Begins the next task that can begin.
  void Advance(Effects& effects);
  // What waits for the buckets: the end of this member's part, and the step's.
  void MaybeEnd(Effects& effects);

  MemberOptions options_;  // another daemon changes the generation
  Hook* const hook_;
  const bool whole_buckets_;
  const std::unique_ptr<Member> member_;
  bool behind_leaf_ = false;
  StepParameters parameters_;
  std::uint32_t leaf_groups_ = 0;
  int members_ = 0;
  std::optional<wire::NodeGroup> group_;
  std::optional<ShareMap> shares_;
  std::vector<std::size_t> owners_;  // by share, in the group
  std::set<std::string> leaving_;    // parameters of shares that were this member's
  std::size_t index_ = 0;
  std::string id_;  // of the group's communicator; empty: not known yet
  bool welcomed_ = false;

  // ---- Of the user's step
  std::map<Ticket, Bucket> buckets_;       // without their results
  std::map<std::uint32_t, Ticket> by_id_;  // of buckets_
  std::map<Ticket, Ticket> users_ticket_;  // by the inner member's
  Ticket next_share_ = 1;
  bool ended_ = false;                      // by the user
  bool told_ended_ = false;                 // and by the inner member
  std::optional<StepDoneEffect> done_;      // waits for the group's results
  std::optional<PreparedEffect> prepared_;  // the same, where the session outlives its daemon

  // ---- Of the protocol's step
  std::uint32_t next_order_ = 0;
  std::deque<Task> tasks_;
  bool busy_ = false;  // an answer is to come
  bool sent_ = false;  // something of it, to any daemon
};

}  // namespace gradwire::client
