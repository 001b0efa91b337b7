#include "server/leaf/client_upstream.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_code.h"
#include "base/limits.h"
#include "base/sync.h"
#include "base/thread_name.h"
#include "client/member_client.h"

namespace gradwire::server {
namespace {

// One try to reach the root, which may start later. After each the session may have ended.
constexpr absl::Duration kTry = absl::Seconds(2);
// A try may fail at once.
constexpr std::chrono::milliseconds kBetweenTries(100);

// What the root and the other members call this leaf.
std::string HostName() {
  std::array<char, kMaxSessionNameBytes + 1> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "unknown";
  return name.data();
}

ClientOptions OptionsFor(const ServerOptions& daemon, const SessionOptions& session) {
  return {.address = daemon.upstream,
          .session = session.name,
          .rank = session.leaf.first,
          .world_size = session.world_size,
          .tls = {.ca = daemon.upstream_tls.ca,
                  .cert = daemon.upstream_tls.cert,
                  .key = daemon.upstream_tls.key},
          .token_file = daemon.upstream_token_file,
          .parameters = session.manifest.list(),
          .hook = session.leaf.hook,
          .node_group = "off",
          .connect_timeout = std::min(kTry, session.join_timeout),
          .join_timeout = session.join_timeout,
          .step_timeout = session.step_timeout,
          .on_wait = [name = session.name](const std::string& line) {
            spdlog::info("session {}: upstream: {}", name, line);
          }};
}

// Members behind the leaf number their collectives for themselves, and their hook counts no steps.
std::optional<wire::MembershipChange> ChangeOf(const client::MemberClient& client) {
  const auto change = client.membership_change();
  if (!change) return std::nullopt;
  return wire::MembershipChange{
      .newcomers = change->newcomers, .root = change->root, .ranks = change->members};
}

bool IsVoid(const absl::Status& status) {
  return FindCode(std::string(status.message())) == ErrorCode::kMembershipChanged;
}

// A broadcast whose root the session goes on without: for members at the root only an error of the
// call.
bool IsFromGone(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) &&
         FindCode(std::string(status.message())) == ErrorCode::kCollective;
}

// Its thread joins, waits for the end, and ends the membership.
class ClientUpstream final : public Upstream {
 public:
  ClientUpstream(ClientOptions options, client::LeafWish wish)
      : options_(std::move(options)), wish_(std::move(wish)) {}
  ~ClientUpstream() override {
    End(Coded(ErrorCode::kClosed, absl::CancelledError("the leaf's session is gone")), -1);
    if (thread_.joinable()) thread_.join();
  }

  void Join(Events events) override {
    events_ = std::move(events);
    thread_ = std::thread([this] { Run(); });
  }

  // A call that the session's end refuses has no answer; one that is refused otherwise ends the
  // session.
  void AllReduce(const GradBucket& bucket, std::function<void()> done) override {
    GradBucket own = bucket;
    client_->AllReduce(own, nullptr)
        .OnDone([this, client = client_.get(), done](const absl::Status& status) {
          if (Went(*client, status)) done();
        });
  }
  void CheckParameters(std::uint64_t digest) override {
    if (const auto status = client_->CheckParameters(digest); !status.ok()) Went(*client_, status);
  }
  void EndStep(std::function<void(const UpstreamConclusion&)> done) override {
    client_->EndStep([this, client = client_.get(), done](const absl::StatusOr<Verdict>& verdict) {
      if (!Went(*client, verdict.status())) return;
      done({.verdict = *verdict,
            .reason = client->skip_reason(),
            .drift = client->parameter_drift(),
            .change = *verdict == Verdict::kSkip ? ChangeOf(*client) : std::nullopt});
    });
  }
  void Barrier(Progress progress) override {
    client_->Barrier([this, client = client_.get(), progress](const absl::Status& status) {
      if (IsVoid(status)) return progress({.what = UpstreamProgress::What::kVoid});
      if (Went(*client, status)) progress({});
    });
  }
  void Broadcast(int root, std::uint64_t bytes, std::uint64_t room, Progress progress) override {
    using What = UpstreamProgress::What;
    client_->Relay(
        {.root = root,
         .bytes = bytes,
         .room = room,
         .began = [progress] { progress({}); },
         .came =
             [progress](const wire::PayloadRef& came) {
               progress({.what = What::kBytes, .payload = came});
             },
         .taken =
             [progress](std::uint64_t taken) { progress({.what = What::kTaken, .taken = taken}); }},
        [this, client = client_.get(), progress](const absl::Status& status) {
          if (IsVoid(status) || IsFromGone(status)) return progress({.what = What::kVoid});
          Went(*client, status);
        });
  }
  void Give(const wire::PayloadRef& bytes) override { client_->Give(bytes); }
  void MakeRoom(std::uint64_t bytes) override { client_->MakeRoom(bytes); }

