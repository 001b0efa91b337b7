// What members say of their buckets, for status and log.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "hooks/coordinator_hook.h"
#include "server/core/effects.h"
#include "server/core/manifest.h"

namespace gradwire::server {

class BucketTable;

class BucketReports {
 public:
  // By the bucket's id.
  using Reports = std::map<std::uint32_t, wire::BucketReport>;

  explicit BucketReports(Manifest manifest) : manifest_(std::move(manifest)) {}

  // Rank 0 measures for all, as it does in torch's log. What others send is of no use yet, and no
  // sin.
  absl::Status Take(int rank, const wire::BucketReport& report);

  // Buckets that the step did not have are forgotten.
  void EndStep(const BucketTable& table, std::int64_t step);
  // A line of the applied step's compression, as often as the hook's option says.
  void Log(const CoordinatorHook* hook, const BucketTable& table, std::int64_t step,
           Effects& effects) const;

  // What rank 0 said last of each bucket of the last step.
  const Reports& all() const { return reports_; }

 private:
  const Manifest manifest_;
  Reports reports_;
};

}  // namespace gradwire::server
