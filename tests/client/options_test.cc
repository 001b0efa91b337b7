#include "client/options.h"

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "proto/tls/access_token.h"

namespace gradwire {
namespace {

ClientOptions Good() {
  return {.address = "unix:/run/gradwire.sock",
          .session = "digits",
          .rank = 0,
          .world_size = 2,
          .parameters = {{.name = "w", .shape = {4}}}};
}

TEST(ClientOptions, AcceptsWhatIsAllowed) { EXPECT_TRUE(Good().Validate().ok()); }

struct Mistake {
  const char* field;
  const char* value;
  std::function<void(ClientOptions&)> make;
};

class ClientOptionsMistake : public testing::TestWithParam<Mistake> {};

TEST_P(ClientOptionsMistake, IsNamed) {
  ClientOptions options = Good();
  GetParam().make(options);
  const absl::Status status = options.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(GetParam().field));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(GetParam().value));
  EXPECT_EQ(Client::Join(options).status(), status);
}

INSTANTIATE_TEST_SUITE_P(
    All, ClientOptionsMistake,
    testing::Values(
        Mistake{"address", "empty", [](ClientOptions& o) { o.address.clear(); }},
        Mistake{"session", "\"a b\"", [](ClientOptions& o) { o.session = "a b"; }},
        Mistake{"session", "\"\"", [](ClientOptions& o) { o.session.clear(); }},
        Mistake{"session", "1 to 128", [](ClientOptions& o) { o.session = std::string(129, 'a'); }},
        Mistake{"tls_key is empty", "tls_cert is not",
                [](ClientOptions& o) {
                  o.address = "host:1";
                  o.tls = {.ca = "ca.crt", .cert = "tls.crt"};
                }},
        Mistake{"tls_ca is empty", "ca-certificates.crt",
                [](ClientOptions& o) {
                  o.address = "host:1";
                  o.tls = {.cert = "tls.crt", .key = "tls.key"};
                }},
        Mistake{"world_size", "0", [](ClientOptions& o) { o.world_size = 0; }},
        Mistake{"world_size", "-3", [](ClientOptions& o) { o.world_size = -3; }},
        Mistake{"rank", "2", [](ClientOptions& o) { o.rank = 2; }},
        Mistake{"rank", "-2", [](ClientOptions& o) { o.rank = -2; }},
        Mistake{"local_world_size", "0 with local_rank 0",
                [](ClientOptions& o) { o.local_rank = 0; }},
        Mistake{"local_world_size", "3",
                [](ClientOptions& o) {
                  o.local_rank = 0;
                  o.local_world_size = 3;
                }},
        Mistake{"local_rank", "-1 with local_world_size 2; allowed: 0 to 1",
                [](ClientOptions& o) { o.local_world_size = 2; }},
        Mistake{"local_rank", "2 with local_world_size 2",
                [](ClientOptions& o) {
                  o.local_rank = 2;
                  o.local_world_size = 2;
                }},
        Mistake{"local_rank", "1 with local_world_size 2, rank 0",
                [](ClientOptions& o) {
                  o.local_rank = 1;
                  o.local_world_size = 2;
                }},
        Mistake{"local_rank", "0 with local_world_size 2, rank 1",
                [](ClientOptions& o) {
                  o.rank = 1;
                  o.local_rank = 0;
                  o.local_world_size = 2;
                }},
        Mistake{"parameters", "empty", [](ClientOptions& o) { o.parameters.clear(); }},
        Mistake{"parameters", "\"w\"",
                [](ClientOptions& o) { o.parameters.push_back(o.parameters[0]); }},
        Mistake{"w", "-1", [](ClientOptions& o) { o.parameters[0].shape = {-1}; }},
        Mistake{"comm_hook", "powersgd2", [](ClientOptions& o) { o.hook.comm_hook = "powersgd2"; }},
        Mistake{"connect_timeout", "0",
                [](ClientOptions& o) { o.connect_timeout = absl::ZeroDuration(); }},
        Mistake{"join_timeout", "-1s",
                [](ClientOptions& o) { o.join_timeout = absl::Seconds(-1); }},
        Mistake{"step_timeout", "inf",
                [](ClientOptions& o) { o.step_timeout = absl::InfiniteDuration(); }}));

