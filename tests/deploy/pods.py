"""What a pod of ours must be: admitted by the restricted profile, probed, limited, and given flags that exist."""
import copy

from table import Failed, need
from tools import daemon_flags, known_variables, pod_specs, seconds, title

GRPC, HTTP = 29610, 29611
DRAIN_MARGIN = 15
# Volumes that the restricted profile admits.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def restricted(where, spec):
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted, and no token of the API."""
    pod = spec.get("securityContext", {})
    for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        need(not spec.get(name), f"{where}: {name}")
    need(spec.get("automountServiceAccountToken") is False, f"{where}: automountServiceAccountToken is not false")
    need(pod.get("runAsNonRoot") is True, f"{where}: runAsNonRoot is not true")
    need(pod.get("runAsUser") == 65532, f"{where}: runAsUser is not 65532")
    need(pod.get("seccompProfile") == {"type": "RuntimeDefault"}, f"{where}: seccompProfile is not RuntimeDefault")
    for volume in spec.get("volumes", []):
        need(set(volume) - {"name"} <= VOLUMES, f"{where}: volume {volume['name']} is of a kind that is not admitted")
    for container in containers(spec):
        at, own = f"{where} {container['name']}", container.get("securityContext", {})
        need(own.get("allowPrivilegeEscalation") is False, f"{at}: allowPrivilegeEscalation is not false")
        need(own.get("capabilities") == {"drop": ["ALL"]}, f"{at}: capabilities are not just drop ALL")
        need(not own.get("privileged"), f"{at}: privileged")
        need(own.get("runAsNonRoot", True) is True and own.get("runAsUser", 65532) != 0, f"{at}: may run as root")
        need(own.get("seccompProfile", {"type": "RuntimeDefault"})["type"] == "RuntimeDefault", f"{at}: seccompProfile")
        need(all("hostPort" not in port for port in container.get("ports", [])), f"{at}: hostPort")


def limited(where, spec):
    for container in containers(spec):
        resources = container.get("resources", {})
        for part in ("cpu", "memory"):
            need(part in resources.get("requests", {}), f"{where} {container['name']}: no request of {part}")
        need(resources["requests"]["memory"] == resources.get("limits", {}).get("memory"),
             f"{where} {container['name']}: the memory's limit is not what is requested")


def arguments(container):
    """Flags of gradwired and their values; of --listen, the TCP address. Other flags may stand there once."""
    found = {}
    for text in container.get("args", container.get("command", [])):
        name, separator, value = text.partition("=")
        if value.startswith("unix:"):
            name += " unix"
        need(name not in found, f"{name} is there twice")
        found[name] = value if separator else True
    return found


def port_of(container, reference):
    """The number of a port that is named or numbered."""
    if isinstance(reference, int):
        return reference
    for port in container.get("ports", []):
        if port.get("name") == reference:
            return port["containerPort"]
    raise Failed(f"{container['name']}: no port {reference!r}")


def check_flags(where, flags):
    unknown = sorted({name.removesuffix(" unix") for name in flags} - daemon_flags())
    need(not unknown, f"{where}: gradwired has no flag {', '.join(unknown)}")


def daemon(where, spec):
    """A gradwired that other pods reach: flags, ports, secrets, probes and time to drain."""
    container = spec["containers"][0]
    flags = arguments(container)
    check_flags(where, flags)
    need(container["securityContext"].get("readOnlyRootFilesystem") is True, f"{where}: the root is not read-only")
    need(flags.get("--listen") == f"0.0.0.0:{port_of(container, 'grpc')}" == f"0.0.0.0:{GRPC}",
         f"{where}: --listen and the port grpc differ")
    need(flags.get("--http-listen") == f"0.0.0.0:{port_of(container, 'http')}" == f"0.0.0.0:{HTTP}",
         f"{where}: --http-listen and the port http differ")
    need(flags.get("--insecure-http") is True, f"{where}: gradwired refuses this HTTP address without --insecure-http")
    need(("--insecure" in flags) != ("--tls-cert" in flags), f"{where}: needs either --insecure or --tls-cert")
    mounts = [mount["mountPath"] + "/" for mount in container.get("volumeMounts", [])]
    if "--listen unix" in flags:
        address = flags["--listen unix"]
        need(any(address.startswith("unix:" + mount) for mount in mounts), f"{where}: {address} is in no volume")
        need({"name": "GRADWIRE_ADDRESS", "value": address} in container.get("env", []),
             f"{where}: gradwirectl in the container asks another address")
    for name in ("--tls-cert", "--tls-key", "--tls-client-ca", "--tokens"):
        need(name not in flags or any(flags[name].startswith(mount) for mount in mounts),
             f"{where}: {name} is in no volume that is mounted")
    need(all("subPath" not in mount for mount in container.get("volumeMounts", [])),
         f"{where}: a subPath keeps renewed files from the daemon")
    grace = seconds(flags.get("--drain-timeout", "30s")) + DRAIN_MARGIN
    need(spec.get("terminationGracePeriodSeconds") == grace,
         f"{where}: terminationGracePeriodSeconds is not --drain-timeout + {DRAIN_MARGIN} = {grace}")


def probed(where, spec):
    container = spec["containers"][0]
    for probe, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        get = container.get(probe, {}).get("httpGet", {})
        need(get.get("path") == path, f"{where}: {probe} does not ask {path}")
        need(port_of(container, get.get("port")) == HTTP, f"{where}: {probe} does not ask port {HTTP}")
    liveness = container["livenessProbe"]
    need(liveness.get("failureThreshold", 3) >= 3, f"{where}: one missed answer would end all sessions")


def variables(where, spec):
    need(spec.get("enableServiceLinks") is False, f"{where}: a Service named gradwire would set GRADWIRE_ variables")
    for container in containers(spec):
        for name in (variable["name"] for variable in container.get("env", [])):
            need(not name.startswith("GRADWIRE_") or name in known_variables(), f"{where}: nobody reads {name}")


def check_daemons(documents):
    """All of the above for an installation."""
    found = [pod for document in documents for pod in pod_specs(document)]
    need(len(found) == 1, f"{len(found)} pods")
    for where, _, spec in found:
        for rule in (restricted, limited, daemon, probed, variables):
            rule(where, spec)


def by_title(documents):
    found = {title(document): document for document in documents}
    need(len(found) == len(documents), "two manifests with one name")
    return found


def matches(labels, selector):
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items())


def check_labels(documents):
    """Selectors find the daemon's pod; the network policy admits trainers and monitoring, and nobody else."""
    found = by_title(documents)
    (_, metadata, spec), = pod_specs(found["StatefulSet/gradwire"])
    pod = metadata["labels"]
    wanted = {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
    for name, document in found.items():
        need(wanted <= set(document["metadata"].get("labels", {})), f"{name}: lacks a label of {sorted(wanted)}")
    stateful = found["StatefulSet/gradwire"]["spec"]
    need(matches(pod, stateful["selector"]), "StatefulSet: its selector does not match its pod")
    need(stateful["serviceName"] == "gradwire-headless", "StatefulSet: its serviceName is not the headless Service")
    need(stateful["replicas"] == 1, "StatefulSet: more than one replica would split the members of a session")
    for name, ports in (("gradwire", [GRPC, HTTP]), ("gradwire-headless", [GRPC])):
        service = found[f"Service/{name}"]["spec"]
        need(matches(pod, {"matchLabels": service["selector"]}), f"Service/{name}: does not select the pod")
        need([port["port"] for port in service["ports"]] == ports, f"Service/{name}: its ports are not {ports}")
        for port in service["ports"]:
            need(port_of(spec["containers"][0], port["targetPort"]) == port["port"], f"Service/{name}: targetPort")
        need(service.get("publishNotReadyAddresses") is True, f"Service/{name}: members of a draining daemon lose it")
    need(found["Service/gradwire-headless"]["spec"].get("clusterIP") == "None", "the headless Service has an address")
    budget = found["PodDisruptionBudget/gradwire"]["spec"]
    need(matches(pod, budget["selector"]) and budget["maxUnavailable"] == 0, "PodDisruptionBudget: protects nothing")
    need(found["ServiceAccount/gradwire"].get("automountServiceAccountToken") is False, "ServiceAccount: has a token")
    need(spec["serviceAccountName"] == "gradwire", "the pod has another ServiceAccount")
    check_policy(found["NetworkPolicy/gradwire"]["spec"], pod)
    if "ServiceMonitor/gradwire" in found:
        check_monitor(found)


def check_policy(policy, pod):
    need(matches(pod, policy["podSelector"]), "NetworkPolicy: does not select the daemon's pod")
    need(policy["policyTypes"] == ["Ingress", "Egress"], "NetworkPolicy: is not for both directions")
    need(policy["egress"] == [], "NetworkPolicy: the daemon may call out")
    admitted = [(rule["from"], [port["port"] for port in rule["ports"]]) for rule in policy["ingress"]]
    need(admitted == [
        ([{"podSelector": {"matchLabels": {"gradwire-role": "trainer"}}}], [GRPC]),
        ([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}], [HTTP]),
    ], f"NetworkPolicy: admits {admitted}")


