#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "tests/bench/ladder/child_settings.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {
namespace {

// As the daemon does (server/daemon/main.cc).
void KeepMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  mallopt(M_ARENA_MAX, 4);
}

// Copies `total` bytes in blocks. Small blocks stay in the cache; large ones go over so many pairs
// that none is in the cache when its turn comes.
void CopyBlocks(std::vector<std::vector<std::byte>>& blocks, std::size_t total) {
  const std::size_t bytes = blocks[0].size();
  for (std::size_t i = 0; i * bytes < total; ++i) {
    const std::size_t pair = 2 * (i % (blocks.size() / 2));
    std::memcpy(blocks[pair + 1].data(), blocks[pair].data(), bytes);
  }
}

}  // namespace

int CopyMemory(const ChildSettings& settings) {
  const std::size_t pairs = settings.message_bytes > 4 * kMiB ? 4 : 1;
  std::vector<std::vector<std::vector<std::byte>>> blocks(settings.threads);
  for (auto& of_thread : blocks) {
    of_thread.assign(2 * pairs, std::vector<std::byte>(settings.message_bytes, std::byte{1}));
  }
  AnswerParent([&] {
    std::vector<std::thread> threads;
    for (auto& of_thread : blocks) {
      threads.emplace_back(CopyBlocks, std::ref(of_thread), settings.bytes / settings.threads);
    }
    for (std::thread& thread : threads) thread.join();
    return "";
  });
  return 0;
}

int RunChild(const ChildSettings& settings) {
  static const std::map<std::string, int (*)(const ChildSettings&)> kRoles = {
      {"copy", CopyMemory},           {"raw-server", ServeRaw},        {"raw-client", RunRawClient},
      {"raw-latency", RunRawLatency}, {"aggregator", ServeAggregator}, {"grpc-server", ServeGrpc},
      {"grpc-client", RunGrpcClient}, {"grpc-latency", RunGrpcLatency}};
  std::signal(SIGPIPE, SIG_IGN);
  if (settings.pinned_malloc) KeepMemory();
  const auto role = kRoles.find(settings.role);
  if (role == kRoles.end()) {
    std::fprintf(stderr, "bench: no role %s\n", settings.role.c_str());
    return 2;
  }
  return role->second(settings);
}

}  // namespace gradwire::bench
