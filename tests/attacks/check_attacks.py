"""check_attacks.py BIN [KIND]...: attacks on a daemon with 256 MiB while a session trains; needs root.

BIN has gradwired and gradwire_test_member. The attackers share a tenth of the processors. For each
attack the table says what it managed, how much memory the daemon held, what happened to the p99 of
the session's step time, and how soon a new member could join. Exits 1 if a bound is exceeded, or if
an attack managed nothing.
"""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import attackers

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_MIB = 256
MOST_MIB = LIMIT_MIB + 64
MOST_RATIO = 1.2
MOST_JOIN_S = 5.0
ROUNDS = 3
PHASE_S = 8.0
SETTLE_S = 1.0
# Shorter than a step: with the usual 100 ms the attackers would hold a processor for 20 ms at a time.
PERIOD_US = 5000
KINDS = ("size_lie", "size_lie_64", "gzip_bomb", "descriptors", "slow_handshake", "rapid_reset", "join_flood")
TLS_KINDS = ("slow_handshake", "tls_churn")


class Tenth:
    """A control group with a tenth of the processors."""

    def __init__(self):
        share = len(os.sched_getaffinity(0)) / 10
        unified = pathlib.Path("/sys/fs/cgroup/cgroup.controllers")
        root = pathlib.Path("/sys/fs/cgroup") if unified.exists() else pathlib.Path("/sys/fs/cgroup/cpu")
        self.path = root / f"gradwire-attackers-{os.getpid()}"
        self.path.mkdir()
        quota = int(share * PERIOD_US)
        if unified.exists():
            (self.path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))

    def start(self, *command):
        return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True,
                                preexec_fn=lambda: (self.path / "cgroup.procs").write_text(str(os.getpid())))

    def remove(self):
        self.path.rmdir()


class Daemon:
    def __init__(self, bin_folder, folder, tls):
        self.bin = bin_folder
        self.environment = dict(os.environ)
        flags = []
        if tls:
            cert, key = folder / "tls.crt", folder / "tls.key"
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                 "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
                 "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
            flags = ["--tls-cert", cert, "--tls-key", key]
            self.environment["GRADWIRE_TLS_CA"] = str(cert)
        self.log = folder / ("tls.log" if tls else "plain.log")
        self.child = subprocess.Popen(
            [bin_folder / "gradwired", "--listen", "127.0.0.1:0", "--http-listen", "off", "--stop-on-eof",
             f"--memory-limit={LIMIT_MIB}MiB", *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True)
        for line in self.child.stdout:
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                return
        sys.exit(f"gradwired did not start: {self.log.read_text()}")

    def member(self, session, rank, world_size, **flags):
        command = [self.bin / "gradwire_test_member", "--address", f"127.0.0.1:{self.port}", "--session", session,
                   "--rank", str(rank), "--world-size", str(world_size)]
        for name, value in flags.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment)

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.child.pid}/clear_refs").write_text("5")

    def peak_mib(self):
        status = pathlib.Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024

    def processor_s(self):
        fields = pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.child.stdin.close()
        self.child.wait(60)


class Training:
    """Two members that train until they are stopped; each step's end is noted."""

    def __init__(self, daemon):
        flags = {"elements": 200000, "steps": 10**9, "late_ms": 5}
        self.members = [daemon.member("training", rank, 2, **flags) for rank in range(2)]
        self.ends = []
        self.failed = ""
        self._threads = [threading.Thread(target=self._read, args=(one, rank == 0), daemon=True)
                         for rank, one in enumerate(self.members)]
        for one in self._threads:
            one.start()

    def _read(self, member, note):
        for line in member.stdout:
            if line.startswith("step"):
                if note:
                    self.ends.append(time.monotonic())
            elif not line.startswith("joined"):
                self.failed = line.strip()

    def steps_ms(self, begin, end):
        ends = [one for one in self.ends[:] if begin <= one <= end]
        return [1e3 * (b - a) for a, b in zip(ends, ends[1:])]

    def stop(self):
        for one in self.members:
            one.kill()
            one.wait()


def median_and_p99(values):
    """Of the step times of all rounds; infinite where the session hardly moved."""
    if len(values) < 100:
        return float("inf"), float("inf")
    return statistics.median(values), statistics.quantiles(values, n=100)[98]


