#include "gradwire/client.h"

// What every header of gRPC or protobuf defines, directly or through what it includes.
#if defined(GRPCPP_GRPCPP_H) || defined(GRPC_GRPC_H) || defined(GRPCPP_CHANNEL_H) ||       \
    defined(GRPC_SUPPORT_PORT_PLATFORM_H) || defined(GRPC_IMPL_CODEGEN_PORT_PLATFORM_H) || \
    defined(GPR_LINUX)
#error "gradwire/client.h includes gRPC"
#endif
#if defined(GOOGLE_PROTOBUF_VERSION) || defined(GOOGLE_PROTOBUF_STUBS_COMMON_H__) || \
    defined(GOOGLE_PROTOBUF_MESSAGE_LITE_H__)
#error "gradwire/client.h includes protobuf"
#endif

#include "gtest/gtest.h"

namespace {

TEST(PublicHeader, StandsAlone) {
  const gradwire::ClientOptions options;
  EXPECT_EQ(options.rank, -1);
  EXPECT_TRUE(gradwire::Completion().Wait().ok());
}

}  // namespace
