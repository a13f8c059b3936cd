"""The packages of this project, and what each of their modules imports, also inside of functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.real.trees import ROOT

PACKAGES = {
    "timerd_shm": ROOT / "shm_layout/timerd_shm",
    "timerd_wire": ROOT / "client/timerd_wire",
    "timerd_client": ROOT / "client/timerd_client",
    "timerctl": ROOT / "client/timerctl",
    "timerd_spark": ROOT / "client/timerd_spark",
    "pyspark_timerd": ROOT / "client/pyspark_timerd",
    "timerd_kafka": ROOT / "client/timerd_kafka",
    "timerd": ROOT / "timerd",
}
PYTHON = (".py", ".pyi")
CYTHON = (".pyx", ".pxd")
FROM_IN_CYTHON = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+c?import[ \t]+([\w* \t,]+)", re.MULTILINE)


def imports(path: Path, package: str) -> Iterator[tuple[str, int]]:
    """(absolute dotted name, line) of all that a module imports, below TYPE_CHECKING and inside functions as well."""
    inside = [package, *path.relative_to(PACKAGES[package]).parent.parts]
    text = path.read_text()
    if path.suffix in CYTHON:
        for found in FROM_IN_CYTHON.finditer(text):
            dots, base, names = found.groups()
            line = text.count("\n", 0, found.start()) + 1
            for name in names.split(","):
                yield from named(inside, len(dots), base, name.split()[0] if name.split() else "", line)
        return
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from named(inside, node.level, node.module or "", alias.name, node.lineno)


def named(inside: list[str], level: int, base: str, name: str, line: int) -> Iterator[tuple[str, int]]:
    """The module that an import names: `from . import clock` and `from .clock import Clock` both import `clock`."""
    above = inside[: len(inside) + 1 - level] if level else []
    module = ".".join([*above, *([base] if base else [])])
    yield (f"{module}.{name}" if holds_modules(module) else module), line


def holds_modules(name: str) -> bool:
    """Whether that name is a folder of this project."""
    package, _, rest = name.partition(".")
    return package in PACKAGES and (PACKAGES[package] / rest.replace(".", "/")).is_dir()


def modules_of(package: str) -> dict[str, list[Path]]:
    """The modules of a package by their dotted names, with their files: a stub and a .pyx are one module."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGES[package].rglob("*")):
        if path.suffix in PYTHON + CYTHON and "__pycache__" not in path.parts:
            parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
            name = ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))
            found.setdefault(name, []).append(path)
    return found


def graph_of(*packages: str) -> dict[str, set[str]]:
    """Which modules of these packages each of their modules imports."""
    modules = {name: paths for package in packages for name, paths in modules_of(package).items()}
    graph: dict[str, set[str]] = {}
    for name, paths in modules.items():
        imported = {called for path in paths for called, _ in imports(path, name.partition(".")[0])}
        # `from .hot import commands` is the module hot.commands, `from .hot import settle_all` the folder's __init__.
        found = {called if called in modules else called.rpartition(".")[0] for called in imported}
        graph[name] = {called for called in found if called in modules and called != name}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, over any number of steps."""
    reached = {name: reach(graph, name) for name in graph}
    found = {frozenset({name, *(other for other in reached[name] if name in reached[other])}) for name in graph}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """All modules that `start` imports, directly or through others. `start` is among them only if it is in a circle."""
    found: set[str] = set()
    left = [start]
    while left:
        for name in graph.get(left.pop(), set()) - found:
            found.add(name)
            left.append(name)
    return found
