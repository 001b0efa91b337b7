// The roles over gRPC.
#include <atomic>
#include <thread>

#include "tests/bench/grpc_stream.h"
#include "tests/bench/ladder/child_settings.h"
#include "tests/bench/ladder/latency.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {
namespace {

GrpcApi Api(const ChildSettings& settings) {
  return settings.api == "callback" ? GrpcApi::kCallback : GrpcApi::kQueue;
}

ChannelSettings Channel(const ChildSettings& settings) {
  return {.bulk = settings.bulk,
          .bdp_probe = settings.bdp_probe,
          .certificates = settings.certificates};
}

}  // namespace

int ServeGrpc(const ChildSettings& settings) {
  const std::size_t streams = settings.connections + (settings.beside.empty() ? 0 : 1);
  return ServeStreams(
      settings.address,
      {.channel = Channel(settings),
       .api = Api(settings),
       .queues = settings.queues,
       .calls = settings.members * streams,
       .acknowledge_every = settings.duplex ? 0 : settings.bytes / settings.connections});
}

int RunGrpcClient(const ChildSettings& settings) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (std::size_t i = 0; i < settings.connections; ++i) {
    channels.push_back(MakeChannel(settings.address, Channel(settings)));
  }
  const std::unique_ptr<StreamClient> client =
      OpenStreams(Api(settings), channels,
                  {.bytes = settings.bytes / settings.connections,
                   .message_bytes = settings.message_bytes,
                   .in_flight = settings.in_flight,
                   .drop = !settings.duplex});
  AnswerParent([&] {
    client->Run();
    return "";
  });
  return 0;
}

int RunGrpcLatency(const ChildSettings& settings) {
  const auto small_channel = MakeChannel(settings.address, Channel(settings));
  const auto small = OpenStreams(
      Api(settings), {small_channel},
      {.bytes = settings.message_bytes, .message_bytes = settings.message_bytes, .in_flight = 1});
  std::unique_ptr<StreamClient> bulk;
  if (!settings.beside.empty()) {
    bulk =
        OpenStreams(Api(settings),
                    {settings.beside == "same" ? small_channel
                                               : MakeChannel(settings.address, Channel(settings))},
                    {.bytes = 64 * kChunk, .message_bytes = kChunk, .in_flight = 8});
  }
  small->Run();
  AnswerParent([&] {
    std::atomic<bool> stop = false;
    std::thread traffic([&] {
      while (bulk != nullptr && !stop) bulk->Run();
    });
    std::string percentiles = SampleLatency([&] { small->Run(); });
    stop = true;
    traffic.join();
    return percentiles;
  });
  return 0;
}

}  // namespace gradwire::bench
