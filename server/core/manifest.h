// A session's parameters: one immutable list, which everybody who needs it shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/hooks/grad_bucket.h"

namespace gradwire::server {

// Copies refer to the same list. Thread-safe.
class Manifest {
 public:
  using List = std::vector<ParameterSpec>;

  Manifest() : Manifest(List()) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a list is a manifest, and moves into it.
  Manifest(List list) : list_(std::make_shared<const List>(std::move(list))) {}
  Manifest(std::initializer_list<ParameterSpec> list) : Manifest(List(list)) {}

  const std::shared_ptr<const List>& shared() const { return list_; }
  const List& list() const { return *list_; }

  std::size_t size() const { return list_->size(); }
  bool empty() const { return list_->empty(); }
  const ParameterSpec& operator[](std::size_t position) const { return (*list_)[position]; }
  List::const_iterator begin() const { return list_->begin(); }
  List::const_iterator end() const { return list_->end(); }

  // Of all gradients.
  std::size_t GradientBytes() const;
  // Of these parameters' gradients; positions are below size().
  std::size_t GradientBytes(std::span<const std::uint32_t> positions) const;

  // "[w, b, c, and 4 more]". Positions may be any.
  std::string BucketName(std::span<const std::uint32_t> positions) const;

 private:
  std::shared_ptr<const List> list_;
};

}  // namespace gradwire::server
