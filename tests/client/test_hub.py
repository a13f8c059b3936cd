"""Random programs on the hubs of a process and a simple daemon: each subscriber gets each event once, or a gap.

The subscribers of the same keys share a hub. The program decides when the daemon applies registrations, and when
outcomes arrive. The daemon forgets old events, begins other arenas, and forgets its client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from timerd_client.declared import RegistrationArguments
from timerd_client.events.event import Event, Gap, Item
from timerd_client.events.feed import Feed
from timerd_client.events.hub import Hub, subscribed
from timerd_client.events.watch import do
from timerd_client.mark import Mark
from timerd_client.outcome import State
from timerd_shm.declare.errors import MarkTooOldError, QuotaExceededError, SessionGoneError, TimerdError
from timerd_shm.declare.states import EventKind

STEPS = 400
KEYS = ("a", "b")


class Operation:
    """An observing operation, from its registration to its outcome."""

    def __init__(self, number: int, keys: tuple[Any, ...], mark: Mark) -> None:
        self.command = number
        self.keys, self.mark = keys, mark
        self.cancelled = False
        self.outcome: Any = None
        self._callback: Callable[[Any], object] | None = None

    def done(self) -> bool:
        return self.outcome is not None

    def cancel(self) -> None:
        self.cancelled = True

    def _add(self, callback: Callable[[Any], object]) -> bool:
        self._callback = callback
        return not self.done()

    def _outcome(self) -> Any:
        return self.outcome

    def settle(self, outcome: Any) -> None:
        """The outcome of this operation has arrived."""
        self.outcome = outcome
        if self._callback is not None:
            self._callback(self)


class Outcome(SimpleNamespace):
    """The part of an outcome that a watch reads."""

    def __bool__(self) -> bool:
        return bool(self.state is State.COMPLETED)


class Daemon:
    """A daemon whose arenas are lists of (key, kind, number). It is also the link and the surface of its client."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.arenas: list[list[tuple[str, EventKind, int]]] = [[]]
        self.tail = 1
        self.commands: deque[Operation] = deque()
        self.watching: list[Operation] = []
        self.arriving: deque[tuple[Operation, Any]] = deque()
        self.registered = 0
        self.lock, self.sealed, self.closed, self._name = Lock(), False, False, "default"
        self.protocol: SimpleNamespace = SimpleNamespace(
            session=SimpleNamespace(arena=1, mark=lambda: Mark(self.protocol.session.arena, self.newest)),
            ledger=SimpleNamespace(newest=lambda: self.newest, issued=0),
            incoming=SimpleNamespace(abandon=self.abandon),
        )

    @property
    def _link(self) -> Daemon:
        return self

    def _live(self) -> Daemon:
        return self

    @property
    def newest(self) -> int:
        return len(self.arenas[-1])

    def check_open(self) -> None:
        """The link is always open."""

    def wake_if_due(self, issued: int) -> None:
        """Nothing is sent."""

    def _register(self, keys: Any, call: str, given: RegistrationArguments, *, may_exceed: bool) -> Any:
        self.registered += 1
        mark = given["since"]
        assert mark is not None
        operation = Operation(self.registered, keys, mark)
        self.commands.append(operation)
        return operation

    def abandon(self, commands: list[int], error: TimerdError) -> None:
        self.watching = [one for one in self.watching if one.command not in commands]
        self.commands = deque(one for one in self.commands if one.command not in commands)
        self.arriving = deque(one for one in self.arriving if one[0].command not in commands)

    # what a program does ----------------------------------------------------------------------------------------------

    def apply(self) -> None:
        """Apply the next registration, if there is one."""
        if not self.commands:
            return
        operation = self.commands.popleft()
        arena, mark = self.arenas[-1], operation.mark
        if mark.incarnation != len(self.arenas) or mark.sequence + 1 < self.tail:
            return self.refuse(operation, MarkTooOldError("too old"))
        for sequence in range(mark.sequence + 1, len(arena) + 1):
            if arena[sequence - 1][0] in operation.keys:
                return self.complete(operation, sequence)
        if operation.cancelled:
            where = Mark(len(self.arenas), self.newest)
            return self.arriving.append((operation, Outcome(state=State.CANCELLED, mark=where, error=None)))
        return self.watching.append(operation)

    def refuse(self, operation: Operation, error: TimerdError) -> None:
        self.arriving.append((operation, Outcome(state=State.FAILED, error=error)))

    def complete(self, operation: Operation, sequence: int) -> None:
        key, kind, number = self.arenas[-1][sequence - 1]
        record = SimpleNamespace(failed=kind, satisfied=number)
        mark, value = Mark(len(self.arenas), sequence), b"%d" % number
        outcome = Outcome(state=State.COMPLETED, key=key, _record=record, value=value, mark=mark, value_dropped=False)
        self.arriving.append((operation, outcome))

    def fire(self) -> None:
        kind = self.random.choice((EventKind.FIRE, EventKind.ADVANCE, EventKind.FAIL))
        self.arenas[-1].append((self.random.choice("abc"), kind, self.random.randrange(9)))
        for operation in [one for one in self.watching if self.arenas[-1][-1][0] in one.keys]:
            self.watching.remove(operation)
            self.complete(operation, self.newest)

    def arrive(self) -> None:
        """Let the next outcome arrive, if there is one."""
        if self.arriving:
            operation, outcome = self.arriving.popleft()
            operation.settle(outcome)

    def forget_events(self) -> None:
        self.tail = self.newest + 1

    def forget_client(self) -> None:
        """The client begins a new session: its registrations, and outcomes on their way, are lost."""
        gone = [*self.watching, *self.commands, *(one for one, _ in self.arriving)]
        self.watching.clear()
        self.commands.clear()
        self.arriving.clear()
        for operation in gone:
            self.arriving.append((operation, Outcome(state=State.FAILED, error=SessionGoneError("gone"))))

    def begin_arena(self) -> None:
        self.arenas.append([])
        self.tail = 1
        self.protocol.session.arena = len(self.arenas)
        self.forget_client()


