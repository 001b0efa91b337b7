"""Checks of the manifests: kustomize, Helm, compose, examples, and the scripts beside them."""
import copy
import json
import os
import re
import stat
import tempfile

import pods
from daemon import Daemon, make_certificates
from table import Failed, need, run
from tools import (CHART, DEPLOY, OVERLAYS, REPOSITORY, SCHEMAS, VALUES, chart_documents, daemon_folder, documents,
                   helm, known_variables, kustomize, pod_specs, seconds, title, tool)

KUBERNETES = "1.32"
# Kinds that are not Kubernetes' own; tests/deploy/schemas describes them.
CUSTOM = {"ServiceMonitor", "PrometheusRule", "JobSet", "Certificate"}
EXAMPLES = ("torchrun-job.yaml", "jobset.yaml", "certificate.yaml")


def example(name):
    return documents((DEPLOY / "examples" / name).read_text(encoding="utf-8"))


def validate(found):
    """Against the schemas of Kubernetes, and ours for its extensions; properties that they do not know are errors."""
    with tempfile.TemporaryDirectory() as folder:
        own = []
        for number, document in enumerate(found):
            path = os.path.join(folder, f"{number}.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(document, file)
            if document["kind"] in CUSTOM:
                run(tool("check-jsonschema"), "--schemafile", SCHEMAS / f"{document['kind'].lower()}.json", path)
            else:
                own.append(path)
        if own:
            said = run(tool("kubernetes-validate"), "--strict", "-k", KUBERNETES, *own)
            # An unknown kind is only a warning there.
            passed = len(re.findall(r"^INFO .* passed ", said, re.MULTILINE))
            need(passed == len(own), f"{passed} of {len(own)} manifests have a schema:\n{said}")
    return f"ok, {len(found)} manifests"


def check_validator():
    """The validators refuse what they should."""
    for name, path, value in (("tls", f"{pods.SPEC}/securityContext/runAsRoot", False),
                              ("tls", "Service/gradwire/kind", "Servise"),
                              ("tls", "Service/gradwire/apiVersion", "v2"),
                              ("tls", "NetworkPolicy/gradwire/spec/ingress/0/ports/0/port", []),
                              ("monitoring", "ServiceMonitor/gradwire/spec/endpoint", []),
                              ("monitoring", "PrometheusRule/gradwire/spec/groups/0/rules/0/alert", None)):
        changed = pods.mutated(documents(kustomize(name)), path, value)
        try:
            validate(changed)
        except Failed:
            continue
        raise Failed(f"{path} = {value!r} passed")
    return "ok, 6 mutants are refused"


def comparable(document):
    """A manifest without what only Helm adds."""
    document = copy.deepcopy(document)
    for key in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
        document["metadata"].get("labels", {}).pop(key, None)
    return document


def compare(overlay):
    left = pods.by_title(documents(kustomize(overlay)))
    right = pods.by_title(chart_documents(VALUES[overlay]))
    need(left.keys() == right.keys(), f"only one of them has {sorted(left.keys() ^ right.keys())}")
    for name, document in left.items():
        other = comparable(right[name])
        if document.get("kind") == "ConfigMap":
            # A file's last line break may get lost in a block of YAML.
            document = {**document, "data": {key: json.loads(text) for key, text in document["data"].items()}}
            other["data"] = {key: json.loads(text) for key, text in other["data"].items()}
        need(document == other, f"{name} differs: {difference(document, other)}")
    return f"ok, {len(left)} manifests"


def difference(left, right, path=""):
    """The first place where two trees differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            if left.get(key) != right.get(key):
                return difference(left.get(key), right.get(key), f"{path}/{key}")
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right)):
            if one != other:
                return difference(one, other, f"{path}/{number}")
    return f"{path}: {left!r} and {right!r}"


def check_overlay(overlay):
    found = documents(kustomize(overlay))
    pods.check_daemons(found)
    pods.check_labels(found)


def check_chart_lint():
    program = "import helm_python, json, sys; print(json.dumps(helm_python.lint(sys.argv[1])))"
    text = run(tool("python"), "-c", program, CHART)
    report = json.loads(text)
    need(report["total_charts_linted"] == 1 and not report["errors"], str(report))
    for message in report["messages"]:
        need("icon is recommended" in message["error"], message["error"])


# Values that the chart must refuse, and what the refusal must say.
REFUSED = [
    ({"tls": {"enabled": False}}, "insecure=true"),
    ({"replicas": 2}, "replicas"),
    ({"memoryLimit": "lots"}, "memoryLimit"),
    ({"drainSeconds": 0}, "drainSeconds"),
    ({"maxSessions": "many"}, "maxSessions"),
    ({"tls": {"secret": "x"}}, "secret"),
    ({"networkPolicy": {"trainerLabels": {"gradwire-role": None}}}, "trainerLabels"),
    ({"resources": {"limits": {"memory": None}}}, "memory"),
]


def check_chart_schema():
    for values, reason in REFUSED:
        try:
            helm(values)
        except Failed as error:
            need(reason in str(error), f"{values}: the refusal does not name {reason}: {error}")
            continue
        raise Failed(f"{values} are accepted")
    defaults = documents((CHART / "values.yaml").read_text(encoding="utf-8"))[0]
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]
    need(set(defaults) == set(schema) - {"global"}, f"not in both: {set(defaults) ^ (set(schema) - {'global'})}")
    return f"ok, {len(REFUSED)} wrong values are refused"


def check_chart_options():
    """Every list and switch does something, and what it makes is valid."""
    values = {
        "image": {"repository": "registry.example/gradwire", "tag": "2", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}], "fullnameOverride": "sums", "drainSeconds": 60, "maxSessions": 3,
        "memoryLimit": "2GiB", "extraArgs": ["--window-chunks=8"], "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "gpu": {"enabled": True, "runtimeClassName": "nvidia"}, "serviceAccount": {"annotations": {"a": "b"}},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}}, "podAnnotations": {"a": "b"},
        "podLabels": {"team": "a"}, "nodeSelector": {"disk": "fast"}, "priorityClassName": "high",
        "tolerations": [{"key": "a", "operator": "Exists"}], "monitoring": {"enabled": True, "interval": "1m"},
        "affinity": {"nodeAffinity": {}}, "networkPolicy": {"trainerNamespaceLabels": {"team": "a"}},
    }
    found = chart_documents(values, "other")
    validate(found)
    for name in ("StatefulSet/sums", "Service/sums-headless", "ServiceMonitor/sums"):
        need(name in pods.by_title(found), f"no {name}")
    (where, metadata, spec), = (pod for document in found for pod in pod_specs(document))
    for rule in (pods.restricted, pods.limited, pods.daemon, pods.probed, pods.variables):
        rule(where, spec)
    need(spec["terminationGracePeriodSeconds"] == 75, "the grace period does not follow drainSeconds")
    need(len(spec["tolerations"]) == 2 and metadata["labels"]["team"] == "a", "tolerations or labels are lost")
    need(pods.arguments(spec["containers"][0])["--window-chunks"] == "8", "extraArgs are lost")
    fewer = chart_documents({"podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False},
                             "serviceAccount": {"create": False}})
    need(sorted(map(title, fewer)) == ["Service/gradwire", "Service/gradwire-headless", "StatefulSet/gradwire"],
         "a switch does not switch off")


def check_chart_tests():
    """The test pod runs gradwirectl as a trainer that is admitted."""
    for overlay in ("dev", "tls"):
        rendered = helm(VALUES[overlay])
        pod, = documents(rendered["gradwire/templates/tests/health.yaml"])
        validate([pod])
        pods.restricted("test", pod["spec"])
        pods.limited("test", pod["spec"])
        need(pod["metadata"]["annotations"]["helm.sh/hook"] == "test", "the pod is no test")
        policy, = documents(rendered["gradwire/templates/networkpolicy.yaml"])
        admitted = policy["spec"]["ingress"][0]["from"][0]["podSelector"]
        need(pods.matches(pod["metadata"]["labels"], admitted), "the network policy keeps the test pod out")
        command = pod["spec"]["containers"][0]["command"]
        need(command[0] == "gradwirectl" and command[-1] == "health", f"runs {command}")
        need(("--tls-ca=/etc/gradwire/tls/ca.crt" in command) == (overlay == "tls"), f"{overlay}: {command}")
        need("WARNING" in rendered["gradwire/templates/NOTES.txt"] if overlay == "dev" else True, "no warning")


def check_start(overlay):
    """A built gradwired serves with the arguments of the overlay, and drains on SIGTERM."""
    (_, _, spec), = (pod for document in documents(kustomize(overlay)) for pod in pod_specs(document))
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(folder)
        with open(os.path.join(folder, "tokens"), "w", encoding="utf-8") as file:
            file.write("prometheus observer * a-token-for-prometheus\n")
        flags = spec["containers"][0]["args"]
        for of_pod, here in (("/etc/gradwire/tls/", folder + "/"), ("/etc/gradwire/tokens/", folder + "/"),
                             ("/run/gradwire/", folder + "/"), (f":{pods.GRPC}", ":0"), (f":{pods.HTTP}", ":0")):
            flags = [flag.replace(of_pod, here) for flag in flags]
        with Daemon(flags) as daemon:
            for path in {spec["containers"][0][probe]["httpGet"]["path"]
                         for probe in ("startupProbe", "readinessProbe", "livenessProbe")}:
                status, _ = daemon.get(path)
                need(status == 200, f"{path}: {status}")
            asks = daemon.get("/metrics")[0] == 401
            need(asks == ("--tokens" in pods.arguments(spec["containers"][0])), f"/metrics asks for a token: {asks}")
            need(daemon.get("/metrics", "a-token-for-prometheus")[0] == 200, "an observer may not read /metrics")
            health = [daemon_folder() / "gradwirectl", "--address", daemon.address, "health"]
            if "--tls-cert" in pods.arguments(spec["containers"][0]):
                health[3:3] = [f"--tls-{name}={folder}/{file}" for name, file in
                               (("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key"))]
            run(*health, timeout=30)
            run(daemon_folder() / "gradwirectl", "--address", f"unix:{folder}/gradwire.sock", "why", timeout=30)
            need(daemon.stop() == 0, "SIGTERM does not drain it")


def jobs_of(found):
    """The jobs that JobSets make, for the schema of Kubernetes."""
    jobs = [job for document in found if document["kind"] == "JobSet" for job in document["spec"]["replicatedJobs"]]
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
            for job in jobs]


def check_examples():
    for name in EXAMPLES:
        found = example(name)
        validate(found + jobs_of(found))
        for document in found:
            for where, _, spec in pod_specs(document):
                pods.restricted(where, spec)
                pods.limited(where, spec)
                pods.variables(where, spec)
    daemon = next(spec for where, _, spec in pod_specs(example("jobset.yaml")[0]) if where.endswith("aggregator"))
    pods.daemon("jobset", daemon)


def flag_of(spec, name):
    return next(text.split("=", 1)[1] for text in spec["containers"][0]["command"] if text.startswith(name + "="))


def environment(spec):
    return {variable["name"]: variable["value"] for variable in spec["containers"][0]["env"]}


def check_job_names():
    """The addresses in the examples are those that Kubernetes and JobSet give."""
    service, job = example("torchrun-job.yaml")
    name, (_, metadata, spec) = job["metadata"]["name"], pod_specs(job)[0]
    need(service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}, "the Service selects other pods")
    need(spec["subdomain"] == service["metadata"]["name"], "subdomain is not the Service")
    need(flag_of(spec, "--master-addr") == f"{name}-0.{spec['subdomain']}", "--master-addr is not the first pod")
    need(int(flag_of(spec, "--nnodes")) == job["spec"]["completions"] == job["spec"]["parallelism"], "--nnodes")
    admitted = {"matchLabels": {"gradwire-role": "trainer"}}
    need(pods.matches(metadata["labels"], admitted), "the network policy keeps the trainers out")
    certificates = {document["spec"]["secretName"]: document["spec"] for document in example("certificate.yaml")}
    secrets = {volume["secret"]["secretName"] for volume in spec["volumes"]}
    need("gradwire-trainer-tls" in secrets & set(certificates), "no certificate for the trainers")
    host = environment(spec)["GRADWIRE_ADDRESS"].rsplit(":", 1)
    need(host[0] in certificates["gradwire-tls"]["dnsNames"], f"the daemon's certificate is not for {host[0]}")
    need(host[1] == str(pods.GRPC), "another port")

    jobset = example("jobset.yaml")[0]
    name = jobset["metadata"]["name"]
    jobs = {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}
    need(jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["trainers"], "the daemon never ends by itself")
    need(list(jobs) == ["aggregator", "trainers"], "the daemon must start first")
    trainers = jobs["trainers"]["template"]["spec"]
    spec = trainers["template"]["spec"]
    need(flag_of(spec, "--master-addr") == f"{name}-trainers-0-0.{name}", "--master-addr is not the first pod")
    need(int(flag_of(spec, "--nnodes")) == trainers["completions"] == trainers["parallelism"], "--nnodes")
    need(environment(spec)["GRADWIRE_ADDRESS"] == f"{name}-aggregator-0-0.{name}:{pods.GRPC}", "GRADWIRE_ADDRESS")


STAND_INS = {
    # srun runs here what it would run on each node.
    "srun": 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"\n',
    "scontrol": '[[ "$*" == "show hostnames node[1-2]" ]] && printf "127.0.0.1\\n127.0.0.2\\n"\n',
    "torchrun": 'echo "torchrun $*"\necho "session $GRADWIRE_SESSION"\ngradwirectl status >/dev/null && echo serves\n',
}


def check_slurm():
    """The batch script with stand-ins for Slurm and torchrun, and a real daemon."""
    script = DEPLOY / "examples" / "slurm.sbatch"
    options = re.findall(r"^#SBATCH (\S+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    need([option.split("=")[0] for option in options]
         == ["--job-name", "--nodes", "--ntasks-per-node", "--cpus-per-task", "--time"], f"options {options}")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in STAND_INS.items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write("#!/usr/bin/env bash\nset -euo pipefail\n" + text)
            os.chmod(path, stat.S_IRWXU)
        job = 1 + os.getpid() % 999
        said = run("bash", script, timeout=60, cwd=folder, env={
            **os.environ, "PATH": f"{folder}:{daemon_folder()}:{os.environ['PATH']}", "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NAME": "digits", "SLURM_JOB_NUM_NODES": "2"})
    for wanted in ("serves", f"session digits-{job}", f"--nnodes=2 --nproc-per-node=1 --rdzv-id={job}",
                   f"--rdzv-endpoint=127.0.0.1:{30610 + job} train.py"):
        need(wanted in said, f"no {wanted!r} in:\n{said}")


def compose():
    """The compose file with its anchors and merges resolved."""
    return documents((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))[0]


def check_compose_schema():
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose" / "compose.yaml")


def check_compose():
    services = compose()["services"]
    need({name for name, service in services.items() if service.get("profiles") == ["monitoring"]}
         == {"prometheus", "grafana"}, "the profile monitoring")
    for name, service in services.items():
        need(service["cap_drop"] == ["ALL"], f"{name}: capabilities")
        need(service["security_opt"] == ["no-new-privileges:true"], f"{name}: may gain privileges")
        for port in service.get("ports", []):
            need(port.startswith("127.0.0.1:"), f"{name}: other hosts reach {port}")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            need(source in compose()["volumes"] or (DEPLOY / "compose" / source).is_file(), f"{name}: no {source}")
    ours = {name: service for name, service in services.items() if "build" in service}
    need(set(ours) == {"gradwired", "trainer-0", "trainer-1"}, f"built are {sorted(ours)}")
    daemon = services["gradwired"]
    pods.check_flags("gradwired", pods.arguments(daemon))
    grace = seconds(pods.arguments(daemon)["--drain-timeout"]) + pods.DRAIN_MARGIN
    need(seconds(daemon["stop_grace_period"]) == grace, f"stop_grace_period is not {grace}s")
    need(daemon["healthcheck"]["test"] == ["CMD", "gradwirectl", "health"], "the health check")
    for name, service in ours.items():
        need(service["read_only"] is True and service["user"] == "65532:65532", f"{name}: user or root file system")
        need("socket:/run/gradwire" in service["volumes"], f"{name}: does not reach the socket")
        address = service["environment"]["GRADWIRE_ADDRESS"]
        need(address == pods.arguments(daemon)["--listen unix"], f"{name}: the daemon does not listen at {address}")
        unknown = {key for key in service["environment"] if key.startswith("GRADWIRE_")} - known_variables()
        need(not unknown, f"{name}: nobody reads {unknown}")
    ranks = [services[name]["environment"] for name in ("trainer-0", "trainer-1")]
    need([member["RANK"] for member in ranks] == ["0", "1"], "the ranks are not 0 and 1")
    need([member["WORLD_SIZE"] for member in ranks] == ["2", "2"], "WORLD_SIZE is not 2")


def check_versions():
    """Images, chart and sources have one version."""
    source = (REPOSITORY / "CMakeLists.txt").read_text(encoding="utf-8")
    version = re.search(r"project\(gradwire VERSION (\S+)", source)[1]
    chart = documents((CHART / "Chart.yaml").read_text(encoding="utf-8"))[0]
    need(chart["version"] == chart["appVersion"] == version, f"Chart.yaml is not {version}")
    images = {container["image"] for overlay in OVERLAYS for document in documents(kustomize(overlay))
              for _, _, spec in pod_specs(document) for container in spec["containers"]}
    images |= {service["image"] for service in compose()["services"].values() if "build" in service}
    images |= {spec["containers"][0]["image"] for _, _, spec in pod_specs(example("jobset.yaml")[0])} - {"my-trainer:1"}
    need(images == {f"gradwire:{version}", f"gradwire-trainer:{version}"}, f"images {sorted(images)} are not {version}")
    return f"ok, {version}"


def check_namespace():
    namespace, = documents((DEPLOY / "kustomize" / "namespace.yaml").read_text(encoding="utf-8"))
    validate([namespace])
    need(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted", "admits all pods")


def check_yaml():
    """All YAML but the chart's templates, which are none before they are rendered."""
    paths = [path for path in DEPLOY.rglob("*.y*ml") if CHART / "templates" not in path.parents]
    run(tool("yamllint"), "--strict", "-c", REPOSITORY / "tests" / "deploy" / "yamllint.yaml", *paths)
    return f"ok, {len(paths)} files"


def check_scripts():
    paths = [path for folder in (DEPLOY, REPOSITORY / "tests" / "deploy") for suffix in ("*.sh", "*.sbatch")
             for path in folder.rglob(suffix)]
    debian = DEPLOY / "debian"
    paths += [debian / name for name in ("postinst", "prerm", "postrm")]
    run(tool("shellcheck"), *paths)
    run(tool("shellcheck"), "--shell=bash", debian / "gradwired.bash")
    return f"ok, {len(paths)} files"


def check_dockerfile():
    path = DEPLOY / "docker" / "Dockerfile"
    hadolint = tool("hadolint")
    try:
        run(hadolint, "-", input="FROM debian\nRUN cd /tmp\n")
    except Failed:
        pass
    else:
        raise Failed("hadolint objects to nothing")
    run(hadolint, "--config", path.with_name("hadolint.yaml"), path)


def each(names, artefact, what, function):
    """A row for each overlay."""
    return [(artefact.format(name), what, lambda name=name: function(name)) for name in names]


CHECKS = [
    *each(OVERLAYS, "kustomize {}", f"schemas of Kubernetes {KUBERNETES}",
          lambda name: validate(documents(kustomize(name)))),
    *each(OVERLAYS, "kustomize {}", "restricted, probes, labels, network policy, flags", check_overlay),
    ("kustomize", "the rules above fail for broken manifests",
     lambda: pods.check_rules(documents(kustomize("monitoring")))),
    ("kustomize", "the schemas refuse broken manifests", check_validator),
    ("kustomize", "the namespace is restricted", check_namespace),
    *each(OVERLAYS, "helm = kustomize {}", "the same manifests", compare),
    ("helm", "lint", check_chart_lint),
    ("helm", "values.schema.json", check_chart_schema),
    ("helm", "every value", check_chart_options),
    ("helm", "the pod of helm test, and the notes", check_chart_tests),
    *each(("dev", "tls"), "kustomize {}", "gradwired serves with these arguments, and drains", check_start),
    ("compose", "schema", check_compose_schema),
    ("compose", "users, ports, socket, drain, ranks", check_compose),
    ("examples", "schemas, restricted, variables", check_examples),
    ("examples", "addresses, selectors, certificates", check_job_names),
    ("examples", "slurm.sbatch with a real daemon", check_slurm),
    ("all", "one version", check_versions),
    ("all", "yamllint", check_yaml),
    ("all", "shellcheck", check_scripts),
    ("Dockerfile", "hadolint", check_dockerfile),
]
