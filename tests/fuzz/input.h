// What a fuzzer gives, as the choices of a program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire::fuzz {

// Bytes as small numbers; zeros once they are used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  std::uint32_t Byte() { return empty() ? 0 : data_[at_++]; }
  std::uint32_t Below(std::uint32_t limit) { return Byte() % limit; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace gradwire::fuzz
