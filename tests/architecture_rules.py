"""The rules of the shape, as functions from text to complaints.

Each rule takes text or names, never the tree itself, so that test_architecture.py can show
it a small bad example and see it complain before it is trusted with the real files.
A complaint is one line; an empty list means that all is well.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

# Who may import whom: core <- overlays, traces <- live | sim <- lab, spark, explorer <- cli.
# The empty name is the package itself, whose __init__ only gathers the public names.
BASE = {"core", "overlays", "traces"}
DRIVEN = BASE | {"live", "sim", ""}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "overlays": {"core"},
    "traces": {"core"},
    "live": BASE,
    "sim": BASE,
    "lab": DRIVEN,
    "spark": DRIVEN,
    "explorer": DRIVEN,
    "cli": DRIVEN | {"lab", "spark", "explorer"},
    "__main__": {"cli"},
    "": {"core", "live"},
    # Spark finds a data source by the name of a package at the top; this one only passes it on.
    "pyspark_anabranch": {"spark"},
}

# What a pure machine must not touch: the world, its clock, and its randomness.
IMPURE = {
    *("asyncio", "concurrent", "importlib", "multiprocessing", "os", "secrets", "select"),
    *("selectors", "signal", "socket", "ssl", "subprocess", "threading", "time", "uuid"),
    "Crypto.Random",
}
# What imports by name: importlib.import_module("a.b"), __import__("a.b").
IMPORTER = re.compile(r"\b(import_module|__import__)$")
CLOCK_READERS = {"now", "today", "utcnow"}

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 800
# Files beyond the limit, each with one sentence that says why it is one subject.
LARGE_FILES: dict[str, str] = {}
MAX_EXAMPLE_LINES = 29

VAGUE_MODULES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
VAGUE_CLASS = re.compile(r".*(Impl|Manager|Helper|Utils?)$|I[A-Z][a-z].*Interface")

TOP_LEVEL = {
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    *("pyproject.toml", "requirements.lock", "requirements-java.lock", "Makefile"),
    *(".ci", ".gitignore"),
    *("src", "tests", "benchmarks", "examples", "docs"),
}
FREE_TEST_FOLDERS = {"benchmarks", "contract", "fuzz", "mutants", "scenarios", "support"}

# Put together from pieces, so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("deb", "debian", "org"),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(root|work|home)/")


def module_name(path: PurePosixPath) -> str:
    """src/anabranch/core/ids.py -> anabranch.core.ids; a package is named by its folder."""
    parts = path.relative_to("src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    """anabranch.core.ids -> core; anabranch -> the empty name; another package -> its name."""
    package, *inner = module.split(".")
    if package != "anabranch":
        return package
    return inner[0] if inner else ""


def imported_names(path: PurePosixPath, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every dotted name that the file imports, with its line; a.b.c for `from a.b import c`."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"
        elif isinstance(node, ast.Call) and IMPORTER.search(ast.unparse(node.func)):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def import_direction(path: PurePosixPath, source: str) -> list[str]:
    own = layer_of(module_name(path))
    if own not in MAY_IMPORT:
        return [f"{path}: {own} is not a folder of the design"]
    complaints = []
    for line, name in imported_names(path, ast.parse(source)):
        if name.split(".")[0] != "anabranch":
            continue
        target = layer_of(name)
        if target not in MAY_IMPORT:
            target = ""  # `from anabranch import Client`: a public name of the package
        if target not in MAY_IMPORT[own] | {own}:
            complaints.append(f"{path}:{line}: {own or '__init__'} must not import {name}")
    return complaints


def purity(path: PurePosixPath, source: str) -> list[str]:
    """No clock, no world, no global randomness: what core and overlays promise."""
    tree = ast.parse(source)
    found: list[tuple[int, str]] = []
    for line, name in imported_names(path, tree):
        parts = name.split(".")
        if parts[0] in IMPURE or ".".join(parts[:2]) in IMPURE:
            found.append((line, f"imports {name}"))
        if parts[0] == "random" and parts[1:] not in ([], ["Random"]):
            found.append((line, f"imports {name}; randomness is injected"))
    random_aliases = aliases_of("random", tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner in random_aliases and node.attr != "Random":
                found.append((node.lineno, f"uses random.{node.attr}; randomness is injected"))
            if node.attr in CLOCK_READERS and re.search(r"\b(datetime|date)$", owner):
                found.append((node.lineno, f"reads the clock with {owner}.{node.attr}"))
        elif isinstance(node, ast.Call) and not node.args and not node.keywords:
            called = ast.unparse(node.func)
            if called == "Random" or called in {f"{alias}.Random" for alias in random_aliases}:
                found.append((node.lineno, "seeds a Random from the operating system"))
    return [f"{path}:{line}: pure code {what}" for line, what in found]


def aliases_of(module: str, tree: ast.AST) -> set[str]:
    """The names under which the file knows the module, by `import module as name`."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == module
    }


def function_lengths(path: PurePosixPath, source: str) -> list[str]:
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                complaints.append(f"{path}:{node.lineno}: {node.name} has {lines} lines")
    return complaints


def file_length(path: PurePosixPath, source: str) -> list[str]:
    lines = len(source.splitlines())
    if path.parts[0] == "examples":
        limit = MAX_EXAMPLE_LINES
        return [f"{path}: {lines} lines, at most {limit}"] if lines > limit else []
    if lines <= MAX_FILE_LINES or LARGE_FILES.get(str(path)):
        return []
    hint = "divide it where its subject divides, or say in LARGE_FILES why it is one subject"
    return [f"{path}: {lines} lines, more than {MAX_FILE_LINES}: {hint}"]


