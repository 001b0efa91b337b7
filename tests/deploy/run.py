"""run.py [GROUP]...: the checks of everything under deploy/, in groups; all groups if none is named."""
import importlib
import sys

import table

# Each module has CHECKS: (artefact, check, function) rows.
GROUPS = ("manifests", "monitoring", "packages", "images", "containers", "restarts")


def main(names):
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        print(f"run.py: no group '{unknown[0]}'; there are: {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    checks = []
    for name in names or GROUPS:
        checks += importlib.import_module(name).CHECKS
    return 0 if table.run_checks(checks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
