#include "server/access/access_control.h"

#include <google/protobuf/descriptor.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/v1/admin.pb.h"
#include "gradwire/v1/aggregation.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "gtest/gtest.h"
#include "server/access/permissions.h"
#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace gradwire::server {
namespace {

using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kJoin[] = "/gradwire.v1.AggregationService/Join";
constexpr char kStatus[] = "/gradwire.v1.AdminService/GetServer";
constexpr char kHealth[] = "/grpc.health.v1.Health/Check";
constexpr uid_t kOwn = 700;  // the daemon's user
constexpr char kMemberToken[] = "the-token-of-a-member";
constexpr char kObserverToken[] = "the-token-of-an-observer";
constexpr char kOperatorToken[] = "the-token-of-an-operator";

class AccessControlTest : public ::testing::Test {
 protected:
  AccessControlTest() {
    Write(absl::StrCat("team member digits,team-* ", kMemberToken, "\nwatch observer * ",
                       kObserverToken, "\nroot operator * ", kOperatorToken, "\n"));
  }
  void SetUp() override {
    auto access = AccessControl::Open(path_, {.operators = {0, kOwn}});
    ASSERT_TRUE(access.ok()) << access.status();
    access_ = *std::move(access);
  }
  void Write(const std::string& text) const { ReplaceFile(path_, text); }

  absl::StatusOr<Caller> Admit(const std::string& method, const std::string& token) const {
    return access_->Admit(method, {.authorization = absl::StrCat("Bearer ", token)});
  }
  std::string Refusal(const std::string& method, const Proof& proof) const {
    return std::string(access_->Admit(method, proof).status().message());
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_ / "tokens";
  std::unique_ptr<AccessControl> access_;
};

// Every method of every service in the descriptors, so that a new one without a row fails here.
std::vector<std::string> AllMethods() {
  std::vector<std::string> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::JoinRequest::descriptor()->file(), v1::GetServerRequest::descriptor()->file(),
        grpc::health::v1::HealthCheckRequest::descriptor()->file(),
        grpc::reflection::v1::ServerReflectionRequest::descriptor()->file(),
        grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        const auto& method = *file->service(i)->method(j);
        methods.push_back(absl::StrCat("/", method.service()->full_name(), "/", method.name()));
      }
    }
  }
  return methods;
}

TEST(Permissions, EveryMethodHasARow) {
  std::map<std::string, int> rows;
  for (const Permission& permission : Permissions()) ++rows[permission.method];
  const std::vector<std::string> methods = AllMethods();
  EXPECT_EQ(methods.size(), rows.size());
  for (const std::string& method : methods) EXPECT_EQ(rows[method], 1) << method;
}

// What each role may call, written down a second time: member, observer, nobody's token; and "a"
// if the call is only for the admin addresses.
TEST(Permissions, TheMatrixIsAsMeant) {
  const std::map<std::string, std::string> meant = {
      {"/gradwire.v1.AggregationService/Join", "m--"},
      {"/gradwire.v1.AggregationService/JoinInParts", "m--"},
      {"/gradwire.v1.AggregationService/Exchange", "m--"},
      {"/gradwire.v1.AggregationService/ExchangeBulk", "m--"},
      {"/gradwire.v1.AggregationService/Move", "m--"},
      {"/gradwire.v1.AggregationService/Leave", "m--"},
      {"/gradwire.v1.AggregationService/Watch", "mo-"},
      {"/gradwire.v1.AdminService/GetServer", "-o-a"},
      {"/gradwire.v1.AdminService/ListSessions", "mo-a"},
      {"/gradwire.v1.AdminService/GetSession", "mo-a"},
      {"/gradwire.v1.AdminService/GetDigests", "mo-a"},
      {"/gradwire.v1.AdminService/ExportState", "m--"},
      {"/gradwire.v1.AdminService/ImportState", "m--"},
      {"/gradwire.v1.AdminService/EvictSession", "---a"},
      {"/gradwire.v1.AdminService/PauseSession", "---a"},
      {"/gradwire.v1.AdminService/ResumeSession", "---a"},
      {"/gradwire.v1.AdminService/GetDiagnostics", "---a"},
      {"/gradwire.v1.AdminService/TraceSession", "-o-a"},
      {"/grpc.health.v1.Health/Check", "mon"},
      {"/grpc.health.v1.Health/Watch", "mon"},
      {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "mo-"},
      {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "mo-"},
  };
  for (const std::string& method : AllMethods()) {
    const auto found = meant.find(method);
    ASSERT_NE(found, meant.end()) << method;
    const std::string may =
        absl::StrCat(CheckMethod({.role = Role::kMember}, method).ok() ? "m" : "-",
                     CheckMethod({.role = Role::kObserver}, method).ok() ? "o" : "-",
                     IsForEverybody(method) ? "n" : "-", IsForAdminAddresses(method) ? "a" : "");
    EXPECT_EQ(may, found->second) << method;
    EXPECT_TRUE(CheckMethod({.role = Role::kOperator}, method).ok()) << method;
  }
}

