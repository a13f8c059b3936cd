"""The rooms inside each package, and their order: imports go one way, and never in a circle."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerd_client
from support.real.imports import PACKAGES, circles, graph_of
from support.real.trees import ROOT, SETTINGS, TESTS, python_path
from timerd_client import aio

# Each room may import from the lines above its own. Rooms of one line do not know each other.
ORDERS: dict[str, tuple[set[str], ...]] = {
    "timerd_shm": (
        {"declare", "generated"},
        {"host", "generate"},
        {"read"},
        {"check"},
        {"__init__"},
    ),
    "timerd_client": (
        {"conditions", "errors", "main_thread", "mark", "one_process", "rules", "types", "workload"},
        {"arguments", "declared", "scope", "waiter"},
        {"outcome"},
        {"hot"},
        {"protocol"},
        {"transport"},
        {"discovery"},
        {"waits"},
        {"link"},
        {"audit", "delayed", "delivery", "events", "groups"},
        {"aio", "threaded"},
        {"__init__", "metrics", "tracing", "web"},
        {"operations"},
    ),
    "timerd_wire": (
        {"native"},
        {"_packets", "channel", "outlet", "poller", "proof", "refusals", "spacing", "transports"},
        {"packets"},
        {"__init__"},
    ),
    "timerctl": (
        {"exits", "show"},
        {"instance"},
        {"listing"},
        {"known"},
        {"journal", "load", "look", "setup"},
        {"act", "live"},  # a command that finds nothing to act on says what may have been meant
        {"web"},
        {"__init__"},
        {"__main__"},
    ),
    "timerd_spark": (
        {"durations", "options", "session"},
        {"purgatory", "source", "tasks"},
        {"reports", "sink"},
        {"format", "pipeline"},
        {"__init__", "__main__"},
    ),
    "timerd_kafka": (
        {"numbers"},
        {"cluster", "log", "quotas", "waits", "wire"},
        {"faults", "groups", "replicas"},
        {"broker"},
        {"apis"},
        {"worker"},
        {"supervisor"},
        {"__init__", "__main__"},
        {"testing"},
    ),
    "timerd": (
        {"clock", "compile_python", "config", "host", "purgatory", "sd_notify"},
        {"core"},
        {"arena"},
        {"clients", "journal", "packets", "zmtp"},
        {"names", "snapshots"},
        {"conductor"},
        {"serve"},
        {"__main__"},
        {"__init__"},
        {"testing"},
    ),
}
# The load test is a room of rooms.
INSIDE_LOAD = (
    {"harness"},
    {"judge", "own_daemon", "ring", "stolen"},
    {"room"},
    {"trial"},
    {"report"},
    {"command"},
    {"__init__"},
)
MODULES_MAX = 16
LINES_MAX = 600
LINKS = ("aio", "link", "threaded")  # the rooms of timerd_client whose classes are counted by their methods
METHODS_MAX = 15


def room_of(module: str, inside: str) -> str:
    """The room of a module: what follows the name of its package."""
    return module.removeprefix(inside).lstrip(".").partition(".")[0] or "__init__"


def upward(graph: dict[str, set[str]], inside: str, order: tuple[set[str], ...]) -> set[str]:
    """The imports, as "one > other", that do not go to a room of an earlier line."""
    level = {room: number for number, rooms in enumerate(order) for room in rooms}
    wrong = set()
    for module, imported in graph.items():
        if not (module == inside or module.startswith(f"{inside}.")):
            continue
        room = room_of(module, inside)
        assert room in level, f"{module} is in no room: give {room} a place in the order of {inside}"
        for other in imported:
            if not (other == inside or other.startswith(f"{inside}.")):
                continue
            below = room_of(other, inside)
            assert below in level, f"{other} is in no room: give {below} a place in the order of {inside}"
            if below != room and level[below] >= level[room]:
                wrong.add(f"{module} > {other}")
    return wrong


@pytest.mark.parametrize("package", ORDERS)
def test_a_room_imports_only_from_the_rooms_before_it(package: str) -> None:
    wrong = upward(graph_of(package), package, ORDERS[package])
    assert not wrong, "imports that go up:\n" + "\n".join(sorted(wrong))


def test_no_module_imports_the_generator() -> None:
    wrong = [module for module, imported in graph_of("timerd_shm").items() if "timerd_shm.generate" in imported]
    assert not wrong, "\n".join(wrong)


def test_the_load_test_has_rooms_of_its_own() -> None:
    wrong = upward(graph_of("timerctl"), "timerctl.load", INSIDE_LOAD)
    assert not wrong, "imports that go up:\n" + "\n".join(sorted(wrong))


def test_no_import_goes_in_a_circle() -> None:
    """There is none within a package or between packages. Imports below TYPE_CHECKING and in functions count, too."""
    found = circles(graph_of(*PACKAGES))
    assert not found, "\n".join(f"{len(circle)} modules: {', '.join(circle)}" for circle in found)


def test_every_kind_of_import_is_in_the_graph() -> None:
    graph = graph_of(*PACKAGES)
    assert {"timerd.core", "timerd.arena.plan", "timerctl", "timerd_shm.declare.layout"} <= set(graph)
    assert "timerd.arena.pages" in graph["timerd.arena.open"], "`from . import pages` imports a module"
    assert "timerd.serve" in graph["timerd.__main__"], "an import inside of a function counts"
    assert "timerd.config.config" in graph["timerd.arena.plan"], "an import from another room counts"
    assert "timerd_client.conditions" in graph["timerd_client.hot.calls"], "an import in Cython counts"
    assert "timerd_client" in graph["timerd"], "an import below TYPE_CHECKING counts"


def test_an_upward_import_and_a_circle_are_found() -> None:
    graph = {"p": {"p.b.y"}, "p.a.x": {"p.b.y"}, "p.b.y": {"p.a.z"}, "p.a.z": {"p.a.x"}}
    assert upward(graph, "p", ({"a"}, {"b"}, {"__init__"})) == {"p.a.x > p.b.y"}
    assert upward(graph, "p", ({"a", "b"}, {"__init__"})) == {"p.a.x > p.b.y", "p.b.y > p.a.z"}
    assert circles(graph) == [["p.a.x", "p.a.z", "p.b.y"]]
    assert circles({"p.a": {"p.b"}, "p.b": set()}) == []
    with pytest.raises(AssertionError, match=r"p\.b\.y is in no room"):
        upward(graph, "p", ({"a"}, {"__init__"}))


def imported_by(path: Path) -> dict[str, int]:
    """The modules that a file imports, and the names that it takes from them, with their lines."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name: node.lineno for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module: node.lineno}
            found |= {f"{node.module}.{alias.name}": node.lineno for alias in node.names}
    return found


