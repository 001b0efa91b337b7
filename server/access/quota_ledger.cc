#include "server/access/quota_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/printable.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kShownBytes = 128;
// Forgetting looks at every identity.
constexpr absl::Duration kForgetInterval = absl::Seconds(1);

std::size_t At(QuotaKind kind) { return static_cast<std::size_t>(kind); }

QuotaLedger::Amounts Of(QuotaKind kind, std::uint64_t amount) {
  QuotaLedger::Amounts amounts{};
  amounts[At(kind)] = amount;
  return amounts;
}

QuotaLedger::Amounts Beginning(std::uint64_t bytes) {
  QuotaLedger::Amounts amounts = Of(QuotaKind::kSessions, 1);
  amounts[At(QuotaKind::kMemory)] = bytes;
  return amounts;
}

std::string SessionName(const std::string& session) {
  return absl::StrCat("session \"", Printable(session.substr(0, kShownBytes)), "\"");
}

// Where an identity's limit can be raised.
std::string PlaceOf(const QuotaHolder& holder) {
  return holder.own ? "its line of the tokens file" : "identity_quota";
}

const char* Remedy(QuotaKind kind) {
  switch (kind) {
    case QuotaKind::kSessions:
    case QuotaKind::kMemory:
      return "end one";
    case QuotaKind::kMembers:
    case QuotaKind::kStreams:
      return "wait until a member leaves";
    case QuotaKind::kJoins:
      return "try again later";
  }
  return "";
}

absl::Status TooMuch(const std::string& whose, QuotaKind kind, std::uint64_t used,
                     std::uint64_t more, std::uint64_t limit, const std::string& place) {
  const std::string what = kind == QuotaKind::kMemory
                               ? absl::StrCat(" has sessions that reserve ", used, " of ", limit,
                                              " bytes, and another would reserve ", more, "; ")
                               : absl::StrCat(" has ", used, " of ", limit, " ", Name(kind), "; ");
  return Coded(ErrorCode::kOwnQuota,
               absl::ResourceExhaustedError(absl::StrCat(whose, what, Remedy(kind), ", or raise ",
                                                         Name(kind), "= in ", place)));
}

absl::Status TooOften(const std::string& whose, std::uint64_t limit, const std::string& place) {
  return Coded(ErrorCode::kOwnQuota,
               absl::ResourceExhaustedError(
                   absl::StrCat(whose, " has joins faster than its ", limit, " a second; ",
                                Remedy(QuotaKind::kJoins), ", or raise joins= in ", place)));
}

bool Exceeds(std::uint64_t used, std::uint64_t more, std::uint64_t limit) {
  return more > 0 && more > limit - std::min(used, limit);
}

// False: the bucket is empty. A bucket begins full.
bool Draw(std::uint64_t rate, absl::Time now, std::optional<double>& tokens, absl::Time& drawn) {
  const double per_second = static_cast<double>(rate);
  const double most = per_second * absl::ToDoubleSeconds(QuotaLedger::kJoinBurst);
  const double passed =
      tokens ? std::max(absl::ToDoubleSeconds(now - drawn), 0.0) * per_second : most;
  const double there = std::min(most, tokens.value_or(0) + passed);
  drawn = now;
  tokens = there < 1 ? there : there - 1;
  return there >= 1;
}

}  // namespace

QuotaLedger::Use& QuotaLedger::Use::operator=(Use&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(identity_, other.identity_);
  std::swap(session_, other.session_);
  std::swap(amounts_, other.amounts_);
  return *this;
}

QuotaLedger::Use::~Use() {
  if (ledger_ != nullptr) ledger_->Return(*this);
}

std::shared_ptr<QuotaLedger> QuotaLedger::Make() {
  return std::shared_ptr<QuotaLedger>(new QuotaLedger());
}

void QuotaLedger::SetLimits(const QuotaLimits& identity, const QuotaLimits& session) {
  MutexLock lock(mutex_);
  identity_limits_ = identity;
  session_limits_ = session;
}

