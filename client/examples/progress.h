// How training goes, for people: one line that is rewritten on a terminal, else a line per epoch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace digits {

class Progress {
 public:
  // `label` begins each line; `members` is how many train together.
  Progress(std::string label, int members, int epochs, bool enabled);

  // One step is done. `bytes`: sent and received by this process so far.
  void Step(int epoch, double loss, std::uint64_t bytes);
  void EndOfEpoch(int epoch, double mean_loss, std::uint64_t bytes);

  double seconds() const;

 private:
  void Print(int epoch, double loss, std::uint64_t bytes, bool last) const;

  std::string label_;
  int members_;
  int epochs_;
  bool enabled_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace digits
