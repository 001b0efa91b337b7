"""The daemon's pod is deleted and made again under training sessions, whose trainers are in a pod of their own. Nothing
of the old pod is left to the new one but its secrets and its address, which in Kubernetes is the Service's."""
import contextlib
import copy
import ipaddress
import json
import os
import pathlib
import re
import shutil
import tempfile
import time

import yaml

import containers
import sandbox
from table import need

NETWORK = "gradwire-restarts"
POD = "gradwire-0"
DAEMON = f"{POD}-gradwired"
HARDWARE_ADDRESS = "02:00:00:00:00:10"
# GRADWIRE_KEEP_GRADIENTS of each session.
SESSIONS = {"restarts-kept": "on", "restarts-plain": "off"}
UNDISTURBED = {"restarts-undisturbed": "on"}
STEPS = 300
# Of the training, at the beginning of each step.
PAUSE_SECONDS = 0.02
# The steps at which the pod is deleted, at the earliest.
LOSSES = (60, 160)


def needs_no_volume():
    """The pod gets secrets and a folder in memory for its socket, and nothing that outlives it."""
    stateful = containers.stateful_set()["spec"]
    need(not stateful.get("volumeClaimTemplates"), "the overlay claims volumes")
    for volume in stateful["template"]["spec"]["volumes"]:
        need("secret" in volume or volume.get("emptyDir", {}).get("medium") == "Memory",
             f"the overlay keeps files in the volume {volume['name']}")


@contextlib.contextmanager
def network():
    """The daemon's address in a network that pods share."""
    box = sandbox.containers()
    box.podman("network", "create", "--internal", "--disable-dns", NETWORK)
    try:
        settings, = json.loads(box.podman("network", "inspect", NETWORK))
        yield str(ipaddress.ip_network(settings["subnets"][0]["subnet"])[10])
    finally:
        box.attempt("pod", "rm", "-fa", "-t", "0")
        box.attempt("network", "rm", "-f", NETWORK)


def why_no_network(address):
    """Empty, if a container gets an address here."""
    code, said = sandbox.containers().attempt("run", "--rm", "--network", f"{NETWORK}:ip={address}",
                                              "localhost/gradwire-runtime:test", "--version")
    return said.strip().splitlines()[-1] if code and "netavark" in said else ""


def play_daemon(folder, address):
    """A pod as the StatefulSet makes it: the same name, and a folder for its socket that is new."""
    run_folder = tempfile.mkdtemp(dir=folder, prefix="run-")
    os.chown(run_folder, containers.USER, containers.USER)
    spec = {"restartPolicy": "Never", **containers.daemon(folder, run_folder)}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}
    # With another hardware address, trainers' packets would go to the old one until their neighbour entry is stale.
    place = f"{NETWORK}:ip={address},mac={HARDWARE_ADDRESS}"
    sandbox.containers().podman("kube", "play", "--network", place, "-", input=yaml.safe_dump(made))


def play_trainers(folder, address, name, sessions):
    """A pod with the two trainers of training.yaml for each session; their containers' names by session."""
    made = containers.trainers(folder)
    made["metadata"]["name"] = name
    spec = made["spec"]
    spec["hostAliases"] = [{"ip": address, "hostnames": ["gradwire"]}]
    spec["volumes"].append({"name": "steps", "hostPath": {"path": str(folder / "steps"), "type": "Directory"}})
    members, spec["containers"] = spec["containers"], []
    names = {session: [] for session in sessions}
    for session, keeps in sessions.items():
        for member in map(copy.deepcopy, members):
            variables = {one["name"]: one["value"] for one in member["env"]}
            member["name"] = f"{session}-{variables['RANK']}"
            variables |= {"GRADWIRE_ADDRESS": "gradwire:29610", "GRADWIRE_SESSION": session,
                          "GRADWIRE_KEEP_GRADIENTS": keeps, "PYTHONPATH": "/usr/share/gradwire/python/examples",
                          "STEPS": str(STEPS), "PAUSE_SECONDS": str(PAUSE_SECONDS)}
            member["env"] = [{"name": key, "value": value} for key, value in variables.items()]
            member["args"] = ["/steps/steps.py"]
            member["volumeMounts"].append({"name": "steps", "mountPath": "/steps", "readOnly": True})
            spec["containers"].append(member)
            names[session].append(f"{name}-{member['name']}")
    sandbox.containers().podman("kube", "play", "--network", NETWORK, "-", input=yaml.safe_dump(made))
    return names


def steps(trainers):
    """How many steps each trainer has printed. Failed, if one has ended."""
    box = sandbox.containers()
    printed = box.podman("logs", "--names", *trainers)
    states = box.podman("inspect", "--format", "{{.State.Status}}", *trainers).split()
    need(states == ["running"] * len(trainers), f"{trainers} are {states}\n{printed}\n{containers.log(DAEMON)}")
    return {name: len(re.findall(rf"^{name} step ", printed, re.MULTILINE)) for name in trainers}


