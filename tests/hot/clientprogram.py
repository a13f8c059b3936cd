"""Random programs over a client. A program has the same trace over the compiled hot/ and over the model of hot/.

    python tests/support/run.py hot.clientprogram FIRST COUNT [STEPS]       modelprogram: the same over the model

A program registers, fires, cancels and waits, with usual, unusual and wrong arguments, against a daemon in memory that
is lost, restarted and slow, and that sends damaged frames. Its trace has what every call returned or raised, each frame
to the daemon, the callbacks in their order, and how everything has settled. The output is lines of JSON: first the path
of the hot/ that was used, and then for each seed, from FIRST on, the trace.
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

from support.fakes.fakedaemon import MS, FakeDaemon, World
from support.fakes.lazies import lazy_of
from support.fakes.mutations import down
from support.fakes.no_sockets import NOWHERE, no_sockets
from timerd_client import ALL, ALL_SETTLED, ANY, at_least, hot, total
from timerd_client.conditions import When
from timerd_client.link.batch import ThreadedBatch
from timerd_client.link.link import Link
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.sender import Sender
from timerd_client.link.waiters import Waiters
from timerd_client.link.withdrawals import abandon
from timerd_client.mark import Mark
from timerd_client.outcome import Outcome
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.session import Identity
from timerd_client.protocol.state import LinkState
from timerd_client.threaded.purgatory import Purgatory
from timerd_shm.declare.errors import BackpressureError, ErrorCode
from timerd_shm.declare.fields import size_of, struct_of
from timerd_shm.declare.states import Condition
from timerd_shm.declare.states import Outcome as Settled
from timerd_shm.declare.wire import DownKind, OutcomeRecord, ReportHeader

STEPS = 120
KEYS: tuple[Any, ...] = (
    "k", "j", "key", b"k", b"\xff\x00", "schlüssel", "k" * 255, b"b" * 255,
    "", b"", "k" * 256, "\ud800", 7, None, ["k", "j"], ("k", b"i"), ["k", "k"], {"p": 3, "k": None}, [],
    bytearray(b"k"), ("k", "j", "i"), {"p": 7}, {b"p": (1 << 64) - 1, "q": 1 << 64}, {"p": -1}, {"p": True}, {}, (),
    tuple(f"k{number}" for number in range(16)), [f"k{number}" for number in range(17)], {"k"}, ("k", 7),
    ("k", "schlüssel", "k"), ("\ud800",), tuple(f"k{number}" for number in range(65)), {7: 1}, ("k", b"k"),
)  # fmt: skip
TIMEOUTS: tuple[Any, ...] = (
    0, 0.0, 1, 0.25, 0.1, 1e-9, 1.5e-9, 2.5e-9, 0.3, 5, 30.5, None, timedelta(milliseconds=20), 3660 * 86_400,
    316_224_000.0, True, -1, -0.5, float("nan"), float("inf"), 316_224_001, 1e300, 1 << 80, "1",
)  # fmt: skip
BODIES: tuple[Any, ...] = (
    b"", b"v", b"v" * 100, bytes(65_536), bytearray(b"array"), memoryview(b"view"), "text", None, bytes(65_537),
)  # fmt: skip
AMOUNTS: tuple[Any, ...] = (1, 1, 2, 4096, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0, -1, 1 << 64, True, 1.0, None)
CONDITIONS: tuple[Any, ...] = (
    ANY, ANY, ANY, ALL, ALL_SETTLED, at_least(2), at_least(64), total(5), total((1 << 64) - 1), None, (0, 1, 0),
    When(Condition.AT_LEAST, 70), When(Condition.AT_LEAST, -1), When(Condition.TOTAL, 0, 1 << 64),
    tuple.__new__(When, ()), tuple.__new__(When, (Condition.AT_LEAST, 1)),
)  # fmt: skip
BIG = 1 << 32


class ProgramSender(Sender):
    """When the window is full, it exchanges frames once, and raises if there is still no room."""

    _link: ManualLink

    def make_room(self) -> None:
        self._link.lock.release()
        self._link.world.exchange()
        self._link.lock.acquire()
        if self._protocol.outgoing.room <= 0:
            raise BackpressureError("the window is full")


class ProgramWaiters(Waiters):
    """No call may wait: a frame comes only when the program exchanges frames."""

    def may_block(self) -> None:
        raise RuntimeError("nothing comes while it waits")


class ManualLink(Link):
    """A link on the world's clock."""

    SENDER = ProgramSender
    WAITERS = ProgramWaiters

    def __init__(self, world: Program) -> None:
        self.world = world
        super().__init__(NOWHERE, world.protocol, no_sockets(), lambda: world.now)

    def wake(self) -> None:
        self.idle = False
        self.world.note("woken")

    def complain(self, what: str, error: BaseException | None = None, *, often: bool = False) -> None:
        self.world.note(f"complains: {what} {error!r}")


