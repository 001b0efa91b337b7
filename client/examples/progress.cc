#include "client/examples/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace digits {

Progress::Progress(std::string label, int members, int epochs, bool enabled)
    : label_(std::move(label)),
      members_(members),
      epochs_(epochs),
      enabled_(enabled),
      terminal_(isatty(STDOUT_FILENO) == 1),
      begin_(std::chrono::steady_clock::now()) {}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void Progress::Step(int epoch, double loss, std::uint64_t bytes) {
  if (enabled_ && terminal_) Print(epoch, loss, bytes, false);
}

void Progress::EndOfEpoch(int epoch, double mean_loss, std::uint64_t bytes) {
  if (enabled_) Print(epoch, mean_loss, bytes, epoch == epochs_);
}

void Progress::Print(int epoch, double loss, std::uint64_t bytes, bool last) const {
  const double rate = static_cast<double>(bytes) / 1e6 / seconds();
  if (terminal_) std::fputs("\r\033[K", stdout);
  std::printf("%-6s epoch %2d/%d  loss %.4f", label_.c_str(), epoch, epochs_, loss);
  if (members_ > 1) std::printf("  %d/%d members  %5.1f MB/s", members_, members_, rate);
  if (last || !terminal_) std::putchar('\n');
  std::fflush(stdout);
}

}  // namespace digits
