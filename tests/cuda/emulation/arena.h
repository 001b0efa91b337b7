// The emulated GPU's memory: one range of addresses, which the host cannot touch.
#pragma once

#include <cstddef>
#include <map>

namespace gradwire::emulation {

// Blocks lie apart, and what is in none of them is poisoned under the address sanitizer, so that a
// kernel that leaves its arrays is found.
class Arena {
 public:
  explicit Arena(std::size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A place, not yet accessible; null if there is none.
  void* Reserve(std::size_t bytes);
  // Its contents become 0xFF: NaNs in every dtype. Only between Enter and Leave.
  void Open(void* memory);
  // Its contents are gone, and nobody may touch it. Only between Enter and Leave.
  void Close(void* memory);
  // Reserved and not closed.
  bool Holds(const void* memory) const { return blocks_.contains(const_cast<void*>(memory)); }
  // Whether these bytes lie in an open block.
  bool IsOpen(const void* from, std::size_t bytes) const;
  bool Contains(const void* p) const { return p >= base_ && p < base_ + bytes_; }

  // Work of the GPU begins and ends: only between the two is the memory accessible at all. Nests.
  void Enter();
  void Leave();

 private:
  struct Block {
    std::size_t bytes = 0;
    bool open = false;
  };
  char* base_ = nullptr;
  const std::size_t bytes_;
  std::map<void*, Block> blocks_;
  int depth_ = 0;
};

}  // namespace gradwire::emulation
