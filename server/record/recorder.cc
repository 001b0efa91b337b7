#include "server/record/recorder.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/thread_name.h"
#include "server/record/record_directory.h"

namespace gradwire::server {
namespace {

constexpr std::chrono::seconds kBetweenComplaints(60);
constexpr std::size_t kItemBytes = 256;  // of the queue, beside its bytes

absl::Status NotUsable(const std::string& directory, int error) {
  return Coded(ErrorCode::kSetting,
               absl::UnavailableError(absl::StrCat(
                   "record is \"", directory, "\": ", std::strerror(error),
                   "; allowed is a directory that exists and in which gradwired may make files")));
}

// 0, or what errno said.
int WriteAll(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace

absl::Status Recorder::Check(const std::string& directory) {
  struct stat entry {};
  if (stat(directory.c_str(), &entry) != 0) return NotUsable(directory, errno);
  if (!S_ISDIR(entry.st_mode)) return NotUsable(directory, ENOTDIR);
  if (faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0) {
    return absl::OkStatus();
  }
  return NotUsable(directory, errno);
}

absl::StatusOr<std::shared_ptr<Recorder>> Recorder::Open(Options options) {
  if (absl::Status usable = Check(options.directory); !usable.ok()) return usable;
  std::shared_ptr<Recorder> recorder(new Recorder(std::move(options)));
  recorder->thread_ = std::thread([self = recorder.get()] {
    NameThread("gradwire-record");
    self->Run();
  });
  return recorder;
}

void Recorder::Push(Item item) {
  queue_.push_back(std::move(item));
  wake_.NotifyOne();
}

void Recorder::BeginSession(const std::string& folder) {
  MutexLock lock(mutex_);
  if (!stop_) Push({.what = Item::What::kBeginSession, .folder = folder});
}

void Recorder::EndSession(const std::string& folder) {
  MutexLock lock(mutex_);
  if (!stop_) Push({.what = Item::What::kEndSession, .folder = folder});
}

RecordSink::Ticket Recorder::Begin(const std::string& folder, std::int64_t step) {
  MutexLock lock(mutex_);
  const Ticket ticket = ++last_;
  Push({.what = Item::What::kBegin, .ticket = ticket, .folder = folder, .step = step});
  return ticket;
}

// Frees the room at once, so that the next step can begin.
void Recorder::LeaveOut(Ticket ticket) {
  if (!left_out_.insert(ticket).second) return;
  std::erase_if(queue_, [&](const Item& item) GRADWIRE_REQUIRES(mutex_) {
    if (item.ticket != ticket || item.what != Item::What::kRecord) return false;
    queued_bytes_ -= item.record.bytes() + kItemBytes;
    return true;
  });
}

bool Recorder::TakeRoom(Ticket ticket, std::size_t bytes) {
  if (stop_ || left_out_.contains(ticket)) return false;
  if (bytes + kItemBytes <= options_.queue_bytes - std::min(queued_bytes_, options_.queue_bytes)) {
    return true;
  }
  LeaveOut(ticket);
  return false;
}

bool Recorder::HasRoom(Ticket ticket, std::size_t bytes) {
  MutexLock lock(mutex_);
  return TakeRoom(ticket, bytes);
}

void Recorder::Add(Ticket ticket, OutgoingRecord record) {
  const std::size_t bytes = record.bytes();
  MutexLock lock(mutex_);
  if (!TakeRoom(ticket, bytes)) return;
  queued_bytes_ += bytes + kItemBytes;
  Push({.what = Item::What::kRecord, .ticket = ticket, .record = std::move(record)});
}

void Recorder::End(Ticket ticket) {
  MutexLock lock(mutex_);
  if (stop_) return;
  const bool lacks = left_out_.erase(ticket) > 0;
  left_out_total_ += lacks ? 1 : 0;
  Push({.what = lacks ? Item::What::kDrop : Item::What::kEnd, .ticket = ticket});
}

void Recorder::Drop(Ticket ticket) {
  MutexLock lock(mutex_);
  if (stop_) return;
  LeaveOut(ticket);
  left_out_.erase(ticket);
  Push({.what = Item::What::kDrop, .ticket = ticket});
}

void Recorder::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    wake_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
}

std::uint64_t Recorder::recorded() const {
  MutexLock lock(mutex_);
  return recorded_;
}

std::uint64_t Recorder::left_out() const {
  MutexLock lock(mutex_);
  return left_out_total_;
}

void Recorder::Run() {
  while (true) {
    Item item;
    std::size_t bytes = 0;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stop_) wake_.Wait(mutex_);
      if (queue_.empty()) break;
      item = std::move(queue_.front());
      queue_.pop_front();
      if (item.what == Item::What::kRecord) bytes = item.record.bytes() + kItemBytes;
    }
    Do(std::move(item));
    TellLeftOut();
    MutexLock lock(mutex_);
    queued_bytes_ -= bytes;
  }
  // Steps that nobody will conclude.
  for (const auto& [ticket, file] : files_) Discard(file);
}

