"""gradwired.service under a real systemd, which is process 1 of a container."""
import contextlib
import pathlib
import shutil
import tempfile

import containers
import sandbox
from table import need

IMAGE = "localhost/gradwire-booted:test"
NAME = "booted"
RECIPE = f"""
FROM {sandbox.DEBIAN}
RUN apt-get update && apt-get install -y --no-install-recommends systemd systemd-sysv
COPY *.deb /packages/
RUN apt-get install -y --no-install-recommends /packages/*.deb
"""
CREDENTIALS = "/run/credentials/gradwired.service"
SETTINGS = f"""
version: 1
tls:
  cert: {CREDENTIALS}/tls.crt
  key: {CREDENTIALS}/tls.key
  client_ca: {CREDENTIALS}/ca.crt
tokens: {CREDENTIALS}/tokens
"""
FILE = "/etc/gradwire/gradwired.yaml"

_open = contextlib.ExitStack()
_started = []


def inside(*command):
    if not _started:
        start()
    return sandbox.containers().podman("exec", NAME, *command)


def shell(script):
    return inside("sh", "-ec", script)


def properties(*names):
    said = inside("systemctl", "show", "gradwired", "-p", ",".join(names))
    return dict(line.split("=", 1) for line in said.splitlines())


def start():
    box = sandbox.containers()
    box.bases()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "Dockerfile").write_text(RECIPE, encoding="ascii")
        shutil.copy(sandbox.package("gradwired"), folder)
        box.buildah("bud", "--isolation", "chroot", "--pull-never", "--layers", "-t", IMAGE, folder)
    # A container's root is private, but systemd passes credentials on through shared mounts.
    box.podman("run", "-d", "--name", NAME, "--privileged", "--systemd=always", "--network", "none", IMAGE,
               "sh", "-c", "mount --make-rshared / && exec /sbin/init")
    _open.callback(box.attempt, "rm", "-f", "-t", "2", NAME)
    _started.append(NAME)
    sandbox.wait_until(lambda: box.exit_code("exec", NAME, "systemctl", "is-active", "gradwired") == 0, 60,
                       "active gradwired")


def serves():
    """Installing the package has enabled the service, so that a boot starts it."""
    sandbox.wait_until(lambda: "serving" in shell("gradwirectl health || true"), 20, "gradwirectl health")
    process = properties("MainPID")["MainPID"]
    status = sandbox.fields(inside("cat", f"/proc/{process}/status"))
    user = int(status["Uid"].split()[0])
    need(61184 <= user <= 65519, f"the user is {user}, which is not a dynamic one")
    need(int(status["CapEff"], 16) == 0 and status["Seccomp"] == "2" and status["NoNewPrivs"] == "1",
         f"capabilities {status['CapEff']}, seccomp {status['Seccomp']}, no new privileges {status['NoNewPrivs']}")
    need(int(inside("stat", "-c", "%u", "/run/gradwire/")) == user, "/run/gradwire belongs to another user")
    return f"user {user}, no capabilities, seccomp"


def reloads():
    before = properties("MainPID")["MainPID"]
    shell(f"sed -i 's/^max_sessions: 256/max_sessions: 3/' {FILE} && systemctl reload gradwired")
    sandbox.wait_until(lambda: "max_sessions: 256 -> 3" in inside("journalctl", "-u", "gradwired", "--no-pager"), 10,
                       "max_sessions in the journal")
    need(shell("gradwirectl health") == "serving", "gradwirectl health")
    after = properties("MainPID", "NRestarts")
    need(after == {"MainPID": before, "NRestarts": "0"}, f"process {before} became {after}")
    return "a new max_sessions counts, same process, serving"


def secured():
    """As the package's examples say: certificates by LoadCredential=, in files that only root reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        containers.write_secrets(folder)
        box = sandbox.containers()
        shell("install -d -m 0700 /etc/gradwire/tls /etc/systemd/system/gradwired.service.d && "
              "cp /usr/share/doc/gradwired/examples/tls.conf /etc/systemd/system/gradwired.service.d/")
        for file in ("tls.crt", "tls.key", "ca.crt"):
            box.podman("cp", folder / "daemon" / file, f"{NAME}:/etc/gradwire/tls/{file}")
        box.podman("cp", folder / "tokens/tokens", f"{NAME}:/etc/gradwire/tokens")
        box.podman("cp", folder / "member", f"{NAME}:/root/member")
    shell("chown -R root:root /etc/gradwire && chmod 0400 /etc/gradwire/tls/* /etc/gradwire/tokens && "
          f"printf '%s' '{SETTINGS}' >{FILE} && systemctl daemon-reload && systemctl restart gradwired")
    need(shell("gradwirectl health 2>&1 || echo exit $?").endswith("exit 69"), "a caller without TLS is not refused")
    said = shell("cd /root/member; gradwirectl --address localhost:29610 --tls-ca ca.crt --tls-cert tls.crt "
                 "--tls-key tls.key --token-file token why")
    return f"a caller with certificate and token gets: {said.splitlines()[0]}"


def stops():
    inside("systemctl", "stop", "gradwired")
    ended = properties("ActiveState", "Result", "ExecMainStatus")
    need(ended == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}, f"stopped: {ended}")
    journal = inside("journalctl", "-u", "gradwired", "--no-pager", "-n", "5")
    need("drained" in journal, f"the journal does not say drained: {journal}")
    shell(f"echo 'max_sessions: many' >>{FILE}; systemctl start gradwired || true")
    sandbox.wait_until(lambda: properties("ActiveState")["ActiveState"] == "failed", 10, "failed state")
    shell("sleep 3")  # longer than RestartSec
    ended = properties("ActiveState", "NRestarts", "ExecMainStatus")
    need(ended == {"ActiveState": "failed", "NRestarts": "0", "ExecMainStatus": "78"}, f"a wrong setting: {ended}")
    return "drained, exit 0; a wrong setting: exit 78, not restarted"


def close():
    _started.clear()
    _open.close()


def last(check):
    """Removes the container also where the check fails."""
    def closing():
        try:
            return check()
        finally:
            close()
    return closing


CHECKS = [
    ("systemd unit", "a booted systemd starts it, hardened", serves),
    ("systemd unit", "systemctl reload", reloads),
    ("systemd unit", "TLS and tokens by LoadCredential=", secured),
    ("systemd unit", "systemctl stop; a wrong setting", last(stops)),
]
