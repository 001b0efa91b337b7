// Limits on how many of a resource a member, its session and the whole daemon may use.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradwire::server {

// Thread-safe. Each use counts against this quota and against the larger quotas that it is part of.
class Quota {
 public:
  // A quarter of each limit is reserved for kFirst, so that a heavy user cannot prevent others from
  // getting their first unit.
  enum class Need { kFirst, kFurther };

  // One unit; its destructor returns it. Movable.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept = default;
    Share& operator=(Share&&) = delete;
    ~Share() {
      if (quota_ != nullptr) quota_->Return();
    }

   private:
    friend class Quota;
    explicit Share(std::shared_ptr<Quota> quota) : quota_(std::move(quota)) {}
    std::shared_ptr<Quota> quota_;
  };

  // For errors: "<whose> has 5 <what>". `whole`: what this is a part of, or null.
  Quota(std::string whose, std::string what, std::size_t limit,
        std::shared_ptr<Quota> whole = nullptr)
      : whose_(std::move(whose)), what_(std::move(what)), limit_(limit), whole_(std::move(whole)) {}

  // Returns ResourceExhausted, which names the exhausted limit and its owner, and then takes
  // nothing.
  static absl::StatusOr<Share> Take(std::shared_ptr<Quota> quota, Need need);

  std::size_t limit() const { return limit_; }
  std::size_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  absl::Status Count(Need need);
  void Return();

  const std::string whose_;
  const std::string what_;
  const std::size_t limit_;
  const std::shared_ptr<Quota> whole_;
  std::atomic<std::size_t> taken_ = 0;
};

}  // namespace gradwire::server
