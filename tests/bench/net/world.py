"""The members of a benchmark, processes on hosts of a network, from the parent's side. Every wait has a deadline."""

import json
import os
import pathlib
import select
import subprocess
import sys
import time

END_SECONDS = 10  # after a failure members are killed at once
START_SECONDS = 120  # torch's import, several times on few cores
MEMBER_ENVIRONMENT = {
    # All payloads over the links, and gloo's too.
    "GRADWIRE_SHARED_MEMORY": "off", "GRADWIRE_LOCAL_SOCKET": "off", "GRADWIRE_NODE_GROUP": "off",
    "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
}  # fmt: skip


class Failed(Exception):
    pass


class World:
    """One process for each rank: `program RANK WORLD_SIZE *arguments`, on the host that `hosts` has for it; ranks
    of one host follow each other."""

    def __init__(self, network, hosts, program, arguments, folder, shares_memory=False):
        self._logs = [pathlib.Path(folder, f"rank{rank}.log") for rank in range(len(hosts))]
        self._rest = [b""] * len(hosts)
        self._children = []
        shared = {"GRADWIRE_SHARED_MEMORY": "on"} if shares_memory else {}
        for rank, host in enumerate(hosts):
            node = {"LOCAL_RANK": str(rank - hosts.index(host)), "LOCAL_WORLD_SIZE": str(hosts.count(host))}
            with self._logs[rank].open("wb") as log:
                self._children.append(network.start(
                    host, sys.executable, "-B", program, rank, len(hosts), *arguments,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    env={**os.environ, **MEMBER_ENVIRONMENT, **shared, **node}))
        self.answers(START_SECONDS)

    def _log(self, rank):
        return self._logs[rank].read_text(errors="replace")[-2000:]

    def _read(self, rank):
        """An answer, if all of it is there now."""
        more = os.read(self._children[rank].stdout.fileno(), 1 << 16)
        if not more:
            code = self._children[rank].wait(END_SECONDS)  # negative: the signal
            raise Failed(f"rank {rank} ended with {code}\n{self._log(rank)}")
        self._rest[rank] += more
        line, newline, rest = self._rest[rank].partition(b"\n")
        if not newline:
            return None
        self._rest[rank] = rest
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"rank {rank}: {answer['error']}")
        return answer

    def answers(self, seconds):
        """Of all ranks, in their order; fails as soon as one fails."""
        end = time.monotonic() + seconds
        values = {}
        pipes = {child.stdout.fileno(): rank for rank, child in enumerate(self._children)}
        while pipes:
            ready, _, _ = select.select(list(pipes), [], [], max(0, end - time.monotonic()))
            if not ready:
                missing = ", ".join(str(rank) for rank in pipes.values())
                raise Failed(f"no answer within {seconds:.0f} s of rank {missing}\n{self._log(min(pipes.values()))}")
            for pipe in ready:
                answer = self._read(pipes[pipe])
                if answer is not None:
                    values[pipes.pop(pipe)] = answer["ok"]
        return [values[rank] for rank in sorted(values)]

    def ask(self, seconds, ranks=None, **order):
        """All ranks' answers; `ranks` has what is different for each."""
        for rank, child in enumerate(self._children):
            line = json.dumps({**order, **(ranks[rank] if ranks else {})}) + "\n"
            try:
                child.stdin.write(line.encode())
                child.stdin.flush()
            except BrokenPipeError:
                pass  # its last words are the answer
        return self.answers(seconds)

    def __enter__(self):
        return self

    def __exit__(self, failure, *unused):
        end = time.monotonic() + (0 if failure else END_SECONDS)
        for child in self._children:
            child.stdin.close()
        for child in self._children:
            try:
                child.wait(max(0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