def check_monitor(found):
    """Prometheus finds one Service with the port, so that nothing is scraped twice."""
    monitor = found["ServiceMonitor/gradwire"]["spec"]
    endpoint, = monitor["endpoints"]
    scraped = [name for name, document in found.items() if document["kind"] == "Service"
               and matches(document["metadata"]["labels"], monitor["selector"])
               and endpoint["port"] in [port["name"] for port in document["spec"]["ports"]]]
    need(scraped == ["Service/gradwire"], f"ServiceMonitor: scrapes {scraped}")
    need(found["Service/gradwire"]["metadata"]["labels"][monitor["jobLabel"]] == "gradwire",
         "ServiceMonitor: the alerts select job=\"gradwire\"")
    with_tokens = any(flag.startswith("--tokens=") for document in found.values() for _, _, spec in pod_specs(document)
                      for flag in spec["containers"][0]["args"])
    need(with_tokens == ("authorization" in endpoint), "ServiceMonitor: sends no token, or one that nobody asks for")
    need(found["ConfigMap/gradwire-dashboard"]["metadata"]["labels"].get("grafana_dashboard") == "1",
         "Grafana's sidecar does not find the dashboard")


# (path in an installation's manifests, value; None removes): each makes one of the rules above fail.
SPEC = "StatefulSet/gradwire/spec/template/spec"
MUTANTS = [
    (f"{SPEC}/securityContext/runAsNonRoot", None), (f"{SPEC}/securityContext/runAsUser", 0),
    (f"{SPEC}/securityContext/seccompProfile", None), (f"{SPEC}/automountServiceAccountToken", None),
    (f"{SPEC}/hostNetwork", True), (f"{SPEC}/enableServiceLinks", None),
    (f"{SPEC}/volumes/0", {"name": "tls", "hostPath": {"path": "/"}}),
    (f"{SPEC}/containers/0/securityContext/allowPrivilegeEscalation", None),
    (f"{SPEC}/containers/0/securityContext/readOnlyRootFilesystem", None),
    (f"{SPEC}/containers/0/securityContext/privileged", True),
    (f"{SPEC}/containers/0/securityContext/runAsUser", 0),
    (f"{SPEC}/containers/0/securityContext/capabilities/add", ["SYS_ADMIN"]),
    (f"{SPEC}/containers/0/securityContext/capabilities/drop", []),
    (f"{SPEC}/containers/0/resources/requests/cpu", None), (f"{SPEC}/containers/0/resources/limits/memory", "8Gi"),
    (f"{SPEC}/containers/0/args/0", "--listen=0.0.0.0:29612"), (f"{SPEC}/containers/0/args/1", "--listen=unix:/tmp/s"),
    (f"{SPEC}/containers/0/args/2", "--http-listen=auto"), (f"{SPEC}/containers/0/args/3", "--insecure"),
    (f"{SPEC}/containers/0/args/4", "--memory=80%"), (f"{SPEC}/containers/0/args/6", "--drain-timeout=60s"),
    (f"{SPEC}/containers/0/args/8", "--tls-cert=/etc/tls.crt"), (f"{SPEC}/containers/0/args/4", "--tokens=/dev/null"),
    (f"{SPEC}/containers/0/ports/0/containerPort", 29612), (f"{SPEC}/containers/0/volumeMounts/0/subPath", "tls.crt"),
    (f"{SPEC}/containers/0/env/1", {"name": "GRADWIRE_MEMORY", "value": "1"}), (f"{SPEC}/containers/0/env", []),
    (f"{SPEC}/terminationGracePeriodSeconds", 30),
    (f"{SPEC}/containers/0/startupProbe", None), (f"{SPEC}/containers/0/readinessProbe/httpGet/path", "/livez"),
    (f"{SPEC}/containers/0/livenessProbe/httpGet/port", "grpc"),
    (f"{SPEC}/containers/0/livenessProbe/failureThreshold", 1),
    ("StatefulSet/gradwire/spec/replicas", 2), ("StatefulSet/gradwire/spec/serviceName", "gradwire"),
    ("StatefulSet/gradwire/metadata/labels/app.kubernetes.io/name", None),
    ("StatefulSet/gradwire/spec/template/metadata/labels/app.kubernetes.io/name", "other"),
    ("Service/gradwire/spec/selector/app.kubernetes.io/name", "other"),
    ("Service/gradwire/spec/ports/0/targetPort", "http"), ("Service/gradwire-headless/spec/clusterIP", None),
    ("Service/gradwire-headless/spec/publishNotReadyAddresses", None),
    ("ServiceAccount/gradwire/automountServiceAccountToken", True),
    ("PodDisruptionBudget/gradwire/spec/maxUnavailable", 1),
    ("NetworkPolicy/gradwire/spec/ingress/0/from/0/podSelector/matchLabels", {}),
    ("NetworkPolicy/gradwire/spec/ingress/1/ports/0/port", 29610),
    ("NetworkPolicy/gradwire/spec/egress/0", {}), ("NetworkPolicy/gradwire/spec/policyTypes", ["Ingress"]),
    ("NetworkPolicy/gradwire/spec/podSelector/matchLabels/x", "y"),
    ("ServiceMonitor/gradwire/spec/endpoints/0/authorization", None),
    ("ServiceMonitor/gradwire/spec/endpoints/0/port", "grpc"),
    ("ConfigMap/gradwire-dashboard/metadata/labels/grafana_dashboard", None),
]


def mutated(documents, path, value):
    """A copy of the manifests with another value at a path that begins with kind/name."""
    documents = copy.deepcopy(documents)
    kind, name, *keys = path.replace("app.kubernetes.io/", "app.kubernetes.io|").split("/")
    node = by_title(documents)[f"{kind}/{name}"]
    keys = [int(key) if key.isdigit() else key.replace("|", "/") for key in keys]
    for key in keys[:-1]:
        node = node[key]
    if value is None:
        del node[keys[-1]]
    elif isinstance(node, list) and keys[-1] == len(node):
        node.append(value)
    else:
        node[keys[-1]] = value
    return documents


def check_rules(documents):
    """Each rule fails for manifests that break it. `documents`: of the overlay monitoring, which has the most."""
    for path, value in MUTANTS:
        changed = mutated(documents, path, value)
        try:
            check_daemons(changed)
            check_labels(changed)
        except (Failed, LookupError):
            continue
        raise Failed(f"no rule objects to {path} = {value!r}")
    return f"ok, {len(MUTANTS)} mutants are refused"
