// Sessions over TLS: who gets in, what the others are told, and certificates that change meanwhile.
#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/client.h"
#include "gtest/gtest.h"
#include "server/daemon/server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/gradients.h"
#include "tests/testing/http_get.h"
#include "tests/testing/process.h"
#include "tests/testing/ranks.h"

namespace gradwire {
namespace {

using ::gradwire::testing::Authority;
using ::gradwire::testing::Eventually;
using ::gradwire::testing::ExpectAllOk;
using ::gradwire::testing::Gradients;
using ::gradwire::testing::HttpGet;
using ::gradwire::testing::MakeParameter;
using ::gradwire::testing::ReplaceFile;
using ::gradwire::testing::RunRanks;
using ::gradwire::testing::TemporaryFolder;
using ::gradwire::testing::Validity;
using ::gradwire::testing::WriteFiles;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kNumel = 300'000;

class TlsTest : public ::testing::Test {
 protected:
  void Start(const tls::Files& files) {
    auto server = server::Server::Start(
        {.listen = {"127.0.0.1:0", absl::StrCat("unix:", folder_ / "daemon.sock")},
         .tls = files,
         .http_listen = "127.0.0.1:0"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string tcp() const { return server_->addresses()[0]; }
  std::string local() const { return server_->addresses()[1]; }

  ClientOptions Options(const std::string& address, const tls::Files& files) const {
    return {.address = address,
            .session = "tls",
            .world_size = 2,
            .tls = {.ca = files.ca, .cert = files.cert, .key = files.key},
            .parameters = {MakeParameter("a", kNumel)},
            .local_socket = false,  // which has no TLS
            .on_wait = [](const std::string&) {}};
  }

  // What a member is told that cannot join.
  std::string Refusal(ClientOptions options) const {
    options.connect_timeout = absl::Seconds(1);
    return std::string(Client::Join(options).status().message());
  }

  // All members train until `enough`, which is asked after each step.
  static std::vector<absl::Status> Train(const ClientOptions& options,
                                         const std::function<bool(int rank, int step)>& enough) {
    return RunRanks(options, [&](Client& client, int rank) -> absl::Status {
      Gradients a({MakeParameter("a", kNumel)});
      for (int step = 0;; ++step) {
        a.Fill(rank, step);
        GradBucket bucket = a.Bucket();
        if (absl::Status status = client.AllReduce(bucket).Wait(); !status.ok()) return status;
        const auto expected = gradwire::testing::ExpectedReduction({}, a.parameters(),
                                                                   options.world_size, step, rank);
        EXPECT_TRUE(a.bytes() == *expected) << "rank " << rank << " step " << step;
        const auto verdict = client.EndStep();
        if (!verdict.ok()) return verdict.status();
        if (enough(rank, step)) return client.Leave();
      }
    });
  }
  static std::vector<absl::Status> Train(const ClientOptions& options) {
    return Train(options, [](int, int step) { return step == 3; });
  }

  TemporaryFolder folder_;
  const Authority authority_{"the authority"};
  const Authority stranger_{"a stranger"};
  const tls::Files daemon_ =
      WriteFiles(folder_ / "daemon", authority_.Issue("d"), authority_.cert());
  const tls::Files member_ =
      WriteFiles(folder_ / "member", authority_.Issue("m"), authority_.cert());
  std::unique_ptr<server::Server> server_;
};

TEST_F(TlsTest, MembersWithCertificatesTrain) {
  Start(daemon_);
  ExpectAllOk(Train(Options(tcp(), member_)));
}

TEST_F(TlsTest, WithoutAnAuthorityForClientsAnybodyMayEncrypt) {
  Start({.cert = daemon_.cert, .key = daemon_.key});
  ExpectAllOk(Train(Options(tcp(), {.ca = member_.ca})));
}

// The common name, also where the alternative names are addresses.
TEST_F(TlsTest, ARefusalNamesTheCertificate) {
  ReplaceFile(folder_ / "tokens", "team member a-* a-token-of-the-team-a\n");
  ReplaceFile(folder_ / "token", "a-token-of-the-team-a\n");
  auto server = server::Server::Start(
      {.listen = {"127.0.0.1:0"}, .tls = daemon_, .tokens = folder_ / "tokens"});
  ASSERT_TRUE(server.ok()) << server.status();
  auto options = Options((*server)->addresses()[0], member_);
  options.token_file = folder_ / "token";
  EXPECT_THAT(Refusal(options),
              HasSubstr("session: \"tls\" is not one that token team, certificate m may use"));
}

TEST_F(TlsTest, AUnixSocketNeedsNone) {
  Start(daemon_);
  ExpectAllOk(Train(Options(local(), {})));
  ExpectAllOk(Train(Options(local(), member_)));
}

TEST_F(TlsTest, ADaemonOfAnotherAuthorityIsRefused) {
  Start(daemon_);
  tls::Files other = member_;
  other.ca = folder_ / "stranger.pem";
  ReplaceFile(other.ca, stranger_.cert());
  EXPECT_THAT(Refusal(Options(tcp(), other)),
              AllOf(HasSubstr("could not join through 127.0.0.1:"),
                    HasSubstr("; no authority in tls_ca has signed the daemon's certificate, or it "
                              "has expired [GW102]")));
  // The tool says it in its own words only, without a line of gRPC's log.
  const auto tool = gradwire::testing::Process::Start(
      {GRADWIRE_CTL, "--address", tcp(), "--tls-ca", other.ca, "status"}, folder_ / "ctl.log");
  ASSERT_TRUE(tool.ok()) << tool.status();
  EXPECT_NE((*tool)->Wait(absl::Seconds(60)), 0);
  EXPECT_THAT((*tool)->Log(), ::testing::MatchesRegex(
                                  "gradwirectl: [^\n]*certificate verify failed[^\n]* \\[GW102\\]\n"
                                  "Run gradwirectl explain GW102 for what to do.\n"));
}

TEST_F(TlsTest, ADaemonOfAnotherHostIsRefused) {
  Start(
      WriteFiles(folder_ / "other", authority_.Issue("d", {}, "DNS:elsewhere"), authority_.cert()));
  EXPECT_THAT(Refusal(Options(tcp(), member_)),
              AllOf(HasSubstr("is for another host than the one in"), EndsWith(" [GW102]")));
}

TEST_F(TlsTest, AMemberWithoutACertificateIsRefused) {
  Start(daemon_);
  EXPECT_THAT(Refusal(Options(tcp(), {.ca = member_.ca})),
              AllOf(HasSubstr("; the daemon may have refused tls_cert, or that there is none"),
                    EndsWith(" [GW104]")));
  EXPECT_EQ(server_->sessions(), 0);
}

TEST_F(TlsTest, AMemberOfAnotherAuthorityIsRefused) {
  Start(daemon_);
  const tls::Files forged = WriteFiles(folder_ / "forged", stranger_.Issue("m"), authority_.cert());
  EXPECT_THAT(Refusal(Options(tcp(), forged)), HasSubstr("the daemon may have refused tls_cert"));
  EXPECT_EQ(server_->sessions(), 0);
}

// The metric does not tell a failed handshake from a probe; a member that trains counts as neither.
TEST_F(TlsTest, HandshakesThatFailAreCounted) {
  Start(daemon_);
  const auto none_counted = [&] {
    const std::string text = HttpGet(server_->http_addresses()[0], "/metrics");
    EXPECT_THAT(text, HasSubstr("\ngradwire_connections_without_call_total "));
    return text.find("\ngradwire_connections_without_call_total 0\n") != std::string::npos;
  };
  ExpectAllOk(Train(Options(tcp(), member_)));
  EXPECT_TRUE(none_counted());
  const tls::Files forged = WriteFiles(folder_ / "forged", stranger_.Issue("m"), authority_.cert());
  Refusal(Options(tcp(), forged));
  EXPECT_TRUE(Eventually([&] { return !none_counted(); }));
}

TEST_F(TlsTest, AMemberThatDoesNotEncryptIsRefused) {
  Start(daemon_);
  EXPECT_THAT(
      Refusal(Options(tcp(), {})),
      HasSubstr("; the daemon there may ask for TLS: give tls_ca (GRADWIRE_TLS_CA) [GW103]"));
  EXPECT_EQ(server_->sessions(), 0);
}

TEST_F(TlsTest, ADaemonThatDoesNotEncryptIsNamed) {
  Start({});
  EXPECT_THAT(Refusal(Options(tcp(), member_)),
              AllOf(HasSubstr("; the daemon there may use no TLS"), EndsWith(" [GW103]")));
}

TEST_F(TlsTest, FilesThatDoNotFitAreRefusedAtTheStart) {
  tls::Files files = daemon_;
  files.key = member_.key;
  EXPECT_THAT(
      std::string(
          server::Server::Start({.listen = {"127.0.0.1:0"}, .tls = files}).status().message()),
      HasSubstr("is not the key of tls_cert"));
  auto options = Options("127.0.0.1:1", member_);
  options.tls.ca = "";
  EXPECT_THAT(Refusal(options),
              AllOf(HasSubstr("tls_ca is empty, and tls_cert is not"), EndsWith(" [GW111]")));
  options.tls = {.ca = folder_ / "none"};
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr("none\" cannot be read"), EndsWith(" [GW111]")));
}

// While two members train, the daemon's certificate, its key and both authorities are replaced, one
// file after the other, as is the members' own.
TEST_F(TlsTest, CertificatesAreReplacedWhileMembersTrain) {
  Start(daemon_);
  const Authority next("the next authority");
  const std::string both = authority_.cert() + next.cert();
  const tls::Files later = WriteFiles(folder_ / "later", next.Issue("m"), next.cert());
  std::atomic<int> steps = 0;
  std::atomic<int> last = 1 << 30;
  std::thread training([&] {
    ExpectAllOk(Train(Options(tcp(), member_), [&](int rank, int step) {
      if (rank == 0) steps = step;
      return step >= last;
    }));
  });
  ASSERT_TRUE(Eventually([&] { return steps > 3; }));
  const auto fresh = next.Issue("d");
  ReplaceFile(daemon_.ca, both);
  ReplaceFile(daemon_.key, fresh.key.substr(0, 60));  // half of it, as a reader may see it
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  // Old members, and new ones of the old authority, are let in all the while.
  auto probe = Options(tcp(), member_);
  probe.session = "probe";
  ExpectAllOk(Train(probe));
  ReplaceFile(daemon_.key, fresh.key);
  ReplaceFile(daemon_.cert, fresh.cert);
  // Members that trust only the new authority can come once the daemon has taken it.
  auto newcomer = Options(tcp(), later);
  newcomer.session = "newcomer";
  ExpectAllOk(Train(newcomer));
  EXPECT_EQ(server_->sessions(), 1) << "the training did not last";
  last = steps + 10;  // neither rank has come so far, so both stop there
  training.join();
}

// TLS looks at certificates in the handshake only.
TEST_F(TlsTest, CertificatesThatExpireKeepNewMembersOutAndOpenConnectionsGoOn) {
  const absl::Time expiry = absl::Now() + absl::Seconds(10);
  const Validity brief{.end = expiry};
  Start(WriteFiles(folder_ / "d", authority_.Issue("d", brief), authority_.cert()));
  const tls::Files brief_member =
      WriteFiles(folder_ / "m", authority_.Issue("m", brief), authority_.cert());
  std::atomic<int> steps = 0;
  std::atomic<int> last = 1 << 30;
  std::thread training([&] {
    ExpectAllOk(Train(Options(tcp(), brief_member), [&](int rank, int step) {
      if (rank == 0) steps = step;
      absl::SleepFor(absl::Milliseconds(20));
      return step >= last;
    }));
  });
  EXPECT_TRUE(Eventually([&] { return steps > 3; }, absl::Seconds(60)));
  EXPECT_LT(absl::Now(), expiry) << "the training began too late for this test";
  absl::SleepFor(expiry + absl::Seconds(1) - absl::Now());
  EXPECT_THAT(Refusal(Options(tcp(), brief_member)),
              AllOf(HasSubstr("tls_cert"), HasSubstr("has expired on"), EndsWith(" [GW112]")));
  EXPECT_THAT(Refusal(Options(tcp(), member_)), EndsWith("or it has expired [GW102]"));
  const int then = steps;
  EXPECT_TRUE(Eventually([&] { return steps > then + 3; }, absl::Seconds(60)));
  last = steps + 10;  // neither rank has come so far, so both stop there
  training.join();
}

}  // namespace
}  // namespace gradwire
