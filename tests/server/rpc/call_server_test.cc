#include "server/rpc/call_server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sync.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gradwire/v1/aggregation.grpc.pb.h"
#include "proto/wire/process_setup.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Eventually;
using std::chrono::system_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::chrono::seconds kPatience(10);
constexpr char kGetServer[] = "/gradwire.v1.AdminService/GetServer";
constexpr char kExchange[] = "/gradwire.v1.AggregationService/Exchange";

grpc::ByteBuffer BytesOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// A client's call by bytes, one step after the other.
class ClientCall {
 public:
  ClientCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
      : stub_(channel) {
    context_.set_deadline(system_clock::now() + kPatience);
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(this);
    Await();
  }
  ~ClientCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  bool Write(const std::string& bytes) {
    call_->Write(BytesOf(bytes), this);
    return Await();
  }
  bool WritesDone() {
    call_->WritesDone(this);
    return Await();
  }
  bool Read() {
    call_->Read(&incoming_, this);
    return Await();
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, this);
    Await();
    return status;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  bool Await() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  grpc::ByteBuffer incoming_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

// What happened to a call, in order.
class Log {
 public:
  void Add(const std::string& line) {
    MutexLock lock(mutex_);
    lines_.push_back(line);
    added_.NotifyAll();
  }
  // Waits until `line` is there.
  bool Has(const std::string& line) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mutex_);
    while (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) {
      if (!added_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }
  std::vector<std::string> lines() {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  Mutex mutex_;
  CondVar added_;
  std::vector<std::string> lines_;
};

// Notes everything. What it does besides is up to the test.
struct Script {
  std::function<void(class ScriptedCall&)> on_start = [](auto&) {};
  std::function<void(class ScriptedCall&)> on_write = [](auto&) {};
  Log log;
};

class ScriptedCall final : public Call {
 public:
  explicit ScriptedCall(Script* script) : script_(*script) {}
  ~ScriptedCall() override { script_.log.Add("gone"); }

  using Call::Finish;
  using Call::StartRead;
  using Call::StartWrite;
  using Call::TryCancel;

 private:
  void OnStart() override {
    script_.log.Add("start");
    script_.on_start(*this);
  }
  void OnReadDone(bool ok) override { script_.log.Add(ok ? "read" : "read fails"); }
  void OnWriteDone(bool ok) override {
    script_.log.Add(ok ? "written" : "write fails");
    if (ok) script_.on_write(*this);
  }
  void OnCancel() override { script_.log.Add("cancel"); }
  void OnDone() override { script_.log.Add("done"); }

  Script& script_;
};

class CallServerTest : public ::testing::Test {
 protected:
  using Handler = std::function<absl::Status(const v1::GetSessionRequest&)>;

  CallServerTest() { wire::KeepGrpc(); }

  void Start(std::size_t threads = 4, std::function<int()> connections = nullptr) {
    Methods methods;
    methods.AddUnary<v1::GetServerRequest, v1::GetServerResponse>([](const auto&, auto& response) {
      response.set_version("1");
      return absl::OkStatus();
    });
    methods.AddUnary<v1::GetSessionRequest, v1::GetSessionResponse>(
        [this](const auto& request, auto&) { return handler_(request); });
    methods.AddNamed<v1::Frame, v1::Frame, ScriptedCall>("Exchange", MethodKind::kBothStream,
                                                         &script_);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    auto server = CallServer::Start(builder, std::move(methods), {},
                                    {.count = threads, .connections = std::move(connections)});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::shared_ptr<grpc::Channel> Connect() const {
    // Each has a connection of its own.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
  }

  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& name) {
    grpc::ClientContext context;
    context.set_deadline(system_clock::now() + kPatience);
    v1::GetSessionRequest request;
    request.set_session(name);
    v1::GetSessionResponse response;
    return v1::AdminService::NewStub(channel)->GetSession(&context, request, &response);
  }

  // The server's last breath: everything of its calls has happened.
  void Stop() { server_->Shutdown(system_clock::now()); }

  const testing::TemporaryFolder folder_;
  const std::string address_ = "unix:" + (folder_ / "s");
  Script script_;
  Handler handler_ = [](const auto&) { return absl::OkStatus(); };
  std::unique_ptr<CallServer> server_;
};

TEST_F(CallServerTest, OneThreadHandlesSmallCalls) {
  std::set<std::thread::id> threads;  // one thread at a time, so no lock
  handler_ = [&](const auto&) {
    threads.insert(std::this_thread::get_id());
    return absl::OkStatus();
  };
  Start();
  const auto a = Connect();
  const auto b = Connect();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(Ask(a, "s").ok());
    EXPECT_TRUE(Ask(b, "s").ok());
  }
  EXPECT_THAT(threads, SizeIs(1));
}

// Nobody is connected: nobody polls, so that another server's threads are not woken.
TEST_F(CallServerTest, ThreadsSleepWhileNobodyIsConnected) {
  std::atomic<int> connections = 0;
  Start(2, [&] { return connections.load(); });
  EXPECT_TRUE(server_->asleep());
  for (int i = 0; i < 2; ++i) {
    connections = 1;
    server_->Wake();
    {
      const auto channel = Connect();
      EXPECT_TRUE(Ask(channel, "s").ok());
      EXPECT_FALSE(server_->asleep());
      ClientCall open(channel, kExchange);
      EXPECT_TRUE(open.Write(""));
      EXPECT_TRUE(script_.log.Has("start"));
      // A call that outlives its connection still has events to come.
      connections = 0;
      EXPECT_FALSE(server_->asleep());
    }
    EXPECT_TRUE(Eventually([&] { return server_->asleep(); }));
  }
  Stop();
  EXPECT_FALSE(server_->asleep());
}

TEST_F(CallServerTest, AfterYieldLeadershipAnotherThreadTakesEvents) {
  std::promise<std::thread::id> fast;
  std::promise<void> slow_is_in;
  std::atomic<bool> met = false;
  handler_ = [&](const v1::GetSessionRequest& request) {
    if (request.session() == "fast") {
      fast.set_value(std::this_thread::get_id());
      return absl::OkStatus();
    }
    RpcThreads::YieldLeadership();
    RpcThreads::YieldLeadership();  // has nothing left to hand over
    slow_is_in.set_value();
    auto other = fast.get_future();
    met = other.wait_for(kPatience) == std::future_status::ready &&
          other.get() != std::this_thread::get_id();
    return absl::OkStatus();
  };
  Start(2);
  std::thread slow([&] { EXPECT_TRUE(Ask(Connect(), "slow").ok()); });
  slow_is_in.get_future().wait();
  EXPECT_TRUE(Ask(Connect(), "fast").ok());
  slow.join();
  EXPECT_TRUE(met);
}

// All threads at long work at once: the first that is through goes on.
TEST_F(CallServerTest, MoreLongCallsThanThreadsAllEnd) {
  constexpr int kCalls = 12;
  std::atomic<int> handled = 0;
  handler_ = [&](const auto&) {
    RpcThreads::YieldLeadership();
    ++handled;
    return absl::OkStatus();
  };
  Start(2);
  std::vector<std::thread> clients;
  for (int i = 0; i < kCalls; ++i) {
    clients.emplace_back([&] {
      const auto channel = Connect();
      for (int j = 0; j < 20; ++j) EXPECT_TRUE(Ask(channel, "s").ok());
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(handled, kCalls * 20);
}

TEST_F(CallServerTest, YieldLeadershipOnOtherThreadsDoesNothing) {
  RpcThreads::YieldLeadership();
  Start();
  EXPECT_TRUE(Ask(Connect(), "s").ok());
}

TEST_F(CallServerTest, AnUnknownMethodIsUnimplemented) {
  Start();
  for (const std::string name : {"/gradwire.v1.AdminService/Nothing", "/x", "/a.B/C"}) {
    ClientCall call(Connect(), name);
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  }
}

TEST_F(CallServerTest, BadBytesAreInvalid) {
  Start();
  ClientCall call(Connect(), "/gradwire.v1.AdminService/GetSession");
  EXPECT_TRUE(call.Write("\xff\xff\xff"));
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("/gradwire.v1.AdminService/GetSession"),
                                            HasSubstr("gradwire.v1.GetSessionRequest")));
}

TEST_F(CallServerTest, AnEmptyMessageIsOne) {
  Start();
  ClientCall call(Connect(), kGetServer);
  EXPECT_TRUE(call.Write(""));
  EXPECT_TRUE(call.Read());
  EXPECT_TRUE(call.Finish().ok());
}

TEST_F(CallServerTest, ACallWithoutItsMessageIsInvalid) {
  Start();
  ClientCall call(Connect(), kGetServer);
  EXPECT_TRUE(call.WritesDone());
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr(kGetServer));
}

TEST_F(CallServerTest, TheHandlersStatusIsTheCalls) {
  handler_ = [](const auto& request) {
    return absl::NotFoundError(std::string(10'000, request.session()[0]));
  };
  Start();
  const grpc::Status status = Ask(Connect(), "y");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  // Peers refuse large headers.
  EXPECT_GT(status.error_message().size(), 1000U);
  EXPECT_LT(status.error_message().size(), 4000U);
}

TEST_F(CallServerTest, ACallThatTheClientCancelsEndsByItself) {
  script_.on_start = [](ScriptedCall& call) { call.StartRead(); };
  Start();
  ClientCall call(Connect(), kExchange);
  EXPECT_TRUE(script_.log.Has("start"));
  call.Cancel();
  EXPECT_TRUE(script_.log.Has("gone"));
  const std::vector<std::string> lines = script_.log.lines();
  ASSERT_THAT(lines, SizeIs(5));
  EXPECT_THAT(std::set<std::string>(lines.begin(), lines.end()), SizeIs(5));
  EXPECT_EQ(lines.front(), "start");
  EXPECT_EQ(lines[3], "done");
  EXPECT_EQ(lines[4], "gone");
}

TEST_F(CallServerTest, ACallThatDoesNothingEndsWithItsClient) {
  Start();
  {
    const ClientCall call(Connect(), kExchange);
    EXPECT_TRUE(script_.log.Has("start"));
  }
  EXPECT_TRUE(script_.log.Has("gone"));
  EXPECT_THAT(script_.log.lines(), ElementsAre("start", "cancel", "done", "gone"));
}

TEST_F(CallServerTest, AfterFinishNothingBegins) {
  script_.on_start = [](ScriptedCall& call) {
    call.Finish(absl::AbortedError("first"));
    call.Finish(absl::DataLossError("second"));
    call.StartRead();
    call.StartWrite(BytesOf("x"));
    call.TryCancel();
  };
  Start();
  ClientCall call(Connect(), kExchange);
  EXPECT_FALSE(call.Read());
  // The cancellation may overtake the status.
  EXPECT_THAT(call.Finish().error_code(),
              ::testing::AnyOf(grpc::StatusCode::ABORTED, grpc::StatusCode::CANCELLED));
  EXPECT_TRUE(script_.log.Has("gone"));
  for (const std::string& line : script_.log.lines()) {
    EXPECT_THAT(line, ::testing::AnyOf("start", "cancel", "done", "gone"));
  }
}

TEST_F(CallServerTest, FinishWaitsForTheWrite) {
  script_.on_start = [](ScriptedCall& call) {
    call.StartWrite(BytesOf("last words"));
    call.Finish(absl::AbortedError("enough"));
  };
  Start();
  ClientCall call(Connect(), kExchange);
  EXPECT_TRUE(call.Read());
  EXPECT_FALSE(call.Read());
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(script_.log.Has("gone"));
  EXPECT_THAT(script_.log.lines(), ElementsAre("start", "written", "done", "gone"));
}

TEST_F(CallServerTest, ShutdownEndsOpenCalls) {
  constexpr int kCalls = 5;
  std::promise<void> all_open;
  int open = 0;  // on one thread
  script_.on_start = [&](ScriptedCall& call) {
    call.StartRead();
    if (++open == kCalls) all_open.set_value();
  };
  Start();
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(std::make_unique<ClientCall>(Connect(), kExchange));
  }
  ASSERT_EQ(all_open.get_future().wait_for(kPatience), std::future_status::ready);
  Stop();
  const std::vector<std::string> lines = script_.log.lines();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "gone"), kCalls);
  for (const auto& call : calls) EXPECT_FALSE(call->Finish().ok());
  Stop();  // has nothing left to do
}

