"""Members that reach their daemon over TLS."""

import contextlib
import datetime
import subprocess

import pytest
import torch

import gradwire
import gradwire.torch as gw
from conftest import Daemon


def _openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, and what it signed for 127.0.0.1: ca.crt, tls.crt, tls.key."""
    folder = tmp_path_factory.mktemp("tls")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    _openssl("req", "-x509", *new_key, "-subj", "/CN=authority",
             "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt")  # fmt: skip
    _openssl("req", "-x509", *new_key, "-subj", "/CN=member",
             "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE",
             "-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key",
             "-keyout", f"{folder}/tls.key", "-out", f"{folder}/tls.crt")  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tls_daemon(certificates, tmp_path_factory):
    words = ["--tls-cert", certificates / "tls.crt", "--tls-key", certificates / "tls.key",
             "--tls-client-ca", certificates / "ca.crt"]  # fmt: skip
    with contextlib.closing(Daemon(tmp_path_factory.mktemp("d"), *words)) as daemon:
        yield daemon


def _connect(daemon, session, **arguments):
    model = torch.nn.Linear(2, 1)
    state = gw.SessionState(address=daemon.tcp, session=session, rank=0, world_size=1, model=model, **arguments)
    state.connect()
    state.close()


def test_a_member_trains_over_tls(tls_daemon, certificates):
    _connect(tls_daemon, "arguments", tls_ca=certificates / "ca.crt",
             tls_cert=certificates / "tls.crt", tls_key=str(certificates / "tls.key"))  # fmt: skip


def test_the_environment_names_the_files(tls_daemon, certificates, monkeypatch):
    monkeypatch.setenv("GRADWIRE_TLS_CA", str(certificates / "ca.crt"))
    monkeypatch.setenv("GRADWIRE_TLS_CERT", str(certificates / "tls.crt"))
    monkeypatch.setenv("GRADWIRE_TLS_KEY", str(certificates / "tls.key"))
    _connect(tls_daemon, "environment")


def test_a_member_without_tls_is_told_what_to_give(tls_daemon):
    model = torch.nn.Linear(2, 1)
    state = gw.SessionState(
        address=tls_daemon.tcp, session="plain", rank=0, world_size=1, model=model,
        connect_timeout=datetime.timedelta(seconds=1),
    )  # fmt: skip
    with pytest.raises(gradwire.Unavailable, match="may ask for TLS: give tls_ca"):
        state.connect()


def test_a_daemon_of_rank_0_needs_no_files(monkeypatch):
    monkeypatch.setenv("GRADWIRE_TLS_CERT", "/nonexistent/tls.crt")
    monkeypatch.setenv("GRADWIRE_TLS_KEY", "/nonexistent/tls.key")
    with gw.SessionState(rank=0, world_size=1, model=torch.nn.Linear(2, 1)) as state:
        state.connect()


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key", "token_file"])
def test_a_file_is_a_path(name):
    with pytest.raises(gradwire.InvalidArgument, match=f"{name}.*the path of a file"):
        gw.SessionState(**{name: 7})
