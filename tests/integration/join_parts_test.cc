// Joins whose manifest does not fit one message.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "tests/testing/gradients.h"
#include "tests/testing/ranks.h"
#include "tests/testing/test_daemon.h"

namespace gradwire {
namespace {

using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TestDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;

// As long as those of a mixture of experts.
std::vector<ParameterSpec> Experts(int count) {
  std::vector<ParameterSpec> parameters;
  for (int i = 0; i < count; ++i) {
    parameters.push_back(MakeParameter(
        absl::StrCat("model.layers.", i / 1000, ".mlp.experts.", i % 1000, ".gate_proj.weight"),
        1));
  }
  return parameters;
}

class JoinPartsTest : public ::testing::Test {
 protected:
  // A sanitizer on a busy machine takes longer than the usual timeout for so many names.
  ClientOptions Options(int world_size, std::vector<ParameterSpec> parameters) const {
    return {.address = daemon_.address(),
            .session = "experts",
            .world_size = world_size,
            .parameters = std::move(parameters),
            .connect_timeout = absl::Minutes(4)};
  }

  TestDaemon daemon_{{.token_timeout = absl::Minutes(1)}};
};

TEST_F(JoinPartsTest, HalfAMillionParameters) {
  ExpectAllOk(RunRanks(Options(2, Experts(500'000)),
                       [](Client& client, int /*rank*/) { return client.Barrier(); }));
}

TEST_F(JoinPartsTest, AnotherManifestIsRefusedByItsDifference) {
  std::vector<absl::Status> statuses(2);
  const auto join = [&](int rank) {
    ClientOptions options = Options(2, Experts(50'000));
    options.rank = rank;
    options.parameters.back().shape = {rank + 1};
    statuses[static_cast<std::size_t>(rank)] = Client::Join(options).status();
  };
  std::thread other([&] { join(1); });
  join(0);
  other.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("manifest parameter 49999"), HasSubstr("[2]"), HasSubstr("[1]")));
  }
}

}  // namespace
}  // namespace gradwire
