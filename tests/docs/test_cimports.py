"""The core's cimports go left only, in the order of rooms in purgatory/__init__.pxd, and never in a circle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.real.trees import ROOT

PURGATORY = ROOT / "timerd/purgatory"
RULE = (PURGATORY / "__init__.pxd").read_text()
CIMPORT = re.compile(r"^\s*from\s+([\w.]+)\s+cimport\s+(\(?)([^(\n]*)|^\s*cimport\s+([\w., ]+)", re.M)
FUNCTIONS_OF_PYTHON = re.compile(r"^(?:def|cpdef|class|cdef class)\b", re.M)


def levels(text: str) -> list[str]:
    """The rooms from left to right, from the one line of the rule with `<`. The last name is the face, core.pyx."""
    lines = [line for line in text.splitlines() if line.count(" < ") > 1]
    assert len(lines) == 1, "one line states the levels"
    return [name.strip() for name in lines[0].split("<")]


def cimported(text: str, module: str) -> set[str]:
    """The modules of the purgatory that the file `module` cimports. Names leave out `timerd.purgatory.`."""
    found = set()
    package = ["timerd", "purgatory", *module.split(".")[:-1]]
    for name, _, names, plain in CIMPORT.findall(text):
        for one in [name] if name else [part.split(" as ")[0].strip() for part in plain.split(",")]:
            dots = len(one) - len(one.lstrip("."))
            parts = (
                [*package[: len(package) + 1 - dots], *filter(None, one[dots:].split("."))] if dots else one.split(".")
            )
            if one.strip(".") == "":  # from . cimport list
                found |= {".".join([*parts[2:], other.strip()]) for other in names.split(",")}
            elif parts[:2] == ["timerd", "purgatory"]:
                found.add(".".join(parts[2:]))
    return found


def graph(folder: Path) -> dict[str, set[str]]:
    """The cimports of each .pxd file of the purgatory, by names such as `wheel.wheel`."""
    files = [path for path in folder.rglob("*.pxd") if path.name != "__init__.pxd"]
    names = {path: ".".join(path.relative_to(folder).with_suffix("").parts) for path in files}
    return {names[path]: cimported(path.read_text(), names[path]) for path in files}


def climbing(edges: dict[str, set[str]], rooms: list[str]) -> list[str]:
    """The cimports that go to a room further to the right."""

    def level(module: str) -> int:
        room, *_, name = module.split(".")
        return rooms.index("state" if name == "state" else room)

    return sorted(f"{one} cimports {other}" for one in edges for other in edges[one] if level(other) > level(one))


def circle(edges: dict[str, set[str]]) -> list[str]:
    """The files of a circle, with the first one again at the end; empty if there is none."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for other in sorted(edges.get(module, ())):
            if found := walk(other, [*path, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(edges) if (found := walk(module, []))), [])


def test_the_levels_name_every_room_and_the_face() -> None:
    *rooms, face = levels(RULE)
    assert face == "core.pyx"
    folders = {path.name for path in PURGATORY.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(rooms) == {"state", *folders}  # the state.pxd of each room lies below all rooms
    for room in rooms:
        assert re.search(rf"^    {room} +\w", RULE, re.M), f"the rule does not say what lives in {room}"


def test_cimports_go_left_only() -> None:
    edges = graph(PURGATORY)
    assert len(edges) > 30
    assert sum(map(len, edges.values())) > 100, "the pattern has missed most cimports"
    assert not climbing(edges, levels(RULE))


def test_no_file_cimports_itself_in_a_circle() -> None:
    assert not circle(graph(PURGATORY))


def test_every_cimported_file_exists() -> None:
    edges = graph(PURGATORY)
    assert not {other for others in edges.values() for other in others} - set(edges)


def test_only_the_face_cimports_rooms_and_benches_cimport_no_transactions() -> None:
    edges = graph(PURGATORY)
    for path in [
        *ROOT.glob("bench/**/*.p[yx][xd]"),
        *ROOT.glob("client/**/*.p[yx][xd]"),
        *ROOT.glob("timerd/**/*.pyx"),
    ]:
        reached = cimported(path.read_text(), "face.face")
        if path.name == "core.pyx":
            assert len(reached) == path.read_text().count("\nfrom timerd.purgatory.") > 15
            continue
        for _ in edges:
            reached |= {other for one in reached for other in edges[one]}
        assert not reached or path.parent.name == "rivals", f"{path.name} cimports {reached}"
        assert not reached & {"memory.transaction", "memory.arena"}, f"{path.name} cimports {reached}"


def test_the_rooms_are_functions_in_c() -> None:
    wrong = [
        str(path.relative_to(ROOT)) for path in PURGATORY.rglob("*.pxd") if FUNCTIONS_OF_PYTHON.search(path.read_text())
    ]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("from timerd.purgatory.wheel.wheel cimport wheel_insert", {"wheel.wheel"}),
        ("from timerd.purgatory.wheel.wheel cimport (\n    wheel_insert,\n)", {"wheel.wheel"}),
        ("from .slab cimport allocate", {"index.slab"}),
        ("from ..memory.list cimport append", {"memory.list"}),
        ("from . cimport keys, ids", {"index.keys", "index.ids"}),
        ("cimport timerd.purgatory.wheel.wheel as w, timerd.purgatory.memory.list", {"wheel.wheel", "memory.list"}),
        ("from libc.stdint cimport uint8_t", set()),
        ("from timerd_shm.generated.records cimport *", set()),
    ],
)
def test_every_form_of_cimport_is_parsed(line: str, modules: set[str]) -> None:
    assert cimported(line + "\n", "index.table") == modules


def test_an_upward_cimport_and_a_circle_are_found() -> None:
    edges = {"memory.a": {"index.b"}, "index.b": {"index.c"}, "index.c": {"index.d"}, "index.d": {"index.b"}}
    assert climbing(edges, ["memory", "index"]) == ["memory.a cimports index.b"]
    rooms = ["state", "memory", "index"]
    assert not climbing({"memory.arena": {"index.state"}}, rooms)
    assert climbing({"index.state": {"memory.list"}}, rooms) == ["index.state cimports memory.list"]
    assert circle(edges) == ["index.b", "index.c", "index.d", "index.b"]
    assert not circle({"memory.a": set(), "index.b": {"memory.a"}, "index.c": {"memory.a", "index.b"}})


def unused(text: str) -> list[str]:
    """Names that a file cimports from named modules and does not mention again."""
    lines = re.compile(r"^from [\w.]+ cimport (\([^)]*\)|[^*\n]*)$", re.M)
    code = re.sub(r"#.*", "", lines.sub("", text))
    names = [name.split(" as ")[-1].strip(" ()\n") for found in lines.findall(text) for name in found.split(",")]
    return [name for name in names if name and not re.search(rf"\b{name}\b", code)]


def test_each_cimported_name_is_used() -> None:
    assert unused("from a cimport b, c as d, e\nfrom f cimport (\n    g, h)\nb + g  # d") == ["d", "e", "h"]
    found = {str(path): names for path in sorted(PURGATORY.rglob("*.pxd")) if (names := unused(path.read_text()))}
    assert not found
