#include "server/ctl/replay.h"

#include <sys/stat.h>

#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/printable.h"
#include "server/ctl/failures.h"
#include "server/ctl/replay_text.h"
#include "server/daemon/exit_codes.h"
#include "server/record/record_directory.h"

namespace gradwire::ctl {
namespace {

using Json = nlohmann::ordered_json;
using server::kExitFailed;
using server::kExitOk;
using server::RecordPath;

bool IsDirectory(const std::string& path) {
  struct stat entry {};
  return stat(path.c_str(), &entry) == 0 && S_ISDIR(entry.st_mode);
}

absl::Status FileError(const absl::Status& status) { return Coded(ErrorCode::kCtlFile, status); }

absl::Status FileError(const std::string& path, const absl::Status& status) {
  return FileError(absl::Status(status.code(), absl::StrCat(path, ": ", status.message())));
}

absl::StatusOr<std::vector<RecordPath>> FindIn(const std::string& directory) {
  auto found = server::ListRecords(directory);
  if (!found.ok()) return FileError(found.status());
  if (!found->empty()) return found;
  return Coded(ErrorCode::kCtlFile,
               absl::NotFoundError(absl::StrCat(
                   directory,
                   " has no recording; allowed is the directory of gradwired --record, or one in "
                   "it, with files such as step-41.gwrec")));
}

absl::StatusOr<std::vector<RecordPath>> FindAll(const std::vector<std::string>& paths) {
  std::vector<RecordPath> all;
  for (const std::string& path : paths) {
    if (!IsDirectory(path)) {
      all.push_back({.folder = "", .step = 0, .path = path});
      continue;
    }
    auto found = FindIn(path);
    if (!found.ok()) return found.status();
    all.insert(all.end(), found->begin(), found->end());
  }
  return all;
}

// What one file is read as.
template <class T>
absl::StatusOr<T> ReadFrom(const std::string& path,
                           absl::StatusOr<T> (*read)(server::RecordSource& source)) {
  const auto source = server::OpenRecord(path);
  if (!source.ok()) return FileError(source.status());
  absl::StatusOr<T> result = read(**source);
  if (!result.ok()) return FileError(path, result.status());
  return result;
}

int ReplayAll(const std::vector<RecordPath>& records, const Print& print) {
  std::size_t as_recorded = 0;
  std::string session;
  Json steps = Json::array();
  int code = kExitOk;
  for (const RecordPath& record : records) {
    const auto report = ReadFrom(record.path, &server::Replay);
    if (!report.ok()) {
      code = FailedHere(report.status());
      continue;
    }
    const bool same = report->differences == 0;
    as_recorded += same ? 1 : 0;
    if (!same) code = kExitFailed;
    if (print) {
      steps.push_back(ReplayJson(record.path, *report));
      continue;
    }
    // A line for each session, as its steps come together.
    const server::RecordedStep& step = report->step;
    const std::string one = absl::StrCat(
        "session ", Printable(step.session), ", generation ", step.generation,
        step.shards > 1 ? absl::StrCat(", shard ", step.shard, " of ", step.shards) : "", ", hook ",
        Printable(step.hook.ToString()), ", ", record.folder, "\n");
    if (std::exchange(session, one) != one) {
      std::cout << one.substr(0, one.rfind(", ")) << "\n";
    }
    std::cout << ReplayText(*report) << std::flush;
  }
  if (print) {
    print(Json{{"steps", std::move(steps)}, {"as_recorded", code == kExitOk}}.dump() + "\n");
  } else {
    std::cout << as_recorded << " of " << records.size() << " steps as recorded\n";
  }
  return code;
}

// By step. The recording of one session only, because steps of several would be mixed.
absl::StatusOr<std::map<std::int64_t, std::string>> StepsOf(
    const std::vector<std::string>& directories) {
  std::map<std::int64_t, std::string> steps;
  std::optional<std::string> folder;
  for (const std::string& directory : directories) {
    const auto found = FindIn(directory);
    if (!found.ok()) return found.status();
    for (const RecordPath& record : *found) {
      const std::string path = absl::StrCat(directory, "/", record.folder);
      if (folder && *folder != path) {
        return Coded(ErrorCode::kCtlUsage,
                     absl::InvalidArgumentError(absl::StrCat(
                         "there are recordings of several sessions, in ", *folder, " and ", path,
                         "; allowed with --compare: one on each side")));
      }
      folder = path;
      steps[record.step] = record.path;
    }
  }
  return steps;
}

std::string Steps(const std::map<std::int64_t, std::string>& steps) {
  return absl::StrCat(steps.begin()->first, " to ", steps.rbegin()->first);
}

// What the comparison of two recordings comes to.
struct Compared {
  std::optional<std::int64_t> first;  // the first step that both have
  std::int64_t last = 0;              // that is the same in both
  bool parted_before = false;         // what was applied before the first step differs
  std::optional<std::pair<std::int64_t, server::StepDifference>> difference{};
};

absl::StatusOr<Compared> CompareSteps(const std::map<std::int64_t, std::string>& ours,
                                      const std::map<std::int64_t, std::string>& theirs) {
  Compared compared;
  for (const auto& [step, path] : ours) {
    const auto other = theirs.find(step);
    if (other == theirs.end()) continue;
    const auto a = ReadFrom(path, &server::ReadContents);
    if (!a.ok()) return a.status();
    const auto b = ReadFrom(other->second, &server::ReadContents);
    if (!b.ok()) return b.status();
    const auto difference = server::Compare(*a, *b);
    if (!difference.ok()) return FileError(path, difference.status());
    if (!compared.first) {
      compared.first = step;
      const std::uint64_t chain = a->step.chain_before;
      compared.parted_before =
          chain != 0 && b->step.chain_before != 0 && chain != b->step.chain_before;
    }
    if (*difference) {
      compared.difference = {step, **difference};
      return compared;
    }
    compared.last = step;
  }
  if (compared.first) return compared;
  return Coded(ErrorCode::kCtl, absl::FailedPreconditionError(absl::StrCat(
                                    "the recordings have no step in common: the one has ",
                                    Steps(ours), ", the other ", Steps(theirs))));
}

void PrintCompared(const Compared& compared, const Print& print) {
  const auto& [first, last, parted_before, difference] = compared;
  const bool some_same = !difference || difference->first != *first;
  if (print) {
    Json json = {{"same", !difference && !parted_before},
                 {"first_step", *first},
                 {"last_same_step", nullptr},
                 {"parted_before", parted_before},
                 {"difference", nullptr}};
    if (some_same) json["last_same_step"] = last;
    if (difference) json["difference"] = DifferenceJson(difference->first, difference->second);
    return print(json.dump() + "\n");
  }
  if (parted_before) {
    std::cout << "the chains before step " << *first
              << " differ: the runs parted in a step before it\n";
  }
  if (some_same) std::cout << "steps " << *first << " to " << last << ": the same\n";
  if (difference) std::cout << DifferenceText(difference->first, difference->second);
}

int CompareRecordings(const ReplayFlags& flags, const Print& print) {
  const auto ours = StepsOf(flags.paths);
  if (!ours.ok()) return FailedHere(ours.status());
  const auto theirs = StepsOf({flags.compare});
  if (!theirs.ok()) return FailedHere(theirs.status());
  const auto compared = CompareSteps(*ours, *theirs);
  if (!compared.ok()) return FailedHere(compared.status());
  PrintCompared(*compared, print);
  return compared->difference || compared->parted_before ? kExitFailed : kExitOk;
}

}  // namespace

int RunReplay(const ReplayFlags& flags, const Print& print) {
  if (!flags.compare.empty()) return CompareRecordings(flags, print);
  const auto records = FindAll(flags.paths);
  if (!records.ok()) return FailedHere(records.status());
  return ReplayAll(*records, print);
}

}  // namespace gradwire::ctl
