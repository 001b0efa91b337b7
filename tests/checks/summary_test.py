#!/usr/bin/env python3
"""Runs summary.py on reports as CTest 3.25 writes them."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(__file__).with_name("summary.py")

GOOD = """[ RUN      ] Sum.Adds
[       OK ] Sum.Adds (0 ms)
[ RUN      ] Each/Sum.Adds/0
[       OK ] Each/Sum.Adds/0, where GetParam() = 1 (2 ms)
"""
SKIP = """[ RUN      ] Sum.Avx3
a.cc:7: Skipped
no AVX-512
here

[  SKIPPED ] Sum.Avx3 (0 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Sum.Avx3
"""
BAD = """[ RUN      ] Sum.Bad
[  FAILED  ] Sum.Bad (0 ms)
[  FAILED  ] Sum.Bad
"""
CRASH = "[ RUN      ] Sum.Crash\n"


def test(name, status, output="", inner=""):
    return (
        f'<testcase name="{name}" classname="{name}" time="0.1" status="{status}">{inner}'
        f"<system-out>{output}</system-out></testcase>"
    )


class SummaryTest(unittest.TestCase):
    def summary(self, *tests):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as report:
            report.write(f"<testsuite>{''.join(tests)}</testsuite>")
            report.flush()
            run = subprocess.run([sys.executable, SUMMARY, report.name], capture_output=True, text=True)
        self.assertEqual(run.stderr, "")
        return run.returncode, run.stdout.splitlines()

    def test_counts_cases_and_names_the_reasons(self):
        code, lines = self.summary(test("sum_test", "run", GOOD + SKIP), test("script", "run", "hello"))
        self.assertEqual((code, lines[-1]), (0, "3 passed, 0 failed, 1 skipped"))
        self.assertIn("skipped: sum_test: Sum.Avx3: no AVX-512 here", lines)

    def test_a_script_that_skips_says_why(self):
        skipped = '<skipped message="SKIP_RETURN_CODE=77"/>'
        code, lines = self.summary(
            test("a", "run", GOOD), test("peer", "notrun", "SKIPPED: no grpcio\n", skipped)
        )
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 1 skipped"))
        self.assertIn("skipped: peer: no grpcio", lines)

    def test_counts_what_pytest_ran(self):
        output = (
            "=== short test summary info ===\n"
            "PASSED tests/test_a.py::test_one\n"
            "PASSED tests/test_a.py::test_two[a b]\n"
            "SKIPPED [2] tests/test_b.py:7: no lightning\n"
        )
        failing = output + "FAILED tests/test_c.py::test_three - assert 1 == 2\nERROR tests/test_d.py::test_four - x\n"
        code, lines = self.summary(test("python", "run", output))
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 2 skipped"))
        self.assertIn("skipped: tests/test_b.py:7: no lightning", lines)
        code, lines = self.summary(test("python", "fail", failing))
        self.assertEqual((code, lines[-1]), (1, "2 passed, 2 failed, 2 skipped"))
        self.assertIn("failed: tests/test_c.py::test_three", lines)

    def test_a_skip_without_a_reason_fails(self):
        skipped = '<skipped message="SKIP_RETURN_CODE=77"/>'
        code, lines = self.summary(test("a", "run", GOOD), test("peer", "notrun", "", skipped))
        self.assertEqual((code, lines[-1]), (1, "2 passed, 0 failed, 1 skipped"))

    def test_failures_crashes_and_lost_programs_are_counted(self):
        code, lines = self.summary(
            test("a", "fail", GOOD + BAD),
            test("b", "fail", GOOD + CRASH),
            test("c", "notrun", "", '<skipped message="Unable to find executable"/>'),
        )
        self.assertEqual((code, lines[-1]), (1, "4 passed, 3 failed, 0 skipped"))

    def test_nothing_run_is_a_failure(self):
        self.assertEqual(self.summary(), (1, ["slowest: ", "0 programs, 0 s of tests", "0 passed, 0 failed, 0 skipped"]))


if __name__ == "__main__":
    unittest.main()
