#include "server/http/pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gradwire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Fake {
  std::vector<ProbePart> parts = {{.name = "ticks", .problem = ""},
                                  {.name = "joins", .problem = ""}};
  // By the header.
  std::map<std::string, Caller> callers = {{"", Caller{}}};

  StatusSource Source() {
    return {.figures =
                [] {
                  Figures figures;
                  figures.server.set_sessions(2);  // and one that has ended
                  for (const char* name : {"digits", "letters"}) {
                    figures.sessions.emplace_back().set_name(name);
                    figures.sessions.back().set_state("running");
                  }
                  figures.sessions.emplace_back().set_name("digits-before");
                  figures.sessions.back().set_state("failed");
                  return figures;
                },
            .session = [](const std::string& name) -> absl::StatusOr<v1::SessionStatus> {
              if (name != "digits" && name != "letters") return absl::NotFoundError("");
              v1::SessionStatus session;
              session.set_name(name);
              return session;
            },
            .admit = [this](const std::string& header,
                            const std::string& /*peer*/) -> absl::StatusOr<Caller> {
              const auto found = callers.find(header);
              if (found == callers.end()) return absl::UnauthenticatedError("give a token");
              if (found->second.role == Role::kMember)
                return absl::PermissionDeniedError("not you");
              return found->second;
            },
            .live = [this] { return parts; },
            .ready = [this] { return parts; }};
  }
  HttpResponse Get(const std::string& path, const std::string& authorization = "",
                   bool verbose = false) {
    return Respond(Source(), {.path = path, .verbose = verbose, .authorization = authorization});
  }
};

std::vector<std::string> Names(const HttpResponse& response) {
  std::vector<std::string> names;
  const nlohmann::json status = nlohmann::json::parse(response.body);
  for (const auto& session : status["sessions"]) names.push_back(session["name"]);
  return names;
}

TEST(PagesTest, ProbesSayWhatIsWrong) {
  Fake fake;
  EXPECT_EQ(fake.Get("/livez").body, "ok\n");
  EXPECT_EQ(fake.Get("/readyz", "", true).body, "[+]ticks ok\n[+]joins ok\nreadyz check passed\n");
  fake.parts[1].problem = "the daemon drains";
  EXPECT_EQ(fake.Get("/readyz").status, 503);
  EXPECT_EQ(fake.Get("/readyz").body, "[-]joins failed: the daemon drains\nreadyz check failed\n");
}

TEST(PagesTest, StatusIsJson) {
  Fake fake;
  EXPECT_THAT(Names(fake.Get("/api/v1/status")), ElementsAre("digits", "letters", "digits-before"));
  EXPECT_EQ(nlohmann::json::parse(fake.Get("/api/v1/session/digits").body)["name"], "digits");
  EXPECT_EQ(fake.Get("/api/v1/session/none").status, 404);
  EXPECT_EQ(fake.Get("/api/v1/session/").status, 404);
}

TEST(PagesTest, AllButTheProbesNeedsAToken) {
  Fake fake;
  fake.callers = {{"Bearer good", {.role = Role::kObserver, .sessions = {"digits"}}},
                  {"Bearer member", {.role = Role::kMember}}};
  EXPECT_EQ(fake.Get("/livez").status, 200);
  EXPECT_EQ(fake.Get("/readyz").status, 200);
  for (const char* path :
       {"/", "/page.js", "/metrics", "/api/v1/status", "/api/v1/session/digits", "/nothing"}) {
    EXPECT_EQ(fake.Get(path).status, 401) << path;
    EXPECT_EQ(fake.Get(path, "Bearer bad").status, 401) << path;
    EXPECT_EQ(fake.Get(path, "Bearer member").status, 403) << path;
  }
  EXPECT_EQ(fake.Get("/metrics", "Bearer good").status, 200);
}

// As a browser sends it: any name, and the token as the password.
TEST(PagesTest, ABrowsersPasswordIsTheToken) {
  Fake fake;
  fake.callers = {{"Bearer good", {.role = Role::kObserver}}};
  EXPECT_EQ(fake.Get("/", "Basic bWU6Z29vZA==").status, 200);
  EXPECT_EQ(fake.Get("/", "Basic bWU6YmFk").status, 401);
  EXPECT_EQ(fake.Get("/", "Basic !!!").status, 401);
  EXPECT_EQ(fake.Get("/", "Basic Z29vZA==").status, 401);
}

TEST(PagesTest, ACallerSeesItsSessionsOnly) {
  Fake fake;
  fake.callers = {{"Bearer good", {.role = Role::kObserver, .sessions = {"digits"}}}};
  EXPECT_THAT(Names(fake.Get("/api/v1/status", "Bearer good")), ElementsAre("digits"));
  const auto count = [&](const std::string& header) {
    const HttpResponse response = fake.Get("/api/v1/status", header);
    return nlohmann::json::parse(response.body)["server"]["sessions"].get<int>();
  };
  fake.callers["Bearer all"] = {.role = Role::kObserver};
  fake.callers["Bearer ended"] = {.role = Role::kObserver, .sessions = {"digits*"}};
  fake.callers["Bearer none"] = {.role = Role::kObserver, .sessions = {"other"}};
  EXPECT_EQ(count("Bearer all"), 2);
  EXPECT_EQ(count("Bearer good"), 1);
  EXPECT_EQ(count("Bearer ended"), 1);
  EXPECT_EQ(count("Bearer none"), 0);
  EXPECT_THAT(fake.Get("/metrics", "Bearer good").body, Not(HasSubstr("letters")));
  EXPECT_EQ(fake.Get("/api/v1/session/letters", "Bearer good").status, 404);
  EXPECT_EQ(fake.Get("/api/v1/session/letters", "Bearer good").body,
            fake.Get("/api/v1/session/none", "Bearer good").body);
}

TEST(PagesTest, ThePageNeedsNothingFromElsewhere) {
  Fake fake;
  for (const char* path : {"/", "/page.css", "/page.js"}) {
    const HttpResponse file = fake.Get(path);
    EXPECT_EQ(file.status, 200);
    std::string body = file.body;
    // The name of a namespace, which nobody fetches.
    const std::string svg = "http://www.w3.org/2000/svg";
    for (std::size_t at = body.find(svg); at != std::string::npos; at = body.find(svg)) {
      body.erase(at, svg.size());
    }
    EXPECT_THAT(body, Not(HasSubstr("://"))) << path;
  }
  EXPECT_THAT(fake.Get("/").type, StartsWith("text/html"));
  EXPECT_EQ(fake.Get("/../etc/passwd").status, 404);
}

}  // namespace
}  // namespace gradwire::server
