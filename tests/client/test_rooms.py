"""The rooms of the client: imports go down only, and in no circle, those for types alone and inside functions too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import timerd_client

ROOT = Path(timerd_client.__file__).parent
# Each floor imports only from those above it in this list; rooms of one floor do not know each other.
FLOORS = (
    {"types", "errors", "conditions", "mark", "arguments", "workload"},
    {"waiter", "outcome"},
    {"hot"},
    {"protocol"},
    {"link"},
    {"groups", "delivery", "operations", "audit"},
    {"threaded", "aio"},
    {"__init__", "web"},
)
SAME_FLOOR = FLOORS[:2]  # single modules, which are no rooms
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FROM_IN_CYTHON = re.compile(r"^\s*from (timerd_client(?:\.\w+)*) c?import", re.M)


def modules() -> dict[str, Path]:
    """Dotted name -> file, of every module in Python or Cython."""
    paths = [
        path for path in ROOT.rglob("*") if path.suffix in (".py", ".pyx", ".pxd") and "__pycache__" not in str(path)
    ]
    return {".".join(("timerd_client", *path.relative_to(ROOT).with_suffix("").parts)): path for path in paths}


MODULES = modules()


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports(module: str) -> Iterator[str]:
    """The modules of the client that it imports, wherever in it."""
    path = MODULES[module]
    if path.suffix != ".py":
        yield from (known(name) for name in FROM_IN_CYTHON.findall(path.read_text()))
        return
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            name = ".".join([*above, *([node.module] if node.module else [])])
            if name.partition(".")[0] == "timerd_client":
                yield from (known(f"{name}.{alias.name}", name) for alias in node.names)


def known(*names: str) -> str:
    """The first of these that is a module, or the package's `__init__`."""
    for name in names:
        for one in (name, f"{name}.__init__"):
            if one in MODULES:
                return one
    raise AssertionError(f"{names} is no module")


GRAPH = {module: {one for one in imports(module) if one != module} for module in MODULES}


def wrong_steps(graph: dict[str, set[str]]) -> list[str]:
    """Imports that do not go down."""
    wrong = []
    for module, imported in graph.items():
        for other in imported:
            here, there = room_of(module), room_of(other)
            beside = FLOOR_OF[here] == FLOOR_OF[there] and here != there and FLOORS[FLOOR_OF[here]] not in SAME_FLOOR
            if FLOOR_OF[there] > FLOOR_OF[here] or beside:
                wrong.append(f"{module} imports {other}")
    return wrong


def test_every_room_has_a_floor() -> None:
    assert {room_of(module) for module in MODULES} <= set(FLOOR_OF)


def test_imports_go_down_only() -> None:
    assert not wrong_steps(GRAPH)


def test_no_module_is_in_an_import_circle() -> None:
    TopologicalSorter(GRAPH).prepare()


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("timerd_client.protocol.inbox", "timerd_client.link.link"),
        ("timerd_client.hot.python", "timerd_client.protocol.protocol"),
        ("timerd_client.aio.client", "timerd_client.threaded.process"),
        ("timerd_client.operations.delayed", "timerd_client.threaded.purgatory"),
    ],
)
def test_what_was_there_once_would_be_found(module: str, imported: str) -> None:
    assert module in GRAPH and imported in GRAPH
    assert wrong_steps({**GRAPH, module: {*GRAPH[module], imported}})


def test_a_circle_would_be_found() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({**GRAPH, "timerd_client.protocol.session": {"timerd_client.protocol.protocol"}}).prepare()
