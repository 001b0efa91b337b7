// The callback API.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "tests/bench/grpc_transfer.h"

namespace gradwire::bench {
namespace {

class ServerStream : public grpc::ServerGenericBidiReactor {
 public:
  explicit ServerStream(std::size_t acknowledge_every) : answers_(acknowledge_every) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) {
      ended_ = true;
      if (!writing_) Finish(grpc::Status::OK);
      return;
    }
    grpc::ByteBuffer answer;
    if (answers_.Answer(incoming_, answer)) waiting_.push_back(answer);
    StartRead(&incoming_);
    Pump();
  }
  void OnWriteDone(bool) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    Pump();
    if (ended_ && !writing_) Finish(grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  void Pump() {
    if (writing_ || waiting_.empty() || ended_) return;
    outgoing_ = waiting_.front();
    waiting_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  }

  std::mutex mutex_;
  Answers answers_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::deque<grpc::ByteBuffer> waiting_;
  bool writing_ = false;
  bool ended_ = false;
};

class CallbackService : public StreamService, private grpc::CallbackGenericService {
 public:
  explicit CallbackService(std::size_t acknowledge_every) : acknowledge_every_(acknowledge_every) {}

  void Register(grpc::ServerBuilder& builder) override {
    builder.RegisterCallbackGenericService(this);
  }
  void Start() override {}
  void Stop() override {}

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new ServerStream(acknowledge_every_);  // deletes itself in OnDone
  }

  const std::size_t acknowledge_every_;
};

class ClientStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, const StreamPlan& plan)
      : stub_(channel), transfer_(plan) {
    stub_.PrepareBidiStreamingCall(&context_, kStreamMethod, grpc::StubOptions(), this);
    StartRead(&incoming_);
    StartCall();
  }
  ~ClientStream() override {
    context_.TryCancel();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [this] { return ended_; });
  }

  void Begin() {
    std::lock_guard lock(mutex_);
    transfer_.Begin();
    Pump();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kRunDeadline, [this] { return transfer_.done() || broken_; });
    if (transfer_.done()) return;
    std::fprintf(stderr, "bench: a stream %s\n", broken_ ? "broke" : "moves nothing");
    std::_Exit(1);
  }

  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) {
      broken_ = true;
      return changed_.notify_all();
    }
    transfer_.Take(incoming_);
    StartRead(&incoming_);
    Pump();
    if (transfer_.done()) changed_.notify_all();
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) Pump();
  }
  void OnDone(const grpc::Status&) override {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  void Pump() {
    if (writing_ || !transfer_.Next(outgoing_)) return;
    writing_ = true;
    StartWrite(&outgoing_);
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Transfer transfer_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  bool writing_ = false;
  bool broken_ = false;
  bool ended_ = false;
};

class CallbackClient : public StreamClient {
 public:
  CallbackClient(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                 const StreamPlan& plan) {
    for (const auto& channel : channels) {
      streams_.push_back(std::make_unique<ClientStream>(channel, plan));
    }
  }

  void Run() override {
    for (const auto& stream : streams_) stream->Begin();
    for (const auto& stream : streams_) stream->Wait();
  }

 private:
  std::vector<std::unique_ptr<ClientStream>> streams_;
};

}  // namespace

std::unique_ptr<StreamService> MakeCallbackService(const StreamServerSettings& settings) {
  return std::make_unique<CallbackService>(settings.acknowledge_every);
}

std::unique_ptr<StreamClient> OpenCallbackStreams(
    const std::vector<std::shared_ptr<grpc::Channel>>& channels, const StreamPlan& plan) {
  return std::make_unique<CallbackClient>(channels, plan);
}

}  // namespace gradwire::bench