def needless_exceptions(lengths: Mapping[str, int]) -> list[str]:
    """LARGE_FILES names only files that exist and are beyond the limit."""
    return [
        f"{path}: named in LARGE_FILES, and has {lengths.get(path, 0)} lines"
        for path in LARGE_FILES
        if lengths.get(path, 0) <= MAX_FILE_LINES
    ]


def swallowed_errors(path: PurePosixPath, source: str) -> list[str]:
    """No bare except, and nothing that catches everything only to drop it."""
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                complaints.append(f"{path}:{node.lineno}: bare except")
            elif catches_all([node.type]) and all(map(does_nothing, node.body)):
                complaints.append(f"{path}:{node.lineno}: swallows every error")
        elif isinstance(node, ast.Call) and is_suppress(node) and catches_all(node.args):
            complaints.append(f"{path}:{node.lineno}: suppresses every error")
    return complaints


def is_suppress(call: ast.Call) -> bool:
    return ast.unparse(call.func) in {"suppress", "contextlib.suppress"}


def catches_all(types: Iterable[ast.expr]) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id in {"Exception", "BaseException"}
        for kind in types
        for node in ast.walk(kind)
    )


def does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass | ast.Continue)


def unfinished_work(path: PurePosixPath, source: str) -> list[str]:
    return [
        f"{path}:{number}: unfinished work is marked"
        for number, line in enumerate(source.splitlines(), 1)
        if UNFINISHED.search(line)
    ]


def vague_names(path: PurePosixPath, source: str) -> list[str]:
    complaints = [
        f"{path}: {part} says nothing about what is inside"
        for part in path.with_suffix("").parts
        if part in VAGUE_MODULES
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and VAGUE_CLASS.match(node.name):
            complaints.append(f"{path}:{node.lineno}: {node.name} says nothing about its purpose")
    return complaints


def foreign_places(path: PurePosixPath, source: str) -> list[str]:
    """No package registry and no path of one machine in what others will read or run."""
    complaints = []
    for number, line in enumerate(source.splitlines(), 1):
        for host in REGISTRY_HOSTS:
            if host in line:
                complaints.append(f"{path}:{number}: names the registry {host}")
        if MACHINE_PATH.search(line):
            complaints.append(f"{path}:{number}: names a path of one machine")
    return complaints


def unused_modules(sources: Mapping[PurePosixPath, str]) -> list[str]:
    """A module is used if another file of src imports it or names it in a string literal.

    The string is how a registry dictionary names what importlib loads later.
    """
    users: dict[str, set[PurePosixPath]] = {}
    for path, source in sources.items():
        tree = ast.parse(source)
        for _, name in imported_names(path, tree):
            # `from a.b import c` uses a.b, and a.b.c where that is a module.
            users.setdefault(name, set()).add(path)
            users.setdefault(name.rpartition(".")[0], set()).add(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                users.setdefault(node.value.partition(":")[0], set()).add(path)
    return [
        f"{path}: nobody imports it"
        for path in sources
        if path.stem not in {"__init__", "__main__"}
        and module_name(path) != "anabranch.cli"
        and not users.get(module_name(path), set()) - {path}
    ]


def stray_files(paths: Iterable[PurePosixPath]) -> list[str]:
    strays = sorted({path.parts[0] for path in paths} - TOP_LEVEL)
    return [f"{name}: does not belong at the top" for name in strays]


def unmirrored_tests(paths: Iterable[PurePosixPath]) -> list[str]:
    """tests/core/test_peer.py tests core/peer.py or core/peer/; so does test_peer_links.py."""
    paths = list(paths)
    modules = {p.relative_to("src/anabranch") for p in paths if p.is_relative_to("src/anabranch")}
    known = {m.with_suffix("") for m in modules} | {folder for m in modules for folder in m.parents}
    complaints = []
    for path in paths:
        if path.parts[0] != "tests" or len(path.parts) < 3 or path.suffix != ".py":
            continue
        inner = path.relative_to("tests")
        if not inner.name.startswith("test_") or inner.parts[0] in FREE_TEST_FOLDERS:
            continue
        words = inner.stem.removeprefix("test_").split("_")
        subjects = ("_".join(words[: n + 1]) for n in range(len(words)))
        if not any(inner.parent / subject in known for subject in subjects):
            complaints.append(f"{path}: no module of src/anabranch has this name")
    return complaints


def unpinned_requirements(lock: str) -> list[str]:
    """Each requirement of the lock has one version and at least one hash, and no address."""
    complaints = []
    for entry in lock.replace("\\\n", " ").splitlines():
        if not entry or entry.startswith("#"):
            continue
        if (
            not re.match(r"[\w.-]+(\[[\w.,-]+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}", entry)
            or "://" in entry
        ):
            complaints.append(f"requirements.lock: {entry[:60]}")
    return complaints


def lost_extras(lock: str, requirements: Iterable[str]) -> list[str]:
    """Whose extras somebody needs is locked with them: pip would look for its newest release."""
    complaints = []
    for wanted in requirements:
        name = re.match(r"[\w.-]+\[[\w.,-]+\]", wanted)
        if name and "extra ==" not in wanted and f"\n{name[0]}==" not in lock:
            complaints.append(f"requirements.lock: {name[0]} has lost its extras")
    return complaints
