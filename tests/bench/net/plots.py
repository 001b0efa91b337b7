#!/usr/bin/python3
"""plots.py JSON PNG: draws what net_bench.py or convergence_bench.py wrote."""

import json
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def in_order(rows, key):
    return list(dict.fromkeys(key(row) for row in rows))


def link_name(row):
    return row["rate"] + (f" +{row['round_trip_ms']:g} ms" if row["round_trip_ms"] else "")


def net(result):
    """Communication time of each hook, a panel for each kind of link, a bar for each side."""
    rows = result["rows"]
    links, hooks, sides = (in_order(rows, key) for key in (
        link_name, lambda row: row["hook"], lambda row: f"{row['side']} {row['topology']}"))
    figure, panels = plt.subplots(1, len(links), figsize=(4.2 * len(links), 4), squeeze=False)
    width = 0.8 / (len(sides) + 1)
    for panel, link in zip(panels[0], links):
        found = {(row["hook"], f"{row['side']} {row['topology']}"): row for row in rows if link_name(row) == link}
        for number, side in enumerate(sides):
            bars = [(i, found[hook, side]) for i, hook in enumerate(hooks) if (hook, side) in found]
            if bars:
                places = [i + number * width for i, _ in bars]
                heights = [max(1e3 * row["communication_s"], 0.1) for _, row in bars]
                panel.bar(places, heights, width, label=side)
                theory = [(place, 1e3 * row["theory_s"]) for place, (_, row) in zip(places, bars) if row["theory_s"]]
                if theory:
                    panel.plot(*zip(*theory), "k_", markersize=12, label=None if number else "the link's rate")
        panel.set(yscale="log", title=link)
        panel.set_xticks(range(len(hooks)), [hook.replace("power_sgd:", "r") for hook in hooks])
        panel.grid(True, axis="y", which="major", alpha=0.3)
    panels[0][0].set_ylabel("communication of a step, ms")
    panels[0][0].legend()
    return figure


def convergence(result):
    """Loss over time at each rate, of the first seed, and the quality over steps of all seeds."""
    rows = result["rows"]
    tasks, rates = in_order(rows, lambda row: row["task"]), list(rows[0]["rates"])
    figure, panels = plt.subplots(len(tasks), len(rates) + 1, figsize=(4.5 * (len(rates) + 1), 3.6 * len(tasks)),
                                  squeeze=False)
    for line, task in zip(panels, tasks):
        for row in (row for row in rows if row["task"] == task):
            for panel, rate in zip(line, rates):
                one, start = row["rates"][rate], row["start_power_sgd"]
                now, times = 0.0, []
                for step in range(len(row["losses"])):
                    now += one["plain_step_s"] if step < start else one["step_s"]
                    times.append(now)
                panel.plot(times, smooth(row["losses"]), label=row["hook"], linewidth=1)
                panel.set(title=f"{task}, {rate}", xlabel="s", ylabel="training loss", xscale="log")
            steps = [step for step, _ in row["qualities"][0]]
            medians = [statistics.median(run[i][1] for run in row["qualities"]) for i in range(len(steps))]
            line[-1].plot(steps, medians, label=row["hook"], linewidth=1)
            line[-1].set(title=f"{task}, median of {len(row['qualities'])} seeds", xlabel="steps",
                         ylabel=row["quality_name"])
            line[-1].axhline(row["target"], color="grey", linewidth=0.5)
        line[-1].legend(fontsize="small")
        for panel in line:
            panel.grid(True, alpha=0.3)
    return figure


def smooth(values, span=9):
    return [statistics.mean(values[max(0, i - span + 1) : i + 1]) for i in range(len(values))]


def main(source, target):
    result = json.loads(pathlib.Path(source).read_text())
    if not result["rows"]:
        print("plot: nothing to draw")
        return
    figure = {"net": net, "convergence": convergence}[result["benchmark"]](result)
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    print(f"plot: {target}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
