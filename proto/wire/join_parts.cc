#include "proto/wire/join_parts.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/checks.h"

namespace gradwire::wire {

absl::Status JoinParts::Add(v1::JoinPart part) {
  if (!reader_) return Begin(part);
  if (part.has_request() || part.parameters() != 0 || part.name_bytes() != 0) {
    return NotAllowed("JoinPart.request, parameters, name_bytes", "set in a later part",
                      "in the first part only");
  }
  // An empty part costs its sender nothing, and would keep the join going.
  if (part.manifest().empty()) return NotAllowed("JoinPart.manifest", "is empty", "1 or more");
  std::size_t bytes = 0;
  for (const v1::Parameter& parameter : part.manifest()) bytes += parameter.name().size();
  if (bytes > name_bytes_left_) {
    return NotAllowed("JoinPart.manifest", absl::StrCat("has ", bytes, " more bytes of names"),
                      absl::StrCat("at most ", name_bytes_left_, ", as the first part told"));
  }
  name_bytes_left_ -= bytes;
  return reader_->Add(part.manifest());
}

absl::Status JoinParts::Begin(v1::JoinPart& first) {
  if (!first.has_request()) {
    return NotAllowed("JoinPart.request", "missing in the first part", "a JoinRequest");
  }
  if (!first.manifest().empty() || !first.request().manifest().empty()) {
    return NotAllowed("JoinPart.manifest", "not empty in the first part",
                      "parameters in later parts only");
  }
  absl::Status status = CheckRange("JoinPart.parameters", std::uint64_t{first.parameters()},
                                   std::uint64_t{1}, std::uint64_t{kMaxParameters});
  status.Update(CheckRange("JoinPart.name_bytes", std::uint64_t{first.name_bytes()},
                           std::uint64_t{1}, std::uint64_t{kMaxManifestNameBytes}));
  if (!status.ok()) return status;
  parameters_ = first.parameters();
  name_bytes_left_ = first.name_bytes();
  // Reserved once for all parts: Add refuses what exceeds the announced sizes.
  status = reserve_(ManifestReader::BytesFor(parameters_, name_bytes_left_));
  if (!status.ok()) return status;
  request_ = std::move(*first.mutable_request());
  reader_.emplace(parameters_);
  return absl::OkStatus();
}

absl::Status JoinParts::CheckComplete() const {
  if (!reader_) return NotAllowed("JoinPart", "no part came", "a first part, then the manifest");
  if (reader_->size() == parameters_ && name_bytes_left_ == 0) return absl::OkStatus();
  return NotAllowed("JoinPart.manifest",
                    absl::StrCat("ends after ", reader_->size(), " parameters, ", name_bytes_left_,
                                 " bytes of names before what the first part told"),
                    absl::StrCat(parameters_, " parameters, all bytes of names"));
}

}  // namespace gradwire::wire