TEST(ClientOptions, EnvironmentFillsWhatIsEmpty) {
  ClientOptions options = Good();
  options.address.clear();
  options.session.clear();
  setenv("GRADWIRE_ADDRESS", "unix:/elsewhere.sock", 1);
  setenv("GRADWIRE_SESSION", "from-environment", 1);
  EXPECT_TRUE(options.Validate().ok());
  setenv("GRADWIRE_SESSION", "not a name", 1);
  EXPECT_THAT(std::string(options.Validate().message()), testing::HasSubstr("not a name"));
  unsetenv("GRADWIRE_ADDRESS");
  unsetenv("GRADWIRE_SESSION");
}

TEST(ClientOptions, EnvironmentNamesTheLibraries) {
  setenv("GRADWIRE_CUDA_LIBRARY", "/there/libgradwire_cuda.so", 1);
  setenv("GRADWIRE_NCCL_LIBRARY", "/there/libnccl.so.2", 1);
  EXPECT_EQ(WithEnvironment(Good()).cuda_library, "/there/libgradwire_cuda.so");
  EXPECT_EQ(WithEnvironment(Good()).nccl_library, "/there/libnccl.so.2");
  ClientOptions options = Good();
  options.nccl_library = "/here/libnccl.so.2";
  EXPECT_EQ(WithEnvironment(options).nccl_library, "/here/libnccl.so.2");
  unsetenv("GRADWIRE_CUDA_LIBRARY");
  unsetenv("GRADWIRE_NCCL_LIBRARY");
}

TEST(ClientOptions, EnvironmentNamesTheTlsFiles) {
  setenv("GRADWIRE_TLS_CA", "ca", 1);
  setenv("GRADWIRE_TLS_CERT", "cert", 1);
  setenv("GRADWIRE_TLS_KEY", "key", 1);
  ClientOptions options = Good();
  options.tls.key = "own";
  const ClientOptions filled = WithEnvironment(options);
  for (const char* name : {"GRADWIRE_TLS_CA", "GRADWIRE_TLS_CERT", "GRADWIRE_TLS_KEY"}) {
    unsetenv(name);
  }
  EXPECT_EQ(filled.tls.ca, "ca");
  EXPECT_EQ(filled.tls.cert, "cert");
  EXPECT_EQ(filled.tls.key, "own");
}

class NodeEnvironment : public testing::Test {
 protected:
  ~NodeEnvironment() override {
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
  }

  // "first+members" of rank 5 of 8.
  static std::string NodeWith(const char* local_rank, const char* local_world_size) {
    setenv("LOCAL_RANK", local_rank, 1);
    setenv("LOCAL_WORLD_SIZE", local_world_size, 1);
    ClientOptions options = Good();
    options.rank = 5;
    options.world_size = 8;
    EXPECT_TRUE(options.Validate().ok());
    return Text(WithEnvironment(options));
  }
  static std::string Text(const ClientOptions& options) {
    const std::optional<NodeRanks> node = NodeOf(options);
    return node ? std::to_string(node->first) + "+" + std::to_string(node->members) : "unknown";
  }
};

TEST_F(NodeEnvironment, IsUsedWhereItFits) {
  EXPECT_EQ(NodeWith("1", "4"), "4+4");
  EXPECT_EQ(NodeWith("5", "8"), "0+8");
  EXPECT_EQ(NodeWith("0", "1"), "5+1");
}