@pytest.fixture(scope="module")
def imported() -> dict[Path, dict[str, int]]:
    """The imports of each file of tests/ and bench/."""
    return {path: imported_by(path) for folder in ("tests", "bench") for path in sorted((ROOT / folder).rglob("*.py"))}


def test_no_test_file_is_imported(imported: dict[Path, dict[str, int]]) -> None:
    tests = {"conftest", *(path.stem for path in TESTS.rglob("test_*.py"))}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path, names in imported.items()
        for name, line in names.items()
        if tests & set(name.split("."))
    ]
    assert not wrong, "put code that several test files need into tests/support:\n" + "\n".join(wrong)


def test_a_file_of_tests_imports_from_its_own_folder_and_from_support(imported: dict[Path, dict[str, int]]) -> None:
    wrong = []
    for path, names in imported.items():
        if path.is_relative_to(TESTS):
            allowed = {"support", path.relative_to(TESTS).parts[0]}
            for name, line in names.items():
                module = TESTS.joinpath(*name.split("."))
                is_there = module.with_suffix(".py").exists() or (module / "__init__.py").exists()
                if is_there and name.partition(".")[0] not in allowed:
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not (TESTS / "spark").exists(), reason="without Spark some helpers have one user left")
def test_several_files_use_each_module_of_support(imported: dict[Path, dict[str, int]]) -> None:
    users = Counter(name for names in imported.values() for name in names)
    modules = [path.relative_to(TESTS) for path in (TESTS / "support").glob("*/*.py") if path.stem != "__init__"]
    alone = [str(path) for path in modules if users[".".join(path.with_suffix("").parts)] < 2]
    assert not alone, f"a helper of one test file stands in this file, or beside it: {alone}"


def test_the_tests_are_on_the_path_and_none_of_their_folders() -> None:
    path = SETTINGS["tool"]["pytest"]["ini_options"]["pythonpath"]
    assert [folder for folder in path if folder.startswith("tests")] == ["tests"]


