"""Two processes with the OpenTelemetry hook: an operation's span and the span of the fire are joined by the event's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

import timerd as td
from support.real.daemons import SMALL, Daemon
from support.real.faces import FACES
from support.real.patience import eventually, stop
from support.real.trees import TESTS, python_path

ACTING = TESTS / "observing/acting.py"
RING_EVENTS = int(SMALL[1].partition("=")[2])
Ids = tuple[str, str]  # of a trace and of a span


class Span(NamedTuple):
    """A span as its process has exported it."""

    name: str
    ids: Ids
    links: list[Ids]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, line: str) -> Span:
        found = json.loads(line)
        links = [ids_of(link["context"]) for link in found["links"]]
        return cls(found["name"], ids_of(found["context"]), links, found["attributes"])


def ids_of(context: dict[str, str]) -> Ids:
    return context["trace_id"], context["span_id"]


class Actor:
    """A process that makes spans: see acting.py."""

    def __init__(self, path: Path, face: str, transport: str) -> None:
        self._path = path
        self._process = subprocess.Popen(
            [sys.executable, ACTING, face, transport, path],
            env=os.environ | {"PYTHONPATH": python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def do(self, *lines: str) -> Any:
        """Run these lines there. Returns the value of `answer`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps("\n".join(lines)) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def spans(self, name: str) -> list[Span]:
        """The spans of that name that have ended so far."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [span for span in map(Span.of, lines) if span.name == name]

    def end(self) -> None:
        """Close its client, and wait for its end."""
        self._process.communicate()
        assert self._process.returncode == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self.end()


Start = Callable[..., Actor]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that make spans: start(face, transport)."""
    with ExitStack() as stack:
        started: list[Actor] = []

        def one(face: str = "threaded", transport: str = "unix") -> Actor:
            path = tmp_path / f"spans-{len(started)}.json"
            started.append(stack.enter_context(Actor(path, face, transport)))
            return started[-1]

        yield one


class Way(NamedTuple):
    """A way in which an operation settles: the registration, the calls that fire, and the last event that counts."""

    register: str
    fires: tuple[str, ...]
    call: int = 0  # the call of the event that settles
    row: int = 0  # and the event's row in this call
    before: str = ""  # what the waiting process does before the other fires
    state: str = "COMPLETED"


WAYS = {
    "fire": Way("register_wait('a', timeout=60)", ("fire('a', value=b'x')",)),
    "fire_of_several_in_a_frame": Way("register_wait('b', timeout=60)", ("fire('x')", "fire('b')", "fire('y')"), 1),
    "fire_with_limit": Way("register_wait('c', timeout=60)", ("fire('c', limit=1)",)),
    "fire_wait": Way("register_wait('d', timeout=60)", ("fire_wait('d')",)),
    "fire_many": Way("register_wait('e', timeout=60)", ("fire_many(['x', 'y', 'e', 'z'])",), 0, 2),
    "advance": Way("register_wait({'f': 5}, timeout=60)", ("advance('f', 3)", "advance('f', 8)", "advance('f', 9)"), 1),
    "fail": Way("register_wait('g', timeout=60)", ("fail('g', code=7)",), state="FAILED"),
    "all": Way("register_wait(['h', 'i'], when=td.ALL, timeout=60)", ("fire('i')", "fire('i')", "fire('h')"), 2),
    "all_settled": Way(
        "register_wait(['j', 'k'], when=td.ALL_SETTLED, timeout=60)", ("fire('k')", "fail('j')", "fire('j')"), 1
    ),
    "at_least": Way(
        "register_wait(['l', 'm', 'n'], when=td.at_least(2), timeout=60)", ("fire_many(['m', 'l', 'n'])",), 0, 1
    ),
    "total": Way(
        "register_wait('o', when=td.total(5), timeout=60)", tuple(f"fire('o', amount={n})" for n in (2, 2, 2, 2)), 2
    ),
    "since": Way(
        "register('p', timeout=60, since=mark)",
        ("fire('x')", "fire('p')", "fire('p')"),
        1,
        before="mark = client.mark()",
    ),
    "watermark_since": Way(
        "register({'q': 5}, timeout=60, since=mark)", ("advance('q', 6)", "fire('q')"), 0, before="mark = client.mark()"
    ),
    "long_key": Way("register_wait({'r' * 200: 5}, timeout=60)", ("advance('r' * 200, 5)",)),
}


def check_joined(waiting: Actor, firing: Actor, way: Way) -> None:
    """Let the operation settle in that way, and check its span, the span of the event, and that of the call."""
    operations, calls = len(waiting.spans("timerd.operation")), len(firing.spans("timerd.fire"))
    register = f"waits = client.{way.register}"
    waiting.do(way.before or register)
    firing.do(*(f"client.{fire}" for fire in way.fires), "client.flush()")
    if way.before:
        waiting.do(register)
    assert waiting.do("outcome = waits.result(60)", "answer = outcome.state.name") == way.state
    eventually(lambda: len(waiting.spans("timerd.operation")) > operations)
    operation, call = waiting.spans("timerd.operation")[operations], firing.spans("timerd.fire")[calls + way.call]
    event = call.links[way.row]
    assert operation.links == [event]
    assert operation.attributes["timerd.event"] == event[0].removeprefix("0x")
    assert operation.attributes["timerd.mark"] == waiting.do("answer = str(outcome.mark)")
    assert [
        (span.links, span.attributes["timerd.event"]) for span in firing.spans("timerd.event") if span.ids == event
    ] == [([call.ids], operation.attributes["timerd.event"])]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("transport", ["unix", "zeromq"])
