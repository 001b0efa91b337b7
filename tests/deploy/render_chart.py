"""render_chart.py CHART VALUES [RELEASE [NAMESPACE]]: the chart's manifests as JSON, path by path; VALUES are JSON.

Runs in the virtual environment of make-tools.sh, which has Helm's engine.
"""
import json
import sys

import helm_python


def main(chart_folder, values, name="gradwire", namespace="gradwire"):
    values = json.loads(values)
    with helm_python.Chart.load(chart_folder) as chart:
        # render() alone takes values that the schema forbids.
        chart.validate_schema(values)
        json.dump(chart.render(values, name=name, namespace=namespace), sys.stdout)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except helm_python.HelmError as error:
        sys.exit(f"helm: {error}")
