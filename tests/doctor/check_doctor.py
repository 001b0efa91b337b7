"""check_doctor.py BIN: what `gradwirectl doctor` predicts over 100 Mbit/s, beside what is measured; needs root.

BIN has gradwired and gradwirectl. The daemon and the members are on two hosts (network namespaces), and a
token bucket limits their links to 100 Mbit/s in each direction. Both tools run in
turn. Exits 1 if the median of a hook's ratios is further from 1 than 25 %.
"""
import contextlib
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import network  # noqa: E402

RATE = "100mbit"
ROUNDS = 3
MOST_DEVIATION = 0.25
HOOKS = ("no", "fp16", "power_sgd,matrix_approximation_rank=4")
MODEL = ("--model", "mlp", "--members", "2", "--hooks", *HOOKS)
DAEMON, MEMBERS = "daemon", "members"  # the two hosts


def ask(net, binary, address, *command):
    return json.loads(net.run(MEMBERS, binary, "--address", address, "-o", "json", *command))


def main(bin_folder):
    bin_folder = pathlib.Path(bin_folder).resolve()
    predicted, measured = ({hook: [] for hook in HOOKS} for _ in range(2))
    ctl = bin_folder / "gradwirectl"
    with network.Network((DAEMON, MEMBERS), RATE) as net, contextlib.ExitStack() as stack:
        daemon, address = net.start_daemon(DAEMON, bin_folder / "gradwired")
        stack.callback(net.stop, daemon)
        for _ in range(ROUNDS):
            forecast = ask(net, ctl, address, "doctor", *MODEL)
            bench = ask(net, ctl, address, "bench", "--steps", "10", *MODEL)
            print(f"link: {forecast['link']['bytes_per_second'] / 125e3:.1f} Mbit/s, smallest step "
                  f"{1e3 * forecast['link']['smallest_step_seconds']:.2f} ms", flush=True)
            for hook, one, two in zip(HOOKS, forecast["predictions"], bench["results"]):
                predicted[hook].append(one["step_seconds"])
                measured[hook].append(two["step_seconds"])
        sessions = ask(net, ctl, address, "status")["sessions"]
    left = [one["name"] for one in sessions if one["state"] != "closed"]
    print(f"{'hook':42} {'predicted':>12} {'measured':>12}  ratios")
    failed = len(left) > 0
    for hook in HOOKS:
        ratios = [one / two for one, two in zip(predicted[hook], measured[hook])]
        fine = abs(statistics.median(ratios) - 1) <= MOST_DEVIATION
        failed |= not fine
        print(f"{hook:42} {1e3 * statistics.median(predicted[hook]):9.1f} ms "
              f"{1e3 * statistics.median(measured[hook]):9.1f} ms  "
              f"{' '.join(f'{one:.2f}' for one in ratios)}  {'ok' if fine else 'OUTSIDE'}")
    print(f"sessions left: {', '.join(left) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(sys.argv[1]))
    except network.NetworkError as error:
        sys.exit(f"check_doctor.py: {error}")
