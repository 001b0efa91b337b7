// steps_member ADDRESS SESSION PARAMETERS NUMEL: python_steps_bench.py's member without Python,
// alone in its session. For each line on standard input a step with one bucket of that many
// parameters; answers with its milliseconds, from AllReduce to the verdict.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/client.h"
#include "proto/wire/process_setup.h"
#include "tests/bench/process_group.h"

namespace gradwire::bench {
namespace {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "steps_member: " << status << std::endl;
  std::exit(1);
}

std::vector<ParameterSpec> Parameters(std::size_t count, std::size_t numel) {
  std::vector<ParameterSpec> parameters;
  parameters.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    parameters.push_back({.name = std::to_string(i),
                          .shape = {static_cast<std::int64_t>(numel)},
                          .dtype = DType::kFloat32});
  return parameters;
}

std::string Step(Client& client, GradBucket& bucket) {
  const auto begin = std::chrono::steady_clock::now();
  Check(client.AllReduce(bucket).Wait());
  const auto verdict = client.EndStep();
  Check(verdict.status());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  return " " + std::to_string(took.count());
}

int Main(const std::string& address, const std::string& session, std::size_t count,
         std::size_t numel) {
  wire::SkipDeadlockDetection();  // as the Python package does
  const std::vector<ParameterSpec> parameters = Parameters(count, numel);
  auto client = Client::Join({.address = address,
                              .session = session,
                              .rank = 0,
                              .world_size = 1,
                              .parameters = parameters});
  Check(client.status());
  std::vector<float> gradients(count * numel, 1.0F);
  auto bucket =
      GradBucket::Make(0, {DType::kFloat32, gradients.data(), gradients.size()}, parameters);
  Check(bucket.status());
  AnswerParent([&] { return Step(**client, *bucket); });
  Check((*client)->Leave());
  return 0;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: steps_member ADDRESS SESSION PARAMETERS NUMEL\n";
    return 2;
  }
  return gradwire::bench::Main(argv[1], argv[2], std::stoul(argv[3]), std::stoul(argv[4]));
}
