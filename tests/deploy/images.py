"""The images of deploy/docker/Dockerfile, built with buildah and run by podman."""
import os
import re
import time

import sandbox
from table import Failed, need, run

# What an orchestrator's restricted profile asks for.
RESTRICTED = ("--network", "none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
# Compiling in the build takes as long as `make deb`; without it the images have the packages that `make deb` built.
FROM_SOURCE = os.environ.get("GRADWIRE_IMAGES_FROM_SOURCE") == "1"


def options():
    return () if FROM_SOURCE else ("--build-arg", "PACKAGES=prebuilt")


def bases():
    sandbox.containers().bases()
    return "debian:bookworm-slim and distroless/cc-debian12:nonroot, of Debian's packages"


def from_source():
    target = "build" if FROM_SOURCE else "dependencies"
    box = sandbox.containers()
    image = box.build(target, timeout=3600)
    if FROM_SOURCE:
        made = box.podman("run", "--rm", "--network", "none", image, "ls", "/src/build/release/packages")
        need("gradwired_" in made, f"the build wrote {made}")
        return f"compiled in the image: {', '.join(made.split())}"
    made = box.podman("run", "--rm", "--network", "none", image, "sh", "-c",
                      "g++ --version; cmake --version; command -v protoc")
    need("g++" in made and "cmake version 3" in made and "protoc" in made, f"the stage lacks tools: {made}")
    return "the stage's packages are there; not compiled (GRADWIRE_IMAGES_FROM_SOURCE=1 does)"



def daemon_image():
    box = sandbox.containers()
    image = box.build("runtime", "--build-arg", "REVISION=test", *options())
    labels = box.podman("image", "inspect", "--format", "{{.Labels}}", image)
    version = run("dpkg-deb", "-f", sandbox.package("gradwired"), "Version").strip().partition("-")[0]
    for name in ("title", f"version:{version}", "licenses", "revision:test"):
        need(f"org.opencontainers.image.{name}" in labels, f"no label {name} in {labels}")
    config = box.podman("image", "inspect", "--format", "{{.Config.User}} {{.Config.Entrypoint}}", image)
    need(config == "65532:65532 [/usr/bin/gradwired]", f"user and entrypoint are {config}")
    need(box.exit_code("run", "--rm", "--network", "none", "--entrypoint", "/bin/sh", image, "-c", "true") != 0,
         "the image has a shell")
    size = float(box.podman("image", "inspect", "--format", "{{.Size}}", image)) / 1e6
    need(size < 80, f"{size:.0f} MB")
    return f"{size:.1f} MB, {'from source' if FROM_SOURCE else 'from the packages of make deb'}, no shell"


def started(*words):
    """Name of a container of the daemon's image with restricted rights, once it is healthy."""
    box = sandbox.containers()
    name = f"daemon-{time.monotonic_ns()}"
    box.podman("run", "-d", "--name", name, *RESTRICTED, "localhost/gradwire-runtime:test", *words)
    try:
        sandbox.wait_until(lambda: box.exit_code("exec", name, "/usr/bin/gradwirectl", "health") == 0, 20, "health")
    except Failed as error:
        raise Failed(f"{error}\n{box.attempt('logs', name)[1]}") from None
    return name


def restricted():
    box = sandbox.containers()
    name = started()
    process = box.podman("inspect", "--format", "{{.State.Pid}}", name)
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        status = sandbox.fields(file.read())
    need(status["Uid"].split() == ["65532"] * 4, f"Uid {status['Uid']}")
    for name_of_set in ("CapEff", "CapPrm", "CapBnd"):
        need(int(status[name_of_set], 16) == 0, f"{name_of_set} {status[name_of_set]}")
    need(status["NoNewPrivs"] == "1", "new privileges are possible")
    with open(f"/proc/{process}/mounts", encoding="utf-8") as file:
        root = next(line.split() for line in file if line.split()[1] == "/")
    need("ro" in root[3].split(","), f"root is mounted {root[3]}")
    health = box.podman("exec", name, "/usr/bin/gradwirectl", "health")
    need(health == "serving", health)
    need(box.podman("healthcheck", "run", name) == "", "the image's HEALTHCHECK says more than nothing")
    over_tcp = box.podman("exec", name, "/usr/bin/gradwirectl", "--address", "127.0.0.1:29610", "status")
    need("gradwired 0." in over_tcp, over_tcp)
    begin = time.monotonic()
    box.podman("stop", "-t", "20", name)
    code = box.podman("inspect", "--format", "{{.State.ExitCode}}", name)
    logs = box.attempt("logs", name)[1]
    need(code == "0" and "drained" in logs, f"SIGTERM: exit {code}\n{logs}")
    box.podman("rm", name)
    return f"health: {health}; SIGTERM: drained, exit 0 in {time.monotonic() - begin:.1f} s"


def unhealthy():
    """`gradwirectl health` fails where nobody serves, or the check above would prove nothing."""
    box = sandbox.containers()
    name = started("--listen", "unix:/run/gradwire/gradwire.sock")
    code = box.exit_code("exec", name, "/usr/bin/gradwirectl", "--address", "127.0.0.1:29610", "health")
    need(code == 69, f"health of an address where nobody listens: exit {code}")
    box.podman("rm", "-f", "-t", "5", name)
    code = box.exit_code("run", "--rm", *RESTRICTED, "localhost/gradwire-runtime:test", "--listen", "0.0.0.0:29610")
    need(code == 2, f"an open address without TLS: exit {code}")
    return "exit 69; an open address without TLS: exit 2"


def trainer_image():
    box = sandbox.containers()
    image = box.build("trainer", *options())
    said = box.podman("run", "--rm", *RESTRICTED, image, "-c",
                      "import gradwire.torch, torch, os; print(gradwire.__version__, torch.__version__, os.getuid())")
    version = re.fullmatch(r"(0\.\S+) (1\.13\S*) 65532", said)
    need(version, said)
    size = float(box.podman("image", "inspect", "--format", "{{.Size}}", image)) / 1e6
    return f"{size:.0f} MB, gradwire {version[1]}, torch {version[2]}, user 65532"


CHECKS = [
    ("base images", "imported under their official names", bases),
    ("Dockerfile, stage build", "buildah builds it", from_source),
    ("image gradwired", "buildah builds it; labels, user, no shell, size", daemon_image),
    ("image gradwired", "non-root, read-only, no capabilities; health; SIGTERM", restricted),
    ("image gradwired", "refuses what it should", unhealthy),
    ("image gradwire-trainer", "buildah builds it; imports gradwire.torch", trainer_image),
]
