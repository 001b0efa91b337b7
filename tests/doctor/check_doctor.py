"""check_doctor.py BIN: what `gradwirectl doctor` predicts over 100 Mbit/s, beside what is measured; needs root.

BIN has gradwired and gradwirectl. The daemon and the members are in two network namespaces with one
link between them, which a token bucket limits to 100 Mbit/s in each direction. Both tools run in
turn. Exits 1 if the median of a hook's ratios is further from 1 than 25 %.
"""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

RATE = "100mbit"
# Some packets: what a larger bucket lets pass at once would be a small step's whole traffic.
BURST = "10kb"
ROUNDS = 3
MOST_DEVIATION = 0.25
HOOKS = ("no", "fp16", "power_sgd,matrix_approximation_rank=4")
MODEL = ("--model", "mlp", "--members", "2", "--hooks", *HOOKS)
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # of those for documentation: nobody has them


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"check_doctor.py: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


class Link:
    """Two network namespaces with a limited link between them."""

    def __init__(self):
        self.names = [f"gradwire-{os.getpid()}-{side}" for side in ("daemon", "members")]

    def __enter__(self):
        for name in self.names:
            run("ip", "netns", "add", name)
        here, there = self.names
        run("ip", "link", "add", "gw0", "netns", here, "type", "veth", "peer", "name", "gw0", "netns", there)
        for name, address in zip(self.names, ADDRESSES):
            run("ip", "-n", name, "address", "add", address + "/24", "dev", "gw0")
            run("ip", "-n", name, "link", "set", "gw0", "up")
            run("ip", "netns", "exec", name,
                "tc", "qdisc", "add", "dev", "gw0", "root", "tbf", "rate", RATE, "burst", BURST, "latency", "100ms")
        return self

    def __exit__(self, *unused):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)

    def start_daemon(self, binary):
        child = subprocess.Popen(
            ["ip", "netns", "exec", self.names[0], binary, "--listen", ADDRESSES[0] + ":0", "--insecure",
             "--http-listen", "off", "--stop-on-eof"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in child.stdout:
            found = re.search(r"192\.0\.2\.1:(\d+)", line)
            if found:
                return child, found.group(0)
        sys.exit("check_doctor.py: gradwired did not start")

    def ask(self, binary, address, *command):
        return json.loads(run("ip", "netns", "exec", self.names[1], binary, "--address", address, "-o", "json", *command))


def main(bin_folder):
    if os.geteuid() != 0:
        sys.exit("check_doctor.py: needs root, for network namespaces")
    bin_folder = pathlib.Path(bin_folder).resolve()
    predicted, measured = ({hook: [] for hook in HOOKS} for _ in range(2))
    with Link() as link:
        daemon, address = link.start_daemon(bin_folder / "gradwired")
        try:
            for _ in range(ROUNDS):
                forecast = link.ask(bin_folder / "gradwirectl", address, "doctor", *MODEL)
                bench = link.ask(bin_folder / "gradwirectl", address, "bench", "--steps", "10", *MODEL)
                print(f"link: {forecast['link']['bytes_per_second'] / 125e3:.1f} Mbit/s, smallest step "
                      f"{1e3 * forecast['link']['smallest_step_seconds']:.2f} ms", flush=True)
                for hook, one, two in zip(HOOKS, forecast["predictions"], bench["results"]):
                    predicted[hook].append(one["step_seconds"])
                    measured[hook].append(two["step_seconds"])
            sessions = link.ask(bin_folder / "gradwirectl", address, "status")["sessions"]
        finally:
            daemon.stdin.close()
            daemon.wait(60)
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
    sys.exit(main(sys.argv[1]))
