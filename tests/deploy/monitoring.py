"""Checks of deploy/monitoring: rules, their tests, the dashboard, and Prometheus scraping a daemon that trains."""
import contextlib
import json
import os
import re
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pods
from daemon import Daemon, make_certificates
from sizing import check_sizing
from table import Failed, need, run
from tools import DEPLOY, REPOSITORY, daemon_folder, documents, kustomize, tool

import yaml

MONITORING = DEPLOY / "monitoring"
RULES = MONITORING / "rules.yaml"
DATA = REPOSITORY / "client" / "examples" / "data" / "digits.csv"
TOKEN = "a-token-for-prometheus"
HISTOGRAM = ("_bucket", "_sum", "_count")


def rules():
    return [rule for group in documents(RULES.read_text(encoding="utf-8"))[0]["groups"] for rule in group["rules"]]


def dashboard():
    return json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))


def plain(expression, session=".*", instance=".*"):
    """A panel's expression with the values that Grafana would put in."""
    for name, value in (("$session", session), ("$instance", instance), ("$__rate_interval", "1m")):
        expression = expression.replace(name, value)
    need("$" not in expression, f"a variable that the dashboard does not have: {expression}")
    return expression


def panel_expressions():
    """(panel's title, expression)"""
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def check_rules():
    said = run(tool("promtool"), "check", "rules", RULES)
    need(f"{len(rules())} rules found" in said, said)
    run(tool("promtool"), "check", "config", MONITORING / "prometheus.yml")
    return f"ok, {len(rules())} rules"


def test_rules(text, folder):
    """promtool's tests for other rules than ours."""
    with open(os.path.join(folder, "rules.yaml"), "w", encoding="utf-8") as file:
        file.write(text)
    tests = (MONITORING / "rules-test.yaml").read_text(encoding="utf-8")
    with open(os.path.join(folder, "rules-test.yaml"), "w", encoding="utf-8") as file:
        file.write(tests)
    run(tool("promtool"), "test", "rules", os.path.join(folder, "rules-test.yaml"), timeout=60)


def check_rule_tests():
    run(tool("promtool"), "test", "rules", MONITORING / "rules-test.yaml")


def mutants():
    """(what, rules as text): without an alert, and with half and twice its limit and its `for`."""
    whole = documents(RULES.read_text(encoding="utf-8"))[0]
    for number, rule in enumerate(rules()):
        name = rule["alert"]
        changed = json.loads(json.dumps(whole))
        del changed["groups"][0]["rules"][number]
        yield f"without {name}", yaml.safe_dump(changed)
        limit = re.search(r"([0-9.]+)\s*$", rule["expr"])
        for factor in (0.5, 2) if limit and float(limit[1]) > 0 else ():
            changed = json.loads(json.dumps(whole))
            changed["groups"][0]["rules"][number]["expr"] = rule["expr"][:limit.start()] + str(float(limit[1]) * factor)
            yield f"{name} with {factor} times its limit", yaml.safe_dump(changed)
        if "for" in rule:
            changed = json.loads(json.dumps(whole))
            del changed["groups"][0]["rules"][number]["for"]
            yield f"{name} at once", yaml.safe_dump(changed)


def check_rule_mutants():
    """The tests fail for each of them."""
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        test_rules(RULES.read_text(encoding="utf-8"), folder)
        for what, text in mutants():
            try:
                test_rules(text, folder)
            except Failed:
                count += 1
                continue
            raise Failed(f"the tests pass {what}")
    return f"ok, {count} mutants fail"


def check_prometheus_rule():
    made = run("/usr/bin/python3", "-B", MONITORING / "make-prometheus-rule.py")
    need(made == (MONITORING / "prometheus-rule.yaml").read_text(encoding="utf-8"),
         "prometheus-rule.yaml is old: run make-prometheus-rule.py")
    ours = pods.by_title(documents(kustomize("monitoring")))["PrometheusRule/gradwire"]["spec"]
    need(ours == documents(RULES.read_text(encoding="utf-8"))[0], "the PrometheusRule has other groups")