class Program(World):
    """One program, and its trace."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.trace: list[str] = []
        window = rng.choice((16, 300, 65_536))
        super().__init__(window=window, shared_clock=rng.random() < 0.8)
        self.protocol = Protocol(Identity("program"), self.now, random=rng.randbytes, window=window)
        self.link = link = ManualLink(self)
        self.words = memoryview(bytearray(64)).cast("Q")
        self.purgatory = Purgatory(cast(Any, lazy_of(link)), "default", ThreadedOperation)
        self.operations: list[ThreadedOperation] = []
        self.batches: list[ThreadedBatch] = []
        self.marks: list[Mark] = []
        if rng.random() < 0.9:
            self.exchange()

    def note(self, what: object) -> None:
        self.trace.append(str(what))

    def up(self) -> list[bytes]:
        frames = super().up()
        for frame in frames:
            self.note(f"up {frame.hex() if len(frame) < 2_000 else (len(frame), zlib.crc32(frame))}")
        return frames

    def pick(self, choices: tuple[Any, ...], usual: float = 0.7, first: int = 5) -> Any:
        """One of the choices: with chance `usual`, one of the first few."""
        return self.rng.choice(choices[:first] if self.rng.random() < usual else choices)

    def attempt(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a call, and note how it ended."""
        try:
            result = call()
        except Exception as error:
            notes = getattr(error, "__notes__", [])
            self.note(f"{what}: {type(error).__name__}: {error} {notes}")
            return None
        self.note(f"{what}: {type(result).__name__} {result!r:.200}")
        return result

    def copy(self, what: str, rows: int, copy_records: Callable[[bytearray, int], bool]) -> None:
        """Copy records after the first 8 bytes of a buffer; then try to copy them where there is no room."""
        into = bytearray(8 + size_of(OutcomeRecord) * rows)
        copied = self.attempt(what, partial(copy_records, into, 8))
        self.note(f"{bytes(into)!r}" if copied else f"{into[:8]!r}")
        self.attempt(f"{what}, without room", partial(copy_records, into, 9))

    def step(self) -> None:
        steps = (
            (self.call_register, 8), (self.call_fire, 6), (self.register_many, 3), (self.fire_many, 3),
            (self.exchange, 6),
            (self.watch, 2), (self.cancel, 1), (self.reschedule, 1), (self.pass_a_while, 2), (self.damaged, 3),
            (self.daemon_changes, 1), (self.daemon_settles, 3), (self.abandon, 1), (self.sleep, 2), (self.arena, 1),
            (self.look, 1), (self.drop, 1),
        )  # fmt: skip
        does = self.rng.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
        self.now += self.rng.randrange(3 * MS)
        does()

    # calls ------------------------------------------------------------------------------------------------------------

    def call_register(self) -> None:
        rng, more = self.rng, dict[str, Any]()
        if rng.random() < 0.5:
            more["payload"] = self.pick(BODIES, first=3)
        if rng.random() < 0.3:
            more["when"] = rng.choice(CONDITIONS)
        if rng.random() < 0.1:
            more["id"] = rng.choice(("id", b"id", "", "other", 5))
        if rng.random() < 0.1:
            more["if_exists"] = rng.choice(("error", "keep", "replace", "?", None))
        if rng.random() < 0.1:
            more["since"] = self.some_mark()
        if rng.random() < 0.1:
            more["orphans"] = rng.choice(("cancel", "keep", "group", None))
        keys, timeout = self.pick(KEYS), self.pick(TIMEOUTS, first=10)
        made = self.attempt(
            f"register {keys!r:.60} {timeout!r} {sorted(more)}",
            lambda: self.purgatory.register(keys, timeout=timeout, **more),
        )
        if made is not None:
            self.note(f"{made.command} {made.deadline_ns} {made.keys!r:.80} {made.payload!r:.80}")
            self.operations.append(made)

    def some_mark(self) -> Any:
        """A mark of this moment or an earlier one, possibly of another client or arena; or what is no mark at all."""
        now = self.attempt("mark", self.purgatory.mark)
        if now is not None:
            self.marks.append(now)
        others = (
            self.marks[-1]._replace(**other)
            for other in ({"maker": b"another"}, {"incarnation": 1}, {"command": 0.5}, {"sequence": True})
            if self.marks
        )
        return self.rng.choice((now, now, *self.marks[-5:], *others, Mark(1, -1), None, 3))

    def call_fire(self) -> None:
        more: dict[str, Any] = {}
        if self.rng.random() < 0.5:
            more["value"] = self.pick(BODIES, first=3)
        if self.rng.random() < 0.3:
            more["amount"] = self.pick(AMOUNTS)
        if self.rng.random() < 0.2:
            more["limit"] = self.rng.choice((1, 2, None, 0, "1"))
        key = self.pick(KEYS)
        self.attempt(f"fire {key!r:.60} {sorted(more)}", lambda: self.purgatory.fire(key, **more))

    def column(self, choices: tuple[Any, ...], rows: int, first: int = 5) -> Any:
        usual = self.rng.random() < 0.85
        return [self.rng.choice(choices[:first] if usual else choices) for _ in range(rows)]

    def register_many(self) -> None:
        rng = self.rng
        rows = rng.choice((0, 1, 2, 5, 40, 300))
        timeout = self.pick(TIMEOUTS, first=10) if rng.random() < 0.7 else self.column(TIMEOUTS, rows, first=10)
        payloads = self.pick(BODIES, first=3) if rng.random() < 0.7 else self.column(BODIES[:-1], rows + (rows == 2), 3)
        keys = self.column(KEYS, rows)
        when = rng.choice((*CONDITIONS, ANY, ANY, ANY))
        since = self.some_mark() if rng.random() < 0.2 else None
        made = self.attempt(
            f"register_many {rows}",
            lambda: self.purgatory.register_many(keys, timeout=timeout, payloads=payloads, when=when, since=since),
        )
        if made is not None:
            self.note(list(made.commands())[:1])
            self.batches.append(made)

    def fire_many(self) -> None:
        rng = self.rng
        rows = rng.choice((0, 1, 2, 5, 40, 300))
        values = self.pick(BODIES, first=3) if rng.random() < 0.7 else self.column(BODIES[:-1], rows, 3)
        amounts = self.pick(AMOUNTS) if rng.random() < 0.7 else self.column(AMOUNTS, rows)
        keys = self.column(KEYS, rows)
        self.attempt(f"fire_many {rows}", lambda: self.purgatory.fire_many(keys, values=values, amounts=amounts))

    def one(self) -> ThreadedOperation | None:
        return self.rng.choice(self.operations) if self.operations else None

    def watch(self) -> None:
        promise = self.rng.choice([*self.operations, *self.batches] or [None])
        if promise is not None:
            number = len(self.trace)
            promise.add_done_callback(lambda settled: self.note(f"callback {number}: {settled._settlement!r:.200}"))

    def cancel(self) -> None:
        if (operation := self.one()) is not None:
            self.attempt(f"cancel {operation.command}", operation.cancel)

    def reschedule(self) -> None:
        if (operation := self.one()) is not None:
            timeout = self.pick(TIMEOUTS, first=10)
            self.attempt(f"reschedule {operation.command}", lambda: operation.reschedule(timeout))
            self.note(operation.deadline_ns)

    def abandon(self) -> None:
        if (operation := self.one()) is not None:
            self.attempt(f"abandon {operation.command}", lambda: abandon(self.link, [operation.command]))

    def sleep(self) -> None:
        self.link.idle = True

    def drop(self) -> None:
        """Drop some of the handles, like a program that does not keep them."""
        del self.operations[:: self.rng.choice((2, 3))]

    def look(self) -> None:
        for operation in self.operations[-5:]:
            self.note(f"{operation.command} {operation.done()} {operation._settlement!r:.400}")
            self.attempt("repr", partial(repr, operation))
        self.note(self.protocol.statistics())
        self.note([command for command, _ in self.protocol.ledger.pending.items()][:20])

    # the daemon -------------------------------------------------------------------------------------------------------

    def pass_a_while(self) -> None:
        self.lose_up = self.lose_down = lambda frame: False
        self.pass_time(self.rng.choice((5, 60, 400)), 20)

    def daemon_changes(self) -> None:
        change = self.rng.randrange(5)
        if change == 0:
            self.daemon = FakeDaemon(self.rng.choice((77, 78)), shared_clock=self.rng.random() < 0.8)
        elif change == 1:
            self.silence()
            self.pass_time(5_000, 100)
            self.speak()
        elif change == 2:
            kept = 1 + self.rng.randrange(3)
            self.lose_up = lambda frame: len(frame) % kept == 0
        elif change == 3:
            self.daemon.apply_up_to = self.daemon.applied + self.rng.randrange(200)
        else:
            number = self.daemon.applied + self.rng.randrange(1, 5)
            self.daemon.refuse[number] = self.rng.choice((ErrorCode.ARENA_FULL, ErrorCode.PAYLOAD_TOO_LARGE))
            self.daemon.apply_up_to = 1 << 63

    def daemon_settles(self) -> None:
        """Settle some pending operations at once."""
        pending = list(self.daemon.pending)
        for command in self.rng.sample(pending, min(len(pending), self.rng.choice((1, 3, 300)))):
            state = self.rng.choice((Settled.COMPLETED, Settled.EXPIRED, Settled.CANCELLED))
            self.daemon.settle(command, state, self.rng.choice((b"", b"value", b"w" * 300)))

    def arena(self) -> None:
        """Take the newest event from a mapped arena, or from the daemon's last report."""
        self.words[3] = self.rng.getrandbits(64)
        use = self.rng.choice(([self.rng.getrandbits(64)], self.words))
        self.protocol.ledger.use_arena(use, 3 if use is self.words else 0)
        self.note(self.protocol.ledger.newest())

    def damaged(self) -> None:
        frame = self.report() if self.rng.random() < 0.7 else self.of_corpus()
        with self.link.lock:
            self.protocol.receive(frame, self.now, published=self.rng.random() < 0.5)
        self.note(f"damaged: {self.protocol.incoming.complaints} {self.protocol.frames_ignored}")
        self.protocol.incoming.complaints.clear()
        self.notify_waiters()

    def notify_waiters(self) -> None:
        for waiter in self.protocol.incoming.take_ready():
            waiter.notify()

    def of_corpus(self) -> bytes:
        """A frame of the corpus, changed at some places."""
        frames = down(self.protocol.session.topic, self.protocol.session.arena)
        frame = bytearray(frames[self.rng.choice(sorted(frames))])
        for _ in range(self.rng.randrange(4)):
            frame[self.rng.randrange(len(frame))] = self.rng.randrange(256)
        return bytes(frame[: self.rng.choice((len(frame), self.rng.randrange(len(frame) + 1)))])

    def report(self) -> bytes:
        """A report on operations that are pending or not, with values at any offset."""
        rng, protocol = self.rng, self.protocol
        commands = [*list(protocol.ledger.pending)[:6], 0, 3, 1 << 40, (1 << 64) - 1]
        heap = rng.randbytes(40)
        first, applied = protocol.incoming.received_outcome + 1, protocol.ledger.applied
        rows = []
        for number in range(first, first + rng.randrange(8)):
            words = [
                rng.choice(commands),
                number if rng.random() < 0.9 else 0,
                *(rng.getrandbits(64) for _ in range(5)),
                *(rng.getrandbits(rng.choice((1, 16, 17, 64))) for _ in range(2)),  # the keys, one bit each
            ]
            numbers = [
                rng.choice((0, 8, 39, 40, 41, BIG - 1)), rng.choice((0, 1, 8, 40, 1_000, BIG - 1)),
                *(rng.choice((0, 0, 0, 0, 0, 0, 0, 5)) for _ in range(2)),
                rng.choice((0, 4, 13)), rng.choice((0, 1, 2, 3, 4, 5, 200)), rng.randrange(3), rng.randrange(32),
                rng.choice((0, 0, 0, 2)),
            ]  # fmt: skip
            rows.append(struct_of(OutcomeRecord).pack(*words, *numbers))
        header = ReportHeader._make(struct_of(ReportHeader).unpack(bytes(struct_of(ReportHeader).size)))._replace(
            topic=protocol.session.topic,
            version=1,
            kind=DownKind.REPORT,
            outcomes=len(rows) if rng.random() < 0.9 else rng.choice((100, BIG - 1)),
            answers=0 if rng.random() < 0.9 else 1,
            incarnation=protocol.session.arena,
            applied=min(applied + rng.randrange(3), (1 << 64) - 1) if rng.random() < 0.9 else (1 << 64) - 1,
            outcome_first=first,
            outcome_last=first + len(rows) - 1,
            outcome_newest=first + len(rows) - 1,
            newest=rng.getrandbits(rng.choice((3, 64))),
        )
        return struct_of(ReportHeader).pack(*header) + b"".join(rows) + heap

    # the end ----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Note how everything has settled."""
        self.look()
        if self.protocol.state is not LinkState.CLOSED and self.rng.random() < 0.5:
            self.link.connection.reader = None
            with self.link.lock:
                self.protocol.incoming.fail_all(BackpressureError("the end"))
            self.notify_waiters()
        for operation in self.operations:
            self.note(f"{operation.command} {operation._settlement!r}")
            self.attempt("outcome", partial(outcome_of, operation))
        for some in (self.operations, [one for one in self.operations if one.done()], self.operations[:1]):
            self.copy("records", len(some), partial(hot.copy_records, some))
        for batch in self.batches:
            self.copy("records of a batch", len(batch), batch.copy_records)
            self.note(f"{batch!r} {batch.done()} {[batch.settlement(row) for row in range(len(batch))]}")
            if batch.done():
                self.attempt("states", partial(batch.states, 0))
                self.attempt("values", partial(values_of, batch))
                self.attempt("completed", partial(batch.completed, 0))
                self.attempt("outcomes", partial(outcomes_of, batch))


def outcome_of(operation: ThreadedOperation) -> str:
    return shown(operation.outcome())


def values_of(batch: ThreadedBatch) -> int:
    return zlib.crc32(b"|".join(batch.values(0)))


def outcomes_of(batch: ThreadedBatch) -> list[str]:
    return list(map(shown, batch.outcomes(0)))[:3]


def shown(outcome: Outcome | None) -> str:
    if outcome is None:
        return "none"
    mark = (outcome.mark.incarnation, outcome.mark.sequence)
    return f"{outcome!r} {outcome.satisfied} {outcome.wait_ns} {outcome.lateness_ns} {mark} {outcome.payload!r:.50}"


def run(seed: int, steps: int) -> list[str]:
    """The trace of one program."""
    program = Program(seed)
    for _ in range(steps):
        program.step()
        program.link.closed = program.link.closed or program.rng.random() < 0.001
    program.end()
    return program.trace


def main() -> None:
    first, count, *steps = map(int, sys.argv[1:])
    print(json.dumps(hot.__file__))
    for seed in range(first, first + count):
        print(json.dumps(run(seed, steps[0] if steps else STEPS)))


if __name__ == "__main__":
    main()