  void End(const absl::Status& why, int blamed_rank) override {
    MutexLock lock(mutex_);
    if (end_) return;
    end_ = {why, blamed_rank};
    ended_.NotifyAll();
  }

 private:
  bool Went(client::MemberClient& client, const absl::Status& status) const {
    if (!status.ok()) Tell(client, status, -1);
    return status.ok();
  }

  void Tell(client::MemberClient& client, const absl::Status& why, int blamed_rank) const {
    const LeafPlace leaf{.first = options_.rank, .members = wish_.ranks};
    const LeafEnd end = EndOfLeaf(leaf, wish_.name, options_.session, why, blamed_rank);
    client.FailElsewhere(end.why, end.blamed_rank);
  }

  void Run() {
    NameThread("gradwire-leaf");
    auto placed = Place();
    if (!placed.ok()) return events_.failed(About(placed.status()), -1);
    client_ = *std::move(placed);
    client_->Start()->OnDone([this](const absl::Status& started) {
      // Else `failed` says so.
      if (started.ok()) events_.joined({.step = client_->step(), .change = ChangeOf(*client_)});
    });
    const auto [why, blamed_rank] = AwaitEnd();
    // The destructor leaves where the session still is.
    if (!why.ok()) Tell(*client_, why, blamed_rank);
    client_.reset();
  }

  // Until the root answers, or all members would have joined, or nobody waits any more.
  absl::StatusOr<std::unique_ptr<client::MemberClient>> Place() {
    const absl::Time deadline = absl::Now() + options_.join_timeout;
    while (true) {
      auto placed = client::PlaceLeaf(options_, {.wish = wish_, .failed = events_.failed});
      events_.waits(placed.ok() ? "" : std::string(placed.status().message()));
      if (placed.ok() || absl::Now() > deadline) return placed;
      const absl::StatusCode code = placed.status().code();
      const bool no_answer =
          code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded;
      if (!no_answer || EndsWithin(kBetweenTries)) return placed;
    }
  }

  bool EndsWithin(std::chrono::milliseconds time) GRADWIRE_EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    MutexLock lock(mutex_);
    while (!end_ && ended_.WaitUntil(mutex_, deadline)) {
    }
    return end_.has_value();
  }

  absl::Status About(const absl::Status& status) const {
    return absl::Status(status.code(),
                        absl::StrCat("upstream ", options_.address, ": ", status.message()));
  }

  // Every session ends, by its own timeouts at the latest.
  std::pair<absl::Status, int> AwaitEnd() GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!end_) ended_.Wait(mutex_);
    return *end_;
  }

  const ClientOptions options_;
  const client::LeafWish wish_;
  Events events_;
  std::unique_ptr<client::MemberClient> client_;  // from before `joined` on, until End
  std::thread thread_;
  Mutex mutex_;
  CondVar ended_;
  std::optional<std::pair<absl::Status, int>> end_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace

std::function<std::unique_ptr<Upstream>(const SessionOptions&)> ClientUpstreams(
    const ServerOptions& options) {
  return [options, name = HostName()](const SessionOptions& session) {
    return std::make_unique<ClientUpstream>(
        OptionsFor(options, session),
        client::LeafWish{.ranks = session.leaf.members, .name = name});
  };
}

}  // namespace gradwire::server
