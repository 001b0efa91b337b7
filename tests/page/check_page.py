"""The status page in headless Chromium, with 0, 4 and 200 members.

check_page.py BIN OUT: BIN has gradwired and gradwire_test_member; screenshots go to OUT.
"""
import html.parser
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

BIN = pathlib.Path(sys.argv[1]).resolve()
OUT = pathlib.Path(sys.argv[2]).resolve()
SIZES = {"phone": (390, 844), "laptop": (1280, 800), "wide": (1920, 1080)}


class Page(html.parser.HTMLParser):
    """The elements of a page, and the text inside of those with an id."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self._open = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        if tag not in ("meta", "link", "rect", "polyline", "input", "br"):
            self._open.append((tag, attrs.get("id")))

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self._open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data

    def all(self, tag, **attrs):
        return [found for name, found in self.elements if name == tag and attrs.items() <= found.items()]


class Daemon:
    def __init__(self, folder):
        self.address = f"unix:{folder}/daemon.sock"
        self.child = subprocess.Popen(
            [BIN / "gradwired", "--listen", self.address, "--http-listen", "127.0.0.1:0", "--stop-on-eof",
             "--log-level", "error"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in self.child.stdout:
            if line.strip().startswith("http "):
                self.url = line.split()[-1]
                return
        raise SystemExit("gradwired did not start")

    def member(self, rank, world_size, late_ms=0, session="digits", steps=100000):
        return subprocess.Popen(
            [BIN / "gradwire_test_member", "--address", self.address, "--session", session, "--rank", str(rank),
             "--world-size", str(world_size), "--elements", "50000", "--steps", str(steps), "--late-ms", str(late_ms)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def chromium(*words):
    return subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=4000",
         *words], check=True, capture_output=True, text=True, timeout=120).stdout


def shoot(url, name, dark=False):
    for size, (width, height) in SIZES.items():
        dark_words = ["--blink-settings=preferredColorScheme=0"] if dark else []
        picture = OUT / f"{name}-{size}{'-dark' if dark else ''}.png"
        chromium(f"--window-size={width},{height}", f"--screenshot={picture}", *dark_words, url)
        check(picture.stat().st_size > 5000, f"{picture.name} is a picture")


FAILED = []


def check(holds, what):
    print(("ok      " if holds else "FAILED  ") + what)
    if not holds:
        FAILED.append(what)


def wait_for(url, condition, seconds=60):
    """Until the API's answer satisfies the condition."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url + "api/v1/status", timeout=5) as response:
            if condition(response.read().decode()):
                return
        time.sleep(0.2)
    raise SystemExit("the sessions did not come so far")


def steps_in(status):
    return sum(int(number) for number in re.findall(r'"steps_applied_total":"(\d+)"', status))


def check_names(page, name):
    """Every control and picture has a name that a screen reader can say."""
    def has_name(tag, attrs):
        if tag == "svg":
            return attrs.get("role") == "img" and attrs.get("aria-label")
        if attrs.get("tabindex") == "0":
            return attrs.get("aria-labelledby") in page.texts
        return tag != "th" or "scope" in attrs
    nameless = [f"{tag} {attrs}" for tag, attrs in page.elements if not has_name(tag, attrs)]
    check(not nameless, f"{name}: charts, regions and headings have names {nameless}")
    check(page.all("p", role="status"), f"{name}: the headline is announced when it changes")
    check(page.all("html", lang="en"), f"{name}: the page names its language")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder)
        page = Page(chromium("--dump-dom", daemon.url))
        check("No session is running." in page.texts["headline"], "no session: the headline says so")
        check("GRADWIRE_ADDRESS" in page.texts["no-sessions"], "no session: the page says how to begin")
        check(all("hidden" in found for found in page.all("section", id="session")), "no session: no details")
        shoot(daemon.url, "none")

        members = [daemon.member(rank, 4, late_ms=200 if rank == 2 else 1) for rank in range(4)]
        wait_for(daemon.url, lambda status: steps_in(status) >= 12)
        page = Page(chromium("--dump-dom", daemon.url))
        check(page.texts["headline"].startswith("digits: "), f"4 members: {page.texts['headline']}")
        check("rank 2 caused" in page.texts["slow"], f"4 members: {page.texts['slow']}")
        check(page.texts["session-title"] == "Session digits", "4 members: the session is shown")
        check(len(page.all("rect")) > 4 * 12, "4 members: the timeline has bars")
        check(len(page.all("button", type="button")) == 1, "4 members: the keyboard reaches the session")
        check_names(page, "4 members")
        shoot(daemon.url, "four")
        shoot(daemon.url, "four", dark=True)
        members[1].kill()
        wait_for(daemon.url, lambda status: '"state":"failed"' in status)
        page = Page(chromium("--dump-dom", daemon.url))
        check("rank 1 was lost" in page.texts["sessions"], "a lost member is named")
        for member in members:
            member.wait()

        members = [daemon.member(rank, 200, late_ms=1000, session="large") for rank in range(200)]
        wait_for(daemon.url, lambda status: '"state":"running"' in status and steps_in(status) >= 3)
        page = Page(chromium("--dump-dom", daemon.url))
        check(len(page.all("th", scope="row")) >= 200, "200 members: all are in the table")
        check_names(page, "200 members")
        shoot(daemon.url, "many")
        for member in members:
            member.kill()
        for member in members:
            member.wait()
        daemon.child.stdin.close()
        daemon.child.wait(timeout=60)
    print(f"page: {len(FAILED)} failed; screenshots are in {OUT}")
    return 1 if FAILED else 0


sys.exit(main())
