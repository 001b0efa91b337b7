"""The Debian packages that `make deb` built, installed on a bare Debian 12."""
import contextlib
import functools
import pathlib
import re
import shutil
import tempfile

import booted
import sandbox
from table import need, run

SECTIONS = {"gradwired": 8, "gradwirectl": 1}
EXPOSURE = 20  # tenths, of systemd-analyze security
START = """
gradwired --http-listen 127.0.0.1:0 & daemon=$!
for i in $(seq 100); do gradwirectl health 2>/dev/null && break; sleep 0.1; done
gradwirectl status; gradwirectl health
kill -TERM $daemon; wait $daemon; echo "exit $?"
"""

COMPLETE = """
. /usr/share/bash-completion/completions/gradwired
. /usr/share/bash-completion/completions/gradwirectl
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); "_$1"; echo "${COMPREPLY[*]}"; }
ask gradwired --tls-
ask gradwirectl s
ask gradwirectl session e
ask gradwired config s
complete -p gradwired gradwirectl
"""
CONSUME = """
cmake -G Ninja -S /shown -B /consumer >/dev/null
cmake --build /consumer -- --quiet
/consumer/consumer
g++ -std=c++20 /shown/consumer.cc -o /consumer/second $(pkg-config --cflags --libs gradwire)
/consumer/second
"""

_open = contextlib.ExitStack()
_rooms = {}


def room():
    """A bare Debian in which gradwired is installed, shared by the checks."""
    if "daemon" not in _rooms:
        made = _open.enter_context(sandbox.Room())
        made.new = made.install(sandbox.package("gradwired"))
        _rooms["daemon"] = made
    return _rooms["daemon"]


def close_rooms():
    _rooms.clear()
    _open.close()


def contents():
    fields = run("dpkg-deb", "-f", sandbox.package("gradwired"), "Depends", "Version")
    need(re.search(r"Depends:.*\blibgrpc\+\+\S+ \(>=", fields), f"dpkg-shlibdeps found no gRPC: {fields}")
    inside = run("dpkg-deb", "-c", sandbox.package("gradwired"))
    for path in ("usr/bin/gradwired", "usr/bin/gradwirectl", "lib/systemd/system/gradwired.service",
                 "etc/gradwire/gradwired.yaml", "etc/logrotate.d/gradwired",
                 "usr/share/man/man8/gradwired.8.gz", "usr/share/man/man1/gradwirectl.1.gz",
                 "usr/share/bash-completion/completions/gradwired",
                 "usr/share/bash-completion/completions/gradwirectl",
                 "usr/share/zsh/vendor-completions/_gradwirectl",
                 "usr/share/fish/vendor_completions.d/gradwirectl.fish",
                 "usr/share/doc/gradwired/errors/README.md", "usr/share/doc/gradwired/errors/GW203.md"):
        need(f"./{path}\n" in inside, f"gradwired has no {path}")
    inside = run("dpkg-deb", "-c", sandbox.package("libgradwire-dev"))
    for path in ("usr/include/gradwire/client.h", "usr/lib/libgradwire_client.a", "usr/lib/pkgconfig/gradwire.pc",
                 "usr/lib/cmake/gradwire/gradwireConfig.cmake",
                 "usr/share/gradwire/proto/gradwire/v1/aggregation.proto"):
        need(f"./{path}\n" in inside, f"libgradwire-dev has no {path}")
    inside = run("dpkg-deb", "-c", sandbox.package("python3-gradwire"))
    need(re.search(r"dist-packages/gradwire/_native\S*\.so\n", inside), "python3-gradwire has no module _native")
    found = sorted(sandbox.PACKAGES.glob("*.deb"))
    return ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in found)


def lint():
    warnings = 0
    for path in sorted(sandbox.PACKAGES.glob("*.deb")):
        said = run("lintian", "--no-cfg", "--allow-root", "--fail-on", "error",
                   "--suppress-tags", "bogus-mail-host,bogus-mail-host-in-debian-changelog",  # there is no address yet
                   path)
        warnings += said.count("W: ")
    return f"no errors, {warnings} warnings"


def daemon_runs():
    said = room()("sh", "-c", START)
    need("serving" in said and "no session" in said.lower(), f"the daemon does not answer: {said}")
    need(said.strip().endswith("exit 0"), f"SIGTERM did not drain: {said}")
    return f"with {room().new - 1} packages of Debian; answers, drains"


def help_texts(ask, commands=()):
    """{"session get": its --help}, with "" for the program itself. `ask` runs the program with some words."""
    said = {" ".join(commands): ask(*commands, "--help")}
    listed = said[" ".join(commands)].partition("Subcommands:\n")[2]
    for name in re.findall(r"^  (\w+)", listed, re.MULTILINE):
        said |= help_texts(ask, (*commands, name))
    return said


def printed_options(text):
    """The options in a text of --help."""
    names = set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.MULTILINE))
    names |= set(re.findall(r"^  (-\w)(?:,--| )", text, re.MULTILINE))
    return names


