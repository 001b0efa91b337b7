// What the chain of a session's steps depends on.
#include "proto/wire/step_chain.h"

#include <vector>

#include "gtest/gtest.h"

namespace gradwire::wire {
namespace {

StepChain After(const std::vector<StepDone>& steps) {
  StepChain chain;
  for (const StepDone& done : steps) chain.Advance(done);
  return chain;
}

TEST(StepChain, DependsOnEachAppliedResultAndOnEachVerdict) {
  const StepChain chain = After({{.step = 0, .digest = 5}, {.step = 1, .digest = 6}});
  EXPECT_EQ(chain, After({{.step = 0, .digest = 5}, {.step = 1, .digest = 6}}));
  EXPECT_NE(chain, After({{.step = 0, .digest = 6}, {.step = 1, .digest = 5}}));
  EXPECT_NE(chain, After({{.step = 0, .digest = 4}, {.step = 1, .digest = 6}}));
  EXPECT_NE(chain,
            After({{.step = 0, .verdict = Verdict::kSkip, .digest = 5}, {.step = 1, .digest = 6}}));
}

TEST(StepChain, DoesNotDependOnResultsThatAreSkippedNorOnWhyTheyAre) {
  EXPECT_EQ(After({{.step = 0, .verdict = Verdict::kSkip, .digest = 5}}),
            After({{.step = 0, .verdict = Verdict::kSkip, .dropped = true, .reason = "lost"}}));
}

TEST(StepChain, IgnoresRepeatsAndIsNotKnownAfterAGap) {
  StepChain chain = After({{.step = 0, .digest = 5}});
  const StepChain before = chain;
  chain.Advance({.step = 0, .digest = 6});
  EXPECT_EQ(chain, before);
  EXPECT_TRUE(chain.known());
  EXPECT_NE(chain.Before(1), 0U);
  EXPECT_EQ(chain.Before(2), 0U);
  chain.Advance({.step = 2, .digest = 5});
  EXPECT_FALSE(chain.known());
  chain.Advance({.step = 3, .digest = 5});
  EXPECT_FALSE(chain.known());
  EXPECT_EQ(chain.Before(4), 0U);
}

TEST(StepChain, IsKnownBeforeTheFirstStep) {
  EXPECT_TRUE(StepChain().known());
  EXPECT_FALSE(StepChain(3).known());
  EXPECT_TRUE(StepChain(3, 1).known());
}

}  // namespace
}  // namespace gradwire::wire
