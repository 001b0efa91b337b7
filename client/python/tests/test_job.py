"""The daemons of a job on several hosts: who shares a host, who starts one, which are used, what is left.

Here each rank takes itself for a host of its own, on 127.0.0.1; test_job_network.py has real ones.
"""

import contextlib
import datetime
import os
import pathlib
import socket
import stat
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist

import gradwire
import gradwire.torch as gw
import training
import worlds
from gradwire import _daemon, _native
from gradwire._folder import AUTHORITIES, CERTIFICATE, KEY, LOG, SOCKET, TOKEN, TOKENS, Folder
from gradwire.torch import _hosts, _job, _meeting, _options

HERE = {"GRADWIRE_HOST_ADDRESS": "127.0.0.1"}


@pytest.fixture
def private_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def _every_rank_is_a_host():
    holds, name = _hosts.Proof.holds, socket.gethostname
    _hosts.Proof.holds = staticmethod(lambda word: False)
    socket.gethostname = lambda: f"node{dist.get_rank()}"
    try:
        yield
    finally:
        _hosts.Proof.holds, socket.gethostname = holds, name


def _own_job() -> _job.Job:
    ((_, job),) = _options._jobs.values()
    return job


# ---- Training


def _train(rank, hook, folder):
    want = training.plain(training.Mlp, rank) if hook == "no" else None
    with _every_rank_is_a_host():
        state = gw.SessionState(comm_hook=hook)
        ddp = training.distributed(training.Mlp)
        ddp.register_comm_hook(state, gw.aggregate_hook)
        got = training.train(ddp, rank)
        job = _own_job()
        _check_secrets(job, folder)
        if want is not None:
            _expect_close(got, want)  # with three members torch rounds in another order
        everybody = [torch.empty_like(ddp.module.last.weight) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, ddp.module.last.weight.detach())
        assert all(torch.equal(one, everybody[0]) for one in everybody)
        state.close()
    return job.addresses, _used(job, hook), job._daemon.public_address


def _expect_close(got, want):
    for mine, reference in zip(got, want, strict=True):
        assert mine.keys() == reference.keys()
        for name, tensor in reference.items():
            torch.testing.assert_close(mine[name], tensor, rtol=1e-5, atol=1e-7)


def _used(job, hook):
    return job.access(_native.takes_several_daemons(hook, "no", {}, "cpu")).address


def _check_secrets(job, folder):
    keys = pathlib.Path(job._folder)
    assert keys.parent == folder and stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert {file.name for file in keys.iterdir()} == {AUTHORITIES, CERTIFICATE, KEY, LOG, SOCKET, TOKEN, TOKENS}
    secret = [keys / name for name in (KEY, TOKEN, TOKENS)]
    assert {stat.S_IMODE(file.stat().st_mode) for file in secret} == {0o600}
    command = pathlib.Path(f"/proc/{job._daemon._child.pid}/cmdline").read_text()
    variables = pathlib.Path(f"/proc/{job._daemon._child.pid}/environ").read_text()
    token = (keys / TOKEN).read_text().strip()
    assert len(token) == 64 and token not in command + variables


@pytest.mark.parametrize("hook", ["no", "power_sgd"])
def test_each_host_starts_a_daemon_and_the_session_is_spread_over_all(private_folder, hook):
    results = worlds.run(3, _train, hook, private_folder, fresh=True)
    addresses = [address for *_, address in results]
    assert len(set(addresses)) == 3
    for usable, used, _ in results:
        assert usable == addresses and used == ",".join(addresses)
    assert list(private_folder.glob("gradwire-*")) == []


def test_a_hook_that_needs_one_daemon_has_that_of_the_first_host(private_folder):
    results = worlds.run(2, _train, "batched_power_sgd", private_folder, fresh=True)
    for usable, used, _ in results:
        assert len(usable) == 2 and used == usable[0]


def _two_states(rank, folder):
    """Two models, and the same process group once more: the daemons are started once."""
    with _every_rank_is_a_host():
        addresses = []
        for _ in range(2):
            with gw.SessionState(model=training.Mlp()) as state:
                state.barrier()
                addresses.append(_own_job().addresses)
        running = [path for path in folder.glob("gradwire-*/daemon.sock")]
    return addresses[0] == addresses[1], len(running)


def test_a_second_state_uses_the_same_daemons(private_folder):
    assert worlds.run(2, _two_states, private_folder, fresh=True) == [(True, 2)] * 2


