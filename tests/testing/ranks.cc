#include "tests/testing/ranks.h"

#include <chrono>
#include <exception>
#include <thread>

#include "gtest/gtest.h"

namespace gradwire::testing {
namespace {

absl::Status RunRank(ClientOptions options, int rank,
                     const std::function<absl::Status(Client&, int rank)>& member,
                     const std::function<void(ClientOptions&, int rank)>& adjust) {
  try {
    options.rank = rank;
    if (adjust) adjust(options, rank);
    auto client = Client::Join(options);
    return client.ok() ? member(**client, rank) : client.status();
  } catch (const std::exception& exception) {
    return absl::InternalError(exception.what());
  }
}

}  // namespace

std::vector<absl::Status> RunRanks(const ClientOptions& options,
                                   const std::function<absl::Status(Client&, int rank)>& member,
                                   const std::function<void(ClientOptions&, int rank)>& adjust) {
  std::vector<absl::Status> statuses(static_cast<std::size_t>(options.world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[static_cast<std::size_t>(rank)] = RunRank(options, rank, member, adjust);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_TRUE(statuses[rank].ok()) << "rank " << rank << ": " << statuses[rank];
  }
}

bool Eventually(const std::function<bool()>& condition, absl::Duration timeout) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace gradwire::testing