def join_seconds(daemon, name):
    """Until a member of a new session has done a step, with retries; infinity after a minute."""
    begin = time.monotonic()
    while time.monotonic() - begin < 60:
        one = daemon.member(name, 0, 1, elements=1000, steps=1)
        try:
            output, _ = one.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            one.kill()
            return float("inf")
        if "done" in output:
            return time.monotonic() - begin
        time.sleep(0.1)
    return float("inf")


def phase(training, seconds):
    begin = time.monotonic() + SETTLE_S
    time.sleep(seconds)
    return training.steps_ms(begin, time.monotonic())


def attack(daemon, training, tenth, kind):
    """One attack in rounds, each after a phase without one. Returns the row and whether all bounds hold."""
    quiet, attacked, counts, joins, peak = [], [], {}, [], 0.0
    processor = 0.0
    for number in range(ROUNDS):
        # The tenth of this host's processors is taken from the session in both phases, so that what
        # differs is what the daemon suffers.
        idle = tenth.start(sys.executable, "-B", HERE / "attackers.py", "busy", "127.0.0.1", daemon.port, PHASE_S)
        quiet += phase(training, PHASE_S)
        idle.communicate(timeout=60)
        daemon.forget_peak()
        before = daemon.processor_s()
        attacker = tenth.start(sys.executable, "-B", HERE / "attackers.py", kind, "127.0.0.1", daemon.port, PHASE_S)
        attacked += phase(training, PHASE_S)
        output, _ = attacker.communicate(timeout=60)
        joins.append(join_seconds(daemon, f"after-{kind}-{number}"))
        processor += daemon.processor_s() - before
        peak = max(peak, daemon.peak_mib())
        for name, value in json.loads(output or "{}").items():
            counts[name] = counts.get(name, 0) + value
    before_ms, during_ms = median_and_p99(quiet), median_and_p99(attacked)
    ratio = during_ms[1] / before_ms[1]
    fine = (sum(counts.values()) > 0 and peak <= MOST_MIB and ratio <= MOST_RATIO and max(joins) <= MOST_JOIN_S
            and not training.failed and daemon.child.poll() is None)
    managed = ", ".join(f"{value:,} {name}" for name, value in sorted(counts.items()))
    row = (f"{kind:15} {peak:6.0f} MiB  {before_ms[0]:5.1f} / {before_ms[1]:5.1f} ms  "
           f"{during_ms[0]:5.1f} / {during_ms[1]:5.1f} ms  {ratio:5.2f}  {max(joins):6.2f} s  "
           f"{processor:5.1f} s  {'ok' if fine else 'FAILED'}  {managed or 'no attack'}  {training.failed}")
    return row, fine


def run(bin_folder, folder, tls, kinds, tenth):
    daemon = Daemon(bin_folder, folder, tls)
    training = Training(daemon)
    time.sleep(2)
    passed = failed = 0
    try:
        for kind in kinds:
            row, fine = attack(daemon, training, tenth, kind)
            print(("tls  " if tls else "plain") + " " + row, flush=True)
            passed, failed = passed + fine, failed + (not fine)
            if training.failed or daemon.child.poll() is not None:
                print(f"the session or the daemon ended; its log is {daemon.log}", flush=True)
                break
    finally:
        training.stop()
        if daemon.child.poll() is None:
            daemon.stop()
    return passed, failed


def main(bin_folder, names):
    if os.geteuid() != 0:
        sys.exit("check_attacks.py: needs root, for the control group of the attackers")
    bin_folder = pathlib.Path(bin_folder).resolve()
    folder = pathlib.Path(tempfile.mkdtemp())
    os.environ["GZIP_BOMB"] = str(folder / "bomb.gz")
    attackers.write_gzip_bomb(folder / "bomb.gz")
    tenth = Tenth()
    plain = [kind for kind in names or KINDS if kind in KINDS]
    tls = [kind for kind in names or TLS_KINDS if kind in TLS_KINDS]
    print(f"bounds: {MOST_MIB} MiB, p99 x {MOST_RATIO}, join within {MOST_JOIN_S:.0f} s")
    print("      attack             peak  quiet: median / p99  attacked: median/p99  ratio  join after  CPU  result")
    passed = failed = 0
    try:
        for with_tls, kinds in ((False, plain), (True, tls)):
            if kinds:
                more, worse = run(bin_folder, folder, with_tls, kinds, tenth)
                passed, failed = passed + more, failed + worse
    finally:
        tenth.remove()
    if failed == 0:
        shutil.rmtree(folder)
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
