#include "server/core/contribution_checks.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace gradwire::server {
namespace {

std::size_t BytesOf(const wire::PayloadRef& payload) {
  return payload == nullptr ? 0 : payload->bytes();
}

bool TakesResults(const Bucket& bucket, const SessionOptions& options) {
  return options.spec.TakesResults(bucket.gradient_type());
}

}  // namespace

absl::Status CheckContribution(int rank, const wire::Contribution& header, const Bucket& bucket,
                               const wire::PayloadRef& payload, const SessionOptions& options) {
  const Round& round = bucket.round();
  const std::uint32_t chunk = header.chunk;
  const auto where = [&] {
    return absl::StrCat("step ", bucket.step(), " bucket ", bucket.name(), " round ",
                        bucket.round_number());
  };
  if (!bucket.IsGrantedTo(rank)) {
    return absl::FailedPreconditionError(absl::StrCat("sent bytes before its grant: ", where()));
  }
  if (chunk >= round.chunk_count()) {
    return absl::OutOfRangeError(absl::StrCat("sent chunk ", chunk, " of ", where(), ", which has ",
                                              round.chunk_count(), " chunks"));
  }
  const bool raw = header.shared && header.shared->raw;
  if (raw && !options.spec.OnlyCasts()) {
    return absl::InvalidArgumentError(absl::StrCat("sent chunk ", chunk, " of ", where(),
                                                   " raw; allowed: the hooks no, fp16 and bf16"));
  }
  const std::size_t expected = raw ? bucket.RawBytes(chunk) : round.layout().ChunkBytes(chunk);
  const std::size_t got = BytesOf(payload);
  if (got != expected) {
    return absl::InvalidArgumentError(absl::StrCat("sent ", got, " bytes as chunk ", chunk, " of ",
                                                   where(), ", which has ", expected));
  }
  // Of one that takes its result nothing is kept, so that it needs no window.
  if (raw && payload->takes_result() && TakesResults(bucket, options)) return absl::OkStatus();
  if (!round.InWindow(rank, chunk)) {
    return absl::FailedPreconditionError(
        absl::StrCat("sent chunk ", chunk, " of ", where(), " with ", round.received(rank),
                     " results received; the window is ", options.window_chunks));
  }
  return absl::OkStatus();
}

absl::Status CheckSeveral(const wire::Contribution& header, const Bucket& bucket,
                          const wire::PayloadRef& payload, const SessionOptions& options) {
  const std::uint32_t count = bucket.round().chunk_count();
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("sent chunk ", header.chunk, " and ",
                                                   header.more, " more of bucket ", bucket.name(),
                                                   " in step ", bucket.step(), " ", what));
  };
  if (!header.shared || !header.shared->raw || !options.spec.OnlyCasts()) {
    return error("at once; allowed: raw ones, with the hooks no, fp16 and bf16");
  }
  // Subtracts instead of adding, because a sum of numbers from the wire may overflow.
  if (header.chunk >= count || header.more >= count - header.chunk) {
    return error(absl::StrCat("at once; it has ", count, " chunks"));
  }
  std::size_t expected = 0;
  for (std::uint32_t i = 0; i <= header.more; ++i) expected += bucket.RawBytes(header.chunk + i);
  const std::size_t got = BytesOf(payload);
  if (got != expected) {
    return error(absl::StrCat("in ", got, " bytes; they have ", expected));
  }
  return absl::OkStatus();
}

absl::Status CheckEager(const wire::Announce& announce, const Bucket& bucket,
                        const wire::PayloadRef& payload, std::size_t eager_bytes,
                        const SessionOptions& options) {
  const std::string where = absl::StrCat("bucket ", bucket.name(), " in step ", bucket.step());
  if (bucket.plans().size() != 1 || bucket.round().chunk_count() != 1 ||
      bucket.state_version() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "announced ", where, " eagerly; allowed: one round of one chunk without shared state"));
  }
  const std::size_t expected = bucket.round().layout().ChunkBytes(0);
  const std::size_t got = BytesOf(payload);
  if (got != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("announced ", where, " eagerly with ", got, " bytes; it has ", expected));
  }
  if (announce.attempt > bucket.round().attempt()) {
    return absl::FailedPreconditionError(absl::StrCat("announced ", where, " eagerly in attempt ",
                                                      announce.attempt, "; it is in attempt ",
                                                      bucket.round().attempt()));
  }
  // `eager_bytes` passed this check before, so the difference does not wrap.
  if (expected > options.eager_bytes - eager_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("announced ", where, " eagerly with ", expected, " bytes after ", eager_bytes,
                     " without results; allowed: ", options.eager_bytes, " together"));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::server
