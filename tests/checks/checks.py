#!/usr/bin/env python3
"""Checks of the source tree that no compiler makes.

checks.py [--root DIR] [NAME]...   prints "path:line: finding" lines; exits 1 if there are any
checks.py --self-test              shows, for each rule, that it finds a bad tree and passes a good one
"""

import argparse
import pathlib
import re
import sys
import tempfile

import bad_trees

PRODUCT = ("base", "hooks", "proto", "client", "server")
UNIT_TESTS = ("tests/base", "tests/hooks", "tests/proto", "tests/client", "tests/server", "tests/sim")
SOURCES = (".h", ".cc", ".cu", ".cuh")
MAX_LINES = 600
MAX_CORE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_INCLUDES = 10  # of the tree, in one file
MAX_DEPTH = 8  # of includes of the tree

RPC = r"grpc|google/protobuf/|.*\.pb\.h$"
CUDA = r"cuda|nccl"
OUTSIDE_WORLD = (
    r"grpc|absl/synchronization/|absl/time/clock\.h$"
    r"|(chrono|thread|mutex|condition_variable|future|filesystem|fstream|unistd\.h|sys/.*)$"
)
CLIENT = r"client/|gradwire/client"

# Scope (a pattern on the path), what it may not include, itself or through files of the tree, and why.
LAYERS = (
    (r"base/", rf"{RPC}|hooks/|gradwire/|proto/|server/|{CLIENT}", "the base knows no other part"),
    (r"hooks/", rf"{RPC}|proto/|server/|{CLIENT}", "hooks know no RPC, protobuf, client or server"),
    # The stream of a GPU is what waits for it.
    (r"hooks/(?!cuda/stream\.)", r"(thread|filesystem|fstream|sys/.*)$", "hooks do no I/O and start no thread"),
    (r"(server|client)/core/", OUTSIDE_WORLD, "cores know no gRPC, clock, lock, thread or file"),
    (r"server/record/(?!recorder\.|record_directory\.|session_folders\.)",
     r"(thread|filesystem|fstream|unistd\.h|sys/.*)$|spdlog",
     "what is recorded and replayed is a function of its bytes"),
    (r"client/", r"server/", "the client knows no server"),
    (r"proto/", rf"server/|{CLIENT}", "proto knows neither client nor server"),
    (r"\w+/include/", rf"{RPC}|{CUDA}", "public headers show no gRPC, protobuf or CUDA"),
    (r"(base|hooks|proto|client|server)/", r"tests/|gtest/|gmock/", "product code knows no tests"),
)


class Tree:
    """The files under a root, without build outputs and hidden folders."""

    def __init__(self, root):
        self.root = root
        self.files = {}
        for top in (*PRODUCT, "tests"):
            for path in sorted((root / top).rglob("*")):
                if path.is_file() and path.suffix in (*SOURCES, ".py", ".txt"):
                    self.files[path.relative_to(root).as_posix()] = path.read_text("utf-8")

    def sources(self, *tops, suffixes=SOURCES):
        for path, text in self.files.items():
            if path.endswith(suffixes) and path.startswith(tuple(top + "/" for top in tops)):
                yield path, text

    def resolve(self, included):
        """The in-tree file an include names: from the root or from an include folder."""
        for path in (included, *(f"{top}/include/{included}" for top in PRODUCT)):
            if path in self.files:
                return path
        return None

    def includes(self, path):
        for number, line in enumerate(self.files[path].splitlines(), 1):
            if match := re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line):
                yield number, match[1]