def _after_another_group(rank, folder):
    with _every_rank_is_a_host():
        with gw.SessionState(model=training.Mlp()) as state:
            state.barrier()
        first = _own_job()
        # What a new process group's store looks like: another object.
        store = dist.distributed_c10d._get_default_store
        other = dist.PrefixStore("again", store())
        dist.distributed_c10d._get_default_store = lambda: other
        try:
            with gw.SessionState(model=training.Mlp()) as state:
                state.barrier()
        finally:
            dist.distributed_c10d._get_default_store = store
        second = _own_job()
    dist.barrier()
    return first._daemon is None, second._daemon is not None, set(first.addresses) & set(second.addresses)


def test_a_new_process_group_has_daemons_of_its_own_and_the_old_ones_end(private_folder):
    assert worlds.run(2, _after_another_group, private_folder, fresh=True) == [(True, True, set())] * 2


# ---- Hosts that others cannot reach


def _hosts_are_reached(rank):
    with _every_rank_is_a_host(), gw.SessionState(model=training.Mlp()) as state:
        try:
            state.barrier()
        except gradwire.Error as error:
            return str(error)
        return _own_job().addresses, _own_job()._daemon is not None


def test_a_host_without_a_daemon_uses_those_of_the_others():
    nobodys = {"GRADWIRE_HOST_ADDRESS": "192.0.2.77"}
    results = worlds.run(3, _hosts_are_reached, fresh=True, environments=[HERE, nobodys, HERE])
    (addresses, _), (seen, has_one), (_, other_has_one) = results
    assert len(addresses) == 2 and seen == addresses and (has_one, other_has_one) == (False, True)


def test_without_any_daemon_the_error_names_each_host():
    nobodys = {"GRADWIRE_HOST_ADDRESS": "192.0.2.77"}
    texts = worlds.run(2, _hosts_are_reached, fresh=True, environments=[nobodys] * 2)
    for text in texts:
        assert text == texts[0] and text.endswith("[GW806]"), text
        for word in ("node0", "node1", "192.0.2.77", "annot assign requested address", "GRADWIRE_PORT_RANGE"):
            assert word in text, text


def test_wrong_variables_are_an_error_of_the_first_call_on_all_ranks():
    for name, value in (("GRADWIRE_PORT_RANGE", "29700"), ("GRADWIRE_HOST_ADDRESS", "10.0.0.5:29610")):
        for text in worlds.run(2, _hosts_are_reached, fresh=True, environments=[{}, {name: value}]):
            assert name in text and value in text and "allowed" in text, text


def _host(leader, name, daemon="", why=""):
    host = {"leader": leader, "name": name, "address": f"10.0.0.{leader}"}
    return {**host, "daemon": daemon} if daemon else {**host, "why": why}


def test_only_daemons_that_all_hosts_reach_are_used(caplog):
    hosts = [_host(0, "a", "10.0.0.0:1"), _host(2, "b", "10.0.0.2:2"), _host(5, "c", why="it fell over")]
    fine = {"0": "", "2": ""}
    assert _job.choose(hosts, {0: fine, 2: fine, 5: fine}) == ["10.0.0.0:1", "10.0.0.2:2"]
    assert "c (10.0.0.5) has no daemon: it fell over" in caplog.text
    caplog.clear()
    assert _job.choose(hosts, {0: fine, 2: fine, 5: {"0": "no answer within 5 s", "2": ""}}) == ["10.0.0.2:2"]
    assert "a (10.0.0.0:1) cannot be reached by c: no answer within 5 s" in caplog.text
    with pytest.raises(gradwire.Unavailable) as refused:
        _job.choose(hosts, {0: {"0": "", "2": "no route"}, 2: fine, 5: {"0": "refused", "2": ""}})
    for word in ("a (10.0.0.0:1) cannot be reached by c: refused", "b (10.0.0.2:2) cannot be reached by a: no route"):
        assert word in str(refused.value)


def test_more_hosts_than_a_session_may_have_daemons_are_fine_and_too_many_are_an_error():
    words = [{"leader": rank, "name": "n", "address": "10.0.0.1", "certificate": "c"} for rank in range(1024)]
    assert len(_job._all_hosts(words)["hosts"]["hosts"]) == 1024
    with pytest.raises(gradwire.InvalidArgument, match="1025 hosts.*at most 1024"):
        _job._all_hosts([*words, {"leader": 1024}])


