#!/usr/bin/env python3
"""What a CTest run did: summary.py CTEST_JUNIT_XML

Counts GoogleTest's and pytest's cases one by one and any other test as one, lists what was skipped and why, and ends
with a line `N passed, N failed, N skipped`. A test says why it skips with GTEST_SKIP() << "reason", or with
a line `SKIPPED: reason`. Exits 1 when a test failed, none ran, or one skipped without a reason.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree

CASE = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \(\d+ ms\)$", re.MULTILINE)
REASON = re.compile(r"^SKIPPED: *(.*)$", re.MULTILINE)
PYTEST = re.compile(r"^(PASSED|FAILED|ERROR) (\S+?::.*?)(?: - .*)?$", re.MULTILINE)  # pytest -rA
PYTEST_SKIP = re.compile(r"^SKIPPED \[(\d+)\] (\S+?): (.*)$", re.MULTILINE)
GTEST_REASON = r"Skipped\n(?P<reason>(?:(?!^\[).*\n)*?)\s*^\[ +SKIPPED +\] {}\b"


def cases(test):
    """(name, outcome, reason) of each case in one CTest test."""
    name = test.get("name")
    output = test.findtext("system-out") or ""
    status = test.get("status")
    found = []
    for outcome, case in CASE.findall(output):
        reason = ""
        if outcome == "SKIPPED":
            match = re.search(GTEST_REASON.format(re.escape(case)), output, re.MULTILINE)
            reason = match["reason"].strip().replace("\n", " ") if match else ""
        found.append((f"{name}: {case}", outcome, reason))
    for outcome, case in PYTEST.findall(output):
        found.append((case, "OK" if outcome == "PASSED" else "FAILED", ""))
    for count, place, reason in PYTEST_SKIP.findall(output):
        found += [(place, "SKIPPED", reason)] * int(count)
    for reason in REASON.findall(output):
        found.append((name, "SKIPPED", reason))
    message = test.find("skipped")
    message = message.get("message", "") if message is not None else ""
    skipped = status == "disabled" or message.startswith("SKIP_")
    if skipped and not found:
        found.append((name, "SKIPPED", "disabled in CMake" if status == "disabled" else ""))
    elif status == "run" and not found:
        found.append((name, "OK", ""))
    elif status != "run" and not skipped and not any(o == "FAILED" for _, o, _ in found):
        found.append((f"{name}{message and ': '}{message}", "FAILED", ""))
    return found


def main():
    suite = ElementTree.parse(sys.argv[1]).getroot()
    tests = suite.findall("testcase")
    found = [case for test in tests for case in cases(test)]
    by_outcome = {o: [c for c in found if c[1] == o] for o in ("OK", "FAILED", "SKIPPED")}

    slowest = sorted(tests, key=lambda test: -float(test.get("time") or 0))[:5]
    print("slowest:", ", ".join(f"{t.get('name')} {float(t.get('time') or 0):.1f} s" for t in slowest))
    for name, _, _ in by_outcome["FAILED"]:
        print(f"failed: {name}")
    for name, _, reason in by_outcome["SKIPPED"]:
        print(f"skipped: {name}: {reason or 'NO REASON GIVEN'}")
    print(f"{len(tests)} programs, {sum(float(t.get('time') or 0) for t in tests):.0f} s of tests")
    passed, failed, skipped = (len(by_outcome[outcome]) for outcome in ("OK", "FAILED", "SKIPPED"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    unexplained = any(not reason for _, _, reason in by_outcome["SKIPPED"])
    return 1 if failed or unexplained or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