def without_comments(text):
    """Comments become blanks, so that line numbers stay; strings stay."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    blank = lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0])
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def matches(text, pattern):
    for match in re.finditer(pattern, text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def reach(tree, path):
    """Each include of `path` and of what it includes in the tree: (line in `path`, included, via)."""
    seen = {path}
    work = [(number, name, "") for number, name in tree.includes(path)]
    while work:
        number, name, via = work.pop()
        yield number, name, via
        inner = tree.resolve(name)
        if inner and inner not in seen:
            seen.add(inner)
            work += [(number, deeper, f" (through {inner})") for _, deeper in tree.includes(inner)]


def layering(tree):
    for path, _ in tree.sources(*PRODUCT):
        for scope, forbidden, reason in LAYERS:
            if not re.match(scope, path):
                continue
            for number, name, via in reach(tree, path):
                if re.match(forbidden, name):
                    yield path, number, f"includes {name}{via}: {reason}"


def environment(tree):
    for path, text in tree.sources(*PRODUCT):
        if path not in ("server/daemon/configuration.cc", "client/options.cc"):
            for number, _ in matches(without_comments(text), r"\b(secure_)?getenv\s*\("):
                yield path, number, "the environment is read in server/daemon/configuration.cc and client/options.cc only"


def locks(tree):
    bare = r"\b(std|absl)::(\w*mutex|Mutex|lock_guard|unique_lock|scoped_lock|condition_variable)\b"
    for path, text in tree.sources(*PRODUCT):
        if path != "base/sync.h":
            for number, name in matches(without_comments(text), bare):
                yield path, number, f"{name}: locks go through the annotated ones of base/sync.h"


def named_in_cmake(text):
    """The text without comments, with the bodies of its plain `foreach(name a b)` loops written out."""
    def unrolled(loop):
        items = re.sub(r"^\s*IN\s+ITEMS\b", "", loop[2]).split()
        return "\n".join(loop[3].replace(f"${{{loop[1]}}}", item) for item in items)

    text = re.sub(r"#.*", "", text)
    return re.sub(r"foreach\(\s*(\w+)\s([^)]*)\)(.*?)endforeach", unrolled, text, flags=re.DOTALL)


def registered(tree):
    for path, _ in tree.sources("tests", suffixes=("_test.cc", "_fuzz.cc", "_test.py")):
        name = path.rsplit("/", 1)[1]
        for folder in pathlib.PurePosixPath(path).parents:
            named = named_in_cmake(tree.files.get(f"{folder}/CMakeLists.txt", ""))
            if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", named):
                break
        else:
            yield path, 1, "no CMakeLists.txt above names this test"


def functions(text):
    """(line, lines) of what begins at the left margin and has a body that ends there: clang-format's shape."""
    begin = r"^(?!namespace|class|struct|enum|union|extern|using)[A-Za-z_~][^\n;]*(?:\n[^\n;{}]+)*\{\n"
    for match in re.finditer(begin + r"(?:(?!\}).*\n)*?\}", text, re.MULTILINE):
        yield text.count("\n", 0, match.start()) + 1, match[0].count("\n") + 1


def size(tree):
    for path, text in tree.sources(*PRODUCT):
        most = MAX_CORE_LINES if re.match(r"(server|client)/core/", path) else MAX_LINES
        if (lines := text.count("\n")) > most:
            yield path, lines, f"{lines} lines; at most {most}"
        for line, lines in functions(text):
            if lines > MAX_FUNCTION_LINES:
                yield path, line, f"a function of {lines} lines; at most {MAX_FUNCTION_LINES}"


def includes(tree):
    """How far a reader has to go: files of the tree that a file includes, and the longest chain of them."""
    own = {path: {inner for _, name in tree.includes(path) if (inner := tree.resolve(name))}
           for path, _ in tree.sources(*PRODUCT)}
    depths = {}

    def depth(path):
        if path not in depths:
            depths[path] = 0  # a cycle is the compiler's to refuse
            depths[path] = max((1 + depth(inner) for inner in own.get(path, ())), default=0)
        return depths[path]

    for path, inner in own.items():
        if len(inner) > MAX_INCLUDES:
            yield path, 1, f"includes {len(inner)} files of the tree; at most {MAX_INCLUDES}"
        if depth(path) > MAX_DEPTH:
            chain = [path]
            while own.get(chain[-1]):
                chain.append(max(sorted(own[chain[-1]]), key=depth))
            yield path, 1, f"includes {depth(path)} deep, at most {MAX_DEPTH}: {' > '.join(chain)}"