def metrics():
    """The names that the daemon's sources give, with those that a histogram has."""
    source = (REPOSITORY / "server" / "http" / "metrics.cc").read_text(encoding="utf-8")
    names = set(re.findall(r'\.(?:Counter|Gauge)\(\s*"([a-z_]+)"', source))
    histograms = re.findall(r'\.Histogram\(\s*"([a-z_]+)"', source)
    need(len(names) > 20 and histograms, "server/http/metrics.cc names its metrics in another way now")
    return names | {name + suffix for name in histograms for suffix in HISTOGRAM}


def unknown_metrics(expressions):
    """Names with our prefixes that the daemon does not have."""
    named = {name for expression in expressions
             for name in re.findall(r"\b(?:gradwire|process)_[a-z_]+\b", re.sub(r'"[^"]*"', '""', expression))}
    return named - metrics()


def check_names():
    need(unknown_metrics(["rate(gradwire_steps[5m])", "gradwire_step_wait_seconds"]), "no name is unknown")
    expressions = [rule["expr"] for rule in rules()] + [text for _, text in panel_expressions()]
    expressions += [variable.get("definition", "") for variable in dashboard()["templating"]["list"]]
    unknown = unknown_metrics(expressions)
    need(not unknown, f"gradwired has no {', '.join(sorted(unknown))}")
    unused = {name for name in metrics() if name.startswith("gradwire_") and not name.endswith(("_sum", "_count"))
              and not any(re.search(rf"\b{name}\b", text) for text in expressions)}
    need(not unused, f"neither an alert nor a panel uses {', '.join(sorted(unused))}")
    return f"ok, {len(expressions)} expressions"


def check_expressions(expressions):
    """promtool parses them, as recording rules."""
    groups = [{"name": "panels", "rules": [{"record": f"panel:{number}", "expr": plain(expression)}
                                           for number, expression in enumerate(expressions)]}]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump({"groups": groups}, file)
        file.flush()
        said = run(tool("promtool"), "check", "rules", file.name)
    need(f"{len(expressions)} rules found" in said, said)


def check_dashboard():
    whole = dashboard()
    variables = {variable["name"]: variable for variable in whole["templating"]["list"]}
    need(set(variables) == {"datasource", "instance", "session"}, f"variables {sorted(variables)}")
    need(variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus",
         "the data source is no variable")
    panels = whole["panels"]
    need(len({panel["id"] for panel in panels}) == len(panels), "two panels have one id")
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        need(at["x"] + at["w"] <= 24 and not cells & taken, f"{panel['title']} overlaps another panel")
        taken |= cells
        if panel["type"] == "row":
            continue
        need(panel["targets"], f"{panel['title']} shows nothing")
        for part in [panel, *panel["targets"]]:
            need(part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, f"{panel['title']}: data source")
        need(len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), f"{panel['title']}: refId")
    expressions = [text for _, text in panel_expressions()]
    check_expressions(expressions)
    try:
        check_expressions([expressions[0] + ")"])
    except Failed:
        return f"ok, {len(expressions)} expressions"
    raise Failed("promtool parses everything")


def check_provisioning():
    """Grafana in compose reads the files where compose mounts them."""
    services = documents((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))[0]["services"]
    mounts = {source: target for source, target, _ in (text.split(":") for text in services["grafana"]["volumes"])}
    folder = documents((MONITORING / "grafana" / "dashboards.yaml").read_text(encoding="utf-8"))[0]
    place = folder["providers"][0]["options"]["path"]
    need(mounts["../monitoring/dashboard.json"] == f"{place}/dashboard.json", "the dashboard is elsewhere")
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    need(home == f"{place}/dashboard.json", "the home dashboard is elsewhere")
    source, = documents((MONITORING / "grafana" / "datasource.yaml").read_text(encoding="utf-8"))[0]["datasources"]
    need(source["url"] == "http://prometheus:9090" and "prometheus" in services, "Grafana does not find Prometheus")
    config = documents((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))[0]
    scrape, = config["scrape_configs"]
    need(scrape["job_name"] == "gradwire", 'the alerts select job="gradwire"')
    need(scrape["static_configs"][0]["targets"] == [f"gradwired:{pods.HTTP}"], "Prometheus asks another address")
    for name in config["rule_files"]:
        need(f"../monitoring/{name}:/etc/prometheus/{name}:ro" in services["prometheus"]["volumes"], f"no {name}")


