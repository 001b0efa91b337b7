// The files of recordings: which are kept, and that nobody waits for a disk that is full, slow or
// gone.
#include "server/record/recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/record/record_directory.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::Eventually;
using ::gradwire::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "digits-0000000000000001";

class RecorderTest : public ::testing::Test {
 protected:
  std::shared_ptr<Recorder> Open(int steps, std::size_t queue_bytes = std::size_t{1} << 20) const {
    auto recorder =
        Recorder::Open({.directory = folder_.path(), .steps = steps, .queue_bytes = queue_bytes});
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    return *recorder;
  }
  std::string PathOf(std::int64_t step) const {
    return folder_ / (std::string(kFolder) + "/" + RecordName(step));
  }
  std::vector<std::int64_t> Steps() const {
    const auto steps = ListSteps(folder_ / kFolder);
    return steps.ok() ? *steps : std::vector<std::int64_t>();
  }

  static OutgoingRecord RecordOf(std::size_t bytes) {
    return {.kind = RecordKind::kReduction,
            .head = std::make_shared<const std::string>("head"),
            .payload = std::make_unique<std::byte[]>(bytes),
            .payload_bytes = bytes};
  }
  static void Write(Recorder& recorder, std::int64_t step, std::size_t bytes = 10) {
    const RecordSink::Ticket ticket = recorder.Begin(kFolder, step);
    recorder.Add(ticket, RecordOf(bytes));
    recorder.End(ticket);
  }

  const TemporaryFolder folder_;
};

TEST_F(RecorderTest, KeepsTheLastSteps) {
  const auto recorder = Open(3);
  for (std::int64_t step = 0; step < 10; ++step) Write(*recorder, step);
  recorder->Stop();
  EXPECT_THAT(Steps(), ElementsAre(7, 8, 9));
  EXPECT_EQ(recorder->recorded(), 10u);
  EXPECT_EQ(recorder->left_out(), 0u);
}

TEST_F(RecorderTest, CountsWhatAnEarlierDaemonLeft) {
  Open(5).reset();
  {
    const auto before = Open(5);
    for (std::int64_t step = 0; step < 5; ++step) Write(*before, step);
  }
  const auto recorder = Open(3);
  Write(*recorder, 5);
  recorder->Stop();
  EXPECT_THAT(Steps(), ElementsAre(3, 4, 5));
}

TEST_F(RecorderTest, WritesTheRecordsInOrder) {
  const auto recorder = Open(3);
  const RecordSink::Ticket one = recorder->Begin(kFolder, 1);
  const RecordSink::Ticket two = recorder->Begin("other", 1);
  recorder->Add(one, RecordOf(5));
  recorder->Add(two, RecordOf(6));
  recorder->Add(one, RecordOf(7));
  recorder->End(one);
  recorder->Drop(two);
  recorder->Stop();
  const auto source = OpenRecord(PathOf(1));
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(ReadMagic(**source).ok());
  for (const std::size_t bytes : {std::size_t{5}, std::size_t{7}}) {
    const auto record = ReadRecord(**source);
    ASSERT_TRUE(record.ok() && record->has_value());
    EXPECT_EQ((*record)->head, "head");
    EXPECT_EQ((*record)->payload.size(), bytes);
  }
  EXPECT_EQ((*source)->left(), 0u);
  // Gradients are in it.
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(PathOf(1)).permissions(),
            perms::owner_read | perms::owner_write);
  EXPECT_EQ(std::filesystem::status(folder_ / kFolder).permissions(), perms::owner_all);
  EXPECT_THAT(*ListRecords(folder_.path()), ::testing::SizeIs(1));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "other"));
}

TEST_F(RecorderTest, AStepThatIsNotConcludedLeavesNoFile) {
  const auto recorder = Open(3);
  recorder->Add(recorder->Begin(kFolder, 1), RecordOf(5));
  recorder->Stop();
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / kFolder));
}

TEST_F(RecorderTest, NamesADirectoryThatCannotBeUsed) {
  const std::string missing = folder_ / "missing";
  EXPECT_THAT(Recorder::Open({.directory = missing}).status().message(),
              AllOf(HasSubstr("record is \"" + missing + "\": No such file or directory"),
                    HasSubstr("allowed is a directory that exists")));
  const std::string file = folder_ / "file";
  close(open(file.c_str(), O_WRONLY | O_CREAT, 0600));
  EXPECT_THAT(Recorder::Check(file).message(), HasSubstr("Not a directory"));
}

TEST_F(RecorderTest, AFullDiskLeavesStepsOutAndIsOverWhenThereIsRoom) {
  const auto recorder = Open(3);
  Write(*recorder, 0);
  ASSERT_TRUE(Eventually([&] { return recorder->recorded() == 1; }));
  const std::string partial = PathOf(1) + kPartialSuffix;
  std::filesystem::create_symlink("/dev/full", partial);
  Write(*recorder, 1);
  Write(*recorder, 2);
  recorder->Stop();
  EXPECT_THAT(Steps(), ElementsAre(0, 2));
  EXPECT_EQ(recorder->left_out(), 1u);
}

