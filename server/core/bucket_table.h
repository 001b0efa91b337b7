// A session's buckets: which parameters belong to which, and which of them are granted.
//
// A few buckets are open at a time, and all members are granted the same ones, in the order in
// which any member first announced them. So every member sends the same chunks in the same order,
// and some chunk can always be completed: grants cannot deadlock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/frame.h"
#include "server/core/bucket.h"
#include "server/core/shard_place.h"

namespace gradwire::server {

class BucketTable {
 public:
  // By step, then by id.
  using Key = std::pair<std::int64_t, std::uint32_t>;
  using Buckets = std::map<Key, Bucket>;

  BucketTable(Manifest manifest, std::uint32_t open_buckets, ShardPlace shard = {});

  // Whether the announced parameters can be a bucket of the open step: each in the manifest, this
  // shard's, once, and in no other bucket; the same list and rounds as other members announced.
  absl::Status CheckAnnouncement(const wire::Announce& announce) const;

  // The bucket is one of the open step.
  Bucket& Add(Bucket bucket);
  // Null: there is none.
  Bucket* Find(std::int64_t step, std::uint32_t id);

  // References stay valid until CloseAcknowledged or Clear.
  Buckets& all() { return buckets_; }
  const Buckets& all() const { return buckets_; }

  struct Granted {
    Bucket* bucket = nullptr;
    int rank = 0;
  };
  // Opens as many as may be, first announced first, and returns who is granted them: all that have
  // announced them.
  std::vector<Granted> OpenNext();
  // Buckets that everybody has acknowledged are open no longer. Those of steps before `step` are
  // dropped; returns the shared state that they kept.
  std::vector<std::shared_ptr<const SharedBlock>> CloseAcknowledged(std::int64_t step);
  // The step is over: its parameters may be put into other buckets.
  void EndStep(std::int64_t step);

  // Parameters of the step's buckets, and whether all of those are reduced.
  struct Progress {
    std::size_t parameters = 0;
    bool all_reduced = true;
  };
  Progress ProgressOf(std::int64_t step) const;
  // Of the step's buckets, chained.
  std::uint64_t DigestOf(std::int64_t step) const;

  std::size_t held_bytes() const;
  // Drops all buckets. Returns the results that they kept.
  std::vector<ResultRef> Clear();

 private:
  static constexpr std::uint32_t kNoBucket = UINT32_MAX;

  absl::Status CheckSameAsOthers(const wire::Announce& announce) const;
  std::vector<Bucket*> Waiting();
  std::vector<Granted> OpenForEachMember();

  const Manifest manifest_;
  const std::uint32_t open_buckets_;
  const ShardPlace shard_;
  Buckets buckets_;
  std::int64_t step_ = 0;             // the open one
  std::vector<std::uint32_t> owner_;  // by parameter: its bucket in the open step
};

}  // namespace gradwire::server