QuotaLimits QuotaLedger::LimitsOf(const QuotaHolder& holder) const {
  return holder.own.value_or(identity_limits_);
}

absl::Status QuotaLedger::Refuse(Refusal refusal) {
  refusals_[At(refusal.kind)].fetch_add(1, std::memory_order_relaxed);
  return std::move(refusal.status);
}

// The table is bounded: with certificates enough, peers choose the names in it.
std::optional<QuotaLedger::Refusal> QuotaLedger::CheckPlace(const std::string& identity,
                                                            QuotaKind kind) const {
  if (identities_.size() < kMostIdentities || identities_.contains(identity)) return std::nullopt;
  return Refusal{
      .kind = kind,
      .status = Coded(ErrorCode::kOwnQuota, absl::ResourceExhaustedError(absl::StrCat(
                                                identity, " is one identity too many; allowed are ",
                                                kMostIdentities, " at a time; try again later")))};
}

absl::Status QuotaLedger::AdmitJoin(const QuotaHolder& holder, absl::Time now) {
  MutexLock lock(mutex_);
  const std::uint64_t rate = LimitsOf(holder).of(QuotaKind::kJoins);
  if (rate == kNoQuota) return absl::OkStatus();
  if (auto refusal = CheckPlace(holder.name, QuotaKind::kJoins)) {
    return Refuse(*std::move(refusal));
  }
  Account& account = identities_[holder.name];
  if (Draw(rate, now, account.tokens, account.drawn)) return absl::OkStatus();
  return Refuse(
      {.kind = QuotaKind::kJoins, .status = TooOften(holder.name, rate, PlaceOf(holder))});
}

// A session that does not exist has no bucket: its first join begins it.
absl::Status QuotaLedger::AdmitJoinTo(const std::string& session, absl::Time now) {
  MutexLock lock(mutex_);
  const std::uint64_t rate = session_limits_.of(QuotaKind::kJoins);
  const auto found = sessions_.find(session);
  if (rate == kNoQuota || found == sessions_.end() ||
      Draw(rate, now, found->second.tokens, found->second.drawn)) {
    return absl::OkStatus();
  }
  return Refuse(
      {.kind = QuotaKind::kJoins, .status = TooOften(SessionName(session), rate, "session_quota")});
}

std::optional<QuotaLedger::Refusal> QuotaLedger::Check(const QuotaHolder& holder,
                                                       const std::string& session,
                                                       const Amounts& more) const {
  if (auto refusal = CheckPlace(holder.name, QuotaKind::kMembers)) return refusal;
  const auto identity = identities_.find(holder.name);
  const auto in = sessions_.find(session);
  const QuotaLimits own = LimitsOf(holder);
  for (std::size_t i = 0; i < kQuotaKinds; ++i) {
    const auto kind = static_cast<QuotaKind>(i);
    const std::uint64_t used = identity == identities_.end() ? 0 : identity->second.used[i];
    if (Exceeds(used, more[i], own.of(kind))) {
      return Refusal{
          .kind = kind,
          .status = TooMuch(holder.name, kind, used, more[i], own.of(kind), PlaceOf(holder))};
    }
    const std::uint64_t used_in = in == sessions_.end() ? 0 : in->second.used[i];
    const std::uint64_t limit = session_limits_.of(kind);
    // The memory of an ended session of this name does not count against the next one.
    if (kind == QuotaKind::kMemory && Exceeds(0, more[i], limit)) {
      return Refusal{
          .kind = kind,
          .status = Coded(ErrorCode::kOwnQuota,
                          absl::ResourceExhaustedError(absl::StrCat(
                              SessionName(session), " would reserve ", more[i], " of ", limit,
                              " bytes; use fewer members or a smaller window, or raise memory= in "
                              "session_quota")))};
    }
    if (kind != QuotaKind::kMemory && Exceeds(used_in, more[i], limit)) {
      return Refusal{
          .kind = kind,
          .status = TooMuch(SessionName(session), kind, used_in, more[i], limit, "session_quota")};
    }
  }
  return std::nullopt;
}

