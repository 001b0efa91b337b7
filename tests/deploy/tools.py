"""What the checks of the manifests share: where things are, the renderers, and what the sources know."""
import functools
import json
import pathlib
import re
import shutil

import yaml

from table import Failed, need, run

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
TOOLS = REPOSITORY / "build" / "deploy-tools" / "bin"
CHART = DEPLOY / "helm" / "gradwire"
SCHEMAS = REPOSITORY / "tests" / "deploy" / "schemas"
OVERLAYS = ("dev", "tls", "gpu", "monitoring")
# The chart's values that make the same as an overlay; tls is the chart's default.
VALUES = {
    "dev": {"tls": {"enabled": False}, "tokens": {"enabled": False}, "insecure": True},
    "tls": {},
    "gpu": {"gpu": {"enabled": True}},
    "monitoring": {"monitoring": {"enabled": True}},
}


def tool(name):
    """A program of make-tools.sh or of the system. Failed: it is not there."""
    own = TOOLS / name
    if own.exists():
        return own
    found = shutil.which(name)
    need(found, f"no {name}; run deploy/install-packages.sh manifests && tests/deploy/make-tools.sh build/deploy-tools")
    return found


def daemon_folder():
    """The folder of a built gradwired."""
    for build in ("release", "dev"):
        folder = REPOSITORY / "build" / build / "bin"
        if (folder / "gradwired").exists() and (folder / "gradwirectl").exists():
            return folder
    raise Failed("no gradwired and gradwirectl in build/release/bin or build/dev/bin; make demo builds them")


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


@functools.cache
def kustomize(overlay):
    """The text that `kubectl kustomize` makes of an overlay."""
    return run(tool("kubectl"), "kustomize", DEPLOY / "kustomize" / "overlays" / overlay)


def helm(values, name="gradwire", namespace="gradwire"):
    """The chart's rendered files, by path. Failed: what Helm refuses."""
    text = run(tool("python"), "-B", REPOSITORY / "tests" / "deploy" / "render_chart.py", CHART, json.dumps(values),
               name, namespace)
    return json.loads(text)


def chart_documents(values, name="gradwire"):
    """The chart's manifests without its tests."""
    found = []
    for path, text in helm(values, name).items():
        if not path.endswith("NOTES.txt") and "/tests/" not in path:
            found += documents(text)
    return found


def title(document):
    return f"{document['kind']}/{document['metadata']['name']}"


def pod_specs(document):
    """(place, metadata, spec) of each pod that a manifest makes."""
    kind, spec = document["kind"], document.get("spec", {})
    if kind == "Pod":
        return [(title(document), document["metadata"], spec)]
    if kind == "JobSet":
        jobs = [(job["name"], job["template"]["spec"]["template"]) for job in spec["replicatedJobs"]]
        return [(f"{title(document)} {name}", pod.get("metadata", {}), pod["spec"]) for name, pod in jobs]
    if "template" in spec:
        return [(title(document), spec["template"].get("metadata", {}), spec["template"]["spec"])]
    return []


@functools.cache
def daemon_flags():
    """The flags that a built gradwired has."""
    flags = set(re.findall(r"^\s+(?:-\w,)?(--[a-z][a-z-]*)", run(daemon_folder() / "gradwired", "--help"), re.MULTILINE))
    need({"--listen", "--insecure", "--tokens"} <= flags, f"gradwired --help lists {sorted(flags)}")
    return flags


@functools.cache
def known_variables():
    """The environment variables that the daemon, its tools and the client read."""
    names = {"GRADWIRE_" + flag[2:].upper().replace("-", "_") for flag in daemon_flags()}
    for folder in ("client", "server", "base"):
        for suffix in ("*.cc", "*.py"):
            for path in (REPOSITORY / folder).rglob(suffix):
                names |= set(re.findall(r'"(GRADWIRE_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    return names


def seconds(text):
    """Of 30s, 2m or 1m30s."""
    parts = re.findall(r"([0-9]+)(h|m|s)", text)
    need(parts and "".join(number + unit for number, unit in parts) == text, f"{text!r} is no duration in h, m and s")
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)
