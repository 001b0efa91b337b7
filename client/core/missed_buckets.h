// Buckets that others have reduced without this member, because it was late: their results lie in
// memory of their own until the trainer comes to them.
//
// The step may be over by then, and the trainer still in it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"
#include "gradwire/hooks/round_plan.h"

namespace gradwire::client {

class MissedBuckets {
 public:
  struct Bucket {
    std::vector<std::uint32_t> parameters;
    std::vector<std::byte> memory{};
    std::unique_ptr<GradBucket> scratch{};  // in `memory`: zero at first, then the result
    GradBucket* taken = nullptr;            // the trainer's; null: it has not come
    bool is_taken = false;

    // Copies the result to the trainer's bucket.
    void CopyTo(const GradBucket& bucket) const;
  };

  // `manifest` outlives this.
  explicit MissedBuckets(std::span<const ParameterSpec> manifest) : manifest_(manifest) {}

  // A bucket of the open step with these parameters, none of which is in another one.
  absl::StatusOr<Bucket*> Add(const std::vector<std::uint32_t>& parameters);
  // Of the open step.
  bool any() const { return !open_.empty(); }
  Bucket* Find(std::uint32_t id);
  const Bucket* Find(std::uint32_t id) const;

  // The trainer's bucket with these parameters, of the open step. Null: it is none of these. An
  // error: others have put some of the parameters into another bucket.
  absl::StatusOr<Bucket*> Match(std::span<const std::uint32_t> parameters) {
    return Match(open_, parameters);
  }
  // The same of an earlier step, with its verdict.
  struct OfPast {
    Bucket* bucket = nullptr;
    Verdict verdict = Verdict::kApply;
  };
  absl::StatusOr<OfPast> Match(std::int64_t step, std::span<const std::uint32_t> parameters);

  struct Over {
    std::int64_t step = 0;
    Verdict verdict = Verdict::kApply;
    bool dropped = false;    // its results are nobody's
    bool has_begun = false;  // the trainer had a part in it
  };
  // The open step is over.
  void Conclude(const Over& over);
  // Whether the trainer has begun a step that is over. Others may have ended it without that.
  bool HasBegun(std::int64_t step) const;

  // The trainer ends the open step, or an earlier one, which is forgotten. An error names a bucket
  // that it has not had.
  absl::Status CheckAllTaken(std::int64_t step) const { return CheckAllTaken(open_, step); }
  absl::Status EndPast(std::int64_t step);

 private:
  using Buckets = std::map<std::uint32_t, Bucket>;  // by id
  struct Past {
    Over over{};
    Buckets buckets{};
  };

  absl::StatusOr<Bucket*> Match(Buckets& buckets, std::span<const std::uint32_t> parameters) const;
  absl::Status CheckAllTaken(const Buckets& buckets, std::int64_t step) const;

  const std::span<const ParameterSpec> manifest_;
  Buckets open_;
  std::map<std::int64_t, Past> past_;  // by step
};

}  // namespace gradwire::client
