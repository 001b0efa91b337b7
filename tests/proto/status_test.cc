#include "proto/wire/status.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire::wire {
namespace {

TEST(StatusTest, CodesHaveTheSameNumbers) {
  static_assert(static_cast<int>(absl::StatusCode::kCancelled) == grpc::StatusCode::CANCELLED);
  static_assert(static_cast<int>(absl::StatusCode::kUnknown) == grpc::StatusCode::UNKNOWN);
  static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) ==
                grpc::StatusCode::INVALID_ARGUMENT);
  static_assert(static_cast<int>(absl::StatusCode::kDeadlineExceeded) ==
                grpc::StatusCode::DEADLINE_EXCEEDED);
  static_assert(static_cast<int>(absl::StatusCode::kNotFound) == grpc::StatusCode::NOT_FOUND);
  static_assert(static_cast<int>(absl::StatusCode::kAlreadyExists) ==
                grpc::StatusCode::ALREADY_EXISTS);
  static_assert(static_cast<int>(absl::StatusCode::kPermissionDenied) ==
                grpc::StatusCode::PERMISSION_DENIED);
  static_assert(static_cast<int>(absl::StatusCode::kResourceExhausted) ==
                grpc::StatusCode::RESOURCE_EXHAUSTED);
  static_assert(static_cast<int>(absl::StatusCode::kFailedPrecondition) ==
                grpc::StatusCode::FAILED_PRECONDITION);
  static_assert(static_cast<int>(absl::StatusCode::kAborted) == grpc::StatusCode::ABORTED);
  static_assert(static_cast<int>(absl::StatusCode::kOutOfRange) == grpc::StatusCode::OUT_OF_RANGE);
  static_assert(static_cast<int>(absl::StatusCode::kUnimplemented) ==
                grpc::StatusCode::UNIMPLEMENTED);
  static_assert(static_cast<int>(absl::StatusCode::kInternal) == grpc::StatusCode::INTERNAL);
  static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == grpc::StatusCode::UNAVAILABLE);
  static_assert(static_cast<int>(absl::StatusCode::kDataLoss) == grpc::StatusCode::DATA_LOSS);
  static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
                grpc::StatusCode::UNAUTHENTICATED);
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "rank 3 is lost");
    EXPECT_EQ(static_cast<int>(ToGrpc(status).error_code()), code);
    EXPECT_EQ(ToGrpc(status).error_message(), "rank 3 is lost");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
}

TEST(StatusTest, Ok) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusTest, AFailedConnectionIsIntroducedOnce) {
  const auto message = [](const std::string& text) {
    return std::string(FromGrpc({grpc::StatusCode::UNAVAILABLE, text}).message());
  };
  const std::string refused = "ipv4:127.0.0.1:1: Failed to connect to remote host: refused";
  const std::string introduction = "failed to connect to all addresses; last error: ";
  EXPECT_EQ(message(introduction + "UNKNOWN: " + refused), refused);
  EXPECT_EQ(message(introduction + "UNAVAILABLE: " + refused), refused);
  EXPECT_EQ(message(introduction + refused), refused);
  EXPECT_EQ(message("UNKNOWN: " + refused), "UNKNOWN: " + refused);
}

TEST(StatusTest, UnknownCodes) {
  for (const int code : {-1, 17, 31}) {
    const absl::Status status = FromGrpc({static_cast<grpc::StatusCode>(code), "odd"});
    EXPECT_EQ(status, absl::UnknownError("odd"));
  }
}

}  // namespace
}  // namespace gradwire::wire