def wait_for_steps(trainers, wanted):
    """Until each has done as many steps as `wanted` says."""
    def reached():
        done = steps(trainers)
        return all(done[name] >= wanted[name] for name in trainers)

    sandbox.wait_until(reached, 120, f"steps {wanted}")


def need_said(sentence):
    """Failed, unless the daemon's log has it for each session."""
    said = containers.log(DAEMON)
    for session in SESSIONS:
        need(re.search(f"session {session} .*{sentence}", said), f"{session}: nothing of '{sentence}' in\n{said}")


def kill():
    sandbox.containers().podman("pod", "rm", "-f", "-t", "0", POD)


def terminate():
    """As Kubernetes deletes a pod: SIGTERM, and the time to drain."""
    box = sandbox.containers()
    box.podman("pod", "stop", "-t", "45", POD)
    containers.finished(DAEMON, 10)
    need_said("the daemon ends; members go on with the next one")
    box.podman("pod", "rm", "-f", "-t", "0", POD)


def replace(folder, address, trainers, end):
    """Deletes the pod, makes it again, and waits until all trainers go on; for how many seconds there was none."""
    begin = time.monotonic()
    end()
    # A step that was under way may still be printed.
    wanted = {name: done + 2 for name, done in steps(trainers).items()}
    play_daemon(folder, address)
    away = time.monotonic() - begin
    wait_for_steps(trainers, wanted)
    need_said("all members of a lost daemon are here; the session goes on")
    return away


def result(printed, rejoins):
    """Digest of a trainer's parameters and its skipped steps, and its longest step in seconds. Failed, unless it has
    changed daemons so often."""
    lines = re.findall(r"^step (\d+) (apply|skip) (\S+) s$", printed, re.MULTILINE)
    need([int(number) for number, _, _ in lines] == list(range(STEPS)), f"other steps than 0 to {STEPS - 1}: {printed}")
    found = re.search(r"^rejoins (\d+), parameters (\w{64})$", printed, re.MULTILINE)
    need(found and int(found[1]) == rejoins, f"not {rejoins} rejoins: {printed}")
    skipped = [int(number) for number, verdict, _ in lines if verdict == "skip"]
    return (found[2], skipped), max(float(took) for _, _, took in lines)


def results(names, rejoins):
    """Digest and skipped steps of each session, which are the same for its members, and all trainers' longest step."""
    made, longest = {}, 0
    for session, members in names.items():
        found = [result(containers.finished(name, 120, DAEMON), rejoins) for name in members]
        need(all(other == found[0][0] for other, _ in found), f"{session}: its members differ: {found}")
        made[session] = found[0][0]
        longest = max(longest, *(took for _, took in found))
    return made, longest


def pod_deleted():
    needs_no_volume()
    with network() as address, tempfile.TemporaryDirectory(prefix="gradwire-secrets-") as name:
        if reason := why_no_network(address):
            return f"NOT RUN: podman makes no network between pods here: {reason}"
        folder = pathlib.Path(name)
        containers.write_secrets(folder, "restarts-*")
        (folder / "steps").mkdir()
        shutil.copy(pathlib.Path(__file__).parent / "steps.py", folder / "steps")
        play_daemon(folder, address)
        names = play_trainers(folder, address, "trainers", SESSIONS)
        trainers = sum(names.values(), [])
        away = []
        for loss, end in zip(LOSSES, (kill, terminate)):
            wait_for_steps(trainers, dict.fromkeys(trainers, loss))
            away.append(replace(folder, address, trainers, end))
        made, longest = results(names, rejoins=len(LOSSES))
        undisturbed, _ = results(play_trainers(folder, address, "undisturbed", UNDISTURBED), rejoins=0)
    digest, skipped = made["restarts-kept"]
    need(not skipped, f"steps {skipped} were skipped, although gradients are kept")
    need(undisturbed["restarts-undisturbed"] == (digest, []), f"{undisturbed} differs from {made['restarts-kept']}")
    skipped = made["restarts-plain"][1]
    need(len(skipped) <= len(LOSSES), f"more steps were skipped than daemons lost: {skipped}")
    return (f"{len(trainers)} trainers; no daemon for {away[0]:.1f} and {away[1]:.1f} s, longest step {longest:.1f} s; "
            f"with kept gradients none of {STEPS} steps skipped, and an undisturbed run's parameters {digest[:12]}; "
            f"without, {len(skipped)} skipped")


CHECKS = [
    ("overlay tls, pod deleted", "no grace, then SIGTERM; trainers go on with the next pod", pod_deleted),
]