def run_book_rows(title):
    """The first cells of the table under a title of deploy/README.md."""
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    part = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    need(part, f"deploy/README.md has no part '{title}'")
    return [row.split("|")[1].strip(" `") for row in part[1].splitlines() if row.startswith("| ")][2:]


def check_run_book():
    """A row for each alert and each exit code."""
    alerts = [rule["alert"] for rule in rules()]
    need(run_book_rows("Alerts") == alerts, f"alerts and rows differ: {set(run_book_rows('Alerts')) ^ set(alerts)}")
    source = (REPOSITORY / "server" / "daemon" / "exit_codes.h").read_text(encoding="utf-8")
    codes = re.findall(r"kExit\w+ = (\d+);", source)
    need(run_book_rows("Exit codes") == codes, f"exit codes {codes}, rows {run_book_rows('Exit codes')}")
    return f"ok, {len(alerts)} alerts and {len(codes)} exit codes"


class Prometheus:
    """Debian's Prometheus with our rules, which asks one daemon every second."""

    def __init__(self, folder, target, token):
        config = documents((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))[0]
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES)]
        scrape = config["scrape_configs"][0]
        scrape["static_configs"] = [{"targets": [target]}]
        scrape["authorization"] = {"type": "Bearer", "credentials": token}
        path = os.path.join(folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump(config, file)
        self._command = [tool("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={folder}/data",
                         "--web.listen-address=127.0.0.1:0"]

    def __enter__(self):
        self._child = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        watchdog = threading.Timer(30, self._child.kill)
        watchdog.start()
        for line in self._child.stderr:
            if found := re.search(r'msg="Listening on" address=(\S+)', line):
                self.url = "http://" + found[1]
                break
        watchdog.cancel()
        need(hasattr(self, "url"), "prometheus does not start")
        threading.Thread(target=self._child.stderr.read, daemon=True).start()
        deadline = time.monotonic() + 30
        while not self._ready():
            need(time.monotonic() < deadline, "prometheus is not ready after 30 s")
            time.sleep(0.1)
        return self

    def _ready(self):
        """It listens before it can answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10):
                return True
        except urllib.error.HTTPError:
            return False

    def __exit__(self, *_):
        self._child.terminate()
        self._child.wait(timeout=30)

    def get(self, path, **query):
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression):
        """The values of an instant query. The figures are those of the last scrape, or an empty list."""
        found = self.get("query", query=expression)
        if found["resultType"] == "scalar":
            return [float(found["result"][1])]
        return [float(one["value"][1]) for one in found["result"]]

    def wait_for(self, expression, seconds=60):
        """Until the query has a result."""
        deadline = time.monotonic() + seconds
        while not self.values(expression):
            need(time.monotonic() < deadline, f"no result within {seconds} s: {expression}")
            time.sleep(0.5)


@contextlib.contextmanager
def training(folder):
    """A daemon with TLS and tokens, and two members that train on real data over its unix socket."""
    make_certificates(folder)
    with open(os.path.join(folder, "tokens"), "w", encoding="utf-8") as file:
        file.write(f"prometheus observer * {TOKEN}\n")
    socket = f"unix:{folder}/gradwire.sock"
    flags = ["--listen=127.0.0.1:0", f"--listen={socket}", "--http-listen=127.0.0.1:0", f"--tls-cert={folder}/tls.crt",
             f"--tls-key={folder}/tls.key", f"--tls-client-ca={folder}/ca.crt", f"--tokens={folder}/tokens",
             "--drain-timeout=1s"]
    with Daemon(flags) as daemon:
        members = [subprocess.Popen(
            ["nice", daemon_folder() / "train_digits", "--address", socket, "--session", "digits", "--rank", str(rank),
             "--world-size", "2", "--hook", "fp16", "--epochs", "10000", "--data", DATA],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for rank in range(2)]
        try:
            yield daemon, members
        finally:
            for member in members:
                member.terminate()
                member.wait(timeout=30)


def check_metrics_text():
    with tempfile.TemporaryDirectory() as folder, training(folder) as (daemon, _):
        deadline = time.monotonic() + 60
        while "gradwire_last_step_timestamp_seconds" not in (text := daemon.get("/metrics", TOKEN)[1]):
            need(time.monotonic() < deadline, f"no step within 60 s:\n{text}")
            time.sleep(0.2)
        run(tool("promtool"), "check", "metrics", input=text)
        shown = set(re.findall(r"^([a-z_]+)", text, re.MULTILINE))
        need(shown == metrics(), f"shown and written in metrics.cc differ: {sorted(shown ^ metrics())}")
        return f"ok, {len(shown)} names"


def check_scrape():
    """Every rule and every panel gets data from a daemon that trains."""
    with (tempfile.TemporaryDirectory() as folder, training(folder) as (daemon, _),
          Prometheus(folder, daemon.url.removeprefix("http://"), TOKEN) as prometheus):
        prometheus.wait_for('rate(gradwire_steps_total{session="digits", outcome="applied"}[1m]) > 0')
        # Two scrapes more, for every rate.
        time.sleep(2)
        need(prometheus.values('up{job="gradwire"}') == [1], "the daemon is not up")
        need(prometheus.values('sum(gradwire_sessions{state="running"})') == [1], "not one running session")
        need(prometheus.values('gradwire_members{session="digits", state="connected"}') == [2], "not two members")
        for title, expression in panel_expressions():
            need(prometheus.values(plain(expression, "digits")), f"{title}: no data for {expression}")
        loaded = prometheus.get("rules")["groups"][0]["rules"]
        need([rule["name"] for rule in loaded] == [rule["alert"] for rule in rules()], f"loaded are {loaded}")
        deadline = time.monotonic() + 30
        while any(rule["health"] == "unknown" for rule in loaded):
            need(time.monotonic() < deadline, "rules were not evaluated within 30 s")
            time.sleep(0.5)
            loaded = prometheus.get("rules")["groups"][0]["rules"]
        for rule in loaded:
            need(rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}")
        firing = [alert["labels"] for alert in prometheus.get("alerts")["alerts"]]
        # A certificate of two days, and nothing else.
        need([labels["alertname"] for labels in firing] == ["CertificateExpiresSoon"], f"alerts: {firing}")
        steps = prometheus.values('sum(gradwire_steps_total{session="digits"})')[0]
        return f"ok, {len(panel_expressions())} panel queries have data after {steps:.0f} steps"


def check_alarm():
    """A failed session and a scrape that is refused make alerts."""
    with tempfile.TemporaryDirectory() as folder, training(folder) as (daemon, members):
        target = daemon.url.removeprefix("http://")
        with Prometheus(folder, target, "a-wrong-token-for-it") as prometheus:
            prometheus.wait_for('up{job="gradwire"} == 0')
            prometheus.wait_for('ALERTS{alertname="DaemonDown", alertstate="pending"}')
        with Prometheus(folder, target, TOKEN) as prometheus:
            prometheus.wait_for('gradwire_steps_total{session="digits", outcome="applied"} > 0')
            members[1].kill()
            prometheus.wait_for('ALERTS{alertname="SessionFailed", alertstate="firing"}')
        why = run(daemon_folder() / "gradwirectl", "--address", f"unix:{folder}/gradwire.sock", "why", timeout=30)
        need("rank 1" in why, f"gradwirectl does not name the lost rank:\n{why}")


CHECKS = [
    ("rules", "promtool check rules, check config", check_rules),
    ("rules", "promtool test rules", check_rule_tests),
    ("rules", "the tests fail for changed rules", check_rule_mutants),
    ("rules", "PrometheusRule is made from them", check_prometheus_rule),
    ("rules, dashboard", "every metric exists and is used", check_names),
    ("dashboard", "ids, places, data source, expressions", check_dashboard),
    ("compose", "files of Prometheus and Grafana", check_provisioning),
    ("run book", "every alert, every exit code", check_run_book),
    ("run book", "sizing: what gradwired reserves", check_sizing),
    ("gradwired", "promtool check metrics; metrics.cc has the same names", check_metrics_text),
    ("gradwired", "Prometheus scrapes; each rule and panel gets data", check_scrape),
    ("gradwired", "alerts for a refused scrape and a lost member", check_alarm),
]
