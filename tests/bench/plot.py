#!/usr/bin/python3
"""plot.py MEMBERS_JSON PNG: throughput over bucket size, a line for each number of members."""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAMES = {"tcp": "TCP loopback", "unix": "unix socket", "shm": "shared memory"}


def main(source: str, target: str) -> None:
    rows = json.loads(pathlib.Path(source).read_text())["rounds"]
    paths = [path for path in NAMES if any(row["transport"] == path for row in rows)]
    figure, panels = plt.subplots(1, len(paths), figsize=(5 * len(paths), 4), sharey=True)
    for panel, path in zip(panels if len(paths) > 1 else [panels], paths):
        for members in sorted({row["members"] for row in rows}):
            line = sorted(
                (row["bucket_bytes"], row["gigabytes_per_second"])
                for row in rows
                if row["transport"] == path and row["members"] == members
            )
            panel.plot(*zip(*line), marker="o", label=f"{members} members")
        panel.set(xscale="log", yscale="log", title=NAMES[path], xlabel="bucket, bytes")
        panel.set_xscale("log", base=2)
        panel.grid(True, which="major", alpha=0.3)
    figure.axes[0].set_ylabel("GB/s contributed by all members")
    figure.axes[0].legend()
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    print(f"plot: {target}")


main(*sys.argv[1:])
