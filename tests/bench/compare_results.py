#!/usr/bin/python3
"""Two results.json of `make bench`, row by row: is a row slower by more than its spread?

    compare_results.py BEFORE.json AFTER.json

Prints the median, lowest and highest value of each row in both runs, and marks rows that are slower or
faster: each run's median lies outside of what the other run measured. Exits with 1 if a row is slower.
Only times and rates that have a spread are compared: ratios, processor times and single values are not.
"""

import argparse
import json
import pathlib
import re
import sys
from typing import NamedTuple

LABELS = ("rung", "name", "model", "rank", "server", "what", "way", "load", "option", "hook", "transport", "members",
          "parameters", "bytes")  # fmt: skip
TIME = re.compile(r"(?!added|daemon_cpu)(\w+_)?(ms|us)")
RATE = re.compile(r"gb_per_s|gigabytes_per_second")


class Spread(NamedTuple):
    median: float
    low: float
    high: float
    is_rate: bool = False

    def __str__(self):
        median, low, high = (f"{value:.0f}" if value >= 1000 else f"{value:.4g}" for value in self[:3])
        return f"{median} ({low} to {high})"

    def is_outside(self, other):
        return not other.low <= self.median <= other.high


class Compared(NamedTuple):
    row: str
    before: Spread
    after: Spread

    @property
    def times_as_long(self):
        one, other = (self.before, self.after) if self.before.is_rate else (self.after, self.before)
        return one.median / other.median if other.median else 1.0

    @property
    def verdict(self):
        if not (self.before.is_outside(self.after) and self.after.is_outside(self.before)):
            return ""
        return "slower" if self.times_as_long > 1 else "faster"


def spreads(row):
    """The row's times by name; its rates, if it has no times."""
    found = {}
    for name, value in row.items():
        if isinstance(value, dict) and value.keys() == {"median", "min", "max"}:
            found[name] = (value["median"], value["min"], value["max"])
        elif name.startswith("median_") and (unit := name.removeprefix("median_")) and f"min_{unit}" in row:
            found[unit] = (value, row[f"min_{unit}"], row[f"max_{unit}"])
    times = {name: Spread(*value) for name, value in found.items() if TIME.fullmatch(name)}
    return times or {name: Spread(*value, True) for name, value in found.items() if RATE.fullmatch(name)}


def label(row):
    values = ((name, row[name]) for name in LABELS if name in row)
    return ", ".join(value if isinstance(value, str) else f"{name} {value}" for name, value in values)


def rows(results):
    """Each spread of a file under the name of its row."""
    found = {}
    for benchmark, result in results.items():
        for row in (row for value in result.values() if isinstance(value, list) for row in value):
            for name, spread in spreads(row).items():
                key = f"{benchmark}: {label(row)}: {name}"
                if key in found:
                    sys.exit(f"compare_results: two rows are {key}")
                found[key] = spread
    return found


def compare(before, after):
    """The rows of both files, and the names of those that only one of them has."""
    return [Compared(key, before[key], after[key]) for key in before if key in after], sorted(before.keys() ^ after.keys())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    arguments = parser.parse_args()
    before, after = (rows(json.loads(path.read_text())) for path in (arguments.before, arguments.after))
    both, single = compare(before, after)
    width = max((len(one.row) for one in both), default=0)
    print(f"{'':<{width}}  {'before':<28}  {'after':<28}  times as long")
    for one in both:
        print(f"{one.row:<{width}}  {one.before!s:<28}  {one.after!s:<28}  {one.times_as_long:5.2f}  {one.verdict}".rstrip())
    for key in single:
        print(f"only {'before' if key in before else 'after'}: {key}")
    slower = sum(one.verdict == "slower" for one in both)
    faster = sum(one.verdict == "faster" for one in both)
    print(f"{len(both)} rows: {slower} slower and {faster} faster by more than their spread")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