TEST_F(CallServerTest, ShutdownDoesNotWaitForAClientThatDoesNotRead) {
  const grpc::ByteBuffer large = BytesOf(std::string(1 << 20, 'x'));
  std::promise<void> stuck;
  std::atomic<int> written = 0;
  script_.on_start = [&](ScriptedCall& call) { call.StartWrite(large); };
  script_.on_write = [&](ScriptedCall& call) {
    call.StartWrite(large);
    if (++written == 1) stuck.set_value();
  };
  Start();
  const ClientCall call(Connect(), kExchange);
  ASSERT_EQ(stuck.get_future().wait_for(kPatience), std::future_status::ready);
  Stop();
  EXPECT_TRUE(script_.log.Has("gone"));
}

TEST_F(CallServerTest, StartsAgainAfterItsEnd) {
  for (int i = 0; i < 3; ++i) {
    Start();
    EXPECT_TRUE(Ask(Connect(), "s").ok());
    server_.reset();
  }
}

TEST(MethodsTest, KnowsNamesAndServices) {
  Methods methods;
  methods.AddUnary<v1::GetServerRequest, v1::GetServerResponse>(
      [](const auto&, auto&) { return absl::OkStatus(); });
  methods.AddUnary<v1::LeaveRequest, v1::LeaveResponse>(
      [](const auto&, auto&) { return absl::OkStatus(); });
  EXPECT_NE(methods.Make(kGetServer), nullptr);
  EXPECT_EQ(methods.Make(kExchange), nullptr);
  EXPECT_EQ(methods.Make(""), nullptr);
  EXPECT_THAT(methods.services(),
              ElementsAre("gradwire.v1.AdminService", "gradwire.v1.AggregationService"));
}

}  // namespace
}  // namespace gradwire::server
