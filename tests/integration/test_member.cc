// A member as a process of its own: all-reduces one parameter per step and checks the result.
//
// Prints "joined", then per step "step N apply", in the end "done". Exits 1 with "error: …" on an
// error, 2 on a wrong result or flag. With --die-after-bytes it kills itself, as by SIGKILL, once
// it has sent so many bytes and is in the middle of a bucket. With --late-ms it computes for so
// long before each step. With --shares-memory it is an error if it does not share memory with the
// daemon.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/client.h"
#include "tests/testing/gradients.h"

namespace gradwire {
namespace {

using Flags = std::map<std::string, std::string>;

constexpr char kUsage[] =
    "usage: gradwire_test_member --address A --session S [--rank R] [--world-size N] [--elements E]"
    " [--steps K]\n"
    "         [--die-after-bytes B] [--late-ms M] [--shares-memory 1]\n";

int Fail(const absl::Status& status) {
  std::cout << "error: " << status << std::endl;
  return 1;
}

std::int64_t Number(const Flags& flags, const std::string& name, std::int64_t otherwise) {
  const auto found = flags.find(name);
  return found == flags.end() ? otherwise : std::strtoll(found->second.c_str(), nullptr, 10);
}

void DieInMidBucket(const Client& client, const Completion& reduced, std::int64_t bytes) {
  while (!reduced.done() && client.metrics().bytes_sent < static_cast<std::uint64_t>(bytes)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (!reduced.done()) kill(getpid(), SIGKILL);
}

int Run(const Flags& flags) {
  const auto elements = static_cast<std::size_t>(Number(flags, "--elements", 1000));
  ClientOptions options{.address = flags.at("--address"),
                        .session = flags.at("--session"),
                        .rank = static_cast<int>(Number(flags, "--rank", -1)),
                        .world_size = static_cast<int>(Number(flags, "--world-size", 1)),
                        .parameters = {testing::MakeParameter("w", elements)}};
  auto client = Client::Join(options);
  if (!client.ok()) return Fail(client.status());
  if (Number(flags, "--shares-memory", 0) != 0 && !(*client)->metrics().shared_memory) {
    return Fail(absl::InternalError("no memory is shared with the daemon"));
  }
  std::cout << "joined" << std::endl;
  const std::int64_t die_after = Number(flags, "--die-after-bytes", -1);
  for (std::int64_t step = 0; step < Number(flags, "--steps", 1); ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(Number(flags, "--late-ms", 0)));
    testing::Gradients gradients(options.parameters);
    gradients.Fill((*client)->rank(), step);
    GradBucket bucket = gradients.Bucket();
    const Completion reduced = (*client)->AllReduce(bucket);
    if (die_after >= 0) DieInMidBucket(**client, reduced, die_after);
    if (absl::Status status = reduced.Wait(); !status.ok()) return Fail(status);
    const auto expected =
        testing::ExpectedReduction({}, options.parameters, options.world_size, step);
    if (!expected.ok()) return Fail(expected.status());
    const auto verdict = (*client)->EndStep();
    if (!verdict.ok()) return Fail(verdict.status());
    if (*verdict == Verdict::kApply && gradients.bytes() != *expected) {
      std::cout << "wrong result in step " << step << std::endl;
      return 2;
    }
    std::cout << "step " << step << (*verdict == Verdict::kApply ? " apply" : " skip") << std::endl;
  }
  if (absl::Status status = (*client)->Leave(); !status.ok()) return Fail(status);
  std::cout << "done" << std::endl;
  return 0;
}

}  // namespace
}  // namespace gradwire

int main(int argc, char** argv) {
  gradwire::Flags flags;
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool asks = std::find(words.begin(), words.end(), "--help") != words.end();
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) flags[words[i]] = words[i + 1];
  if (asks || words.size() % 2 != 0 || !flags.contains("--address") ||
      !flags.contains("--session")) {
    (asks ? std::cout : std::cerr) << gradwire::kUsage;
    return asks ? 0 : 2;
  }
  return gradwire::Run(flags);
}