def habits(tree):
    for path, text in tree.sources(*PRODUCT, "tests"):
        code = without_comments(text)
        if path.endswith(".h"):
            for number, _ in matches(code, r"\busing\s+namespace\b"):
                yield path, number, "`using namespace` in a header"
            if not re.search(r"^#pragma once$|^#ifndef \w+_H_?$", text, re.MULTILINE) and "-inl" not in path:
                yield path, 1, "header without an include guard"
        for number, name in tree.includes(path):
            if ".." in name.split("/"):
                yield path, number, f"includes {name}: paths start at the repository's root"
        for number, line in matches(text, r"\b(TODO|FIXME|XXX)\b.*"):
            if not re.match(r"TODO(\([\w#. -]+\))?: \S+ \S+ \S+", line):
                yield path, number, "a TODO states what and why: `TODO: three words or more`"
    for path, text in tree.sources(*UNIT_TESTS):
        sleep = r"\b(sleep_for|sleep_until|SleepFor|usleep|nanosleep)\b|(?<!\w)sleep\s*\("
        for number, _ in matches(without_comments(text), sleep):
            yield path, number, "a unit test does not sleep; hand the time in"


# Where mistakes of users are found: each of their errors has a code that says what to do.
CODED = (
    r"server/daemon/(?!server\.)|server/access/|server/ctl/(?!doctor/bench\.)|client/options\.cc$|proto/tls/(?!pem\.)"
    r"|hooks/(hook_spec|registry|dtype|draw_buckets)\.cc$|hooks/power_sgd/options\.cc$"
)


def codes(tree):
    """An error is made as an argument of Coded, in the same statement."""
    for path, text in tree.sources(*PRODUCT):
        if not re.match(CODED, path):
            continue
        code = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', without_comments(text))
        for match in re.finditer(r"\babsl::\w+Error\(", code):
            open_calls = []
            statement = re.search(r"[^;{}]*\Z", code[: match.start()])[0]
            for token in re.finditer(r"(\w*)\(|\)", statement):
                if token[0] != ")":
                    open_calls.append(token[1])
                elif open_calls:
                    open_calls.pop()
            if "Coded" not in open_calls:
                yield path, code.count("\n", 0, match.start()) + 1, f"{match[0]}…) is not an argument of Coded(…)"


CHECKS = {
    check.__name__: check for check in (layering, environment, locks, registered, size, includes, habits, codes)
}


def findings(root, names):
    tree = Tree(root)
    return [f"{path}:{line}: {text}" for name in names for path, line, text in CHECKS[name](tree)]


def prove_each_check_fails():
    def run(files):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                file = pathlib.Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return {name: findings(pathlib.Path(folder), [name]) for name in CHECKS}

    wrong = [f"the good tree: {line}" for lines in run(bad_trees.GOOD).values() for line in lines]
    for name, path, text in bad_trees.BAD:
        found = run({**bad_trees.GOOD, path: text})[name]
        if not any(line.startswith(f"{path}:") for line in found):
            wrong.append(f"{name} passes {path} with {text[:60]!r}")
    if untried := set(CHECKS) - {name for name, _, _ in bad_trees.BAD}:
        wrong.append(f"no bad tree for {untried}")
    print("\n".join(wrong) or f"checks: {len(bad_trees.BAD)} bad trees found, the good one passes")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}; all if none")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.names) - set(CHECKS):
        parser.error(f"no check {', '.join(sorted(unknown))}")
    if args.self_test:
        return prove_each_check_fails()
    found = findings(args.root.resolve(), args.names or CHECKS)
    print("\n".join(found) or f"checks: {', '.join(args.names or CHECKS)}: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
