// Which recordings of sessions that have ended are deleted.
#include "server/record/session_folders.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/record/record_directory.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

namespace fs = std::filesystem;

using ::gradwire::testing::TemporaryFolder;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::string FolderOf(int session, const std::string& shard = "") {
  return absl::StrFormat("job-%016x%s", session, shard);
}

class SessionFoldersTest : public ::testing::Test {
 protected:
  void Write(const std::string& path) const { std::ofstream(folder_ / path) << "bytes"; }
  // A recording whose last step is the older, the lower `last`.
  void Record(const std::string& folder, int last) const {
    fs::create_directory(folder_ / folder);
    Write(folder + "/" + RecordName(7));
    fs::last_write_time(folder_ / folder, start_ + std::chrono::seconds(last));
  }
  // One that ends.
  void RunSession(SessionFolders& folders, int session) const {
    folders.Begin(FolderOf(session));
    Record(FolderOf(session), session);
    folders.End(FolderOf(session));
  }
  std::vector<std::string> All() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const TemporaryFolder folder_;
  const fs::file_time_type start_ = fs::file_time_type::clock::now() - std::chrono::hours(1);
};

TEST_F(SessionFoldersTest, TheLastSessionsThatHaveEndedStay) {
  SessionFolders folders(folder_.path(), 2);
  for (int session = 0; session < 6; ++session) RunSession(folders, session);
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(3), FolderOf(4), FolderOf(5)));
  folders.Begin(FolderOf(6));
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(4), FolderOf(5), FolderOf(6)));
}

TEST_F(SessionFoldersTest, RunningSessionsStayHoweverOldTheirLastStepIs) {
  SessionFolders folders(folder_.path(), 1);
  folders.Begin(FolderOf(0));
  Record(FolderOf(0), 0);
  for (int session = 1; session < 4; ++session) RunSession(folders, session);
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(0), FolderOf(2), FolderOf(3)));
}

// The next life of a session begins before the last one is gone.
TEST_F(SessionFoldersTest, ASessionRunsUntilItsLastLifeHasEnded) {
  SessionFolders folders(folder_.path(), 1);
  folders.Begin(FolderOf(0));
  folders.Begin(FolderOf(0));
  Record(FolderOf(0), 0);
  folders.End(FolderOf(0));
  for (int session = 1; session < 4; ++session) RunSession(folders, session);
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(0), FolderOf(2), FolderOf(3)));
  folders.End(FolderOf(0));
  folders.Begin(FolderOf(4));
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(3), FolderOf(4)));
}

TEST_F(SessionFoldersTest, WhatAnEarlierDaemonLeftCounts) {
  for (int session = 0; session < 4; ++session) Record(FolderOf(session), session);
  Write(FolderOf(0) + "/" + RecordName(8) + kPartialSuffix);
  fs::last_write_time(folder_ / FolderOf(0), start_);
  SessionFolders folders(folder_.path(), 2);
  folders.Begin(FolderOf(9));
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(2), FolderOf(3), FolderOf(9)));
}

TEST_F(SessionFoldersTest, AllShardsOfASessionCountAsOne) {
  for (int session = 0; session < 3; ++session) {
    for (int shard = 0; shard < 3; ++shard) {
      Record(FolderOf(session, absl::StrCat(".shard", shard, "of3")), session);
    }
  }
  SessionFolders folders(folder_.path(), 1);
  folders.Begin(FolderOf(9, ".shard0of3"));
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(2, ".shard0of3"), FolderOf(2, ".shard1of3"),
                                          FolderOf(2, ".shard2of3"), FolderOf(9, ".shard0of3")));
}

TEST_F(SessionFoldersTest, SessionsOfAnotherDaemonStayUntilItEnds) {
  SessionFolders folders(folder_.path(), 1);
  {
    SessionFolders other(folder_.path(), 1);
    other.Begin(FolderOf(0, ".shard1of2"));
    Record(FolderOf(0, ".shard1of2"), 0);
    Record(FolderOf(0, ".shard0of2"), 0);
    for (int session = 1; session < 4; ++session) RunSession(folders, session);
    EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(0, ".shard0of2"), FolderOf(0, ".shard1of2"),
                                            FolderOf(2), FolderOf(3)));
  }
  folders.Begin(FolderOf(4));
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(3), FolderOf(4)));
}

TEST_F(SessionFoldersTest, WhatIsNoRecordingStays) {
  const TemporaryFolder elsewhere;
  std::ofstream(elsewhere / RecordName(1)) << "bytes";
  fs::create_directory_symlink(elsewhere.path(), folder_ / FolderOf(0));
  Write(FolderOf(1));
  Write(RecordName(1));
  Record("notes", 0);
  Record(FolderOf(2), 0);
  Write(FolderOf(2) + "/notes");
  fs::create_directory(folder_ / (FolderOf(2) + "/more"));
  fs::last_write_time(folder_ / FolderOf(2), start_);
  SessionFolders folders(folder_.path(), 1);
  RunSession(folders, 3);
  folders.Begin(FolderOf(4));
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(0), FolderOf(1), RecordName(1), "notes",
                                          FolderOf(2), FolderOf(3), FolderOf(4)));
  EXPECT_TRUE(fs::exists(elsewhere / RecordName(1)));
  EXPECT_TRUE(fs::exists(folder_ / ("notes/" + RecordName(7))));
  EXPECT_TRUE(fs::exists(folder_ / (FolderOf(2) + "/notes")));
  EXPECT_TRUE(fs::exists(folder_ / (FolderOf(2) + "/more")));
  EXPECT_THAT(*ListSteps(folder_ / FolderOf(2)), IsEmpty());
}

TEST_F(SessionFoldersTest, SessionsThatConcludedNoStepLeaveNoFolder) {
  SessionFolders folders(folder_.path(), 1);
  RunSession(folders, 0);
  folders.Begin(FolderOf(1));
  folders.End(FolderOf(1));
  folders.Begin(FolderOf(2));
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(0), FolderOf(2)));
}

TEST_F(SessionFoldersTest, AFolderThatVanishesIsMadeAgain) {
  SessionFolders folders(folder_.path(), 1);
  folders.Begin(FolderOf(0));
  EXPECT_FALSE(folders.Make(FolderOf(0)));
  fs::remove_all(folder_ / FolderOf(0));
  EXPECT_TRUE(folders.Make(FolderOf(0)));
  Record(FolderOf(0), 0);
  SessionFolders other(folder_.path(), 1);
  for (int session = 1; session < 4; ++session) RunSession(other, session);
  EXPECT_THAT(All(), UnorderedElementsAre(FolderOf(0), FolderOf(2), FolderOf(3)));
}

}  // namespace
}  // namespace gradwire::server