void Recorder::Do(Item item) {
  if (item.what == Item::What::kBeginSession) return folders_.Begin(item.folder);
  if (item.what == Item::What::kEndSession) {
    steps_.erase(item.folder);
    return folders_.End(item.folder);
  }
  if (item.what == Item::What::kBegin) return OnBegin(std::move(item));
  const auto found = files_.find(item.ticket);
  if (found == files_.end()) return;
  File& file = found->second;
  if (item.what == Item::What::kRecord) return OnRecord(file, item.record);
  if (item.what == Item::What::kEnd) {
    OnEnd(file);
  } else {
    Discard(file);
  }
  files_.erase(found);
}

std::string Recorder::PathOf(const std::string& folder, std::int64_t step) const {
  return absl::StrCat(options_.directory, "/", folder, "/", RecordName(step));
}

// The directory itself is not made again: if it is gone, nobody wants the recordings.
void Recorder::OnBegin(Item item) {
  if (folders_.Make(item.folder)) steps_.erase(item.folder);
  const std::string path = PathOf(item.folder, item.step) + kPartialSuffix;
  File& file = files_[item.ticket];
  file.folder = std::move(item.folder);
  file.step = item.step;
  file.file = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  int error = file.file.valid() ? 0 : errno;
  if (error == 0)
    error = WriteAll(file.file.get(), std::as_bytes(std::span(kRecordMagic, kRecordMagicBytes)));
  if (error != 0) Fail(file, error);
}

void Recorder::OnRecord(File& file, const OutgoingRecord& record) {
  if (!file.file.valid()) return;
  const auto prefix = RecordPrefix(record.kind, *record.head, record.content());
  for (const std::span<const std::byte> part :
       {std::span<const std::byte>(prefix), std::as_bytes(std::span(*record.head)),
        record.content()}) {
    if (const int error = WriteAll(file.file.get(), part); error != 0) return Fail(file, error);
  }
}

void Recorder::OnEnd(const File& file) {
  const std::string path = PathOf(file.folder, file.step);
  bool written = file.file.valid();
  if (written && rename((path + kPartialSuffix).c_str(), path.c_str()) != 0) {
    last_error_ = std::strerror(errno);
    written = false;
  }
  if (!written) Discard(file);
  {
    MutexLock lock(mutex_);
    ++(written ? recorded_ : left_out_total_);
  }
  if (!written) return;
  std::set<std::int64_t>& steps = StepsOf(file.folder);
  steps.insert(file.step);
  while (steps.size() > static_cast<std::size_t>(options_.steps)) {
    unlink(PathOf(file.folder, *steps.begin()).c_str());
    steps.erase(steps.begin());
  }
}

void Recorder::Discard(const File& file) const {
  unlink((PathOf(file.folder, file.step) + kPartialSuffix).c_str());
}

std::set<std::int64_t>& Recorder::StepsOf(const std::string& folder) {
  const auto [at, is_new] = steps_.try_emplace(folder);
  if (is_new) {
    const auto found = ListSteps(absl::StrCat(options_.directory, "/", folder));
    if (found.ok()) at->second.insert(found->begin(), found->end());
  }
  return at->second;
}

void Recorder::Fail(File& file, int error) {
  last_error_ = std::strerror(error);
  file.file.Reset();
  Discard(file);
}

void Recorder::TellLeftOut() {
  const std::uint64_t left_out = this->left_out();
  if (left_out == told_ || Clock::now() < next_complaint_) return;
  next_complaint_ = Clock::now() + kBetweenComplaints;
  const std::string why =
      last_error_.empty() ? absl::StrCat("the disk does not take them as fast as members send; ",
                                         options_.queue_bytes >> 20, " MiB were waiting for it")
                          : std::exchange(last_error_, "");
  spdlog::warn("record \"{}\": {} step(s) were left out: {}", options_.directory, left_out - told_,
               why);
  told_ = left_out;
}

}  // namespace gradwire::server
