"""A training run in containers: the daemon of the kustomize overlay and two members in a pod, with mutual TLS and
tokens."""
import contextlib
import hashlib
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import tempfile

import yaml

import sandbox
import tools
from table import Failed, need, run

USER = 65532
MEMBERS = ("training-trainer-0", "training-trainer-1")


def certificate(folder, name, authority=None):
    """name.crt and name.key in `folder`; without an authority it signs itself, as an authority does."""
    key, file = folder / f"{name}.key", folder / f"{name}.crt"
    make = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", key, "-addext", "subjectAltName=DNS:localhost,DNS:gradwire,IP:127.0.0.1"]
    if authority is None:
        run(*make, "-x509", "-days", "2", "-out", file)
    else:
        request = folder / "request"
        run(*make, "-out", request)
        run("openssl", "x509", "-req", "-in", request, "-CA", folder / f"{authority}.crt",
            "-CAkey", folder / f"{authority}.key", "-days", "2", "-copy_extensions", "copy", "-out", file)
    return file, key


def write_secrets(folder, sessions="no-ddp"):
    """What the pod mounts: `daemon` and `member` with their certificates, `tokens`, and for `stranger` neither the
    authority's signature nor a known token. `run` is for the daemon's socket. Members may join `sessions`."""
    made = folder / "made"
    made.mkdir()
    authority, _ = certificate(made, "authority")
    token = secrets.token_urlsafe(24)
    for name, signed_by in (("daemon", "authority"), ("member", "authority"), ("stranger", None)):
        own = folder / name
        own.mkdir()
        file, key = certificate(made, name, signed_by)
        shutil.copy(file, own / "tls.crt")
        shutil.copy(key, own / "tls.key")
        shutil.copy(authority, own / "ca.crt")
    digest = hashlib.sha256(token.encode()).hexdigest()
    (folder / "tokens").mkdir()
    (folder / "run").mkdir()
    (folder / "tokens/tokens").write_text(f"digits member {sessions} sha256:{digest}\n", encoding="ascii")
    (folder / "member/token").write_text(token, encoding="ascii")
    (folder / "stranger/token").write_text(secrets.token_urlsafe(24), encoding="ascii")
    shutil.rmtree(made)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, USER, USER)
        path.chmod(0o700 if path.is_dir() else 0o400)


def stateful_set():
    return next(one for one in tools.documents(tools.kustomize("tls")) if one["kind"] == "StatefulSet")


def daemon(folder, run_folder):
    """The overlay's pod for podman 4.3, which knows no StatefulSet, no Secret and no emptyDir in memory: they become
    folders of the host. Its probes need curl in the image, which the checks of the manifests do without, and its ports
    a bridge."""
    spec = stateful_set()["spec"]["template"]["spec"]
    own = {"tls": folder / "daemon", "tokens": folder / "tokens", "run": run_folder}
    volumes = []
    for volume in spec["volumes"]:
        need(volume["name"] in own, f"the overlay mounts {volume['name']}, which this check does not know")
        path = str(own[volume["name"]])
        volumes.append({"name": volume["name"], "hostPath": {"path": path, "type": "Directory"}})
    container = spec["containers"][0]
    sandbox.containers().podman("tag", "localhost/gradwire-runtime:test", f"localhost/{container['image']}")
    container["image"] = f"localhost/{container['image']}"
    for name in ("startupProbe", "readinessProbe", "livenessProbe", "ports"):
        container.pop(name)
    kept = {name: spec[name] for name in ("securityContext", "terminationGracePeriodSeconds")}
    return {**kept, "volumes": volumes, "containers": [container]}


def trainers(folder):
    """The Pod of training.yaml."""
    text = (pathlib.Path(__file__).parent / "training.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text.replace("SECRETS", str(folder)))


def manifest(folder):
    """A Pod of daemon and trainers."""
    made, ours = trainers(folder), daemon(folder, folder / "run")
    spec = made["spec"]
    made["spec"] = {**spec, **ours, "volumes": spec["volumes"] + ours["volumes"],
                    "containers": ours["containers"] + spec["containers"]}
    return yaml.safe_dump(made)


@contextlib.contextmanager
def pod():
    """Plays the manifest, and removes the pod."""
    box = sandbox.containers()
    with tempfile.TemporaryDirectory(prefix="gradwire-secrets-") as name:
        folder = pathlib.Path(name)
        write_secrets(folder)
        # Without a network: members and daemon share the pod's loopback.
        box.podman("kube", "play", "--network", "none", "-", input=manifest(folder))
        try:
            yield folder
        finally:
            box.podman("pod", "rm", "-f", "-t", "2", "training")


def log(container):
    return sandbox.containers().attempt("logs", container)[1]


def finished(container, seconds, server="training-gradwired"):
    """What a container printed. Failed, unless it ended with 0."""
    box = sandbox.containers()
    try:
        code = box.podman("wait", container, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"{container} still runs after {seconds} s\n{log(container)}\n{log(server)}") from None
    need(code == "0", f"{container}: exit {code}\n{log(container)}\n{log(server)}")
    return log(container)


def control(folder, name, *words):
    """Exit code and output of gradwirectl over TCP with the secrets of `name`, in the pod."""
    flags = ["--address", "localhost:29610", "--tls-ca", "/s/ca.crt", "--token-file", "/s/token"]
    if name != "bare":
        flags += ["--tls-cert", "/s/tls.crt", "--tls-key", "/s/tls.key"]
    shown = folder / ("member" if name == "bare" else name)
    return sandbox.containers().attempt(
        "run", "--rm", "--pod", "training", "-v", f"{shown}:/s:ro", "--read-only", "--cap-drop=all",
        "--entrypoint", "/usr/bin/gradwirectl", "localhost/gradwire-runtime:test", *flags, *words)


def refused(folder):
    """Callers without a certificate of the authority, or without a known token."""
    code, said = control(folder, "member", "why")
    need(code == 0, f"a member is refused: {said}")
    for name in ("bare", "stranger"):
        code, said = control(folder, name, "health")
        need(code == 69, f"{name} is not refused: exit {code}, {said}")
    shutil.copy(folder / "stranger/token", folder / "member/token")
    code, said = control(folder, "member", "why")
    need(code == 1, f"an unknown token is not refused: exit {code}, {said}")


def training():
    with pod() as folder:
        printed = [finished(name, 300) for name in MEMBERS]
        sums = [re.search(r"rank \d: parameters (\w{64})", text) for text in printed]
        need(all(sums) and sums[0][1] == sums[1][1], f"the members' parameters differ: {printed}")
        losses = [float(text) for text in re.findall(r"loss (\S+)", printed[0])]
        need(len(losses) > 5 and losses[-1] < losses[0] / 2, f"the loss does not fall: {losses}")
        accuracy = re.search(r"accuracy (\S+);", printed[0])
        refused(folder)
        box = sandbox.containers()
        said = box.podman("exec", "training-gradwired", "/usr/bin/gradwirectl", "status")
        need("no-ddp" in said, f"gradwirectl over the pod's unix socket: {said}")
        box.podman("stop", "-t", "20", "training-gradwired")
        need('"drained"' in finished("training-gradwired", 10), "the daemon did not drain")
    return (f"loss {losses[0]} to {losses[-1]}, accuracy {accuracy[1]}, both members' parameters {sums[0][1][:12]}; "
            "no certificate, a foreign one or an unknown token: refused")


CHECKS = [
    ("overlay tls, 2 trainers", "podman kube play; mTLS and tokens; digits are learnt", training),
]
