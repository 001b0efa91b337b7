"""Where the checks install packages and run containers: bare Debians, and a container storage of their own."""
import atexit
import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import table

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "deploy"
PACKAGES = ROOT / "build" / "release" / "packages"
DEBIAN = "docker.io/library/debian:bookworm-slim"
DISTROLESS = "gcr.io/distroless/cc-debian12:nonroot"
# Of Google's cc-debian12, which Debian's own packages make up: no shell and no package manager.
DISTROLESS_PACKAGES = ("libc6,libstdc++6,libgcc-s1,libgomp1,libssl3,ca-certificates,tzdata,base-files,netbase,"
                       "media-types")
WEEK = 7 * 24 * 3600
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GRADWIRE_", "CONTAINERS_"))}


def package(name):
    """The file of the package that `make deb` built."""
    found = sorted(PACKAGES.glob(f"{name}_*.deb"))
    table.need(len(found) == 1, f"{PACKAGES} has {len(found)} packages {name}; run `make deb`")
    return found[0]


def bare_debian(name="bookworm.tar", *options):
    """A tar of a bare Debian 12, made again after a week."""
    tar = FOLDER / name
    if not tar.exists() or time.time() - tar.stat().st_mtime > WEEK:
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = tar.with_name("part-" + name)
        table.run(ROOT / "deploy/bare-debian.sh", part, *(options or ["--include=ca-certificates"]),
                  "--customize-hook=rm -rf \"$1\"/var/lib/apt/lists/*", timeout=900)
        part.rename(tar)
    return tar


class Room:
    """A bare Debian in a folder of its own, for as long as the `with` lasts."""

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gradwire-room-"))
        table.run("tar", "-C", self.folder, "-xf", bare_debian())
        shutil.copy("/etc/resolv.conf", self.folder / "etc/resolv.conf")
        (self.folder / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n", encoding="ascii")
        (self.folder / "packages").mkdir()
        self("apt-get", "-qq", "update")
        return self

    def __exit__(self, *unused):
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.folder)], check=False)

    def __call__(self, *command, show=None, timeout=600):
        """Output of a command in the room; `show`: a folder of the host that it sees as /shown."""
        env = dict(CLEAN, GRADWIRE_ROOM_MOUNT=f"{show}:/shown") if show else CLEAN
        return table.run(ROOT / "deploy/in-room.sh", self.folder, *command, env=env, timeout=timeout)

    def install(self, *names, timeout=600):
        """Installs packages by name, and ours by their file; the number of packages that are new."""
        before = len(self("dpkg-query", "-W").splitlines())
        words = []
        for name in names:
            if isinstance(name, pathlib.Path):
                shutil.copy(name, self.folder / "packages")
                words.append(f"/packages/{name.name}")
            else:
                words.append(name)
        self("apt-get", "-qq", "install", "-y", "--no-install-recommends", *words, timeout=timeout)
        return len(self("dpkg-query", "-W").splitlines()) - before


