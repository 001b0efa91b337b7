#include "proto/wire/rank_zero_frames.h"

#include <limits>
#include <vector>

#include "base/limits.h"

namespace gradwire::wire {

void Set(const BucketReport& report, v1::Header& out) {
  v1::BucketReport& message = *out.mutable_bucket_report();
  message.set_bucket(report.bucket);
  message.set_parameters(report.parameters);
  message.set_reductions(report.reductions);
  message.set_gradient_bytes(report.gradient_bytes);
  message.set_sent_bytes(report.sent_bytes);
  message.set_received_bytes(report.received_bytes);
  message.set_compress_seconds(report.compress_seconds);
  message.set_wire_seconds(report.wire_seconds);
  message.set_reduce_seconds(report.reduce_seconds);
  message.set_decompress_seconds(report.decompress_seconds);
  message.set_gradient_norm(report.gradient_norm);
  message.set_residual_norm(report.residual_norm);
}

BucketReport Get(const v1::BucketReport& message, Checker& check) {
  const auto number = [&check](const char* field, double value) {
    return check.Range(field, value, 0.0, std::numeric_limits<double>::max());
  };
  return {.bucket = check.Parameter("bucket", message.bucket()),
          .parameters = check.Range("parameters", message.parameters(), std::uint32_t{1},
                                    static_cast<std::uint32_t>(kMaxParameters)),
          .reductions = message.reductions(),
          .gradient_bytes = message.gradient_bytes(),
          .sent_bytes = message.sent_bytes(),
          .received_bytes = message.received_bytes(),
          .compress_seconds = number("compress_seconds", message.compress_seconds()),
          .wire_seconds = number("wire_seconds", message.wire_seconds()),
          .reduce_seconds = number("reduce_seconds", message.reduce_seconds()),
          .decompress_seconds = number("decompress_seconds", message.decompress_seconds()),
          .gradient_norm = number("gradient_norm", message.gradient_norm()),
          .residual_norm = number("residual_norm", message.residual_norm())};
}

void Set(const DrawPlan& plan, v1::Header& out) {
  v1::DrawPlan& message = *out.mutable_draw_plan();
  message.set_generation(plan.generation);
  message.set_piece(plan.piece);
  message.set_continued(plan.continued);
  message.set_last(plan.last);
  for (const std::vector<std::uint32_t>& bucket : plan.buckets) {
    message.add_buckets()->mutable_parameters()->Add(bucket.begin(), bucket.end());
  }
}

// No bucket is empty, so that the parameters bound the buckets too.
DrawPlan Get(const v1::DrawPlan& message, Checker& check) {
  DrawPlan plan{.generation = message.generation(),
                .piece = check.Range("piece", message.piece(), std::uint32_t{0},
                                     static_cast<std::uint32_t>(kMaxParameters - 1)),
                .continued = message.continued(),
                .last = message.last()};
  check.Count("buckets", static_cast<std::size_t>(message.buckets_size()), 1, kMaxDrawPlanPiece);
  if (!check.status().ok()) return plan;
  std::size_t left = kMaxDrawPlanPiece;
  for (const v1::DrawBucket& bucket : message.buckets()) {
    check.Count("buckets.parameters", static_cast<std::size_t>(bucket.parameters_size()), 1, left);
    if (!check.status().ok()) return plan;
    left -= static_cast<std::size_t>(bucket.parameters_size());
    std::vector<std::uint32_t>& parameters = plan.buckets.emplace_back();
    parameters.reserve(static_cast<std::size_t>(bucket.parameters_size()));
    for (const std::uint32_t parameter : bucket.parameters()) {
      parameters.push_back(check.Parameter("buckets.parameters", parameter));
    }
  }
  return plan;
}

}  // namespace gradwire::wire
