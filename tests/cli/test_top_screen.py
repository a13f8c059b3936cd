"""The screen of timerctl top, played without a terminal: its keys, its tables, and the explanation of a row."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("textual", reason="textual is not installed: pip install 'timerd[top]'")

from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from support.real.patience import PATIENCE_S
from support.real.remains import bury
from support.rig.commands import Key, Register
from support.rig.harness import Rig, S, fire
from timerctl.live.screen import Explanation, Operations, Screen
from timerd_shm.host.paths import InstancePaths

Play = Callable[[Screen, Pilot[None]], Awaitable[None]]


async def until(condition: Callable[[], object]) -> None:
    """Wait until the screen shows something: it reads in a thread."""
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < end, "the screen does not show it"
        await asyncio.sleep(0.01)


def play(directory: Path, how: Play) -> None:
    async def played() -> None:
        arguments = argparse.Namespace(instance=None, every=S // 20)
        screen = Screen(InstancePaths(directory, "default"), arguments)
        async with screen.run_test(size=(140, 40)) as pilot:
            await how(screen, pilot)

    asyncio.run(played())


def text(screen: Screen, name: str) -> str:
    return str(screen.screen.query_one(f"#{name}", Static).render())


def first_cells(screen: Screen, name: str = "table") -> list[str]:
    table = screen.screen.query_one(f"#{name}", DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


@pytest.fixture
def arena(rig: Rig, runtime_dir: Path) -> Path:
    """The arena of a dead daemon: two clients, three keys, one of them with brackets as markup has them."""
    one, other = rig.client(name=b"web-1"), rig.client(name=b"web-2", group=b"jobs")
    rig.do(one, *(Register((Key(key),), timeout_ns=100 * S) for key in (b"[red]a", b"b", b"b")), fire(b"c"))
    rig.do(other, Register((Key(b"z"), Key(b"b")), needed=2, timeout_ns=100 * S))
    bury(rig, runtime_dir)
    return runtime_dir


@pytest.mark.long
def test_keys_switch_sort_and_filter_the_tables(arena: Path) -> None:
    async def how(screen: Screen, pilot: Pilot[None]) -> None:
        await until(lambda: len(first_cells(screen)) == 2)
        assert "not running" in text(screen, "title") and "is not running" in text(screen, "sentences")
        assert "registered" in text(screen, "rates") and "ops" in text(screen, "limits")
        await pilot.press("k")
        await until(lambda: set(first_cells(screen)) == {"[red]a", "b", "z"})
        await pilot.press("s")
        assert first_cells(screen)[0] == "b" and "sorted by watchers" in text(screen, "views")
        await pilot.press("s", "s")
        assert first_cells(screen) == ["[red]a", "b", "z"]
        await pilot.press("S")
        assert "sorted by watermark" in text(screen, "views")
        await pilot.press("slash", *"[RED")
        await until(lambda: first_cells(screen) == ["[red]a"])
        await pilot.press("escape")
        await until(lambda: len(first_cells(screen)) == 3)
        await pilot.press("p")
        await until(lambda: first_cells(screen) == ["default"])
        await pilot.press("g")
        await until(lambda: first_cells(screen) == ["jobs"])
        await pilot.press("l")
        await until(lambda: first_cells(screen) == [])

    play(arena, how)


@pytest.mark.long
def test_enter_shows_the_operations_of_a_row_and_explains_one(arena: Path) -> None:
    async def how(screen: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("k")
        await until(lambda: len(first_cells(screen)) == 3)
        await pilot.press("s", "enter")  # the key with the most watchers
        await until(lambda: isinstance(screen.screen, Operations))
        await until(lambda: len(first_cells(screen, "of")) == 3)
        await pilot.press("enter")
        await until(lambda: isinstance(screen.screen, Explanation))
        explanation = str(screen.screen.query_one(Static).render())
        assert "has been pending for" in explanation and "timerctl fire b" in explanation
        await pilot.press("escape")
        await until(lambda: isinstance(screen.screen, Operations))
        await pilot.press("escape")
        await until(lambda: not isinstance(screen.screen, Operations))

    play(arena, how)


def test_the_screen_stops_and_goes_on_and_says_when_the_arena_is_gone(arena: Path) -> None:
    async def how(screen: Screen, pilot: Pilot[None]) -> None:
        await until(lambda: len(first_cells(screen)) == 2)
        await pilot.press("space")
        assert "STOPPED" in text(screen, "views")
        (arena / "arena").unlink()
        await pilot.press("space")
        await until(lambda: "cannot be read" in text(screen, "sentences"))
        assert first_cells(screen), "what was known stays"

    play(arena, how)
