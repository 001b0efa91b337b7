"""Steps to a quality, and step times at a rate, make the time to that quality. Pure: no torch, no network."""

import statistics

WARM_STEPS = 2  # of each kind do not count: buffers, connections
# Vogels, Karimireddy, Jaggi: PowerSGD (2019), ResNet-18 on CIFAR-10: 312, 229, 239 and 260 ms.
PAPER_COMPUTE_MS = 225
PAPER_FP32_MS = 312
PAPER_RATIOS = {"power_sgd:1": 0.73, "power_sgd:2": 0.77, "power_sgd:4": 0.83}
PAPER_TOLERANCE = 0.05
LEAST_RATE, MOST_RATE = 0.05e9, 20e9  # bit/s, for find_rate
RATE_TRIES = 9

EXPLANATION = """
bench-convergence: {members} members and a daemon, each on a host of its own; {seeds} seeds; all share {cores} cores, \
load {load:.1f}
Quality per step does not depend on the links: each (task, hook, seed) was trained once, without limits. Step times \
were
measured at each rate, and both are combined here: figures are medians over seeds, min to max in brackets. PowerSGD's \
plain first
steps count with their own time. Evaluation is not timed.
"""


def steps_to(qualities, target, higher_is_better):
    """The steps after which an evaluation first reached the target; None: never."""
    for steps, quality in qualities:
        if (quality >= target) if higher_is_better else (quality <= target):
            return steps
    return None


def step_times(seconds, start):
    """The medians of a plain step and of a later one, from one run whose first `start` steps were plain."""
    later = statistics.median(seconds[start + WARM_STEPS :])
    return (statistics.median(seconds[min(WARM_STEPS, start - 1) : start]) if start else later), later


def seconds_until(steps, start, plain, later):
    if steps is None:
        return None
    return min(steps, start) * plain + max(0, steps - start) * later


def find_rate(median_step, wanted):
    """The rate at which a step takes `wanted` seconds, and whether it can; "unlimited" if even that is slower.

    A faster link makes no step slower, so this halves the interval, of rates' ratios.
    """
    if median_step("unlimited") > wanted:
        return "unlimited", False
    low, high = LEAST_RATE, MOST_RATE
    for _ in range(RATE_TRIES):
        middle = (low * high) ** 0.5
        if median_step(rate_name(middle)) > wanted:
            low = middle
        else:
            high = middle
    return rate_name(high), True


def rate_name(bits):
    return f"{round(bits / 1e6)}mbit"


def spread_cell(values, digits):
    known = [value for value in values if value is not None]
    if not known:
        return "not reached"
    text = f"{statistics.median(known):.{digits}f}"
    if max(known) > min(known):
        text += f" [{min(known):.{digits}f} - {max(known):.{digits}f}]"
    if len(known) < len(values):
        text += f" ({len(known)} of {len(values)})"
    return text


def table(rows, rates):
    first = rows[0]
    lines = [
        "",
        f"{first['task']}: {first['parameters']:,} parameters, target: {first['quality_name']} {first['target']:g}; "
        + (f"PowerSGD begins after {max(row['start_power_sgd'] for row in rows)} steps"),
        f"{'hook':<13}{'final quality':<24}{'steps to target':<26}"
        + "".join(f"{rate + ': step ms':<22}{'s to target':<30}" for rate in rates),
    ]
    for row in rows:
        cells = f"{row['hook']:<13}{spread_cell(row['final'], 3):<24}{spread_cell(row['steps_to_target'], 0):<26}"
        for rate in rates:
            one = row["rates"][rate]
            step = f"{1e3 * one['step_s']:.0f}"
            if row["start_power_sgd"]:
                step += f" (plain {1e3 * one['plain_step_s']:.0f})"
            cells += f"{step:<22}{spread_cell(one['to_target_s'], 1):<30}"
        lines.append(cells.rstrip())
    return lines


def paper_table(paper):
    whole = paper["fp32_s"]
    overlap = f", {paper['overlap']:.0%} of it while gradients come" if paper["overlap"] else ""
    lines = [
        "",
        f"The shape of the PowerSGD paper's step times: {paper['members']} members, ResNet-18's size, a step computes "
        f"(sleeps) {PAPER_COMPUTE_MS} ms{overlap}; links of {paper['rate']}",
        f"{'hook':<13}{'step ms':>9}{'of float32':>12}{'paper':>8}",
        f"{'no':<13}{1e3 * whole:>9.0f}{1:>12.2f}{1:>8.2f}",
    ]
    for hook, expected in PAPER_RATIOS.items():
        ratio = paper["step_s"][hook] / whole
        near = "within" if abs(ratio - expected) <= PAPER_TOLERANCE else "OUTSIDE"
        lines.append(f"{hook:<13}{1e3 * paper['step_s'][hook]:>9.0f}{ratio:>12.2f}{expected:>8.2f}"
                     f"  {near} {PAPER_TOLERANCE}")
    return lines
