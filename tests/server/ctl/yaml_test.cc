#include "server/ctl/yaml.h"

#include <gtest/gtest.h>

namespace gradwire::ctl {
namespace {

TEST(Yaml, IsTheSameDocumentInBlocks) {
  EXPECT_EQ(
      ToYaml(R"({"server":{"version":"0.1.0","sessions":2,"draining":false},"list":[1.5,"a"]})"),
      "server:\n"
      "  version: \"0.1.0\"\n"
      "  sessions: 2\n"
      "  draining: false\n"
      "list:\n"
      "  - 1.5\n"
      "  - a\n");
}

TEST(Yaml, KeepsStringsStrings) {
  EXPECT_EQ(ToYaml(R"({"a":"12","b":"no","c":"true","d":"null","e":"","f":"x: y\n","g":"1e3"})"),
            "a: \"12\"\n"
            "b: \"no\"\n"
            "c: \"true\"\n"
            "d: \"null\"\n"
            "e: \"\"\n"
            "f: \"x: y\\n\"\n"
            "g: \"1e3\"\n");
}

TEST(Yaml, WritesWhatIsEmpty) { EXPECT_EQ(ToYaml(R"({"a":[],"b":{}})"), "a: []\nb: {}\n"); }

}  // namespace
}  // namespace gradwire::ctl