def test_a_folder_has_at_most_sixteen_modules() -> None:
    """A newcomer reads the names of a folder at a glance. `__init__` and `conftest` do not count."""
    wrong = []
    for root in ("shm_layout", "client", "timerd", "tests"):
        folders = {path.parent for path in (ROOT / root).rglob("*.p[yx]*") if path.suffix in (".py", ".pyx", ".pxd")}
        for folder in sorted(folders):
            stems = {path.stem for suffix in ("py", "pyx", "pxd") for path in folder.glob(f"*.{suffix}")}
            if len(stems - {"__init__", "conftest"}) > MODULES_MAX:
                wrong.append(f"{folder.relative_to(ROOT)} has {len(stems)} modules")
    assert not wrong, "\n".join(wrong)


def test_a_module_has_at_most_six_hundred_lines() -> None:
    long = {}
    for root in ("shm_layout", "client", "timerd", "tests"):
        for path in sorted((ROOT / root).rglob("*.p[yx]*")):
            if path.suffix in (".py", ".pyx", ".pxd", ".pyi") and path.parent.name != "generated":
                lines = len(path.read_text().splitlines())
                if lines > LINES_MAX:
                    long[str(path.relative_to(ROOT))] = lines
    assert not long, long


def users_own() -> set[type[Any]]:
    """The classes that the two faces export, with their bases."""
    given = [getattr(face, name) for face in (timerd_client, aio) for name in face.__all__]
    return {base for one in given if inspect.isclass(one) for base in one.__mro__}


def inner_classes() -> Iterator[type[Any]]:
    """The classes of the rooms LINKS that the faces do not export."""
    own = users_own()
    for module in graph_of("timerd_client"):
        if room_of(module, "timerd_client") in LINKS:
            for value in vars(importlib.import_module(module)).values():
                if inspect.isclass(value) and value.__module__ == module and value not in own:
                    yield value


def public_methods(of: type[Any]) -> set[str]:
    """The public methods and properties of a class, with those that it inherits from classes of the client."""
    bases = [base for base in of.__mro__ if base.__module__.startswith("timerd_client.")]
    found = {name: value for base in bases for name, value in vars(base).items() if not name.startswith("_")}
    return {
        name
        for name, value in found.items()
        if not inspect.isclass(value) and (callable(value) or isinstance(value, (property, staticmethod, classmethod)))
    }


def test_a_class_of_a_link_has_at_most_fifteen_public_methods() -> None:
    """A reader sees at a glance what such a class is for. A class that users get has as many methods as they need."""
    found = {of.__qualname__: sorted(public_methods(of)) for of in inner_classes()}
    large = {name: methods for name, methods in found.items() if len(methods) > METHODS_MAX}
    assert not large, "\n".join(f"{name} has {len(methods)}: {', '.join(methods)}" for name, methods in large.items())
    assert {"Link", "ThreadedLink", "LoopLink", "Connection", "Sender", "Waiters", "IoThread"} <= set(found)


WITHOUT_CORE = """
import sys
sys.modules["timerd.core"] = sys.modules["timerd.core_faults"] = None
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["--collect-only", pytest.param("-q", marks=pytest.mark.long)], ids=["import", "run"])
def test_the_tests_of_the_client_need_no_compiled_core(how: str, tmp_path: Path, runtime_dir: Path) -> None:
    """The Python that runs the tests cannot import the core. (A Python that a test starts with a path of its own can.)

    If a module of the tests imports the core, their collection fails already.
    """
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_CORE)
    (tmp_path / "test_it.py").write_text("def test_it():\n    import timerd.core\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), python_path()]), "TIMERD_EXAMPLES": "5"}

    def run(how: str, *paths: Path) -> subprocess.CompletedProcess[str]:
        words = ("-m", "pytest", how, "-n0", "-p", "no:cacheprovider", f"--basetemp={runtime_dir / 't'}")
        return subprocess.run(
            [sys.executable, *words, *paths], cwd=ROOT, env=environment, capture_output=True, text=True
        )

    ended = run(how, TESTS / "client", TESTS / "hot")
    assert ended.returncode == 0, ended.stdout[-5_000:] + ended.stderr
    assert "import of timerd.core halted" in run("-q", tmp_path / "test_it.py").stdout
