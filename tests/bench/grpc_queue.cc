// The completion-queue API. A stream belongs to one queue and so to its one thread: no locks.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <thread>

#include "tests/bench/grpc_transfer.h"

namespace gradwire::bench {
namespace {

// What a queue hands back. Lives in the stream that started the operation.
struct Tag {
  std::function<void(bool ok)> done;
};

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "bench: a stream %s\n", what);
  std::_Exit(1);
}

class ServerStream {
 public:
  ServerStream(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue* queue,
               std::size_t acknowledge_every)
      : stream_(&context_), answers_(acknowledge_every) {
    accepted_.done = [this](bool ok) { ok ? Read() : Delete(); };
    read_.done = [this](bool ok) { OnRead(ok); };
    written_.done = [this](bool) { OnWritten(); };
    finished_.done = [this](bool) { Delete(); };
    service.RequestCall(&context_, &stream_, queue, queue, &accepted_);
  }

 private:
  void Delete() { delete this; }
  void Read() { stream_.Read(&incoming_, &read_); }

  void OnRead(bool ok) {
    if (!ok) {
      ended_ = true;
      if (!writing_) stream_.Finish(grpc::Status::OK, &finished_);
      return;
    }
    grpc::ByteBuffer answer;
    if (answers_.Answer(incoming_, answer)) waiting_.push_back(answer);
    Read();
    Pump();
  }

  void OnWritten() {
    writing_ = false;
    if (ended_) return stream_.Finish(grpc::Status::OK, &finished_);
    Pump();
  }

  void Pump() {
    if (writing_ || waiting_.empty() || ended_) return;
    outgoing_ = waiting_.front();
    waiting_.pop_front();
    writing_ = true;
    stream_.Write(outgoing_, &written_);
  }

  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  Answers answers_;
  Tag accepted_;
  Tag read_;
  Tag written_;
  Tag finished_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::deque<grpc::ByteBuffer> waiting_;
  bool writing_ = false;
  bool ended_ = false;
};

class QueueService : public StreamService {
 public:
  explicit QueueService(const StreamServerSettings& settings) : settings_(settings) {}

  void Register(grpc::ServerBuilder& builder) override {
    builder.RegisterAsyncGenericService(&service_);
    for (std::size_t i = 0; i < settings_.queues; ++i) {
      queues_.push_back(builder.AddCompletionQueue());
    }
  }

  // A call goes to a queue that has asked for one, so asking for no more than a queue's share
  // spreads them evenly.
  void Start() override {
    for (std::size_t i = 0; i < settings_.calls; ++i) {
      // Deletes itself when its call ends.
      new ServerStream(service_, queues_[i % queues_.size()].get(), settings_.acknowledge_every);
    }
    for (const auto& queue : queues_) {
      threads_.emplace_back([&queue = *queue] {
        void* tag = nullptr;
        bool ok = false;
        while (queue.Next(&tag, &ok)) static_cast<Tag*>(tag)->done(ok);
      });
    }
  }

  void Stop() override {
    for (const auto& queue : queues_) queue->Shutdown();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  const StreamServerSettings settings_;
  grpc::AsyncGenericService service_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::thread> threads_;
};

class ClientStream {
 public:
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, grpc::CompletionQueue* queue,
               const StreamPlan& plan)
      : stub_(channel), transfer_(plan) {
    started_.done = [this](bool ok) { ok ? OnStarted() : Broken(); };
    read_.done = [this](bool ok) { ok ? OnRead() : Broken(); };
    written_.done = [this](bool ok) { ok ? OnWritten() : Broken(); };
    stream_ = stub_.PrepareCall(&context_, kStreamMethod, queue);
    stream_->StartCall(&started_);
  }

  void Begin() {
    transfer_.Begin();
    if (open_) Pump();
  }
  bool done() const { return transfer_.done(); }
  void Cancel() {
    ending_ = true;
    context_.TryCancel();
  }

 private:
  void Broken() {
    if (!ending_) Die("broke");
  }
  void OnStarted() {
    open_ = true;
    stream_->Read(&incoming_, &read_);
    Pump();
  }
  void OnRead() {
    transfer_.Take(incoming_);
    stream_->Read(&incoming_, &read_);
    Pump();
  }
  void OnWritten() {
    writing_ = false;
    Pump();
  }
  void Pump() {
    if (writing_ || !transfer_.Next(outgoing_)) return;
    writing_ = true;
    stream_->Write(outgoing_, &written_);
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  Transfer transfer_;
  Tag started_;
  Tag read_;
  Tag written_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  bool open_ = false;
  bool writing_ = false;
  bool ending_ = false;
};

// All its streams share a queue, which the thread that calls Run serves.
class QueueClient : public StreamClient {
 public:
  QueueClient(const std::vector<std::shared_ptr<grpc::Channel>>& channels, const StreamPlan& plan) {
    for (const auto& channel : channels) {
      streams_.push_back(std::make_unique<ClientStream>(channel, &queue_, plan));
    }
  }

  ~QueueClient() override {
    for (const auto& stream : streams_) stream->Cancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
      if (!ok) static_cast<Tag*>(tag)->done(false);
    }
  }

  void Run() override {
    for (const auto& stream : streams_) stream->Begin();
    const auto deadline = std::chrono::system_clock::now() + kRunDeadline;
    for (const auto& stream : streams_) {
      while (!stream->done()) {
        void* tag = nullptr;
        bool ok = false;
        if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) {
          Die("moves nothing");
        }
        static_cast<Tag*>(tag)->done(ok);
      }
    }
  }

 private:
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<ClientStream>> streams_;
};

}  // namespace

std::unique_ptr<StreamService> MakeQueueService(const StreamServerSettings& settings) {
  return std::make_unique<QueueService>(settings);
}

std::unique_ptr<StreamClient> OpenQueueStreams(
    const std::vector<std::shared_ptr<grpc::Channel>>& channels, const StreamPlan& plan) {
  return std::make_unique<QueueClient>(channels, plan);
}

}  // namespace gradwire::bench
