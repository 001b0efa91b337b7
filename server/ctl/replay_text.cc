#include "server/ctl/replay_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/printable.h"

namespace gradwire::ctl {
namespace {

using Json = nlohmann::ordered_json;
using server::ReplayDifference;
using server::ReplayReport;
using server::ResultId;
using server::StepDifference;

std::string Hex(std::uint64_t digest) { return absl::StrFormat("0x%016x", digest); }

std::string Counted(std::size_t count, const std::string& what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string PlaceText(const std::string& bucket, const ResultId& id) {
  return absl::StrCat("bucket ", bucket.empty() ? absl::StrCat(id.bucket) : Printable(bucket),
                      ", round ", id.round, ", chunk ", id.chunk);
}

// Inclusive, as people count.
std::string RangeText(const ElementRange& range) {
  if (range.numel() == 0) return "";
  const std::string segment = range.segment == 0 ? "" : absl::StrCat(" of segment ", range.segment);
  return absl::StrCat(", elements ", range.begin, " to ", range.end - 1, segment);
}

std::string JudgementText(const ReplayDifference& difference) {
  if (!difference.wrong) return "fp64 confirms the sum computed here";
  const server::WrongElement& wrong = *difference.wrong;
  return absl::StrFormat("fp64 refutes the sum computed here: element %d is %.17g, exact %.17g",
                         wrong.element, wrong.result, wrong.exact);
}

std::string DigestsText(const ReplayDifference& difference) {
  return absl::StrCat("recorded ", Hex(difference.recorded), ", computed ",
                      Hex(difference.computed));
}

std::string LineOf(const ReplayDifference& difference) {
  using What = ReplayDifference::What;
  const std::string place =
      absl::StrCat(PlaceText(difference.bucket, difference.id), RangeText(difference.range));
  switch (difference.what) {
    case What::kResult:
      return absl::StrCat(place, ": ", DigestsText(difference), "; ", JudgementText(difference));
    case What::kWrongSum:
      return absl::StrCat(place, ": as recorded, ", Hex(difference.recorded), ", but ",
                          JudgementText(difference));
    case What::kNoSum:
      return absl::StrCat(place, ": a result was recorded, ", Hex(difference.recorded),
                          ", without its contributions");
    case What::kNoResult:
      return absl::StrCat(place, ": contributions were recorded without a result, computed ",
                          Hex(difference.computed));
    case What::kStepDigest:
      return absl::StrCat("the step's digest: ", DigestsText(difference));
    case What::kSharedDigest:
      return absl::StrCat("the digest that members agreed on: ", DigestsText(difference));
    case What::kChain:
      return absl::StrCat("the chain after the step: ", DigestsText(difference));
    case What::kVerdict:
      return "the verdict: recorded APPLY, although a result is not finite";
  }
  return "";
}

std::string WordOf(ReplayDifference::What what) {
  using What = ReplayDifference::What;
  switch (what) {
    case What::kResult:
      return "result";
    case What::kWrongSum:
      return "wrong_sum";
    case What::kNoSum:
      return "no_contributions";
    case What::kNoResult:
      return "no_result";
    case What::kStepDigest:
      return "step_digest";
    case What::kSharedDigest:
      return "agreed_digest";
    case What::kChain:
      return "chain";
    case What::kVerdict:
      return "verdict";
  }
  return "";
}

bool IsOfResult(ReplayDifference::What what) { return what < ReplayDifference::What::kStepDigest; }

Json PlaceJson(const std::string& bucket, const ResultId& id) {
  return {{"bucket", bucket}, {"bucket_id", id.bucket}, {"round", id.round}, {"chunk", id.chunk}};
}

Json JsonOf(const ReplayDifference& difference) {
  Json json = {{"what", WordOf(difference.what)}};
  if (IsOfResult(difference.what)) {
    json.update(PlaceJson(difference.bucket, difference.id));
    json["segment"] = difference.range.segment;
    json["first_element"] = difference.range.begin;
    json["elements"] = difference.range.numel();
    json["fp64_confirms"] = !difference.wrong;
  }
  json["recorded"] = Hex(difference.recorded);
  json["computed"] = Hex(difference.computed);
  return json;
}

}  // namespace

std::string ReplayText(const ReplayReport& report) {
  std::string text = absl::StrCat(
      "step ", report.step.step, ": ", Counted(report.buckets, "bucket"), ", ",
      Counted(report.members, "member"), ", ", report.verdict == Verdict::kSkip ? "skipped, " : "",
      "digest ", Hex(report.digest), ": ");
  if (report.differences == 0) return text + "as recorded\n";
  absl::StrAppend(&text, "differs in ", Counted(report.differences, "place"), "\n");
  for (const ReplayDifference& difference : report.listed) {
    absl::StrAppend(&text, "  ", LineOf(difference), "\n");
  }
  if (report.listed.size() < report.differences) {
    absl::StrAppend(&text, "  and ", report.differences - report.listed.size(), " more\n");
  }
  return text;
}

Json ReplayJson(const std::string& path, const ReplayReport& report) {
  Json places = Json::array();
  for (const ReplayDifference& difference : report.listed) places.push_back(JsonOf(difference));
  return {{"path", path},
          {"session", report.step.session},
          {"generation", report.step.generation},
          {"lineage", Hex(report.step.lineage)},
          {"shard", report.step.shard},
          {"shards", report.step.shards},
          {"step", report.step.step},
          {"verdict", report.verdict == Verdict::kSkip ? "SKIP" : "APPLY"},
          {"members", report.members},
          {"buckets", report.buckets},
          {"chunks", report.chunks},
          {"bytes", report.bytes},
          {"digest", Hex(report.digest)},
          {"as_recorded", report.differences == 0},
          {"differences", report.differences},
          {"places", std::move(places)}};
}

std::string DifferenceText(std::int64_t step, const StepDifference& difference) {
  using What = StepDifference::What;
  const std::string place = PlaceText(difference.bucket, difference.id);
  const std::string digests = absl::StrCat(Hex(difference.ours), " and ", Hex(difference.theirs));
  const std::string head = absl::StrCat("step ", step, ": ");
  switch (difference.what) {
    case What::kBuckets:
      return absl::StrCat(head, "only one recording has ", place,
                          difference.rank < 0 ? "" : absl::StrCat(" of rank ", difference.rank),
                          "\n");
    case What::kContribution:
      return absl::StrCat(head, "rank ", difference.rank, " contributed something else: ", place,
                          ", digests ", digests, "\n");
    case What::kResult:
      return absl::StrCat(head, "the same contributions, another result: ", place, ", digests ",
                          digests, "\n");
    case What::kVerdict:
      return absl::StrCat(head, "the same results, another verdict\n");
  }
  return "";
}

Json DifferenceJson(std::int64_t step, const StepDifference& difference) {
  using What = StepDifference::What;
  Json json = {{"step", step},
               {"what", difference.what == What::kBuckets        ? "buckets"
                        : difference.what == What::kContribution ? "contribution"
                        : difference.what == What::kResult       ? "result"
                                                                 : "verdict"}};
  json.update(PlaceJson(difference.bucket, difference.id));
  if (difference.rank >= 0) json["rank"] = difference.rank;
  json["ours"] = Hex(difference.ours);
  json["theirs"] = Hex(difference.theirs);
  return json;
}

}  // namespace gradwire::ctl
