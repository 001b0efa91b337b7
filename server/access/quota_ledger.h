// Counts what identities and sessions use of the daemon, and refuses what is above their quotas.
// (session/quota.h counts descriptors and mappings of shared memory; it has nothing to do with
// this.)
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/sync.h"
#include "server/access/quota_limits.h"

namespace gradwire::server {

// Whose quota a use counts against.
struct QuotaHolder {
  std::string name = {};                // printable; in the refusals
  std::optional<QuotaLimits> own = {};  // of its line of the tokens file: instead of the default
};

// Thread-safe; its lock is a leaf. Knows no clock: time is handed in. A lower limit takes nothing
// from those who use more, who get no more until they use less.
//
// An identity without any use is forgotten after kJoinBurst; a session at once.
class QuotaLedger : public std::enable_shared_from_this<QuotaLedger> {
 public:
  // By QuotaKind; kJoins is not counted.
  using Amounts = std::array<std::uint64_t, kQuotaKinds>;

  // What somebody uses; its destructor returns it. Movable; not thread-safe.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept
        : ledger_(std::move(other.ledger_)),
          identity_(std::move(other.identity_)),
          session_(std::move(other.session_)),
          amounts_(other.amounts_) {}
    Use& operator=(Use&& other) noexcept;
    ~Use();

    bool held() const { return ledger_ != nullptr; }

   private:
    friend class QuotaLedger;
    std::shared_ptr<QuotaLedger> ledger_;  // null: of nothing
    std::string identity_;
    std::string session_;
    Amounts amounts_{};
  };
  // What a new session uses: the first until it has ended, the second until its memory is free.
  struct Begun {
    Use session;
    Use memory;
  };

  // A bucket for joins holds what comes in this time.
  static constexpr absl::Duration kJoinBurst = absl::Seconds(10);
  static constexpr std::size_t kMostIdentities = std::size_t{1} << 16;

  static std::shared_ptr<QuotaLedger> Make();

  // What counts from the next call on.
  void SetLimits(const QuotaLimits& identity, const QuotaLimits& session) GRADWIRE_EXCLUDES(mutex_);

  // All of these refuse with ResourceExhausted, which says whose quota, what it has, the limit, and
  // what to do; then nothing has changed but the count of refusals.

  // A join of this identity, and to this session, has come.
  absl::Status AdmitJoin(const QuotaHolder& holder, absl::Time now) GRADWIRE_EXCLUDES(mutex_);
  absl::Status AdmitJoinTo(const std::string& session, absl::Time now) GRADWIRE_EXCLUDES(mutex_);
  // The holder begins a session that reserves `bytes`.
  absl::StatusOr<Begun> BeginSession(const QuotaHolder& holder, const std::string& session,
                                     std::uint64_t bytes) GRADWIRE_EXCLUDES(mutex_);
  // The same without taking anything: for a refusal before a session costs memory.
  absl::Status CheckBegin(const QuotaHolder& holder, const std::string& session,
                          std::uint64_t bytes) GRADWIRE_EXCLUDES(mutex_);
  // Whether it would refuse now; not counted as a refusal.
  bool MayBegin(const QuotaHolder& holder, const std::string& session, std::uint64_t bytes) const
      GRADWIRE_EXCLUDES(mutex_);
  // A member with its stream.
  absl::StatusOr<Use> AddMember(const QuotaHolder& holder, const std::string& session)
      GRADWIRE_EXCLUDES(mutex_);
  // A member's bulk lane, if that leaves `spare` streams for members that have not joined yet.
  // Not counted as a refusal: a member does without it.
  std::optional<Use> AddLane(const QuotaHolder& holder, const std::string& session,
                             std::uint64_t spare) GRADWIRE_EXCLUDES(mutex_);

  // Time passes.
  void Tick(absl::Time now) GRADWIRE_EXCLUDES(mutex_);

  std::uint64_t refusals(QuotaKind kind) const {
    return refusals_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
  }
  // Of an identity, or a session.
  Amounts used_by(const std::string& identity) const GRADWIRE_EXCLUDES(mutex_);
  Amounts used_in(const std::string& session) const GRADWIRE_EXCLUDES(mutex_);
  std::size_t identities() const GRADWIRE_EXCLUDES(mutex_);
  std::size_t sessions() const GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Account {
    Amounts used{};
    std::optional<double> tokens{};  // for joins; none: no join was limited yet
    absl::Time drawn = absl::InfinitePast();

    bool empty() const { return used == Amounts{}; }
  };
  using Accounts = std::unordered_map<std::string, Account>;
  struct Refusal {
    QuotaKind kind;
    absl::Status status;
  };

  QuotaLedger() = default;
  QuotaLimits LimitsOf(const QuotaHolder& holder) const GRADWIRE_REQUIRES(mutex_);
  std::optional<Refusal> Check(const QuotaHolder& holder, const std::string& session,
                               const Amounts& more) const GRADWIRE_REQUIRES(mutex_);
  std::optional<Refusal> CheckPlace(const std::string& identity, QuotaKind kind) const
      GRADWIRE_REQUIRES(mutex_);
  Use Take(const QuotaHolder& holder, const std::string& session, const Amounts& more)
      GRADWIRE_REQUIRES(mutex_);
  absl::Status Refuse(Refusal refusal);
  void Return(const Use& use) GRADWIRE_EXCLUDES(mutex_);

  std::array<std::atomic<std::uint64_t>, kQuotaKinds> refusals_{};
  mutable Mutex mutex_;
  QuotaLimits identity_limits_ GRADWIRE_GUARDED_BY(mutex_);
  QuotaLimits session_limits_ GRADWIRE_GUARDED_BY(mutex_);
  Accounts identities_ GRADWIRE_GUARDED_BY(mutex_);
  Accounts sessions_ GRADWIRE_GUARDED_BY(mutex_);
  absl::Time forgot_ GRADWIRE_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace gradwire::server
