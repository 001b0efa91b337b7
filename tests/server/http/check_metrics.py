"""Reads a metrics page from standard input with Prometheus' own parser, and prints what is wrong."""
import sys

from prometheus_client.parser import text_string_to_metric_families

UNITS = ("_seconds", "_bytes", "_info", "_fds", "_timestamp_seconds")


def problems(text):
    names = set()
    for family in text_string_to_metric_families(text):
        if family.name in names:
            yield f"{family.name}: twice"
        names.add(family.name)
        if not family.documentation:
            yield f"{family.name}: no help"
        if family.type == "unknown":
            yield f"{family.name}: no type"
        samples = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        if len(samples) != len(set(samples)):
            yield f"{family.name}: two samples with the same labels"
        if family.type == "counter" and not all(sample.name.endswith("_total") for sample in family.samples):
            yield f"{family.name}: a counter without _total"
        if family.type == "histogram":
            for sample in family.samples:
                if sample.name.endswith("_bucket") and "le" not in sample.labels:
                    yield f"{family.name}: a bucket without le"
    if not names:
        yield "no metric"


FOUND = list(problems(sys.stdin.read()))
print("\n".join(FOUND))
sys.exit(1 if FOUND else 0)
