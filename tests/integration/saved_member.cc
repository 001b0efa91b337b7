// One rank of a training as a process of its own, which may begin with a checkpoint and ends with
// one.
//
// gradwire_saved_member --address A --rank R --world-size N --hook SPEC --begin STEP --end STEP
//                       [--load FOLDER] --save FOLDER
//
// Files in a folder: `state`, the coordinator's; `dict.R` and `results.R`, each member's own, the
// latter being the reduced gradients, step after step. Exits 1 with "error: …" on an error.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/saved_training.h"

namespace gradwire::testing {
namespace {

using Flags = std::map<std::string, std::string>;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

absl::Status Write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status Run(const Flags& flags) {
  const auto number = [&](const char* name) { return std::atoi(flags.at(name).c_str()); };
  const int rank = number("--rank");
  const auto place = static_cast<std::size_t>(rank);
  Checkpoint checkpoint;
  checkpoint.dicts.resize(place + 1);
  const auto hook = HookSpec::Parse(flags.at("--hook"));
  if (!hook.ok()) return hook.status();
  auto client = Client::Join({.address = flags.at("--address"),
                              .session = "state",
                              .rank = rank,
                              .world_size = number("--world-size"),
                              .parameters = Model(),
                              .hook = *hook});
  if (!client.ok()) return client.status();
  if (const auto load = flags.find("--load"); load != flags.end()) {
    checkpoint.state = Read(load->second + "/state");
    checkpoint.dicts[place] = Read(absl::StrCat(load->second, "/dict.", rank));
    if (absl::Status status = Load(**client, rank, checkpoint); !status.ok()) return status;
  }
  std::string results;
  for (int step = number("--begin"); step < number("--end"); ++step) {
    Buckets buckets(Model());
    buckets.Fill(rank, step);
    const auto verdict = Reduce(**client, buckets);
    if (!verdict.ok()) return verdict.status();
    if (*verdict != Verdict::kApply) return absl::InternalError("a step was skipped");
    results.append(reinterpret_cast<const char*>(buckets.values().data()),
                   buckets.values().size() * sizeof(float));
  }
  if (absl::Status status = Save(**client, rank, checkpoint); !status.ok()) return status;
  const std::string& save = flags.at("--save");
  absl::Status written = Write(absl::StrCat(save, "/results.", rank), results);
  written.Update(Write(absl::StrCat(save, "/dict.", rank), checkpoint.dicts[place]));
  if (rank == 0) written.Update(Write(save + "/state", checkpoint.state));
  if (!written.ok()) return written;
  return (*client)->Leave();
}

}  // namespace
}  // namespace gradwire::testing

int main(int argc, char** argv) {
  gradwire::testing::Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  const absl::Status status = gradwire::testing::Run(flags);
  if (status.ok()) return 0;
  std::cout << "error: " << status << std::endl;
  return 1;
}