# ---- Ports


def _public(folder, ports):
    certificate, key = _native.make_certificate("127.0.0.1")
    paths = [folder.write(CERTIFICATE, certificate), folder.write(KEY, key), folder.write(AUTHORITIES, certificate)]
    return _daemon.Public("127.0.0.1", ports, *paths, folder.write(TOKENS, f"job member * {'x' * 64}\n"), folder)


@pytest.fixture
def keys(private_folder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(private_folder))
    folder = Folder()
    yield folder
    folder.remove()


@pytest.fixture
def taken_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_range_of_ports_is_tried_in_order(keys, taken_port):
    daemon = _daemon.EmbeddedDaemon(_public(keys, range(taken_port, min(taken_port + 20, 65536))))
    port = int(daemon.public_address.partition(":")[2])
    daemon.close()
    assert taken_port < port < taken_port + 20


def test_a_range_that_stays_taken_is_an_error_with_a_deadline(keys, taken_port, monkeypatch):
    monkeypatch.setattr(_daemon, "_RANGE_SECONDS", 0.5)
    with pytest.raises(gradwire.Unavailable, match="Address already in use"):
        _daemon.EmbeddedDaemon(_public(keys, range(taken_port, taken_port + 1)))
    assert [path.name for path in pathlib.Path(keys.path).parent.glob("gradwire-*")] == [os.path.basename(keys.path)]


# ---- Who may connect


def _join(daemon, keys, certificate, key, token):
    own = keys.path
    names = {"cert": certificate, "key": key, "token": token}
    paths = {name: f"{own}/other-{name}" for name in names}
    for name, text in names.items():
        pathlib.Path(paths[name]).write_text(text)
    try:
        session = _native.join(
            daemon.public_address, "s", 0, 1, [("w", [2], "float32")], connect_timeout=1.5,
            tls_ca=f"{own}/{AUTHORITIES}", tls_cert=paths["cert"], tls_key=paths["key"], token_file=paths["token"],
        )  # fmt: skip
        session.close()
    finally:
        for path in paths.values():
            os.unlink(path)


def test_only_hosts_of_the_job_may_connect_to_its_daemons(keys, monkeypatch):
    monkeypatch.setenv("GRADWIRE_LOCAL_SOCKET", "off")
    public = _public(keys, range(0, 1))
    daemon = _daemon.EmbeddedDaemon(public)
    own = [pathlib.Path(path).read_text() for path in (public.certificate, public.key)]
    try:
        _join(daemon, keys, *own, "x" * 64)
        with pytest.raises(gradwire.Error, match=r"\[GW106\]"):
            _join(daemon, keys, *own, "y" * 64)
        # Who has read the store knows the token, but has no key whose certificate was in it.
        with pytest.raises(gradwire.Unavailable, match="refused tls_cert"):
            _join(daemon, keys, *_native.make_certificate("127.0.0.1"), "x" * 64)
    finally:
        daemon.close()


# ---- Which ranks share a host


PROBE = """
import json, sys
from gradwire.torch import _hosts
print(_hosts.Proof.holds(json.loads(sys.argv[1])))
"""


