#include "tests/bench/grpc_echo.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <mutex>
#include <vector>

namespace gradwire::bench {
namespace {

constexpr int kMaxMessage = 32 << 20;

template <typename Arguments>
void SetBulk(Arguments&& set) {
  set("grpc.http2.max_frame_size", 1 << 20);
  set("grpc.experimental.tcp_read_chunk_size", 1 << 20);
  set("grpc.http2.lookahead_bytes", 4 << 20);
  set("grpc.http2.write_buffer_size", 4 << 20);
  set("grpc.http2.bdp_probe", 0);
}

class EchoReactor : public grpc::ServerGenericBidiReactor {
 public:
  EchoReactor() { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) {
      ended_ = true;
      if (!writing_) Finish(grpc::Status::OK);
      return;
    }
    waiting_.push_back(incoming_);  // by reference; the client bounds how many
    incoming_.Clear();
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
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::deque<grpc::ByteBuffer> waiting_;
  bool writing_ = false;
  bool ended_ = false;
};

class EchoService : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new EchoReactor;  // deletes itself in OnDone
  }
};

class EchoClient : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  EchoClient(std::size_t bytes, std::size_t message_bytes, std::size_t in_flight)
      : source_(bytes, std::byte{1}),
        target_(bytes),
        message_bytes_(message_bytes),
        in_flight_(in_flight) {}

  void Start(grpc::GenericStub& stub, grpc::ClientContext* context) {
    stub.PrepareBidiStreamingCall(context, "/gradwire.bench.Echo/Echo", grpc::StubOptions(), this);
    StartRead(&incoming_);
    StartCall();
  }

  void Run() {
    std::unique_lock lock(mutex_);
    sent_ = received_ = 0;
    Pump();
    done_.wait_for(lock, std::chrono::seconds(60),
                   [this] { return received_ == target_.size() || broken_; });
    if (received_ != target_.size()) std::exit(1);
  }

  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) {
      broken_ = true;
      return done_.notify_all();
    }
    std::vector<grpc::Slice> slices;
    incoming_.Dump(&slices);
    for (const grpc::Slice& slice : slices) {
      std::memcpy(target_.data() + received_, slice.begin(), slice.size());
      received_ += slice.size();
    }
    incoming_.Clear();
    StartRead(&incoming_);
    Pump();
    if (received_ == target_.size()) done_.notify_all();
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) Pump();
  }
  void OnDone(const grpc::Status&) override {
    std::lock_guard lock(mutex_);
    ended_ = true;
    done_.notify_all();
  }
  void WaitEnded() {
    std::unique_lock lock(mutex_);
    done_.wait_for(lock, std::chrono::seconds(10), [this] { return ended_; });
  }

 private:
  void Pump() {
    if (writing_ || sent_ == source_.size() || sent_ - received_ >= in_flight_ * message_bytes_)
      return;
    const std::size_t size = std::min(message_bytes_, source_.size() - sent_);
    grpc::Slice slice(source_.data() + sent_, size, grpc::Slice::STATIC_SLICE);
    outgoing_ = grpc::ByteBuffer(&slice, 1);
    sent_ += size;
    writing_ = true;
    StartWrite(&outgoing_);
  }

  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  const std::size_t message_bytes_;
  const std::size_t in_flight_;
  std::mutex mutex_;
  std::condition_variable done_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
  bool writing_ = false;
  bool broken_ = false;
  bool ended_ = false;
};

}  // namespace

int ServeEcho(const std::string& listen) {
  EchoService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  builder.SetMaxReceiveMessageSize(kMaxMessage);
  SetBulk([&](const char* name, int value) { builder.AddChannelArgument(name, value); });
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  const bool unix_socket = listen.rfind("unix:", 0) == 0;
  std::cout << (unix_socket ? listen : "127.0.0.1:" + std::to_string(port)) << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  return 0;
}

int RunEchoClient(const std::string& address, std::size_t bytes, std::size_t message_bytes,
                  std::size_t in_flight) {
  grpc::ChannelArguments arguments;
  SetBulk([&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetMaxReceiveMessageSize(kMaxMessage);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  EchoClient client(bytes, message_bytes, in_flight);
  client.Start(stub, &context);
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    client.Run();
    std::cout << "done" << std::endl;
  }
  context.TryCancel();
  client.WaitEnded();
  return 0;
}

}  // namespace gradwire::bench
