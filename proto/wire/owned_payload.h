// A payload that is a vector.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "proto/wire/frame.h"

namespace gradwire::wire {

class OwnedPayload final : public Payload {
 public:
  explicit OwnedPayload(std::vector<std::byte> content)
      : content_(std::move(content)), piece_(content_) {}

  OwnedPayload(const OwnedPayload&) = delete;
  OwnedPayload& operator=(const OwnedPayload&) = delete;

  static PayloadRef Make(std::vector<std::byte> content) {
    return std::make_shared<const OwnedPayload>(std::move(content));
  }

  std::span<const std::span<const std::byte>> pieces() const override { return {&piece_, 1}; }
  std::size_t bytes() const override { return content_.size(); }

 private:
  const std::vector<std::byte> content_;
  const std::span<const std::byte> piece_;
};

}  // namespace gradwire::wire
