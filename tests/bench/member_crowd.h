// All members of one session in this process.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gradwire/client.h"

namespace gradwire::bench {

// Buckets of fp32 parameters that are all alike.
struct CrowdModel {
  int buckets = 1;
  int parameters = 1;  // of each bucket
  std::vector<std::int64_t> shape;
  HookSpec hook = {};
};

class MemberCrowd {
 public:
  // Joins `members` members to the session "crowd".
  static absl::StatusOr<std::unique_ptr<MemberCrowd>> Join(const std::string& address, int members,
                                                           const CrowdModel& model);

  // One step: every member submits all its buckets and ends the step. Until all verdicts are here.
  absl::Status Round();

  // Whether every member's buckets hold the mean of what all began with; of a lossy hook nothing is
  // expected.
  absl::Status Check() const;

 private:
  struct Member {
    std::vector<std::vector<float>> gradients;
    std::vector<GradBucket> buckets;
    std::unique_ptr<Client> client;
  };

  explicit MemberCrowd(bool lossy) : lossy_(lossy) {}
  void OnVerdict(const absl::StatusOr<Verdict>& verdict);

  const bool lossy_;
  std::mutex mutex_;
  std::condition_variable all_there_;
  std::size_t verdicts_ = 0;
  absl::Status failure_;
  // Last, so that the clients, which call OnVerdict, go first.
  std::vector<Member> members_;
};

}  // namespace gradwire::bench
