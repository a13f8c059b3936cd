"""docs/howto/sizing.md: its figures are those of the code, and its three arenas hold what the page says they hold."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.shell import Run
from support.site import DOCS, made
from timerctl.instance import open_arena
from timerd.arena.plan import plan_of
from timerd.config.command_line import read_command_line
from timerd.config.config import Config, sizes_of
from timerd.host.descriptors import CONNECTIONS_PER_CLIENT, DESCRIPTORS_BESIDE, NEWCOMERS_MAX
from timerd.testing.real.daemon import SMALL
from timerd_shm.declare.limits import CLIENTS_MAX
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.read.reader import Table

PAGE = (DOCS / "howto/sizing.md").read_text()
MIB = 1 << 20
FORMULA = re.compile(r"bytes = (\d+) x capacity \+ (\d+) x ring-events \+ (\d+) x clients \+ ([\d.]+) MiB")
TOLERANCE = 0.08
COMMANDS = [
    shlex.split(line.replace("\\\n", " ")) for line in re.findall(r"^    timerd (--(?:\\\n|.)+)$", PAGE, re.MULTILINE)
]
LONG_POLLS, JOBS = COMMANDS
SMALLER = 512  # the arena of the delayed jobs is tried at this fraction of its size


def config_of(flags: list[str]) -> Config:
    return read_command_line(flags, {}).settings.config


def mib_of(flags: list[str]) -> str:
    return f"{plan_of(config_of(flags)).size / MIB:.1f}"


def test_the_formula_gives_the_size_of_each_arena_of_the_table_and_of_sizes_between_them() -> None:
    found = FORMULA.search(PAGE)
    assert found and f"within {TOLERANCE:.0%}".replace("%", " %") in PAGE
    operation, event, client = map(int, found.groups()[:3])
    configs = [made("sizes").config_of(*row) for row in made("sizes").ARENAS]
    configs += [Config(capacity=capacity) for capacity in range(1_000, 4_000_000, 79_193)]
    for config in configs:
        computed = operation * config.capacity + event * config.ring_events + client * config.clients
        computed += float(found[4]) * MIB
        size = plan_of(config).size
        assert abs(computed - size) <= TOLERANCE * size, f"{config.capacity}: {computed:,.0f}, and it is {size:,}"


def test_timerd_prints_the_size_that_the_page_begins_with() -> None:
    command = re.search(r"^```sh\ntimerd (.*) \| tail -1\n```\n\n {4}(an arena .*)$", PAGE, re.MULTILINE)
    assert command
    timerd = [sys.executable, "-m", "timerd", *shlex.split(command[1])]
    printed = subprocess.run(timerd, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == command[2]


def test_the_sizes_of_the_three_arenas_are_those_of_the_plan() -> None:
    for flags, what in (
        (LONG_POLLS, "This arena takes {} MiB. Without"),
        (JOBS, "This arena takes {} MiB. `/dev/shm`"),
    ):
        assert what.format(mib_of(flags)) in PAGE
    small = mib_of(list(SMALL))
    assert f"This takes\n{small} MiB" in PAGE
    assert f"So {int(64 / float(small))} of them fit" in PAGE
    assert f"It takes {plan_of(Config()).size / MIB:.0f} MiB" in PAGE


def test_the_arena_of_the_delayed_jobs_has_room_within_quotas_and_three_quarters() -> None:
    config = config_of(JOBS)
    sizes, held = sizes_of(config), {"quota_operations": 300_000, "quota_ids": 300_000, "quota_bytes": 300_000 * 290}
    for quota, number in held.items():
        assert number <= sizes[quota], quota
    for knob, number in (("capacity", 300_000), ("ids", 312_500), ("blocks", 900_000)):
        assert number <= 0.75 * sizes[knob], knob


def used(daemon: Daemon) -> dict[str, int]:
    with open_arena(daemon.paths) as reader:
        tables: dict[str, Table[Any]] = {
            "operations": reader.ops,
            "nodes": reader.nodes,
            "blocks": reader.blocks,
            "ids": reader.ids,
        }
        return {name: table.row().in_use for name, table in tables.items()}


@pytest.mark.parametrize(
    ("make", "takes"),
    [
        (lambda client: client.register("chat/1234", timeout=60), {"operations": 1}),
        (lambda client: client.register(["a", "b", "c"], timeout=60), {"operations": 1, "nodes": 2}),
        (lambda client: client.register("k" * 17, timeout=60), {"operations": 1, "blocks": 1}),
        (lambda client: client.register("a", timeout=60, payload=bytes(113)), {"operations": 1, "blocks": 2}),
        (lambda client: client.register("a", timeout=60, id="of-a"), {"operations": 1, "ids": 1}),
        (lambda client: client.call_later("resize", 60), {"operations": 1, "blocks": 1, "ids": 1}),
        (lambda client: client.call_later("resize", 60, bytes(200)), {"operations": 1, "blocks": 3, "ids": 1}),
        (lambda client: client.fire("a", value=bytes(500)), {"blocks": 5}),
        (lambda client: [client.subscribe("room/7") for _ in range(3)], {"operations": 1}),
    ],
)
def test_each_thing_takes_the_room_that_the_table_shows(
    make: Callable[[td.Client], object], takes: dict[str, int], shared_daemon: Daemon
) -> None:
    with td.connect(group="jobs") as client:
        before = used(shared_daemon)
        made = make(client)
        client.flush()
        after = used(shared_daemon)
        assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == takes
        del made
        client.cancel_all()


def begins_to_read() -> td.Outcome:
    """4,000 messages of 500 bytes are posted. The outcome of a reader that had been away before the first of them."""
    with td.connect() as client:
        mark = client.mark()
        for first in range(0, 4_000, 500):
            numbers = range(first, first + 500)
            client.fire_many([f"chat/{number}" for number in numbers], values=[b"%500d" % number for number in numbers])
        client.flush()
        with td.connect() as reader:
            return reader.register("chat/0", timeout=60, since=mark).result()


@pytest.mark.long
def test_the_arena_of_the_long_polls_remembers_a_minute_and_without_blocks_it_does_not(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(*LONG_POLLS)
    assert begins_to_read().value == b"%500d" % 0
    daemon.destroy()
    at = LONG_POLLS.index("--blocks")
    make_daemon(*LONG_POLLS[:at], *LONG_POLLS[at + 2 :])  # with as many blocks as the capacity gives
    assert isinstance(begins_to_read().error, td.MarkTooOldError)


def fraction(flags: list[str]) -> list[str]:
    """The flags of a smaller arena: each number divided."""
    return [
        flag if flag.startswith("--") else str(int(flag) // SMALLER if flag.isdecimal() else (96 << 20) // SMALLER)
        for flag in flags
    ]


@pytest.mark.long
def test_the_arena_of_the_delayed_jobs_takes_them_all_and_the_capacity_alone_does_not(
    make_daemon: Callable[..., Daemon],
) -> None:
    assert "96MiB" in JOBS

    def fill() -> None:
        with td.connect(group="jobs") as client:
            for _ in range(300_000 // SMALLER):
                client.call_later("resize", 86_400, bytes(200))
        with td.connect(group="jobs") as another:  # what the first one has made is left by an ended client now
            another.call_later_wait("resize", 86_400, bytes(200))

    daemon = make_daemon(*fraction(JOBS))
    fill()
    daemon.destroy()
    make_daemon("--capacity", str(524_288 // SMALLER))
    with pytest.raises(td.QuotaExceededError):
        fill()


def test_stats_shows_its_capacity_as_the_page_does(daemon: Daemon, run: Run) -> None:
    printed = run("stats")[1]
    head, row = re.findall(r"^ {4}(capacity .*|ops .*)$", PAGE, re.MULTILINE)
    assert head.split() in [line.split() for line in printed.splitlines()]
    form = re.sub(r"[\d.]+", "0", " ".join(row.split()))
    assert form in [re.sub(r"[\d.]+", "0", " ".join(line.split())) for line in printed.splitlines()]


def test_the_figures_of_files_and_blocks_are_those_of_the_code() -> None:
    each, beside = CONNECTIONS_PER_CLIENT + 1, NEWCOMERS_MAX + DESCRIPTORS_BESIDE
    assert f"{each} for each client and {beside} more, so {each * CLIENTS_MAX + beside} with the default" in PAGE
    assert f"blocks of {BLOCK_DATA} bytes" in PAGE
