"""The rooms of bench/: a room imports only rooms with a lower number in LEVEL, and no import goes in a circle."""

from __future__ import annotations

import pytest

from support.real.imports import PACKAGES, circles, graph_of
from support.real.trees import ROOT

LEVEL = {"__init__": 0, "lib": 1, "attack": 2, "rivals": 2, "suites": 3, "run": 4}


def room_of(module: str) -> str:
    return module.removeprefix("bench").lstrip(".").partition(".")[0] or "__init__"


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    monkeypatch.setitem(PACKAGES, "bench", ROOT / "bench")
    found = graph_of("bench")
    assert "bench.lib.common" in found["bench.suites.core"]
    return found


def test_a_room_imports_only_from_the_rooms_before_it(graph: dict[str, set[str]]) -> None:
    wrong = [
        f"{module} > {other}"
        for module, imported in graph.items()
        for other in imported
        if room_of(other) != room_of(module) and LEVEL[room_of(other)] >= LEVEL[room_of(module)]
    ]
    assert not wrong, "imports that go up:\n" + "\n".join(wrong)


def test_no_import_goes_in_a_circle(graph: dict[str, set[str]]) -> None:
    assert not circles(graph)