def documented_options(page, commands):
    """{command: options} of an mdoc page, with the commands that have an item. The options of a command are a list
    within its item; the list after `The NAME options of both:` is that of the two commands before it; and the items
    outside of all commands are the program's, which is ""."""
    options = {"": set()}
    owners, latest, depth = [""], [], 0
    for line in page.splitlines():
        depth += line.startswith(".Bl ") - line.startswith(".El")
        if line.startswith((".Ss ", ".Sh ")):
            owners = [""]
        elif line.startswith(".It Ic ") and depth == 1:
            words = line.removeprefix(".It Ic ")
            # Its arguments follow in the same line.
            name = max((one for one in commands if f"{words} ".startswith(f"{one} ")), key=len, default=words)
            options.setdefault(name, set())
            latest, owners = [*latest[-1:], name], [name]
        elif re.fullmatch(r"The .* options of both:", line):
            owners = latest
        elif line.startswith(".It Fl "):
            for owner in owners:
                options[owner] |= {"-" + word for word in re.findall(r"(?:^|, )(-?[\w-]+)", line.removeprefix(".It Fl "))}
    return options


def differences(said, page):
    """Commands, and options of each, that only --help or only the mdoc page has, and variables that the page lacks."""
    documented = documented_options(page, said)
    # Words that only stand before other commands have no item.
    printed = {name: printed_options(text) for name, text in said.items() if not name or "Subcommands:" not in text}
    wrong = sorted(printed.keys() ^ documented.keys())
    for command in sorted(printed.keys() & documented.keys()):
        # Each command has these two, and the page says so once.
        options = printed[command] - ({"-h", "--help"} if command else set())
        wrong += [f"{command} {name}".strip() for name in sorted(options ^ documented[command])]
    text = re.sub(r"^\.Ev ", "", page, flags=re.MULTILINE)
    rule = ({"GRADWIRE_" + name[2:].replace("-", "_").upper() for name in documented[""]}
            if "Every option" in page else set())
    named = set(re.findall(r"Env:(\w+)", "".join(said.values())))
    return wrong + sorted(name for name in named if name not in text and name not in rule)


def compare_page(file, ask):
    """Compares a man page with --help, which `ask` prints. The number of the page's options."""
    said, page = help_texts(ask), file.read_text(encoding="utf-8")
    tags = list(re.finditer(r"^\.It Fl .*\n", page, re.MULTILINE))
    # The comparison itself: the loss of any one of these lines has to be noticed.
    for tag in tags:
        need(differences(said, page[:tag.start()] + page[tag.end():]), f"{file.name}: {tag[0].strip()!r} is lost unnoticed")
    wrong = differences(said, page)
    need(not wrong, f"{file.name} and --help differ: {', '.join(wrong)}")
    return len(tags)


def man_pages():
    count = 0
    for program, section in SECTIONS.items():
        file = sandbox.ROOT / f"deploy/man/{program}.{section}"
        run("mandoc", "-T", "lint", "-W", "warning", file)
        count += compare_page(file, functools.partial(room(), program))
    return f"{count} options"


def completion():
    said = room()("bash", "-ec", COMPLETE).splitlines()
    found = [sorted(line.split()) for line in said[:4]]
    wanted = [["--tls-cert", "--tls-client-ca", "--tls-key"], ["session", "sessions", "status"], ["evict", "export"], ["schema", "show"]]
    need(found == wanted, f"completed {said}")
    return "options and commands"


def unit():
    room().install("systemd")
    room()("systemd-analyze", "verify", "--man=no", "gradwired.service")
    said = room()("env", "SYSTEMD_COLORS=0", "SYSTEMD_URLIFY=0", "systemd-analyze", "security", "--no-pager",
                  "--offline=true", f"--threshold={EXPOSURE}", "/lib/systemd/system/gradwired.service")
    score = re.search(r"Overall exposure level.*?: ([\d.]+)", said)
    need(score and float(score[1]) * 10 < EXPOSURE, f"exposure: {said[-200:]}")
    # A drop-in and the settings that the package ships as examples fit the unit.
    room()("sh", "-c", "mkdir -p /etc/systemd/system/gradwired.service.d && "
           "cp /usr/share/doc/gradwired/examples/tls.conf /etc/systemd/system/gradwired.service.d/ && "
           "systemd-analyze verify --man=no gradwired.service && rm -r /etc/systemd/system/gradwired.service.d")
    return f"exposure {score[1]}"


def removal():
    room()("apt-get", "-qq", "purge", "-y", "gradwired")
    left = room()("sh", "-c", "find / -xdev -name '*gradwire*' ! -path '/packages*' ! -path '/var/log/*'").split()
    need(not left, f"purged, and still there: {left}")
    close_rooms()
    return "ok"


def sdk():
    with sandbox.Room() as made:
        new = made.install("cmake", "ninja-build", "g++", sandbox.package("libgradwire-dev"))
        with tempfile.TemporaryDirectory() as folder:
            project = pathlib.Path(folder) / "project"
            shutil.copytree(sandbox.ROOT / "tests/install_consumer/project", project)
            made("sh", "-ec", CONSUME, show=project)
    return f"find_package and pkg-config; {new} packages"


def finally_close(check):
    """The room of the daemon ends also where this check fails."""
    def closing():
        try:
            return check()
        finally:
            close_rooms()
    return closing


CHECKS = [
    ("packages", "files, dependencies by dpkg-shlibdeps, size", contents),
    ("packages", "lintian finds no error", lint),
    ("package gradwired", "installs on bare Debian 12, serves, drains on SIGTERM", daemon_runs),
    ("man pages", "mandoc lint; same options as --help", man_pages),
    ("bash completion", "completes options and commands", completion),
    ("systemd unit", "systemd-analyze verify; security below 2", unit),
    *booted.CHECKS,
    ("package gradwired", "purge leaves nothing", finally_close(removal)),
    ("package libgradwire-dev", "a project builds on bare Debian 12 and runs", sdk),
]