def _holds(word, *prefix):
    child = subprocess.run(
        [*prefix, sys.executable, "-c", PROBE, _meeting.json.dumps(word)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return child.stdout == "True\n"


def test_processes_of_one_host_can_show_it(tmp_path):
    with contextlib.closing(_hosts.Proof()) as proof:
        assert _holds(proof.word)
        assert not _holds({**proof.word, "name": "gradwire-" + "0" * 32})
        assert not _holds({**proof.word, "user": os.geteuid() + 1})
        assert not _holds({**proof.word, "folder": str(tmp_path)})  # not the folder that the other one sees
    assert not _holds(proof.word)  # it has ended


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network namespace")
def test_another_network_of_the_same_machine_is_another_host():
    with contextlib.closing(_hosts.Proof()) as proof:
        assert not _holds(proof.word, "unshare", "--net")


def test_a_hosts_address_is_one_that_others_reach(monkeypatch):
    assert _hosts.address_towards(["127.0.0.1", "localhost"]) == ""
    assert _hosts.address_towards(["no-such-host.invalid"]) == ""
    assert _hosts.address_towards([]) == ""
    for text, kept in (("10.0.0.5", "10.0.0.5"), ("2001:DB8::0:5", "2001:db8::5"), ("node-3.rack_1", "node-3.rack_1")):
        monkeypatch.setenv("GRADWIRE_HOST_ADDRESS", text)
        assert _hosts.given_address() == kept
    for text in ("10.0.0.5:29610", "[::1]", "a b", "a,b", "x" * 254):
        monkeypatch.setenv("GRADWIRE_HOST_ADDRESS", text)
        with pytest.raises(gradwire.InvalidArgument, match="GRADWIRE_HOST_ADDRESS is .*allowed"):
            _hosts.given_address()


def test_a_range_of_ports_is_written_with_a_hyphen(monkeypatch):
    assert _hosts.given_ports() == range(0, 1)
    for text, ports in (("29700-29799", range(29700, 29800)), ("5-5", range(5, 6)), ("65535-65535", range(65535, 65536))):
        monkeypatch.setenv("GRADWIRE_PORT_RANGE", text)
        assert _hosts.given_ports() == ports
    for text in ("29700", "9-8", "0-5", "1-65536", "a-b", "1-2-3", "-5"):
        monkeypatch.setenv("GRADWIRE_PORT_RANGE", text)
        with pytest.raises(gradwire.InvalidArgument, match="GRADWIRE_PORT_RANGE is .*FIRST-LAST"):
            _hosts.given_ports()


def test_the_master_is_that_of_the_store(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    assert _hosts.master_of(dist.PrefixStore("a", dist.PrefixStore("b", store))) == "127.0.0.1"
    assert _hosts.master_of(dist.HashStore()) == ""
    monkeypatch.setenv("MASTER_ADDR", "node0")
    assert _hosts.master_of(dist.HashStore()) == "node0"


# ---- Rounds


def _in_threads(size, call):
    """call(rank, meeting) on each rank; results or exceptions."""
    store = dist.HashStore()
    results = [None] * size

    def run(rank):
        try:
            results[rank] = call(rank, _meeting.Meeting(store, "test", rank, size))
        except gradwire.Error as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    return results


def _sum_round(meeting, rank, seconds=30.0):
    def answer(words):
        return {"all": sum(words), "odd": "odd"}

    return meeting.round("numbers", lambda: rank, answer, seconds, "say a number", "odd" if rank % 2 else "all")


def test_each_rank_gets_its_part_of_the_answer():
    assert _in_threads(3, lambda rank, meeting: _sum_round(meeting, rank)) == [3, "odd", 3]


def test_what_fails_on_one_rank_fails_on_all_with_the_same_words():
    def call(rank, meeting):
        meeting.name({1: "node7"})
        return meeting.round("t", lambda: 1 // (1 - rank), lambda words: {}, 30.0, "divide")

    texts = {str(error) for error in _in_threads(3, call)}
    assert len(texts) == 1 and "rank 1 (node7): integer division" in texts.pop()

    def refuse(words):
        raise gradwire.InvalidArgument("this is refused", "GW403")

    errors = _in_threads(2, lambda rank, meeting: meeting.round("t", lambda: 1, refuse, 30.0, "wait"))
    for error in errors:
        assert type(error) is gradwire.InvalidArgument and str(error) == "this is refused [GW403]"


def test_a_rank_that_does_not_come_is_named_after_the_deadline(monkeypatch):
    monkeypatch.setattr(_meeting, "_SLACK", 5.0)

    def call(rank, meeting):
        meeting.name({2: "node7"})
        return None if rank == 2 else _sum_round(meeting, rank, 0.3)

    *errors, _ = _in_threads(3, call)
    for error in errors:
        assert type(error) is gradwire.DeadlineExceeded
        assert str(error) == "rank 2 (node7) did not say a number within 0.3 s [GW807]", error


def test_rank_0_is_missed_too(monkeypatch):
    monkeypatch.setattr(_meeting, "_SLACK", 0.2)
    _, error = _in_threads(2, lambda rank, meeting: None if rank == 0 else _sum_round(meeting, rank, 0.2))
    assert "rank 0 did not answer" in str(error) and "say a number" in str(error)


class _LostStore:
    def set(self, key, value):
        pass

    def wait(self, keys, timeout):
        raise RuntimeError("Connection reset by peer")


def test_a_store_that_is_gone_is_noticed_at_once():
    with pytest.raises(gradwire.Unavailable, match="store does not answer: Connection reset"):
        _sum_round(_meeting.Meeting(_LostStore(), "test", 1, 2), 1, datetime.timedelta(hours=1).total_seconds())
