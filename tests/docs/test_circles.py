"""Modules import each other in no circle, are not too long, and lie in folders that are not too full.

A circle counts wherever its imports stand: below TYPE_CHECKING and inside of functions as well, because a reader has to
go round it all the same. The cure is a leaf module: what both need, or a Protocol of what one asks of the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

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
LINES_MAX = 600
MODULES_MAX = 16  # of a folder, `__init__` included
FOLDERS = ("shm_layout", "client", "timerd")
SOURCES = (".py", ".pyx", ".pxd", ".h")
GENERATED = "generated"  # folders of this name hold what generate.py writes, as long as that is

# What does not hold yet. An entry that has become needless fails too: take it off the list.
KNOWN_CIRCLES = {  # packages
    "timerd_wire",  # the stubs of what is compiled import channel and poller, which import it
    "timerd_client",  # Protocol, the hot path and link; client and member of either face
    "timerd_spark",  # page and pipeline
}
KNOWN_LONG = {  # modules, by their path
    "client/timerd_client/hot/compiled.pyx",
    "shm_layout/timerd_shm/declare/layout.py",
    "timerd/core.pyx",  # to become a face of some 250 lines
}
KNOWN_FULL = set[str]()  # folders, by their path


def module_of(path: Path, package: str, folder: Path) -> str:
    """A file's dotted name; a package is its __init__."""
    parts = [package, *path.relative_to(folder).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules among these that a file imports, wherever in it. Packages on the way to one do not count."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                if name in modules:
                    yield name
                elif base in modules:
                    yield base


def graph_of(packages: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which module imports which, of all packages. What is compiled stands in it by its stub."""
    modules = {
        module_of(path, package, folder): path
        for package, folder in packages.items()
        for path in [*folder.rglob("*.pyi"), *folder.rglob("*.py")]
    }
    return {name: set(imports_of(path, name, modules)) - {name} for name, path in modules.items()}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of modules that reach each other: the strongly connected components with more than one module."""
    reached = {name: reach(graph, name) for name in graph}
    found = {frozenset({name, *(other for other in reached[name] if name in reached[other])}) for name in graph}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """All that a module imports, also through others; itself only by a circle."""
    found: set[str] = set()
    left = [start]
    while left:
        for name in graph[left.pop()] - found:
            found.add(name)
            left.append(name)
    return found


@pytest.fixture(scope="module")
def all_circles() -> list[list[str]]:
    return circles(graph_of(PACKAGES))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_circle(package: str, all_circles: list[list[str]]) -> None:
    found = [circle for circle in all_circles if any(name.partition(".")[0] == package for name in circle)]
    if package in KNOWN_CIRCLES:
        assert found, f"{package} has no circle any more: take it off KNOWN_CIRCLES"
    else:
        assert not found, "\n".join(f"{len(circle)} modules: {', '.join(circle)}" for circle in found)


def test_modules_of_all_packages_are_in_the_graph() -> None:
    graph = graph_of(PACKAGES)
    assert {"timerd.core", "timerd.arena.plan", "timerctl", "timerd_shm.declare.layout"} <= set(graph)
    assert "timerd.arena.pages" in graph["timerd.arena.open"], "`from . import pages` imports a module"
    assert "timerd.serve" in graph["timerd.__main__"], "an import inside of a function counts"
    assert "timerd.config.config" in graph["timerd.arena.plan"], "an import from another room counts"


@pytest.mark.parametrize(
    "text",
    [
        "from .b import B",
        "from . import b",
        "import p.b",
        "from p import b",
        "from p.b import B",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B",
        "def f():\n    from .b import B",
    ],
)
def test_a_circle_is_seen_wherever_its_import_stands(text: str, tmp_path: Path) -> None:
    for name, source in (("__init__", "from .a import A"), ("a", text), ("b", "from .c import C"), ("c", "import p.a")):
        (tmp_path / f"{name}.py").write_text(source)
    assert circles(graph_of({"p": tmp_path})) == [["p.a", "p.b", "p.c"]]
    (tmp_path / "c.py").write_text("")
    assert circles(graph_of({"p": tmp_path})) == []


def sources_below(*tops: str) -> Iterator[Path]:
    """Every source below these folders that is written by hand."""
    for top in tops:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SOURCES and GENERATED not in path.parts and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT)


def test_no_module_is_too_long() -> None:
    lines = {str(path): len((ROOT / path).read_text().splitlines()) for path in sources_below(*FOLDERS)}
    long = {path: count for path, count in lines.items() if count > LINES_MAX}
    assert set(long) == KNOWN_LONG, f"over {LINES_MAX} lines: {long}; listed: {sorted(KNOWN_LONG)}"


def test_no_folder_is_too_full() -> None:
    folders: dict[str, set[str]] = {}
    for path in sources_below(*FOLDERS, "tests"):
        folders.setdefault(str(path.parent), set()).add(path.stem)  # a .pxd belongs to its .pyx
    full = {folder: len(modules) for folder, modules in folders.items() if len(modules) > MODULES_MAX}
    assert set(full) == KNOWN_FULL, f"over {MODULES_MAX} modules: {full}; listed: {sorted(KNOWN_FULL)}"