TEST_F(RecorderTest, ADirectoryThatVanishesLeavesStepsOut) {
  const auto recorder = Open(3);
  Write(*recorder, 0);
  ASSERT_TRUE(Eventually([&] { return recorder->recorded() == 1; }));
  std::filesystem::remove_all(folder_ / kFolder);
  Write(*recorder, 1);  // the session's folder is made again
  ASSERT_TRUE(Eventually([&] { return recorder->recorded() == 2; }));
  std::filesystem::remove_all(folder_.path());
  Write(*recorder, 2);
  ASSERT_TRUE(Eventually([&] { return recorder->left_out() == 1; }));
  EXPECT_FALSE(std::filesystem::exists(folder_.path()));
  std::filesystem::create_directory(folder_.path());
  Write(*recorder, 3);
  recorder->Stop();
  EXPECT_THAT(Steps(), ElementsAre(3));
}

// A pipe without a reader stands for a disk that hangs.
TEST_F(RecorderTest, ADiskThatHangsLeavesStepsOutAndNobodyWaits) {
  constexpr std::size_t kQueue = 10'000;
  const auto recorder = Open(3, kQueue);
  Write(*recorder, 0);
  ASSERT_TRUE(Eventually([&] { return recorder->recorded() == 1; }));
  const std::string partial = PathOf(1) + kPartialSuffix;
  ASSERT_EQ(mkfifo(partial.c_str(), 0600), 0);
  const RecordSink::Ticket stuck = recorder->Begin(kFolder, 1);
  recorder->Add(stuck, RecordOf(6'000));
  recorder->End(stuck);
  EXPECT_TRUE(recorder->HasRoom(stuck, 1'000));
  const RecordSink::Ticket next = recorder->Begin(kFolder, 2);
  EXPECT_FALSE(recorder->HasRoom(next, 6'000));
  EXPECT_FALSE(recorder->HasRoom(next, 1));  // all of the step
  recorder->End(next);
  EXPECT_EQ(recorder->left_out(), 1u);
  // What is to be read is the one step's that the writer has begun.
  const int reader = open(partial.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  ASSERT_TRUE(Eventually([&] { return recorder->recorded() == 2; }));
  Write(*recorder, 3, 6'000);
  recorder->Stop();
  close(reader);
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 3));
}

TEST_F(RecorderTest, WhatIsTooLargeForTheQueueIsLeftOut) {
  const auto recorder = Open(3, 1'000);
  Write(*recorder, 0, 2'000);
  Write(*recorder, 1, 100);
  recorder->Stop();
  EXPECT_THAT(Steps(), ElementsAre(1));
  EXPECT_EQ(recorder->left_out(), 1u);
}

TEST_F(RecorderTest, TheLastSessionsKeepTheirFiles) {
  const auto opened = Recorder::Open({.directory = folder_.path(), .steps = 2, .sessions = 1});
  ASSERT_TRUE(opened.ok()) << opened.status();
  Recorder& recorder = **opened;
  for (const char* const folder : {"a-0000000000000001", "b-0000000000000002", kFolder}) {
    recorder.BeginSession(folder);
    const RecordSink::Ticket ticket = recorder.Begin(folder, 1);
    recorder.Add(ticket, RecordOf(10));
    recorder.End(ticket);
    recorder.EndSession(folder);
  }
  recorder.Stop();
  // Two had ended when the third began.
  EXPECT_THAT(*ListRecords(folder_.path()), ::testing::SizeIs(2));
  EXPECT_THAT(Steps(), ElementsAre(1));
}

TEST(RecordDirectory, KnowsTheFoldersOfSessions) {
  constexpr char kSession[] = "a-b.c-0123456789abcdef";
  const std::string session = kSession;
  EXPECT_EQ(SessionOfFolder(session), session);
  EXPECT_EQ(SessionOfFolder(session + ".shard0of2"), session);
  EXPECT_EQ(SessionOfFolder(session + ".shard11of12"), session);
  for (const std::string& folder :
       {std::string(), std::string("notes"), std::string("-0123456789abcdef"),
        std::string("a-0123456789abcde"), session + "0", session + ".old", session + ".shard0",
        session + ".shard0of2.old", session + ".shard00of2", session + ".shard of2",
        std::string("a-0123456789ABCDEF")}) {
    EXPECT_EQ(SessionOfFolder(folder), std::nullopt) << folder;
  }
}

TEST(RecordDirectory, KnowsTheFilesOfSteps) {
  EXPECT_TRUE(IsRecordFile("step-10.gwrec"));
  EXPECT_TRUE(IsRecordFile("step-10.gwrec.partial"));
  for (const char* const name : {"step-10.gwrec.old", "step-x.gwrec", "step-10", "notes", ""}) {
    EXPECT_FALSE(IsRecordFile(name)) << name;
  }
}

TEST(RecordDirectory, FindsTheFilesOfAllSessions) {
  const TemporaryFolder folder;
  for (const char* const session : {"b", "a"}) {
    std::filesystem::create_directory(folder / session);
    for (const char* const name : {"step-10.gwrec", "step-9.gwrec", "step-09.gwrec",
                                   "step-1.gwrec.partial", "step-x.gwrec", "notes"}) {
      close(open((folder / (std::string(session) + "/" + name)).c_str(), O_WRONLY | O_CREAT, 0600));
    }
  }
  const auto found = ListRecords(folder.path());
  ASSERT_TRUE(found.ok());
  std::vector<std::string> names;
  for (const RecordPath& one : *found) names.push_back(one.folder + std::to_string(one.step));
  EXPECT_THAT(names, ElementsAre("a9", "a10", "b9", "b10"));
  EXPECT_THAT(*ListSteps(folder / "a"), ElementsAre(9, 10));
  EXPECT_THAT(ListSteps(folder / "c").status().message(), HasSubstr("No such file or directory"));
  EXPECT_THAT(OpenRecord(folder / "a").status().message(), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace gradwire::server