TEST(Permissions, AMethodWithoutARowIsNobodys) {
  for (const char* method : {"", "/gradwire.v1.AdminService/EndAll", "/x\n/y"}) {
    EXPECT_EQ(CheckMethod({}, method).code(), absl::StatusCode::kPermissionDenied) << method;
    EXPECT_FALSE(IsForEverybody(method));
    EXPECT_FALSE(IsForAdminAddresses(method));
  }
}

TEST_F(AccessControlTest, ATokenGivesItsRoleAndSessions) {
  const auto member = Admit(kJoin, kMemberToken);
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ(member->role, Role::kMember);
  EXPECT_THAT(member->identity, HasSubstr("team"));
  EXPECT_TRUE(CheckSession(*member, "team-7").ok());
  const absl::Status other = CheckSession(*member, "other");
  EXPECT_EQ(other.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("session: \"other\" is not one that token team may use"));
  EXPECT_EQ(Admit(kStatus, kMemberToken).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Admit(kJoin, kObserverToken).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Admit(kStatus, kObserverToken).ok());
  EXPECT_TRUE(Admit(kJoin, kOperatorToken).ok());
}

TEST_F(AccessControlTest, WithoutATokenOnlyHealthAnswers) {
  EXPECT_THAT(Refusal(kJoin, {}), HasSubstr("the daemon asks for a token: give token_file"));
  EXPECT_THAT(Refusal(kStatus, {.certificate = "trainer-1"}), HasSubstr("asks for a token"));
  const auto probe = access_->Admit(kHealth, {});
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_FALSE(probe->Covers("digits"));
}

// Who reads a page knows nothing of a member's options.
TEST_F(AccessControlTest, OverHttpTheRefusalNamesTheHeader) {
  const std::string refusal = Refusal(kStatus, {.over_http = true});
  EXPECT_THAT(refusal, HasSubstr("send it in the header \"Authorization: Bearer TOKEN\""));
  EXPECT_THAT(refusal, Not(HasSubstr("token_file")));
}

TEST_F(AccessControlTest, AnUnknownTokenIsRefusedAndNotShown) {
  for (const std::string& authorization :
       {std::string("Bearer nobody-has-this-token"), std::string(kMemberToken),
        std::string("Bearer"), absl::StrCat("Basic ", kMemberToken),
        absl::StrCat("Bearer  ", kMemberToken)}) {
    const absl::Status refused = access_->Admit(kJoin, {.authorization = authorization}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated) << authorization;
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr(kMemberToken)));
  }
  EXPECT_TRUE(access_->Admit(kHealth, {.authorization = "Bearer nobody-has-this"}).ok());
}