class Subscriber:
    """A feed, and what was taken from it."""

    def __init__(self, daemon: Daemon, keys: tuple[str, ...], since: Mark | None, buffer: int) -> None:
        self.daemon, self.keys = daemon, keys
        self.hub: Hub
        self.feed: Feed
        self.hub, self.feed = subscribed(daemon, keys, since, buffer)  # type: ignore[arg-type]
        self.mark = self.feed.mark
        self.gaps: list[str] = []
        self.seen = 0

    def expected(self) -> Event | None:
        """The next event on the subscriber's keys, after its mark."""
        events = self.daemon.arenas[self.mark.incarnation - 1]
        for sequence in range(self.mark.sequence + 1, len(events) + 1):
            key, kind, number = events[sequence - 1]
            if key in self.keys:
                mark = Mark(self.mark.incarnation, sequence)
                return Event(key, kind.name.lower(), b"%d" % number, mark, number)  # type: ignore[arg-type]
        return None

    def take(self) -> Item | None:
        item = self.feed.take()
        if isinstance(item, Event):
            assert item == self.expected(), f"{item} comes after {self.mark}"
            self.seen += 1
        if isinstance(item, Gap):
            self.gaps.append(item.reason)
        if item is not None:
            self.mark = item.mark
        return item

    def close(self) -> None:
        do(self.hub.leave(self.feed))


def play(seed: int) -> tuple[Daemon, list[Subscriber]]:
    """Run a random program. At the end all outcomes arrive, and the subscribers take all events."""
    random = Random(seed)
    daemon = Daemon(random)
    living: list[Subscriber] = []
    ended: list[Subscriber] = []
    marks = [Mark(1, 0)]

    def subscribe() -> None:
        keys = random.choice((KEYS, KEYS[:1], KEYS[1:]))
        living.append(Subscriber(daemon, keys, random.choice((None, *marks[-4:])), random.choice((1, 4, 1_000))))

    def close() -> None:
        if living:
            one = living.pop(random.randrange(len(living)))
            one.close()
            ended.append(one)

    def take() -> None:
        for one in living:
            if random.random() < 0.7 and one.take() is not None:
                marks.append(one.mark)

    rare = {daemon.forget_events: 0.2, daemon.forget_client: 0.2, daemon.begin_arena: 0.1}
    acts = {daemon.apply: 6.0, daemon.arrive: 6.0, daemon.fire: 4.0, take: 3.0, subscribe: 1.0, close: 0.7, **rare}
    for _ in range(STEPS):
        random.choices(list(acts), list(acts.values()))[0]()
    for _ in range(20 * STEPS):
        if not daemon.commands and not daemon.arriving:
            break
        daemon.apply()
        daemon.arrive()
        for one in living:
            one.take()
    else:
        raise AssertionError("the daemon never comes to rest")
    for one in living:
        while one.take() is not None:
            pass
        assert one.expected() is None, f"the subscriber is at {one.mark}, and {one.expected()} never came"
        assert one.mark.incarnation == len(daemon.arenas), f"the subscriber is at {one.mark}, in an earlier arena"
    hubs = {one.hub for one in living}
    assert len(daemon.watching) == len(hubs) == len({one.keys for one in living})
    for one in living:
        one.close()
    assert not daemon.watching
    return daemon, living + ended


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_subscribers_see_each_event_once_in_order_or_a_gap(first: int) -> None:
    seen, gaps = 0, set[str]()
    for seed in range(first, first + 100):
        try:
            _, subscribers = play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += sum(one.seen for one in subscribers)
        gaps |= {reason for one in subscribers for reason in one.gaps}
    assert seen > 5_000 and gaps == {"overwritten", "arena", "buffer"}, (seen, gaps)


def test_a_refusal_ends_all_subscribers_that_share_the_watch() -> None:
    daemon = Daemon(Random(0))
    both = [Subscriber(daemon, KEYS, None, 4) for _ in range(2)]
    daemon.refuse(daemon.commands.popleft(), QuotaExceededError("full"))
    daemon.arrive()
    assert all(isinstance(one.feed.error, QuotaExceededError) for one in both)
    again = Subscriber(daemon, KEYS, None, 4)
    assert again.hub is not both[0].hub and len(daemon.commands) == 1
