"""The simulation with subscribers: each gets the journal's events of its keys, in order and once, or a gap instead."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pytest

import timerd as td
from simulation.engine.books import is_expected
from simulation.engine.looped import LoopedProcess
from simulation.engine.process import Process
from simulation.engine.run import JOURNALED, STEPS, Simulation
from simulation.engine.workload import KEYS
from support.suite.tiers import in_tiers
from timerd_client.events.watch import Watch
from timerd_shm.declare.errors import ErrorCode, TimerdError
from timerd_shm.declare.journal import EventRow
from timerd_shm.declare.states import EventFlag, EventKind
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import segments_of

FEW = (12, 15, 30, 45, 48, 72)  # seeds with few events
SEEDS = [seed for seed in range(3, 30 * JOURNALED, JOURNALED) if seed not in FEW]  # seeds that write a journal
SHORT = 3
SECOND = 1_000_000_000
KINDS = {EventKind.FIRE: "fire", EventKind.ADVANCE: "advance", EventKind.FAIL: "fail"}


class Logged(NamedTuple):
    """An event, as the journal has it."""

    sequence: int
    key: str
    kind: str
    number: int


@dataclass(eq=False)
class Follower:
    """A subscription, and the items that its caller got."""

    process: Process
    keys: list[str]
    since: td.Mark
    items: list[Any] = field(default_factory=list)
    goes_on: bool = True
    calm: tuple[td.Mark, int] | None = None  # when the faults ended: its mark, and the newest event

    @property
    def mark(self) -> td.Mark:
        return self.items[-1].mark if self.items else self.since


class Followed(Simulation):
    """Each process has subscribers as well, some of them with an asyncio client."""

    def __init__(self, seed: int, steps: int, share: float = 0.4) -> None:
        super().__init__(seed, steps)
        self.followers: list[Follower] = []
        self.told: Counter[str] = Counter()
        self._choices = Random(f"subscribers {seed}")
        self._share = share

    def kind_of_process(self) -> type[Process]:
        return LoopedProcess if self._choices.random() < self._share else Process

    def acts_of(self, process: Process) -> dict[str, float]:
        acts = {name: weight for name, weight in self.acts.items() if name not in ("delayed", "snapshot")}
        return {"fire": 1.0, **acts}

    def spawn(self) -> None:
        made = self.made
        super().spawn()
        if self.made > made:
            process = self.processes[-1]
            bodies = [self._fire, *(self._follow,) * self._choices.randint(1, 3)]
            for body in bodies:
                rng = Random(self._choices.getrandbits(64))
                process.begin(lambda body=body, rng=rng: self._guarded(body, process, rng))  # type: ignore[misc]

    def _guarded(self, body: Callable[[Process, Random], None], process: Process, rng: Random) -> None:
        """Run `body` again and again, until the faults end or the client is closed. Ignore expected errors."""
        while not self.calm and not process.closing:
            try:
                body(process, rng)
            except TimerdError as error:
                if not is_expected(error):
                    self.books.fail(f"{process.name}: {body.__name__} raises {error!r}")
                if error.code is ErrorCode.CLOSED:
                    return
                self.schedule.sleep(SECOND)

    def _fire(self, process: Process, rng: Random) -> None:
        """Fire on the keys: now and then a limited event, or a fail."""
        self.schedule.sleep(rng.randrange(SECOND // 5))
        kind, key = rng.random(), rng.choice(KEYS)
        if kind < 0.1:
            process.client.fail(key, code=rng.randrange(5))
        else:
            process.client.fire(key, amount=rng.randint(1, 9), limit=1 if kind < 0.4 else None)

    def _follow(self, process: Process, rng: Random) -> None:
        """Subscribe and take items for a while, from now on, or from the mark of another subscription."""
        mark = td.Mark.parse(str(process.client.mark()))
        if not mark.incarnation:
            self.schedule.sleep(SECOND // 10)
            return
        if self.followers and rng.random() < 0.5:
            mark = rng.choice(self.followers[-6:]).mark
        follower = Follower(process, rng.sample(KEYS, rng.randint(1, 2)), mark)
        self.followers.append(follower)
        self._take(follower, rng)

    def _take(self, follower: Follower, rng: Random) -> None:
        buffer, leaves, rests = rng.choice((1, 3, 1_024)), rng.choice((0, 0.02, 0.2)), rng.choice((0, 0, 0.2))
        try:
            items = follower.process.client.subscribe(follower.keys, since=follower.since, buffer=buffer)
            for item in items:
                follower.items.append(item)
                if not self.calm and rng.random() < leaves:
                    break
                if not self.calm and rng.random() < rests:
                    self.schedule.sleep(rng.randrange(SECOND))
            if hasattr(items, "close"):
                items.close()
        finally:
            follower.goes_on = False

    def _heal(self) -> None:
        super()._heal()
        newest = self.daemon.arena.header.newest
        for follower in self.followers:
            if follower.goes_on and follower.process.alive:
                follower.calm = follower.mark, newest

    def _audit(self) -> None:
        super()._audit()
        log = self._log()
        for follower in self.followers:
            self._judge(follower, log)

    def _log(self) -> dict[int, list[Logged]]:
        """All events of each arena that subscribers see, in order."""
        found: dict[int, dict[int, Logged]] = defaultdict(dict)
        for directory in self.daemon.directories:
            if not directory.exists() or not segments_of(directory):
                continue
            with JournalReader(directory) as reader:
                for row in reader.rows():
                    record = row.record
                    if not isinstance(record, EventRow) or record.event_kind not in KINDS:
                        continue
                    if record.flags & EventFlag.REDELIVERED or reader.text(record.purgatory) != b"default":
                        continue
                    key = reader.text(record.key)
                    assert isinstance(key, bytes)
                    found[reader.incarnation][record.sequence] = Logged(
                        record.sequence, key.decode(), KINDS[EventKind(record.event_kind)], record.amount
                    )
        return {arena: [events[one] for one in sorted(events)] for arena, events in found.items()}

    def _judge(self, follower: Follower, log: dict[int, list[Logged]]) -> None:
        who = f"{follower.process.name}: subscription to {follower.keys} since {follower.since}"
        mark = follower.since
        for item in follower.items:
            if isinstance(item, td.Gap):
                self.told[item.reason] += 1
            else:
                self.told["events"] += 1
                assert item.mark.incarnation == mark.incarnation, f"{who}: {item} of another arena, and no gap"
                found = (item.mark.sequence, item.key, item.kind, item.number)
                assert found == next(iter(between(log, follower, mark)), None), f"{who}: {item} after {mark}"
            mark = item.mark
        if follower.calm is not None:
            mark, newest = follower.calm
            arena = self.daemon.arena.header.incarnation
            assert mark.incarnation == arena, f"{who}: it has nothing of the arena {arena:x}"
            missed = [event for event in between(log, follower, mark) if event.sequence <= newest]
            assert not missed, f"{who}: it was at {mark}, and has not seen {missed[:3]}"


def between(log: dict[int, list[Logged]], follower: Follower, mark: td.Mark) -> list[Logged]:
    """The events on the follower's keys after a mark."""
    events = log.get(mark.incarnation, [])
    return [event for event in events if event.sequence > mark.sequence and event.key in follower.keys]


def simulate(seed: int, steps: int = STEPS) -> Followed:
    simulation = Followed(seed, steps)
    simulation.run()
    return simulation


@pytest.mark.long
@pytest.mark.parametrize("seed", in_tiers(SEEDS, SHORT))
def test_each_event_is_seen_once_in_order_or_is_in_a_gap(seed: int) -> None:
    simulation = simulate(seed)
    print(f"seed {seed}: {len(simulation.followers)} subscriptions, {dict(simulation.told)}")
    assert simulation.told["events"]


def test_a_watch_that_begins_behind_the_newest_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that registers from now, and not from its mark, misses the events in between."""
    register = Watch._register

    def from_now(self: Watch) -> Any:
        newest = self._link.protocol.ledger.newest()
        self.mark = self.mark._replace(sequence=max(self.mark.sequence, newest))
        return register(self)

    monkeypatch.setattr(Watch, "_register", from_now)
    with pytest.raises(AssertionError, match="subscription"):
        for seed in SEEDS[:SHORT]:
            simulate(seed)