QuotaLedger::Use QuotaLedger::Take(const QuotaHolder& holder, const std::string& session,
                                   const Amounts& more) {
  if (more == Amounts{}) return {};  // an account lives as long as something in it is used
  Account& identity = identities_[holder.name];
  Account& in = sessions_[session];
  for (std::size_t i = 0; i < kQuotaKinds; ++i) {
    identity.used[i] += more[i];
    in.used[i] += more[i];
  }
  Use use;
  use.ledger_ = shared_from_this();
  use.identity_ = holder.name;
  use.session_ = session;
  use.amounts_ = more;
  return use;
}

void QuotaLedger::Return(const Use& use) {
  MutexLock lock(mutex_);
  const auto identity = identities_.find(use.identity_);
  const auto in = sessions_.find(use.session_);
  for (std::size_t i = 0; i < kQuotaKinds; ++i) {
    identity->second.used[i] -= use.amounts_[i];
    in->second.used[i] -= use.amounts_[i];
  }
  if (in->second.empty()) sessions_.erase(in);
  // One that has drawn joins is kept until its bucket is full again.
  if (identity->second.empty() && !identity->second.tokens) identities_.erase(identity);
}

bool QuotaLedger::MayBegin(const QuotaHolder& holder, const std::string& session,
                           std::uint64_t bytes) const {
  MutexLock lock(mutex_);
  return !Check(holder, session, Beginning(bytes));
}

absl::Status QuotaLedger::CheckBegin(const QuotaHolder& holder, const std::string& session,
                                     std::uint64_t bytes) {
  MutexLock lock(mutex_);
  if (auto refusal = Check(holder, session, Beginning(bytes))) return Refuse(*std::move(refusal));
  return absl::OkStatus();
}

absl::StatusOr<QuotaLedger::Begun> QuotaLedger::BeginSession(const QuotaHolder& holder,
                                                             const std::string& session,
                                                             std::uint64_t bytes) {
  MutexLock lock(mutex_);
  if (auto refusal = Check(holder, session, Beginning(bytes))) return Refuse(*std::move(refusal));
  return Begun{.session = Take(holder, session, Of(QuotaKind::kSessions, 1)),
               .memory = Take(holder, session, Of(QuotaKind::kMemory, bytes))};
}

absl::StatusOr<QuotaLedger::Use> QuotaLedger::AddMember(const QuotaHolder& holder,
                                                        const std::string& session) {
  Amounts more = Of(QuotaKind::kMembers, 1);
  more[At(QuotaKind::kStreams)] = 1;
  MutexLock lock(mutex_);
  if (auto refusal = Check(holder, session, more)) return Refuse(*std::move(refusal));
  return Take(holder, session, more);
}

std::optional<QuotaLedger::Use> QuotaLedger::AddLane(const QuotaHolder& holder,
                                                     const std::string& session,
                                                     std::uint64_t spare) {
  MutexLock lock(mutex_);
  if (Check(holder, session, Of(QuotaKind::kStreams, 1 + spare))) return std::nullopt;
  return Take(holder, session, Of(QuotaKind::kStreams, 1));
}

void QuotaLedger::Tick(absl::Time now) {
  MutexLock lock(mutex_);
  if (now < forgot_ + kForgetInterval) return;
  forgot_ = now;
  std::erase_if(identities_, [&](const auto& one) {
    return one.second.empty() && now >= one.second.drawn + kJoinBurst;
  });
}

QuotaLedger::Amounts QuotaLedger::used_by(const std::string& identity) const {
  MutexLock lock(mutex_);
  const auto found = identities_.find(identity);
  return found == identities_.end() ? Amounts{} : found->second.used;
}

QuotaLedger::Amounts QuotaLedger::used_in(const std::string& session) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? Amounts{} : found->second.used;
}

std::size_t QuotaLedger::identities() const {
  MutexLock lock(mutex_);
  return identities_.size();
}

std::size_t QuotaLedger::sessions() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

}  // namespace gradwire::server
