#!/usr/bin/env python3
"""Checks that the catalogue of error codes, its pages and the sources that use it agree.

error_pages_test.py [--root DIR]   prints what is wrong; exits 1 if anything is
"""

import argparse
import pathlib
import re
import sys

SECTIONS = ("What happened", "Likely causes", "What to do")
PRODUCT = ("base", "hooks", "proto", "client", "server")
MOST_LINES = 30


def catalogue(root):
    """{"GW203": (enumerator, title)}, of the header's numbers and the table's titles."""
    header = (root / "base/error_code.h").read_text("utf-8")
    enum = re.search(r"enum class ErrorCode[^{]*\{(.*?)\n\};", header, re.DOTALL)[1]
    numbers = dict(re.findall(r"^\s*(k\w+) = (\d{3}),$", enum, re.MULTILINE))
    table = (root / "base/error_code.cc").read_text("utf-8")
    titles = dict(re.findall(r'\{ErrorCode::(k\w+), "([^"]+)"\}', table))
    if set(numbers) != set(titles):
        sys.exit(f"base/error_code.h and .cc differ in {sorted(set(numbers) ^ set(titles))}")
    return {f"GW{number}": (name, titles[name]) for name, number in numbers.items()}


def page_problems(code, title, text):
    lines = text.splitlines()
    if lines[0] != f"# {code}: {title}":
        yield f"its heading is {lines[0]!r}; expected '# {code}: {title}'"
    example = re.search(r"^```text\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    if not example or not all(line.endswith(f" [{code}]") for line in example[1].splitlines()):
        yield f"it has no example of a message that ends in [{code}]"
    if re.findall(r"^## (.*)$", text, re.MULTILINE) != list(SECTIONS):
        yield f"its sections are not {', '.join(SECTIONS)}"
    for section in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]:
        if not section.strip():
            yield "a section is empty"
    if len(lines) > MOST_LINES:
        yield f"it has {len(lines)} lines; at most {MOST_LINES}"


def uses(root):
    """The enumerators in C++ sources and the codes in Python sources of the product."""
    used = set()
    for top in PRODUCT:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".cc", ".h", ".cu") and not path.name.startswith("error_code."):
                used.update(re.findall(r"ErrorCode::(k\w+)", path.read_text("utf-8")))
            elif path.suffix == ".py":
                used.update(re.findall(r'"(GW\d{3})"', path.read_text("utf-8")))
    return used


def problems(root):
    codes = catalogue(root)
    folder = root / "deploy/errors"
    pages = {path.stem: path.read_text("utf-8") for path in folder.glob("GW*.md")}
    for code in sorted(set(codes) ^ set(pages)):
        yield f"{code}: " + ("without a page" if code in codes else "a page without a code")
    for code in sorted(set(codes) & set(pages)):
        yield from (f"{code}.md: {problem}" for problem in page_problems(code, codes[code][1], pages[code]))
    rows = re.findall(r"^\| \[(GW\d{3})\]\((GW\d{3})\.md\) \| (.*) \|$", (folder / "README.md").read_text("utf-8"),
                      re.MULTILINE)  # fmt: skip
    if rows != [(code, code, title) for code, (_, title) in sorted(codes.items())]:
        yield "README.md: its tables are not the catalogue, in its order"
    used = uses(root)
    for code, (name, _) in sorted(codes.items()):
        if name not in used and code not in used:
            yield f"{code} ({name}): nothing in the sources has this code"
    for unknown in sorted(one for one in used if one.startswith("GW") and one not in codes):
        yield f"{unknown}: a Python source has it, and base/error_code.h does not"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    found = list(problems(parser.parse_args().root.resolve()))
    print("\n".join(found) or "error pages: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
