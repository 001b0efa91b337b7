#include "proto/wire/merge.h"

#include <algorithm>
#include <variant>

namespace gradwire::wire {
namespace {

// The chunks of `next` are those after `last`, and not too many.
template <typename Chunks>
bool Follows(const Chunks& last, const Chunks& next) {
  return last.chunk + last.more + 1 == next.chunk && next.more < kMaxMore - last.more;
}

// `received` only grows, so the later acknowledgement includes the earlier one.
bool MergeAcks(Ack& last, const Ack& next) {
  if (last.id != next.id) return false;
  last.received = std::max(last.received, next.received);
  return true;
}

// Only raw contributions without digests merge: a digest is that of one chunk. The bytes must be
// contiguous in one segment, because a merged frame has one extent (`SharedBytes`) for all chunks.

bool MergeContributions(Contribution& last, const Contribution& next) {
  if (!last.shared || !next.shared || last.digest || next.digest) return false;
  const SharedBytes& before = *last.shared;
  const SharedBytes& after = *next.shared;
  if (last.id != next.id || last.generation != next.generation || last.rank != next.rank ||
      !before.raw || !after.raw || before.takes_result != after.takes_result ||
      before.segment != after.segment || before.offset + before.bytes != after.offset ||
      !Follows(last, next)) {
    return false;
  }
  last.more += next.more + 1;
  last.received = next.received;
  last.shared->bytes += after.bytes;
  return true;
}

// The digest stays that of the first chunk, and the time becomes that of all, as the proto says.
bool MergeResults(Result& last, const Result& next) {
  if (last.id != next.id || !last.in_place || !next.in_place || !Follows(last, next)) return false;
  last.more += next.more + 1;
  last.reduce_nanoseconds += next.reduce_nanoseconds;
  return true;
}

}  // namespace

bool Merge(Header& last, const Header& next) {
  if (last.index() != next.index()) return false;
  if (auto* ack = std::get_if<Ack>(&last)) return MergeAcks(*ack, std::get<Ack>(next));
  if (auto* contribution = std::get_if<Contribution>(&last)) {
    return MergeContributions(*contribution, std::get<Contribution>(next));
  }
  if (auto* result = std::get_if<Result>(&last)) {
    return MergeResults(*result, std::get<Result>(next));
  }
  return false;
}

}  // namespace gradwire::wire
