// Whether a member may send a contribution, or an announcement that is one.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "proto/wire/frame.h"
#include "server/core/bucket.h"
#include "server/core/session_options.h"

namespace gradwire::server {

// All are about the bucket's current round; each error says what is wrong and where.

// One chunk: granted, there, of its size, in the member's window.
absl::Status CheckContribution(int rank, const wire::Contribution& header, const Bucket& bucket,
                               const wire::PayloadRef& payload, const SessionOptions& options);

// A frame of several chunks, before they are looked at one by one.
absl::Status CheckSeveral(const wire::Contribution& header, const Bucket& bucket,
                          const wire::PayloadRef& payload, const SessionOptions& options);

// An announcement that brings its only chunk. `eager_bytes` the member has sent so already, and
// lacks the results.
absl::Status CheckEager(const wire::Announce& announce, const Bucket& bucket,
                        const wire::PayloadRef& payload, std::size_t eager_bytes,
                        const SessionOptions& options);

}  // namespace gradwire::server
