// Export and import of a session's state. Long work runs on the work threads, without the session's
// lock.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "hooks/safetensors.h"
#include "server/session/session_runner.h"

namespace gradwire::server {
namespace {

absl::StatusOr<std::string> FileOf(const StateSnapshot& snapshot) {
  const absl::StatusOr<HookState> state = snapshot.State();
  if (!state.ok()) return state.status();
  return WriteSafetensors(*state);
}

// The export counts as in progress until the last reference to the bytes is gone.
std::shared_ptr<const std::string> Keeping(StateFiles::Place place,
                                           std::shared_ptr<const std::string> bytes) {
  const std::string* const address = bytes.get();
  return {address, [place = std::move(place), bytes = std::move(bytes)](const std::string*) {}};
}

}  // namespace

void SessionRunner::Export(ExportedFile::Answer answer) {
  absl::StatusOr<StateFiles::Place> place = files_.BeginExport();
  if (!place.ok()) return answer(place.status());
  const absl::StatusOr<StateSnapshot> snapshot = [&] {
    MutexLock lock(mutex_);
    return core_.Export();
  }();
  if (!snapshot.ok()) return answer(snapshot.status());
  const absl::StatusOr<StateFiles::Found> found =
      files_.FileOf({snapshot->step, snapshot->imports});
  if (!found.ok()) return answer(found.status());
  ExportedFile::Read(found->file,
                     [place = *std::move(place), answer = std::move(answer)](
                         absl::StatusOr<std::shared_ptr<const std::string>> bytes) mutable {
                       if (bytes.ok()) bytes = Keeping(std::move(place), *std::move(bytes));
                       answer(std::move(bytes));
                     });
  // Readers of one version share one file, which the first of them causes to be made.
  if (!found->is_new) return;
  host_.work_threads->Post(this,
                           [self = shared_from_this(), file = found->file, snapshot = *snapshot] {
                             ExportedFile::Made(file, FileOf(snapshot));
                           });
}

absl::StatusOr<StateFiles::Place> SessionRunner::BeginImport() const {
  if (state_file_bytes_ > 0) return files_.BeginImport();
  return Coded(ErrorCode::kNoState, absl::FailedPreconditionError(absl::StrCat(
                                        "session \"", options_.name,
                                        "\" has a hook that keeps no state on the coordinator")));
}

void SessionRunner::Import(std::string file, std::uint32_t shards, Imported answer) {
  host_.work_threads->Post(this, [self = shared_from_this(), file = std::move(file), shards,
                                  answer = std::move(answer)]() mutable {
    const absl::StatusOr<std::int64_t> installed = self->Install(file, shards);
    std::string().swap(file);  // it belongs to the import, which ends with the answer
    answer(installed);
  });
}

// The early check spares a long ReadState that could not be installed. Reading takes no lock, so
// the session may go on meanwhile; core_.Install checks again.
absl::StatusOr<std::int64_t> SessionRunner::Install(const std::string& file, std::uint32_t shards) {
  const absl::StatusOr<HookState> state = ReadSafetensors(file);
  if (!state.ok()) return state.status();
  {
    MutexLock lock(mutex_);
    if (absl::Status may = core_.CheckImport(shards); !may.ok()) return may;
  }
  const absl::StatusOr<std::shared_ptr<HookImport>> import = ReadState(*state);
  if (!import.ok()) return import.status();
  Work work;
  std::int64_t iteration = 0;
  {
    MutexLock lock(mutex_);
    Effects effects;
    absl::Status status = core_.Install(**import, effects, shards);
    if (!status.ok()) return status;
    iteration = core_.hook_state().iteration();
    Execute(std::move(effects), work);
  }
  Finish(std::move(work));
  return iteration;
}

// Runs on a work thread. Reading takes no lock here either, so that members that connect meanwhile
// need not wait for it.
void SessionRunner::Restore(const RestoreEffect& restore) {
  if (ended()) return;
  const absl::StatusOr<std::shared_ptr<HookImport>> state = ReadCopy(restore);
  Handle([&](SessionCore& core, Effects& effects) { core.Restored(state, effects); });
}

// The only calls of the core that are safe without the lock.
absl::StatusOr<std::shared_ptr<HookImport>> SessionRunner::ReadState(const HookState& state) const {
  return core_.ReadState(state);
}

absl::StatusOr<std::shared_ptr<HookImport>> SessionRunner::ReadCopy(
    const RestoreEffect& restore) const {
  return core_.ReadCopy(restore);
}

}  // namespace gradwire::server
