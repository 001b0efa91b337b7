"""The committed stub is what nanobind makes of the module."""

import os
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1]
STUB = PACKAGE / "gradwire" / "_native.pyi"
PATTERNS = PACKAGE / "src" / "stub.patterns"


def test_the_stub_is_the_modules(tmp_path):
    pytest.importorskip("nanobind", reason="nanobind, which writes stubs, is not installed")
    command = [
        sys.executable, "-m", "nanobind.stubgen", "--quiet", "--module", "gradwire._native",
        "--pattern-file", str(PATTERNS), "--output-file",
    ]  # fmt: skip
    made = tmp_path / "_native.pyi"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, str(made)], env=environment, check=True)
    assert made.read_text() == STUB.read_text(), f"to renew it: {' '.join(command)} {STUB}"


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "gradwire" / "py.typed").exists()
