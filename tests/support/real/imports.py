"""What imports what: the packages of this project, and every import of a module, wherever in it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from trees import ROOT

PACKAGES = {
    "timerd_shm": ROOT / "shm_layout/timerd_shm",
    "timerd_wire": ROOT / "client/timerd_wire",
    "timerd_client": ROOT / "client/timerd_client",
    "timerctl": ROOT / "client/timerctl",
    "timerd_spark": ROOT / "client/timerd_spark",
    "pyspark_timerd": ROOT / "client/pyspark_timerd",
    "timerd": ROOT / "timerd",
}


def imports(path: Path, package: str) -> Iterator[tuple[str, int]]:
    """(absolute dotted name, line) of everything that a module imports, wherever in it."""
    inside = [package, *path.relative_to(PACKAGES[package]).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*inside[: len(inside) + 1 - node.level]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import clock` imports a module; `from .clock import Clock` does not.
            if node.module is None or module == package or holds_modules(module):
                yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno


def holds_modules(name: str) -> bool:
    """Whether that name is of a folder of ours."""
    package, _, rest = name.partition(".")
    return package in PACKAGES and (PACKAGES[package] / rest.replace(".", "/")).is_dir()


def modules_of(package: str) -> dict[str, Path]:
    """The modules of a package by their dotted names; a folder's own is its __init__."""
    found = {}
    for path in sorted(PACKAGES[package].rglob("*.py")):
        parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
        found[".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def graph_of(package: str) -> dict[str, set[str]]:
    """Which modules of the package each of its modules imports, `TYPE_CHECKING` included."""
    modules = modules_of(package)
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported = (called for called, _ in imports(path, package))
        # `from .hot import commands` is the module hot.commands, `from .hot import settle_all` the folder's __init__.
        found = {called if called in modules else called.rpartition(".")[0] for called in imported}
        graph[name] = {called for called in found if called in modules and called != name}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules of which each imports each other, over however many steps (Tarjan)."""
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for other in sorted(graph.get(name, ())):
            if other not in numbers:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], numbers[other])
        if lowest[name] == numbers[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in numbers:
            visit(name)
    return found
