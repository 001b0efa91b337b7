"""What wheel_smoke.sh runs in the clean environment; its argument is the console script gradwired."""

import array
import os
import pathlib
import re
import shutil  # noqa: F401  brings the interpreter's libraries for archives
import subprocess
import sys
import threading


def loaded(process):
    """The shared libraries that a process has mapped."""
    maps = pathlib.Path(f"/proc/{process}/maps").read_text()
    return {line.split(maxsplit=5)[5] for line in maps.splitlines() if re.search(r"\.so[.\d]*$", line)}


interpreters = loaded(os.getpid())

import gradwire  # noqa: E402
from gradwire import _native  # noqa: E402
from gradwire._daemon import EmbeddedDaemon, gradwired_path  # noqa: E402

PACKAGE = pathlib.Path(gradwire.__file__).parent
LIBRARIES = PACKAGE.parent / "gradwire.libs"
# What a manylinux wheel may expect of a system.
SYSTEM = r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|z|nss_\w+))(-2\.\d+)?\.so[.\d]*"
WORLD = 2
NUMEL = 100_000


def foreign(paths):
    """Those that are neither the wheel's nor such as every system has."""
    for path in map(pathlib.Path, sorted(paths)):
        own = path.is_relative_to(PACKAGE) or path.parent == LIBRARIES
        if not own and not re.fullmatch(SYSTEM, path.name):
            yield str(path)


def member(address, rank, failed):
    try:
        session = _native.join(address, "smoke", rank, WORLD, [("weight", [NUMEL], "float32")])
        values = array.array("f", (float(i % 97 + rank) for i in range(NUMEL)))
        session.all_reduce(1, values.buffer_info()[0], NUMEL, "float32", [0])
        session.end_step(2)
        waiting = {1, 2}
        while waiting:
            for number, code, message, applied in session.take(30.0):
                assert (code, applied) == (0, True), message
                waiting.remove(number)
        assert values.tolist() == [i % 97 + 0.5 for i in range(NUMEL)], "not the mean"
        session.leave()
        session.close()
    except BaseException as error:
        failed.append((rank, error))
        raise


def main():
    said = subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True, check=True)
    assert gradwire.__version__ in said.stdout, said.stdout
    control = pathlib.Path(sys.argv[1]).with_name("gradwirectl")
    said = subprocess.run([control, "--help"], capture_output=True, text=True, check=True)
    assert "status" in said.stdout, said.stdout
    assert pathlib.Path(gradwired_path()) == PACKAGE / "bin" / "gradwired"

    daemon = EmbeddedDaemon()
    failed = []
    members = [
        threading.Thread(target=member, args=(daemon.address, rank, failed)) for rank in range(WORLD)
    ]
    for one in members:
        one.start()
    for one in members:
        one.join()
    assert not failed, failed

    theirs = loaded(daemon._child.pid)
    stdlib = pathlib.Path(os.__file__).parent
    ours = {path for path in loaded(os.getpid()) if not pathlib.Path(path).is_relative_to(stdlib)}
    strangers = [*foreign(ours - interpreters), *foreign(theirs)]
    bundled = sum(pathlib.Path(path).parent == LIBRARIES for path in theirs)
    daemon.close()
    assert not strangers, f"loaded from outside the wheel: {strangers}"
    assert bundled > 20, theirs
    print(
        f"wheel_smoke: gradwire {gradwire.__version__} in Python {sys.version.split()[0]}:"
        f" {WORLD} members reduced {NUMEL} elements, the daemon runs on {bundled} bundled libraries"
    )


if __name__ == "__main__":
    main()