TEST_F(AccessControlTest, TheDaemonsOwnUserNeedsNoTokenAndHasOneIdentity) {
  const auto without = access_->Admit(kStatus, {.user = kOwn});
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->role, Role::kOperator);
  EXPECT_EQ(without->identity, "uid:700");
  const auto with =
      access_->Admit(kJoin, {.user = kOwn, .authorization = absl::StrCat("Bearer ", kMemberToken)});
  ASSERT_TRUE(with.ok());
  EXPECT_EQ(with->role, Role::kMember);
  EXPECT_EQ(with->identity, without->identity);
  EXPECT_FALSE(access_->Admit(kJoin, {.user = kOwn, .authorization = "Bearer guess"}).ok());
}

TEST_F(AccessControlTest, AnotherUserNeedsALineOrAToken) {
  const Proof user{.user = 1000};
  EXPECT_THAT(Refusal(kJoin, user), HasSubstr("the daemon asks uid 1000 for a token"));
  EXPECT_EQ(access_->Admit(kJoin, user).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(access_->Admit(kHealth, user).ok());
  const auto with =
      access_->Admit(kJoin, {.user = 1000, .authorization = absl::StrCat("Bearer ", kMemberToken)});
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->identity, "uid:1000");
  Write("night member nightly-* uid:1000");
  ASSERT_TRUE(*access_->Reload());
  const auto line = access_->Admit(kJoin, user);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->identity, "uid:1000");
  EXPECT_TRUE(line->Covers("nightly-3"));
  EXPECT_FALSE(line->Covers("other"));
  EXPECT_EQ(access_->Admit(kStatus, user).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(access_->Admit(kJoin, {.user = 1001}).ok());
  EXPECT_TRUE(access_->Admit(kStatus, {.user = kOwn}).ok());
}

// A line for the ID that all of them seem to have would let in more users than it names.
TEST_F(AccessControlTest, UsersWithoutAnIdHaveNoLine) {
  Write("nobody operator * uid:65534");
  auto access = AccessControl::Open(path_, {.operators = {0}, .unknown = 65534});
  ASSERT_TRUE(access.ok());
  EXPECT_THAT(std::string((*access)->Admit(kJoin, {.user = 65534}).status().message()),
              HasSubstr("cannot tell which user of this host calls: it sees uid 65534"));
  access = AccessControl::Open(path_, {.operators = {0}});
  ASSERT_TRUE(access.ok());
  EXPECT_TRUE((*access)->Admit(kJoin, {.user = 65534}).ok());
}

