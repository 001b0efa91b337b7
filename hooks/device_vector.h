// An array in a device's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "hooks/device.h"

namespace gradwire {

// Keeps its memory when it shrinks, so that later steps allocate nothing. Must not outlive its
// device, which it uses like any other caller. After an error of the device it has a size, but
// memory that must not be used: the device does nothing with it.
template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(Device& device) : device_(&device) {}
  ~DeviceVector() { Release(); }
  DeviceVector(DeviceVector&& other) noexcept
      : device_(other.device_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  DeviceVector& operator=(DeviceVector&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }

  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }

  // What the elements are is not defined, unless the size stays.
  void Resize(std::size_t numel) {
    if (numel > capacity_) {
      Release();
      data_ = reinterpret_cast<T*>(device_->Allocate(numel * sizeof(T)));
      capacity_ = numel;
    }
    size_ = numel;
  }
  void Clear() { size_ = 0; }
  void Assign(const T* from, std::size_t numel) {
    Resize(numel);
    device_->Copy(data_, from, bytes());
  }
  void Upload(const void* from, std::size_t numel) {
    Resize(numel);
    device_->Upload(data_, from, bytes());
  }

 private:
  void Release() {
    if (data_ != nullptr) device_->Free(reinterpret_cast<std::byte*>(data_), capacity_ * sizeof(T));
    data_ = nullptr;
    capacity_ = 0;
  }

  Device* device_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace gradwire
