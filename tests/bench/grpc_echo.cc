#include "tests/bench/grpc_echo.h"

#include <memory>

#include "tests/bench/grpc_stream.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {

int ServeEcho(const std::string& listen) { return ServeStreams(listen, {}); }

int RunEchoClient(const std::string& address, std::size_t bytes, std::size_t message_bytes,
                  std::size_t in_flight) {
  const std::unique_ptr<StreamClient> client = OpenStreams(
      GrpcApi::kCallback, {MakeChannel(address, {})},
      {.bytes = bytes, .message_bytes = message_bytes, .in_flight = in_flight, .copy = true});
  AnswerParent([&client] {
    client->Run();
    return "";
  });
  return 0;
}

}  // namespace gradwire::bench
