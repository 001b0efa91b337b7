"""make-prometheus-rule.py: prints prometheus-rule.yaml, the Prometheus operator's form of rules.yaml."""
import pathlib

HEAD = """\
# Made from rules.yaml by make-prometheus-rule.py; do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gradwire
  labels:
    app.kubernetes.io/name: gradwire
    app.kubernetes.io/instance: gradwire
spec:
"""

if __name__ == "__main__":
    rules = pathlib.Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8")
    lines = [line for line in rules.splitlines() if not line.startswith("#")]
    print(HEAD + "\n".join("  " + line if line else "" for line in lines))
