"""Runs a function in several processes at once, each a rank of a gloo process group.

    losses = worlds.run(2, train, model_name, deadline=30)   # a result for each rank

Processes wait for the next run, since they take seconds to import torch. `fresh=True` gives a run
processes of its own, for those that look at threads, die, or leave something behind.
"""

import contextlib
import dataclasses
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

DEADLINE_SECONDS = 60.0
_AFTER_FAILURE_SECONDS = 5.0  # for the other ranks, once one has failed
_END_SECONDS = 15.0  # for a process that has nothing more to do
_START_SECONDS = 60.0  # an import of torch on a busy machine

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class Failed(AssertionError):
    """Some rank raised, died or took too long; the message has what each of them said."""


@dataclasses.dataclass
class _Job:
    function: object
    arguments: tuple
    rank: int
    world: int
    group: bool
    store: tuple[int, str]  # a port and a prefix
    environment: dict[str, str]


@contextlib.contextmanager
def environment(changes: dict[str, str]):
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _do(job: _Job) -> object:
    if job.group:
        port, prefix = job.store
        store = dist.PrefixStore(prefix, dist.TCPStore("127.0.0.1", port, job.world, False))
        dist.init_process_group("gloo", store=store, rank=job.rank, world_size=job.world)
    torch.manual_seed(0)
    try:
        with environment(job.environment):
            return job.function(job.rank, *job.arguments)
    finally:
        if job.group:
            dist.destroy_process_group()


def _serve(connection, output: str, variables: dict[str, str]) -> None:
    os.environ.clear()  # the fork server's own are as old as it is
    os.environ.update(variables)
    tempfile.tempdir = None
    with open(output, "ab") as file:  # at its end, wherever that is
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__)
    torch.set_num_threads(1)
    connection.send_bytes(b"ready")
    while True:
        try:
            job = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        os.truncate(output, 0)
        try:
            outcome = (True, _do(job))
        except Exception:
            outcome = (False, traceback.format_exc())
        sys.stdout.flush()
        connection.send_bytes(pickle.dumps(outcome))


class _Process:
    def __init__(self) -> None:
        # Forks of a server that has done nothing but import what takes seconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "accelerate", "lightning.pytorch", "gradwire.torch"])
        self.connection, theirs = context.Pipe()
        with tempfile.NamedTemporaryFile(prefix="rank-", suffix=".txt", delete=False) as file:
            self._output = pathlib.Path(file.name)
        arguments = (theirs, str(self._output), dict(os.environ))
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        if not self.connection.poll(_START_SECONDS):
            raise Failed(f"a process did not start in {_START_SECONDS:.0f} s: {self.said()}")
        self.connection.recv_bytes()

    def say_where_it_is(self) -> None:
        os.kill(self._process.pid, signal.SIGUSR1)
        end = time.monotonic() + _AFTER_FAILURE_SECONDS
        while "most recent call first" not in self.said() and time.monotonic() < end:
            if self.connection.poll(0.02):  # it has ended
                return

    def said(self) -> str:
        return self._output.read_text(errors="replace").strip()

    def close(self) -> None:
        """It ends when it reads this."""
        self.connection.close()

    def end(self, kill: bool) -> int | None:
        """Its exit code; None if it had to be killed."""
        if not kill:
            self._process.join(timeout=_END_SECONDS)
        code = self._process.exitcode
        self._process.kill()
        self._process.join()
        self._output.unlink()
        return code


def _end(processes: list[_Process], kill: bool, dies: tuple[int, ...] = ()) -> None:
    for process in processes:
        process.close()
    codes = [process.end(kill) for process in processes]
    stuck = {r: code for r, code in enumerate(codes) if code != 0 and r not in dies}
    if stuck and not kill:
        raise Failed(f"exit codes of ranks, None after {_END_SECONDS:.0f} s: {stuck}; allowed: 0")


_idle: dict[int, list[_Process]] = {}  # by world size: members of one world have one history
_store = None
_runs = 0


def _meeting_point() -> tuple[int, str]:
    global _store, _runs
    if _store is None:
        _store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    _runs += 1
    return _store.port, f"run-{_runs}"


def run(
    world: int,
    function,
    *arguments,
    group: bool = True,
    fresh: bool = False,
    dies: tuple[int, ...] = (),
    environments: list[dict[str, str]] | None = None,
    deadline: float = DEADLINE_SECONDS,
) -> list:
    """Calls function(rank, *arguments) on each rank and returns the results, in rank order.

    `dies` are the ranks that end without a result, which is then None. `environments` are set
    for each rank while the function runs. Without `group` there is no process group.
    """
    processes = [] if fresh else _idle.pop(world, [])
    if not processes:
        processes = [_Process() for _ in range(world)]
        for process in processes:
            process.wait_until_ready()
    failed = True
    try:
        store = _meeting_point()
        for rank, process in enumerate(processes):
            changes = environments[rank] if environments else {}
            job = _Job(function, arguments, rank, world, group, store, changes)
            process.connection.send_bytes(pickle.dumps(job))
        results = _collect(processes, dies, deadline)
        failed = False
        return results
    finally:
        if failed or fresh or dies:
            _end(processes, kill=failed, dies=dies)
        else:
            _idle[world] = processes


def _collect(processes: list[_Process], dies: tuple[int, ...], deadline: float) -> list:
    results: list[object] = [None] * len(processes)
    troubles: dict[int, str] = {}
    waiting = {process.connection: rank for rank, process in enumerate(processes)}
    end = time.monotonic() + deadline
    while waiting and time.monotonic() < end:
        for connection in multiprocessing.connection.wait(list(waiting), end - time.monotonic()):
            rank = waiting.pop(connection)
            try:
                ok, result = pickle.loads(connection.recv_bytes())
            except (EOFError, ConnectionError):
                ok, result = rank in dies, None if rank in dies else "it died"
            if ok:
                results[rank] = result
            else:
                troubles[rank] = result
                end = min(end, time.monotonic() + _AFTER_FAILURE_SECONDS)
    for rank in waiting.values():
        processes[rank].say_where_it_is()
        troubles[rank] = f"it had not ended {deadline:.0f} s after its start or when others failed"
    if troubles:
        texts = [
            f"rank {rank}: {troubles.get(rank, 'it went well')}\n{process.said()}".strip()
            for rank, process in enumerate(processes)
        ]
        raise Failed("\n\n".join(texts))
    return results


def end_all() -> None:
    _end([process for processes in _idle.values() for process in processes], kill=False)
    _idle.clear()


def die() -> None:
    """Ends this process as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)
