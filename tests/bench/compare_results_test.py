#!/usr/bin/env python3
"""Runs compare_results.py on results in the forms that the benchmarks write."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path(__file__).with_name("compare_results.py")


def spread(median, low, high):
    return {"median": median, "min": low, "max": high}


def results(**rows):
    """One row of the benchmark `options` with these values."""
    return {"options": {"members": 2, "rows": [{"load": "tcp", "option": "ledger", **rows}]}}


class CompareTest(unittest.TestCase):
    def compare(self, before, after):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder, name) for name in ("before.json", "after.json")]
            for path, content in zip(paths, (before, after)):
                path.write_text(json.dumps(content))
            run = subprocess.run([sys.executable, "-B", COMPARE, *paths], capture_output=True, text=True)
        self.assertEqual(run.stderr, "")
        return run.returncode, run.stdout.splitlines()

    def verdict(self, before, after):
        """Of one row: the exit status and its line's last word."""
        code, lines = self.compare(before, after)
        self.assertEqual(len(lines), 3, lines)
        return code, lines[1].split()[-1]

    def test_a_row_outside_of_both_spreads_is_slower(self):
        before, after = results(ms=spread(10, 9, 11)), results(ms=spread(13, 12, 14))
        self.assertEqual(self.verdict(before, after), (1, "slower"))
        self.assertEqual(self.verdict(after, before), (0, "faster"))
        self.assertIn("1 slower and 0 faster", self.compare(before, after)[1][-1])

    def test_both_medians_and_spreads_are_printed(self):
        _, lines = self.compare(results(ms=spread(10, 9, 11)), results(ms=spread(13, 12, 14)))
        for text in ("options: tcp, ledger: ms", "10 (9 to 11)", "13 (12 to 14)", "1.30"):
            self.assertIn(text, lines[1])

    def test_a_median_within_either_spread_is_no_difference(self):
        for before, after in (
            (spread(10, 9, 14), spread(13, 12, 14)),
            (spread(10, 9, 11), spread(13, 10, 14)),
            (spread(10, 10, 10), spread(10, 10, 10)),
        ):
            self.assertEqual(self.verdict(results(ms=before), results(ms=after)), (0, f"{after['median'] / 10:.2f}"))

    def test_a_lower_rate_is_slower(self):
        before, after = results(gb_per_s=spread(2, 1.9, 2.1)), results(gb_per_s=spread(1, 0.9, 1.1))
        self.assertEqual(self.verdict(before, after), (1, "slower"))
        self.assertIn("2.00", self.compare(before, after)[1][1])

    def test_a_rate_beside_a_time_says_the_same_and_is_left_out(self):
        both = results(ms=spread(10, 9, 11), gb_per_s=spread(2, 1.9, 2.1))
        self.assertEqual(len(self.compare(both, both)[1]), 3)

    def test_fields_with_units_are_a_spread(self):
        before = results(median_ms=10, min_ms=9, max_ms=11, ratio=1.5)
        after = results(median_ms=13, min_ms=12, max_ms=14, ratio=2.5)
        self.assertEqual(self.verdict(before, after), (1, "slower"))

    def test_prices_ratios_and_processor_times_are_not_compared(self):
        names = ("ratio", "added_ms", "daemon_cpu_ms", "cpu_s_per_gb")
        before = results(ms=spread(1, 1, 1), **{name: spread(1, 1, 1) for name in names})
        after = results(ms=spread(1, 1, 1), **{name: spread(9, 9, 9) for name in names})
        self.assertEqual(self.verdict(before, after), (0, "1.00"))

    def test_single_values_are_not_compared(self):
        before, after = ({"members": {"rounds": [{"transport": "tcp", "members": 2, "p50_ms": ms}]}} for ms in (1, 9))
        code, lines = self.compare(before, after)
        self.assertEqual((code, lines[-1].split()[:2]), (0, ["0", "rows:"]))

    def test_rows_of_one_file_are_named(self):
        code, lines = self.compare(results(ms=spread(1, 1, 1)), {"tls": {"rows": [{"server": "a", "ms": spread(1, 1, 1)}]}})
        self.assertEqual(code, 0)
        self.assertIn("only before: options: tcp, ledger: ms", lines)
        self.assertIn("only after: tls: a: ms", lines)

    def test_rows_with_one_name_are_refused(self):
        twice = results(ms=spread(1, 1, 1))
        twice["options"]["rows"] *= 2
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(twice, file)
            file.flush()
            run = subprocess.run([sys.executable, "-B", COMPARE, file.name, file.name], capture_output=True, text=True)
        self.assertEqual(run.returncode, 1)
        self.assertIn("two rows are options: tcp, ledger: ms", run.stderr)


if __name__ == "__main__":
    unittest.main()
