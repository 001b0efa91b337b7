#include "client/transport/stream.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "client/transport/channel.h"
#include "gtest/gtest.h"

namespace gradwire::client {
namespace {

constexpr std::chrono::seconds kLong(20);

// Does with the stream what a test says, until it ended.
// To an address where nobody listens.
std::shared_ptr<grpc::Channel> NoChannel() {
  return Dialer::Make("unix:/nonexistent/socket", {})->Dial();
}

class Owner final : public EventHandler {
 public:
  void Handle(Event event, const ReadOn&) override {
    if (std::holds_alternative<ReadEndEvent>(event)) {
      ++read_ends;
      if (release_at_read_end) stream->Release();
    }
    if (const auto* write = std::get_if<WriteEvent>(&event)) written = write->ok;
    if (const auto* end = std::get_if<StreamEndEvent>(&event)) ended = end->status;
  }
  bool has_work() const override { return false; }
  void DoWork() override {}
  Clock::time_point OnIdle() override { return finished() ? Clock::now() : Clock::now() + kLong; }
  void OnTimer(Clock::time_point, Clock::duration) override {
    if (!finished()) overdue = true;
  }
  bool finished() const override { return ended.has_value() || overdue; }

  std::shared_ptr<ExchangeStream> stream;
  bool release_at_read_end = true;
  int read_ends = 0;
  std::optional<bool> written;
  std::optional<absl::Status> ended;
  bool overdue = false;
};

class StreamTest : public ::testing::Test {
 protected:
  // Nobody listens there.
  std::shared_ptr<ExchangeStream> Start() {
    return ExchangeStream::Start(NoChannel(), poller_, events_, {.max_payload_bytes = 1024});
  }

  std::shared_ptr<Poller> poller_ = Poller::Start();
  std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>(4);
  Owner owner_;
};

TEST_F(StreamTest, WithoutADaemonTheWriteFailsAndTheStreamEndsOnceReleased) {
  owner_.stream = Start();
  owner_.stream->Write({{.header = wire::Heartbeat{}, .payload = nullptr}});
  events_->Serve(owner_);
  ASSERT_FALSE(owner_.overdue);
  EXPECT_EQ(owner_.ended->code(), absl::StatusCode::kUnavailable) << *owner_.ended;
  EXPECT_EQ(owner_.written, false);
  EXPECT_EQ(owner_.read_ends, 1);
}

TEST_F(StreamTest, CancelledBeforeItsFirstWriteItEnds) {
  owner_.stream = Start();
  owner_.stream->Cancel();
  owner_.stream->Cancel();
  events_->Serve(owner_);
  ASSERT_FALSE(owner_.overdue);
  EXPECT_EQ(owner_.ended->code(), absl::StatusCode::kCancelled) << *owner_.ended;
  EXPECT_FALSE(owner_.written.has_value());
}

TEST_F(StreamTest, ManyOnOneQueueEndByThemselves) {
  constexpr int kStreams = 50;
  for (int i = 0; i < kStreams; ++i) {
    Owner owner;
    auto events = std::make_shared<EventQueue>(4);
    owner.stream = ExchangeStream::Start(NoChannel(), poller_, events, {.max_payload_bytes = 1});
    owner.stream->Write({{.header = wire::Heartbeat{}, .payload = nullptr}});
    owner.release_at_read_end = i % 2 == 0;
    if (i % 2 == 1) owner.stream->Cancel();
    events->Serve(owner);
    ASSERT_FALSE(owner.overdue) << "stream " << i;
    ASSERT_FALSE(owner.ended->ok());
  }
}

}  // namespace
}  // namespace gradwire::client