TEST_F(AccessControlTest, TokenAndCertificateAreTheIdentity) {
  const std::string bearer = absl::StrCat("Bearer ", kMemberToken);
  const auto of = [&](const std::string& certificate) {
    return access_->Admit(kJoin, {.certificate = certificate, .authorization = bearer})->identity;
  };
  EXPECT_EQ(of("a"), of("a"));
  EXPECT_NE(of("a"), of("b"));
  EXPECT_NE(of("a"), of(""));
  const std::string common(100, 'a');
  EXPECT_NE(of(absl::StrCat(common, "b")), of(absl::StrCat(common, "c")));
  EXPECT_LE(of(std::string(100'000, '\n')).size(), kMaxIdentityBytes);
  EXPECT_THAT(of("a\nb"), Not(HasSubstr("\n")));
}

TEST_F(AccessControlTest, AQuotaIsOfTheTokensNameElseOfTheIdentity) {
  const auto bearer = absl::StrCat("Bearer ", kMemberToken);
  const auto holder = [&](const Proof& proof) {
    const auto caller = access_->Identify(kHealth, proof);
    return caller.ok() ? caller->holder().name : std::string(caller.status().message());
  };
  EXPECT_EQ(holder({.authorization = bearer}), "team");
  EXPECT_EQ(holder({.certificate = "cn", .authorization = bearer}), "team");
  EXPECT_EQ(holder({.user = getuid(), .authorization = bearer}), "team");
  EXPECT_EQ(holder({.user = getuid()}), LocalIdentity(getuid()));
  EXPECT_EQ(holder({.certificate = "cn"}), "certificate cn");
  EXPECT_EQ(holder({}), "anybody");
  const auto caller =
      access_->Identify(kJoin, {.certificate = "cn\n", .authorization = bearer, .peer = "[::1]:7"});
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(caller->certificate, "cn\n");
  EXPECT_EQ(caller->peer, "[::1]:7");
}

TEST_F(AccessControlTest, TheFileIsReadAgain) {
  EXPECT_FALSE(*access_->Reload());
  Write("team member digits");  // half of a line
  EXPECT_THAT(std::string(access_->Reload().status().message()),
              HasSubstr(absl::StrCat("tokens \"", path_, "\": line 1 has 3 words")));
  EXPECT_TRUE(Admit(kJoin, kMemberToken).ok());
  Write("team member digits another-token-of-the-member");
  EXPECT_TRUE(*access_->Reload());
  EXPECT_FALSE(Admit(kJoin, kMemberToken).ok());
  EXPECT_TRUE(Admit(kJoin, "another-token-of-the-member").ok());
}

TEST(AccessControl, WithoutAFileEverybodyIsAnOperator) {
  const auto access = AccessControl::Open("");
  ASSERT_TRUE(access.ok());
  const auto caller = (*access)->Admit(kJoin, {.authorization = "Bearer whatever"});
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(caller->role, Role::kOperator);
  EXPECT_TRUE(caller->Covers("any"));
}

TEST(AccessControl, WithoutAFileTheSocketsModeDecides) {
  for (const bool is_private : {true, false}) {
    const auto access =
        AccessControl::Open("", {.sockets_are_private = is_private, .operators = {0, kOwn}});
    ASSERT_TRUE(access.ok());
    EXPECT_EQ((*access)->Admit(kStatus, {.user = 1000}).ok(), is_private);
    EXPECT_TRUE((*access)->Admit(kStatus, {.user = kOwn}).ok());
    EXPECT_TRUE((*access)->Admit(kStatus, {.user = 0}).ok());
    EXPECT_TRUE((*access)->Admit(kHealth, {.user = 1000}).ok());
    EXPECT_TRUE((*access)->Admit(kStatus, {}).ok());
    if (is_private) continue;
    const absl::Status refused =
        (*access)->Admit(kStatus, {.user = 1000, .authorization = "Bearer x"}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("uid 1000 may connect (--socket-mode), but the daemon has no --tokens"));
  }
}

TEST(HostUsers, TheDaemonsUserAndRootAreOperators) {
  for (const bool is_private : {true, false}) {
    const HostUsers users = ReadHostUsers(is_private);
    EXPECT_EQ(users.sockets_are_private, is_private);
    EXPECT_TRUE(users.IsOperator(0));
    EXPECT_TRUE(users.IsOperator(geteuid()) || geteuid() == users.unknown);
    EXPECT_FALSE(users.IsOperator(geteuid() + 1));
  }
}

TEST(AccessControl, AFileThatIsMissingIsAnError) {
  EXPECT_THAT(std::string(AccessControl::Open("/nonexistent/tokens").status().message()),
              HasSubstr("tokens \"/nonexistent/tokens\" cannot be read"));
}

TEST(CallerTest, OnlyAddressesBeyondLoopbackAreOfANetwork) {
  const auto over_network = [](const std::string& peer) {
    Caller caller;
    caller.peer = peer;
    return caller.comes_over_network();
  };
  EXPECT_FALSE(over_network(""));  // a unix socket
  EXPECT_FALSE(over_network("127.0.0.1:41234"));
  EXPECT_FALSE(over_network("127.1.2.3:41234"));
  EXPECT_FALSE(over_network("[::1]:41234"));
  EXPECT_TRUE(over_network("10.0.0.5:41234"));
  EXPECT_TRUE(over_network("[::11]:41234"));
  EXPECT_TRUE(over_network("[2001:db8::1]:41234"));
}

}  // namespace
}  // namespace gradwire::server
