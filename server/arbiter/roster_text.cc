#include "server/arbiter/roster_text.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/limits.h"
#include "proto/wire/proto_conversion.h"

namespace gradwire::server {
namespace {

constexpr char kBegin[] = "gradwire roster 1";
constexpr char kEnd[] = "end";  // a file that lacks it was cut off

bool IsHex(const std::string& text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

using Words = std::vector<std::string>;

bool TakeRank(const Words& words, RosterClaim& claim) {
  int rank = 0;
  std::uint64_t process = 0;
  const bool valid = words.size() == 3 && absl::SimpleAtoi(words[1], &rank) && rank >= 0 &&
                     rank < kMaxWorldSize && (claim.ranks.empty() || claim.ranks.back() < rank) &&
                     ParseHex16(words[2], &process);
  if (!valid) return false;
  claim.ranks.push_back(rank);
  claim.processes.push_back(process);
  return true;
}

bool TakeEnded(const Words& words, RosterClaim& claim) {
  v1::Header message;
  if (words.size() != 2 || words[1].size() % 2 != 0 || !IsHex(words[1])) return false;
  if (!message.ParseFromString(absl::HexStringToBytes(words[1]))) return false;
  absl::StatusOr<wire::Header> header = wire::FromProto(message);
  auto* const done = header.ok() ? std::get_if<wire::StepDone>(&*header) : nullptr;
  if (done == nullptr) return false;
  claim.ended.push_back(std::move(*done));
  return true;
}

absl::Status Malformed(std::size_t line) {
  return Coded(ErrorCode::kResume,
               absl::DataLossError(absl::StrCat("line ", line, " is not one of a roster")));
}

}  // namespace

std::string Hex16(std::uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

bool ParseHex16(const std::string& text, std::uint64_t* value) {
  return text.size() == 16 && IsHex(text) && absl::SimpleHexAtoi(text, value);
}

std::string RosterText(const RosterClaim& claim, std::uint64_t id) {
  std::string text = absl::StrCat(kBegin, "\nid ", Hex16(id), "\n");
  for (std::size_t i = 0; i < claim.ranks.size(); ++i) {
    absl::StrAppend(&text, "rank ", claim.ranks[i], " ", Hex16(claim.processes[i]), "\n");
  }
  for (const wire::StepDone& done : claim.ended) {
    absl::StrAppend(&text, "ended ",
                    absl::BytesToHexString(wire::ToProto(wire::Header(done)).SerializeAsString()),
                    "\n");
  }
  return absl::StrCat(text, kEnd, "\n");
}

absl::StatusOr<ReadRoster> ParseRoster(const std::string& text) {
  ReadRoster read;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const bool is_whole =
      lines.size() >= 4 && lines.back().empty() && lines[lines.size() - 2] == kEnd;
  if (lines.front() != kBegin) return Malformed(1);
  if (!is_whole) return Malformed(lines.size());
  for (std::size_t i = 1; i + 2 < lines.size(); ++i) {
    const Words words = absl::StrSplit(lines[i], ' ');
    const bool taken = i == 1
                           ? words.size() == 2 && words[0] == "id" && ParseHex16(words[1], &read.id)
                       : words[0] == "rank" ? TakeRank(words, read.claim)
                                            : words[0] == "ended" && TakeEnded(words, read.claim);
    if (!taken) return Malformed(i + 1);
  }
  if (read.claim.ranks.empty()) return Malformed(lines.size() - 1);
  return read;
}

}  // namespace gradwire::server