def test_the_event_joins_both_processes(daemon: Daemon, start: Start, transport: str, face: str) -> None:
    waiting, firing = start(face, transport), start(face, transport)
    for way in WAYS.values():
        check_joined(waiting, firing, way)


@pytest.mark.parametrize("transport", ["unix", "zeromq"])
def test_a_threaded_and_an_asyncio_process_are_joined(daemon: Daemon, start: Start, transport: str) -> None:
    waiting, firing = start("threaded", transport), start("aio", transport)
    check_joined(waiting, firing, WAYS["fire"])
    check_joined(firing, waiting, WAYS["total"])


def test_a_batch_has_a_link_for_each_event(daemon: Daemon, start: Start) -> None:
    waiting, firing = start(), start()
    waiting.do("waits = client.register_many_wait(['a', 'b', 'b', {'c': 1}, 'd'], timeout=60)")
    firing.do("client.fire_many(['b', 'a'])", "client.advance('c', 1)", "client.fail('d')", "client.flush()")
    assert waiting.do("answer = [outcome.state.name for outcome in waits.outcomes(60)].count('COMPLETED')") == 4
    eventually(lambda: waiting.spans("timerd.operation"))
    (operation,) = waiting.spans("timerd.operation")
    assert len(operation.links) == 4
    assert set(operation.links) == {link for call in firing.spans("timerd.fire") for link in call.links}
    assert set(operation.links) == {span.ids for span in firing.spans("timerd.event")}


def test_a_restart_of_the_daemon_changes_no_event(daemon: Daemon, start: Start) -> None:
    waiting, firing = start(), start()
    check_joined(waiting, firing, WAYS["fire"])  # both have been connected
    waiting.do("waits = client.register_wait('z', timeout=None)")
    daemon.kill()
    firing.do("client.fire('z')")  # kept until the daemon is back
    daemon.start()
    assert waiting.do("answer = waits.result(60).state.name") == "COMPLETED"
    eventually(lambda: len(waiting.spans("timerd.operation")) == 2)
    operation, call = waiting.spans("timerd.operation")[1], firing.spans("timerd.fire")[1]
    assert operation.links == call.links == [firing.spans("timerd.event")[1].ids]
    check_joined(waiting, firing, WAYS["fire_wait"])


def test_the_same_command_in_another_arena_is_another_event(daemon: Daemon, start: Start) -> None:
    waiting, firing = start(), start()
    check_joined(waiting, firing, WAYS["fire"])
    daemon.destroy()
    for actor in (waiting, firing):
        eventually(lambda actor=actor: not actor.do("answer = client.connected"))  # type: ignore[misc]
    daemon.start()
    for actor in (waiting, firing):
        actor.do("client.ready(timeout=60)")
    check_joined(waiting, firing, WAYS["fire"])
    assert firing.do("answer = client._ledger.issued") == 1
    assert len({span.ids for span in firing.spans("timerd.event")}) == 2


def settle_meanwhile(waiting: Actor, meanwhile: Callable[[], object]) -> Span:
    """The span of an operation on the key "a", while whose process stands still: `meanwhile` fires, and more."""
    waiting.do("waits = client.register_wait('a', timeout=None)")
    stop(waiting.pid)
    try:
        meanwhile()
    finally:
        os.kill(waiting.pid, signal.SIGCONT)
    assert waiting.do("answer = waits.result(60).state.name") == "COMPLETED"
    eventually(lambda: waiting.spans("timerd.operation"))
    (operation,) = waiting.spans("timerd.operation")
    return operation


def test_a_process_may_fire_with_its_first_call_and_end(daemon: Daemon, start: Start) -> None:
    waiting, firing = start(), start()

    def meanwhile() -> None:
        firing.do("client.fire('a')")
        firing.end()

    assert settle_meanwhile(waiting, meanwhile).links == [firing.spans("timerd.event")[0].ids]


def test_there_is_no_link_if_the_event_has_left_the_ring(daemon: Daemon, start: Start) -> None:
    waiting, firing = start(), start()

    def meanwhile() -> None:
        firing.do("client.fire('a')", f"client.fire_many(['x'] * {RING_EVENTS})", "client.flush()")

    operation = settle_meanwhile(waiting, meanwhile)
    assert operation.links == [] and not {"timerd.event", "timerd.mark"} & set(operation.attributes)


def test_there_is_no_link_if_the_firing_clients_slot_is_another_clients(daemon: Daemon, start: Start) -> None:
    waiting, firing = start(), start()
    slot = "answer = client._live().protocol.session.slot"

    def meanwhile() -> None:
        first = firing.do("client.fire('a')", "client.flush()", slot)
        firing.end()
        other = start()
        assert other.do("client.ready(timeout=60)", slot) == first

    assert settle_meanwhile(waiting, meanwhile).links == []


def test_an_event_of_a_process_without_the_hook_has_an_identity_but_no_span(daemon: Daemon, start: Start) -> None:
    def meanwhile() -> None:
        with td.connect(transport="unix") as client:
            client.fire("a")

    operation = settle_meanwhile(start(), meanwhile)
    assert len(operation.links) == 1
    assert operation.attributes["timerd.event"] == operation.links[0][0].removeprefix("0x")
