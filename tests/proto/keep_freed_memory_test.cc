#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

#include "proto/wire/process_setup.h"

namespace gradwire::wire {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSlice = std::size_t{64} << 10;  // gRPC's read buffers
constexpr std::size_t kSlices = 64;
constexpr long kPages = kSlice * kSlices / kPage;

long Faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Takes a window of slices, writes to each page, gives them back; returns the faults.
long TouchSlices() {
  const long before = Faults();
  std::vector<void*> slices(kSlices);
  for (void*& slice : slices) {
    slice = std::malloc(kSlice);
    for (std::size_t i = 0; i < kSlice; i += kPage) static_cast<volatile char*>(slice)[i] = 1;
  }
  for (void* slice : slices) std::free(slice);
  return Faults() - before;
}

TEST(KeepFreedMemory, FaultsNoSliceInTwice) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has an allocator of its own";
#endif
  TouchSlices();
  EXPECT_GT(TouchSlices(), kPages / 2) << "the C library keeps memory of its own accord";
  KeepFreedMemory();
  TouchSlices();
  EXPECT_LT(TouchSlices(), kPages / 16);
}

}  // namespace
}  // namespace gradwire::wire