class Containers:
    """buildah and podman with their own storage and settings, so that no image or container of the host is touched."""

    def __init__(self):
        self.storage = FOLDER / "containers"
        # Not in build: the path of a container's socket may have 108 characters. The same in each run, since podman
        # remembers it in the storage.
        digest = hashlib.sha256(str(self.storage).encode()).hexdigest()[:12]
        self.run_folder = pathlib.Path(tempfile.gettempdir()) / f"gradwire-run-{digest}"
        self.run_folder.mkdir(mode=0o700, exist_ok=True)
        table.need(self.run_folder.stat().st_uid == os.geteuid(), f"{self.run_folder} belongs to somebody else")
        storage = self.run_folder / "storage.conf"
        storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{self.storage}"\n'
                           f'runroot = "{self.run_folder}/run"\n', encoding="utf-8")
        settings = self.run_folder / "containers.conf"
        # Soft limits equal hard ones, since podman 4.3's `kube play` swaps the two. crun 1.8 refuses the layout of
        # control groups where versions 1 and 2 are mixed, runc does not.
        settings.write_text('[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
                            '[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\nevents_logger = "file"\n'
                            f'tmp_dir = "{self.run_folder}/libpod"\n'
                            f'[network]\nnetwork_config_dir = "{self.run_folder}/networks"\n', encoding="utf-8")
        self.env = dict(CLEAN, CONTAINERS_STORAGE_CONF=str(storage), CONTAINERS_CONF=str(settings))
        self.storage.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)

    def podman(self, *words, timeout=120, **more):
        return table.run("podman", *words, env=self.env, timeout=timeout, **more).strip()

    def buildah(self, *words, timeout=900):
        return table.run("buildah", *words, env=self.env, timeout=timeout).strip()

    def attempt(self, *words, timeout=120):
        """Exit code and output of a podman that may fail."""
        done = subprocess.run(["podman", *map(str, words)], env=self.env, capture_output=True, text=True,
                              timeout=timeout, check=False)
        return done.returncode, done.stdout + done.stderr

    def exit_code(self, *words, timeout=120):
        return self.attempt(*words, timeout=timeout)[0]

    def has(self, image):
        return subprocess.run(["buildah", "inspect", "--type", "image", image], env=self.env, capture_output=True,
                              check=False).returncode == 0

    def base(self, image, tar, user=None):
        """Imports a tar under an image's official name, which no registry then is asked for."""
        made = self.run_folder / "made"
        stamp = f"{tar}:{tar.stat().st_mtime_ns}"
        if self.has(image):
            form = '{{index .OCIv1.Config.Labels "gradwire.base"}}'
            if self.buildah("inspect", "--type", "image", "--format", form, image) == stamp:
                return
        one = self.buildah("from", "scratch")
        self.buildah("add", "-q", one, tar, "/")
        if user is not None:
            shutil.rmtree(made, ignore_errors=True)
            (made / "etc").mkdir(parents=True)
            (made / "etc/passwd").write_text(f"root:x:0:0:root:/root:/sbin/nologin\n"
                                             f"nonroot:x:{user}:{user}:nonroot:/home/nonroot:/sbin/nologin\n")
            (made / "etc/group").write_text(f"root:x:0:\nnonroot:x:{user}:\n")
            self.buildah("add", "-q", one, made, "/")
            self.buildah("config", "--user", user, one)
        self.buildah("config", "--label", f"gradwire.base={stamp}", one)
        self.buildah("commit", "-q", "--rm", one, image)

    def bases(self):
        """Both images that the Dockerfile starts from, made of Debian's packages."""
        self.base(DEBIAN, bare_debian())
        tar = bare_debian("distroless.tar", "--variant=extract", f"--include={DISTROLESS_PACKAGES}")
        self.base(DISTROLESS, tar, user="65532")

    def build(self, target, *options, timeout=1500):
        """Builds a stage of the Dockerfile, and names it."""
        name = f"localhost/gradwire-{target}:test"
        self.buildah("bud", "--isolation", "chroot", "--pull-never", "--layers", "--format", "docker",
                     "--target", target, "-f", ROOT / "deploy/docker/Dockerfile", "-t", name, *options, ROOT,
                     timeout=timeout)
        return name

    def close(self):
        """Leaves images, as the next run's cache, but no container and no mount."""
        for words in (["podman", "pod", "rm", "-fa", "-t", "1"], ["podman", "rm", "-fa", "-t", "1", "--volumes"],
                      ["buildah", "rm", "-a"], ["umount", str(self.storage / "overlay")]):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(words, env=self.env, capture_output=True, timeout=60, check=False)
        # The last container's clean-up runs beside this and may write to the folder once more.
        end = time.monotonic() + 10
        while self.run_folder.exists() and time.monotonic() < end:
            subprocess.run(["rm", "-rf", "--one-file-system", str(self.run_folder)], check=False)
            time.sleep(0.5)


_shared = []


def containers():
    """The one Containers of this process."""
    if not _shared:
        _shared.append(Containers())
    return _shared[0]


def fields(status):
    """Of /proc/PID/status."""
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


def wait_until(condition, seconds, what):
    """Calls `condition` until it returns something true, which is the result."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        table.need(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.2)
    return result