TEST_F(NodeEnvironment, IsNotUsedWhereItDoesNotFit) {
  EXPECT_EQ(NodeWith("", "4"), "unknown");
  EXPECT_EQ(NodeWith("one", "4"), "unknown");
  EXPECT_EQ(NodeWith("1", "4x"), "unknown");
  EXPECT_EQ(NodeWith("6", "7"), "unknown") << "it would begin at -1";
  EXPECT_EQ(NodeWith("0", "4"), "unknown") << "it would end at 9";
  EXPECT_EQ(NodeWith("4", "4"), "unknown");
  EXPECT_EQ(NodeWith("-2147483648", "2147483647"), "unknown");
  EXPECT_EQ(NodeWith("99999999999", "4"), "unknown");
}

TEST_F(NodeEnvironment, DoesNotReplaceWhatIsGiven) {
  setenv("LOCAL_RANK", "0", 1);
  setenv("LOCAL_WORLD_SIZE", "1", 1);
  ClientOptions options = Good();
  options.rank = 1;
  options.local_rank = 1;
  options.local_world_size = 2;
  EXPECT_EQ(Text(WithEnvironment(options)), "0+2");
  options.rank = -1;
  EXPECT_TRUE(options.Validate().ok());
  EXPECT_EQ(Text(options), "unknown") << "without a rank nobody knows the node's first one";
}

TEST(ClientOptions, AUnixSocketIgnoresTheTlsFiles) {
  ClientOptions options = Good();
  options.tls = {.cert = "tls.crt"};
  EXPECT_TRUE(options.Validate().ok());
}

TEST(Address, TellsThisHostFromOthers) {
  for (const char* here : {"unix:/a", "unix:///a", "localhost:1", "127.0.0.1:1", "[::1]:1",
                           "dns:///localhost:1", "ipv4:127.0.0.1:1"}) {
    EXPECT_TRUE(tls::IsThisHost(here)) << here;
  }
  for (const char* elsewhere : {"10.0.0.5:1", "dns:///gradwired:1", "localhost.example:1",
                                "128.0.0.1:1", "[2001:db8::1]:1", "0.0.0.0:1"}) {
    EXPECT_FALSE(tls::IsThisHost(elsewhere)) << elsewhere;
  }
}

TEST(ClientOptions, EnvironmentTurnsWaysOfTravelOff) {
  for (const auto& [variable, option] :
       {std::pair("GRADWIRE_SHARED_MEMORY", &ClientOptions::shared_memory),
        std::pair("GRADWIRE_SHARED_GRADIENTS", &ClientOptions::shared_gradients),
        std::pair("GRADWIRE_LOCAL_SOCKET", &ClientOptions::local_socket)}) {
    for (const char* value : {"on", "off", ""}) {
      setenv(variable, value, 1);
      EXPECT_TRUE(Good().Validate().ok());
      EXPECT_EQ(WithEnvironment(Good()).*option, std::string(value) != "off");
    }
    setenv(variable, "no", 1);
    EXPECT_EQ(std::string(Good().Validate().message()),
              std::string("the variable ") + variable + " is \"no\"; allowed: on, off [GW400]");
    unsetenv(variable);
  }
}

TEST(ClientOptions, EnvironmentHasGradientsKept) {
  EXPECT_FALSE(WithEnvironment(Good()).keep_gradients);
  setenv("GRADWIRE_KEEP_GRADIENTS", "on", 1);
  EXPECT_TRUE(WithEnvironment(Good()).keep_gradients);
  setenv("GRADWIRE_KEEP_GRADIENTS", "off", 1);
  EXPECT_FALSE(WithEnvironment(Good()).keep_gradients);
  setenv("GRADWIRE_KEEP_GRADIENTS", "yes", 1);
  EXPECT_EQ(std::string(Good().Validate().message()),
            "the variable GRADWIRE_KEEP_GRADIENTS is \"yes\"; allowed: on, off [GW400]");
  unsetenv("GRADWIRE_KEEP_GRADIENTS");
}

}  // namespace
}  // namespace gradwire
