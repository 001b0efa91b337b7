// The compression report: what a member says of its buckets and what an operator reads are one.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/v1/admin.grpc.pb.h"
#include "gtest/gtest.h"
#include "hooks/safetensors.h"
#include "tests/integration/saved_training.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire::testing {
namespace {

using ::testing::HasSubstr;

v1::SessionStatus GetStatus(const TestDaemon& daemon) {
  const auto admin = v1::AdminService::NewStub(
      grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GetSessionRequest request;
  request.set_session("state");
  v1::GetSessionResponse response;
  EXPECT_TRUE(admin->GetSession(&context, request, &response).ok());
  return response.session();
}

double SumOfSquares(const std::vector<float>& values, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) {
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return sum;
}

// Norm of the residuals in a member's state, by parameter.
double ResidualNorm(const std::string& dict, const std::vector<std::string>& parameters) {
  const auto state = ReadSafetensors(dict);
  EXPECT_TRUE(state.ok()) << state.status();
  double squares = 0;
  for (const StateTensor& tensor : state->tensors) {
    for (const std::string& parameter : parameters) {
      if (tensor.name != "residual/" + parameter) continue;
      std::vector<float> values(tensor.data.size() / sizeof(float));
      std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
      squares += SumOfSquares(values, 0, values.size());
    }
  }
  return std::sqrt(squares);
}

TEST(BucketReports, SayWhatTheFirstReductionCostAndLeft) {
  const Training training;
  const TestDaemon daemon({.chunk_bytes = 1024});
  ExpectAllOk(RunRanks(Options(daemon, training), [&](Client& client, int rank) -> absl::Status {
    EXPECT_TRUE(client.Report().empty());
    Buckets buckets(training.model);
    buckets.Fill(rank, 0);
    const std::vector<float> gradients = buckets.values();
    if (const auto verdict = Reduce(client, buckets); !verdict.ok()) return verdict.status();
    if (absl::Status met = client.Barrier(); !met.ok()) return met;
    const std::vector<BucketReport> reports = client.Report();
    const auto dict = client.StateDict();
    if (!dict.ok()) return dict.status();
    EXPECT_EQ(reports.size(), 2U);
    if (reports.size() != 2) return absl::OkStatus();

    // Of [40, 30] and [64, 72] at rank 2: P and Q; the bias travels whole.
    EXPECT_EQ(reports[0].first_parameter, "bias");
    EXPECT_EQ(reports[0].parameters, 2U);
    EXPECT_EQ(reports[0].gradient_bytes, 4U * (40 + 40 * 30));
    EXPECT_EQ(reports[0].sent_bytes, 4U * (40 + 2 * (40 + 30)));
    EXPECT_EQ(reports[1].first_parameter, "convolution");
    EXPECT_EQ(reports[1].sent_bytes, 4U * 2 * (64 + 72));
    const std::vector<std::vector<std::string>> names = {{"bias", "linear"}, {"convolution"}};
    const std::vector<std::size_t> ends = {0, 40 + 40 * 30, gradients.size()};
    for (std::size_t b = 0; b < 2; ++b) {
      const BucketReport& report = reports[b];
      EXPECT_EQ(report.reductions, 1U);
      EXPECT_EQ(report.received_bytes, report.sent_bytes);
      EXPECT_GT(report.compress_seconds, 0);
      EXPECT_GT(report.reduce_seconds, 0);
      EXPECT_GT(report.decompress_seconds, 0);
      const double norm = std::sqrt(SumOfSquares(gradients, ends[b], ends[b + 1]));
      EXPECT_NEAR(report.gradient_norm, norm, 1e-9 * norm);
      EXPECT_NEAR(report.residual_norm, ResidualNorm(*dict, names[b]), 1e-9 * norm);
    }

    if (rank == 0) {  // its reports went ahead of its barrier
      const v1::SessionStatus status = GetStatus(daemon);
      EXPECT_EQ(status.buckets_size(), 2);
      for (int b = 0; b < status.buckets_size(); ++b) {
        const BucketReport& own = reports[static_cast<std::size_t>(b)];
        EXPECT_EQ(status.buckets(b).name(), own.first_parameter);
        EXPECT_EQ(status.buckets(b).report().sent_bytes(), own.sent_bytes);
        EXPECT_EQ(status.buckets(b).report().residual_norm(), own.residual_norm);
        EXPECT_EQ(status.buckets(b).report().wire_seconds(), own.wire_seconds);
      }
      auto tool =
          Process::Start({GRADWIRE_CTL, "--address", daemon.address(), "session", "get", "state"},
                         daemon.Path("get.log"));
      EXPECT_TRUE(tool.ok()) << tool.status();
      EXPECT_EQ((*tool)->Wait(absl::Seconds(30)), 0);
      EXPECT_THAT((*tool)->Log(), HasSubstr("RESIDUAL/GRADIENT"));
      EXPECT_THAT(
          (*tool)->Log(),
          HasSubstr(absl::StrCat("convolution  1           1           18.0 KiB  1.1 KiB")));
    }
    return client.Barrier();
  }));
}

TEST(BucketReports, AHookWithoutResidualHasNoNorms) {
  const Training training{.hook = "fp16"};
  const TestDaemon daemon;
  ExpectAllOk(RunRanks(Options(daemon, training), [&](Client& client, int rank) -> absl::Status {
    Buckets buckets(training.model);
    for (int step = 0; step < 3; ++step) {
      buckets.Fill(rank, step);
      if (const auto verdict = Reduce(client, buckets); !verdict.ok()) return verdict.status();
    }
    for (const BucketReport& report : client.Report()) {
      EXPECT_EQ(report.reductions, 3U);
      EXPECT_EQ(2 * report.sent_bytes, report.gradient_bytes);
      EXPECT_EQ(report.gradient_norm, 0);
      EXPECT_EQ(report.residual_norm, 0);
    }
    return absl::OkStatus();
  }));
}

TEST(BucketReports, ASkippedStepHasNoneAndHarmsNothing) {
  Training training{.poisoned = 0};
  const TestDaemon daemon({.chunk_bytes = 1024});
  Results results(2);
  ExpectAllOk(RunRanks(Options(daemon, training), [&](Client& client, int rank) -> absl::Status {
    for (int step = 0; step < 2; ++step) {
      absl::Status status = Step(client, rank, step, training, results);
      if (!status.ok()) return status;
    }
    for (const BucketReport& report : client.Report()) EXPECT_EQ(report.reductions, 2U);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace gradwire::testing
