#include "gradwire/hooks/hook.h"

namespace gradwire {

std::size_t RoundPlan::bytes() const {
  std::size_t total = 0;
  for (const Segment& segment : segments) total += segment.bytes();
  return total;
}

}  // namespace gradwire
