#!/usr/bin/python3
"""merge.py OUT PART...: one JSON object with each part under its file's name."""

import json
import pathlib
import sys

out, *parts = map(pathlib.Path, sys.argv[1:])
out.write_text(json.dumps({part.stem: json.loads(part.read_text()) for part in parts}, indent=1) + "\n")
for part in parts:
    part.unlink()
print(f"results: {out}")
