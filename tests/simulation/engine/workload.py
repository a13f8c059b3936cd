"""The acts of processes, drawn from the seed: most methods of a client, on a few keys that all processes share.

The results of some acts are known: a total on a key of its own, limited events with a value of their own, pairs of one
operation and one event, watermarks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from timerd_client.conditions import ALL, ALL_SETTLED, ANY, When, at_least, total
from timerd_client.groups.registry import Calls
from timerd_client.groups.schedule import datetime_of
from timerd_client.groups.steps import Call
from timerd_client.link.operation import ThreadedOperation
from timerd_client.protocol.session import CALLS
from timerd_client.threaded.client import Client
from timerd_client.threaded.delayed import DelayedOperation
from timerd_client.threaded.purgatory import Purgatory
from timerd_client.types import CallExists, WhenLost
from timerd_shm.declare.errors import ResourceLimitError, TimerdError

from .books import DELIVERIES, Books, PlannedFailure, Total, Watched, is_expected
from .issued import Issued
from .process import Process

MS = 1_000_000
KEYS = ("a", "b", "c", "a key that is longer than what fits in any record, so that it needs a block of its own")
TOKENS = ("l/0", "l/1")
MARKS = ("w/0", "w/1", "w/2")
IDS = ("one", "two", "three")
PURGATORIES = ("default", "fetch")


ONCE = ("once/a", "once/b", "once/killer", "once/c")  # names of calls; calls of the last name are retried
KILLER = ONCE[2]  # most runs of its handler end the process
CALL_IDS = ("call/one", "call/two", "call/three")
RETRIES = 2
PERIODIC = ("every/a", "every/b")
PLANS: tuple[dict[str, Any], ...] = (  # a schedule has one of these, and perhaps another after a redeployment
    {"seconds": 0.2},
    {"seconds": 0.7, "grace": 0},
    {"seconds": 3.0},
    {"seconds": 10.0},
    {"cron": "* * * * * *"},
    {"cron": "*/7 * * * * *", "timezone": "Europe/Berlin", "grace": 10},
)


class Worker:
    """One thread of a process, which does random acts until `ending` is set."""

    def __init__(self, process: Process, rng: Random, acts: dict[str, float], pause_ns: int) -> None:
        self.process = process
        self.client: Client = process.client
        self.books: Books = process.books
        self.rng = rng
        self.ending = False
        self.mine: list[ThreadedOperation] = []
        self._names = list(acts)
        self._weights = list(acts.values())
        self._pause_ns = pause_ns

    def run(self) -> None:
        """Act until `ending` is set, or the client is closed."""
        try:
            self.client.ready(timeout=30)
        except TimerdError as error:
            assert is_expected(error), repr(error)
        while not self.ending and not self.client.closed:
            name = self.rng.choices(self._names, self._weights)[0]
            act: Callable[[], None] = getattr(self, f"do_{name}")
            self.books.note(f"{self.process.name}: {name}")
            try:
                act()
            except TimeoutError:
                pass
            except TimerdError as error:
                self.books.complaints[type(error).__name__] += 1
                if not is_expected(error):
                    self.books.fail(f"{self.process.name}: {name} raises {error!r}")
            self.process.schedule.sleep(self._pause())

    def _pause(self) -> int:
        return 1 + int(self.rng.expovariate(1 / self._pause_ns))

    def _timeout(self) -> float | None:
        return self.rng.choice((0, 0.001, 0.02, 0.1, self.rng.random() * 2, self.rng.random() * 10, 60, None))

    def _bytes(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((0, 0, 0, 3, 100, 400)))

    def _purgatory(self) -> Purgatory:
        return self.client.purgatory(self.rng.choice(PURGATORIES))

    def _when(self, keys: int) -> When:
        return self.rng.choice(
            (ANY, ANY, ALL, ALL_SETTLED, at_least(self.rng.randint(1, keys)), total(self.rng.randint(1, 9)))
        )

    def _watch(self, operation: ThreadedOperation, what: str, key: str) -> Watched:
        self.mine = [*(one for one in self.mine if not one.done()), operation]
        return self.books.watch(self.process, operation, what, key)

    # operations on keys that all share -------------------------------------------------------------------------------

    def do_register(self) -> None:
        keys = self.rng.sample(KEYS, self.rng.randint(1, 3))
        more: dict[str, Any] = {}
        if self.rng.random() < 0.2:
            more["since"] = self.client.mark()
            self.process.schedule.sleep(self._pause())
        if self.rng.random() < 0.2:
            more["orphans"] = self.rng.choice(("cancel", "keep"))
        purgatory = self._purgatory()
        register = purgatory.register_wait if self.rng.random() < 0.1 else purgatory.register
        operation = register(keys, timeout=self._timeout(), when=self._when(len(keys)), payload=self._bytes(), **more)
        self._watch(operation, "register", keys[0])

    def do_register_id(self) -> None:
        held = set(map(id, self.mine))
        operation = self._purgatory().register(
            self.rng.choice(KEYS),
            timeout=self._timeout(),
            id=self.rng.choice(IDS),
            if_exists=self.rng.choice(("error", "keep", "replace")),
        )
        if id(operation) not in held:
            self._watch(operation, "register", "id").others_may_reschedule = True

    def do_register_many(self) -> None:
        keys = [self.rng.choice(KEYS) for _ in range(self.rng.randint(0, 12))]
        batch = self._purgatory().register_many(keys, timeout=self.rng.random(), payloads=self._bytes())
        self.books.batches.append((self.process, batch))

    def do_fire(self) -> None:
        self._purgatory().fire(self.rng.choice(KEYS), value=self._bytes(), amount=self.rng.randint(1, 5))

    def do_fire_many(self) -> None:
        self.client.fire_many([self.rng.choice(KEYS) for _ in range(self.rng.randint(0, 12))], values=self._bytes())

    def do_fire_wait(self) -> None:
        self.client.fire_wait(self.rng.choice(KEYS), timeout=self.rng.choice((0, 0.1, 5)))

    def do_fail(self) -> None:
        self._purgatory().fail(self.rng.choice(KEYS), code=self.rng.randint(0, 99), value=self._bytes())

    def do_cancel_for_key(self) -> None:
        self._purgatory().cancel_for_key(self.rng.choice(KEYS))

    def do_cancel_for_key_wait(self) -> None:
        self.client.cancel_for_key_wait(self.rng.choice(KEYS), timeout=1)

    def do_cancel(self) -> None:
        if self.mine:
            operation = self.rng.choice(self.mine)
            cancelled = operation.cancel_wait(timeout=self.rng.choice((0, 0.5, 5)))
            outcome = operation.outcome()
            if cancelled != (outcome is not None and outcome.state.name == "CANCELLED"):
                self.books.fail(f"{self.process.name}: cancel() of {operation!r} is {cancelled}")

    def do_cancel_id(self) -> None:
        self.client.cancel_wait(self.rng.choice(IDS), timeout=self.rng.choice((0, 1)))

    def do_reschedule(self) -> None:
        if self.mine:
            operation = self.rng.choice(self.mine)
            try:
                operation.reschedule_wait(self._timeout())
            finally:
                self.books.moved(operation)

    def do_reschedule_id(self) -> None:
        self.client.reschedule_wait(self.rng.choice(IDS), self.rng.random(), timeout=self.rng.choice((0, 1)))

    def do_set_orphans(self) -> None:
        if self.mine:
            self.rng.choice(self.mine).set_orphans(self.rng.choice(("cancel", "keep")))

    def do_result(self) -> None:
        if self.mine:
            self.rng.choice(self.mine).result(self.rng.random())

    def do_wait_for(self) -> None:
        looks = [self.rng.random() < 0.3 for _ in range(3)]
        unavailable: WhenLost = self.rng.choice(("raise", "poll"))
        key = self.rng.choice(KEYS)
        self.client.wait_for(
            lambda: looks.pop() if looks else True, key, timeout=self.rng.random() * 2, unavailable=unavailable
        )

    def do_delayed(self) -> None:
        results: list[object] = []
        looks = [self.rng.random() < 0.3 for _ in range(3)]
        delayed = DelayedOperation(
            lambda: looks.pop() if looks else True,
            on_complete=lambda: results.append("complete"),
            on_expiration=lambda: results.append("expired"),
        )
        keys = [self.rng.choice(KEYS)] if self.rng.random() < 0.8 else [f"{n}" for n in range(70)]
        self.client.try_complete_else_watch(delayed, keys, timeout=self.rng.random())
        self.books.delayed.append((self.process, delayed, results))

    def do_check(self) -> None:
        self.client.check_and_complete(self.rng.choice(KEYS), timeout=self.rng.random())

    def do_flush(self) -> None:
        self.client.flush(timeout=self.rng.random())

    def do_ping(self) -> None:
        self.client.ping(timeout=0.2)
        self.client.stats()

    def do_snapshot(self) -> None:
        with contextlib.suppress(ResourceLimitError):  # turns changed the arena faster than it was copied
            self.client.snapshot(timeout=0.2)

    # results that are known ---------------------------------------------------------------------------------------

    def do_total(self) -> None:
        key = f"t/{len(self.books.totals)}"
        self.books.totals[key] = Total(self.rng.randint(1, 40))
        operation = self.client.register(key, timeout=None, when=total(self.books.totals[key].total))
        self.books.watch(self.process, operation, "total", key)

    def do_add(self) -> None:
        if self.books.totals:
            key = self.rng.choice(list(self.books.totals)[-8:])
            amount = self.rng.randint(1, 9)
            self.client.fire(key, amount=amount)
            self.books.totals[key].fires.append((Issued(self.process), amount))

    def do_token(self) -> None:
        key = self.rng.choice(TOKENS)
        self._watch(self.client.register(key, timeout=self.rng.random() * 3), "token", key)

    def do_hand_over(self) -> None:
        value = b"hand-over %d" % len(self.books.limits)
        self.books.limits[value] = limit = self.rng.randint(1, 3)
        self.client.fire(self.rng.choice(TOKENS), value=value, limit=limit)

    def do_pair(self) -> None:
        key = f"p/{self.books.next_number()}"
        self.books.pair_keys.append(key)
        operation = self.client.register(key, timeout=None)
        watched = self.books.watch(self.process, operation, "pair", key)
        others = [one for one in self.books.living if one.client.connected]
        firing = self.rng.choice(others) if others else self.process
        firing.client.fire(key)
        self.books.pairs[key] = (watched, Issued(firing))

    def do_heartbeat(self) -> None:
        key = f"h/{self.books.next_number()}"
        self.books.pair_keys.append(key)
        self.client.fire(key)
        self.books.watch(self.process, self.client.register(key, timeout=None), "heartbeat", key)

    def do_watermark(self) -> None:
        key = self.rng.choice(MARKS)
        newest = max((mark for _, mark, _ in self.books.advances[key]), default=0)
        target = newest + self.rng.randint(-3, 20)
        if target > 0:
            operation = self.client.register({key: target}, timeout=self.rng.random() * 3)
            self._watch(operation, "watermark", key).target = target

    def do_advance(self) -> None:
        key = self.rng.choice(MARKS)
        newest = max((mark for _, mark, _ in self.books.advances[key]), default=0)
        mark = max(1, newest + self.rng.randint(-5, 9))
        self.client.advance(key, mark)
        self.books.advances[key].append((Issued(self.process), mark, self.books.arena))

    def do_for_group(self) -> None:
        if self.client._protocol.session.identity.group is None:
            return
        payload = b"for the group %d" % self.books.next_number()
        operation = self.client.register(
            self.rng.choice(KEYS), timeout=self.rng.random() * 20, payload=payload, orphans="group"
        )
        self.books.for_group[payload] = self.books.watch(self.process, operation, "for group", payload.decode())

    def do_of_group(self) -> None:
        if self.client._protocol.session.identity.group is None:
            return
        payload = b"of the group %d" % self.books.next_number()
        key, timeout = self.rng.choice(KEYS), self.rng.random() * 20
        self.client.register(key, timeout=timeout, payload=payload, group=True)
        self.books.of_group[payload] = Issued(self.process), self.books.arena

    # named calls ----------------------------------------------------------------------------------------------------

    def do_call_later(self) -> None:
        if self.client._protocol.session.identity.group is None:
            return
        payload = b"call %d" % self.books.next_number()
        name, delay = self.rng.choice(ONCE), self.rng.choice((0, 0.01, self.rng.random() * 5))
        id = self.rng.choice((None, *CALL_IDS))
        exists: CallExists = "error" if id is None else self.rng.choice(("error", "keep", "replace", "again"))
        asked_ns = self.process.schedule.now_ns
        replacing = self.books.withdrawing(id, payload) if id and exists == "replace" else contextlib.nullcontext()
        with replacing, self.books.asking_for(name, payload, id):
            if self.rng.random() < 0.3:
                wall_ns = self.process.schedule.clock.wall_ns() + round(delay * 1e9)
                self.books.latest_wall_ns = max(self.books.latest_wall_ns, wall_ns)
                self.client.call_at_wait(name, datetime_of(wall_ns), payload, id=id, if_exists=exists)
            else:
                self.client.call_later_wait(name, delay, payload, id=id, if_exists=exists)
        if exists in ("error", "replace"):  # else it is not known which of the two calls stays
            self.books.accepted(payload)
        elif exists == "again" and id is not None:
            self.books.again(id, asked_ns)

    def do_cancel_call(self) -> None:
        if self.client._protocol.session.identity.group is not None and self.rng.random() < 0.2:
            id = self.rng.choice((*CALL_IDS, *PERIODIC))
            self.books.cancel(id, lambda: self.client.cancel_call_wait(id))

    def do_reschedule_call(self) -> None:
        if self.client._protocol.session.identity.group is not None:
            self.client.reschedule_call(self.rng.choice(CALL_IDS), self.rng.random())


def handle_calls(process: Process, rng: Random, names: Sequence[str], plans: Sequence[dict[str, Any]]) -> None:
    """Have a process handle these names. Some runs take long, some fail, some have the call come again.

    Many runs for KILLER end their process, in the handler or in on_failure.
    """
    books = process.books
    calls = Calls()

    def handler(call: Call) -> None:
        with books.running(process, call) as run:
            longest_ns = rng.choice((1, MS, 100 * MS, 100 * MS, 3_000 * MS, 20_000 * MS)) if not books.hurry else MS
            process.schedule.sleep(1 + rng.randrange(longest_ns if call.name != KILLER else 100 * MS))
            fate = rng.random()
            if call.name == KILLER and fate > 0.3:
                end_process()
            if fate < 0.1:
                call.retry(rng.random())
                run.is_last = False
            elif fate < 0.3:
                run.is_last = call.name != ONCE[-1] or call.attempt > RETRIES
                raise PlannedFailure

    def on_failure(call: Call, error: BaseException) -> None:
        with books.failing(process, call, error):
            process.schedule.sleep(1 + rng.randrange(100 * MS if not books.hurry else MS))
            if call.name == KILLER and rng.random() < 0.6:
                end_process()

    def end_process() -> None:
        if not books.hurry:
            books.end_process(process)
            process.schedule.sleep(10**12)

    more: dict[str, Any] = {"on_failure": process.handler(on_failure), "deliveries": DELIVERIES}
    for name in names:
        retries = RETRIES if name == ONCE[-1] else 0
        if name in PERIODIC:
            decorate = calls.every(name, **rng.choice(plans), **more)
        else:
            decorate = calls.handler(name, retries=retries, backoff=rng.random(), concurrency=rng.randint(1, 3), **more)
        decorate(process.handler(handler))
    try:
        process.client.serve(calls)
    except TimerdError as error:
        if not is_expected(error):
            books.fail(f"{process.name}: serve() raises {error!r}")


def take_group_outcomes(process: Process, rng: Random, ending: Callable[[], bool], *, well: bool) -> None:
    """Take the outcomes of the process's group. With `well`, acknowledge each, and wait for the daemon's answers."""
    client, books = process.client, process.books
    while not ending() and not client.closed:
        try:
            for outcome in client.outcomes(timeout=1.0 if well else rng.random() * 5):
                books.delivered_to_member(process, outcome)
                if outcome.purgatory == CALLS:
                    books.fail(f"{process.name}: outcomes() gives a call, {outcome!r}")
                if not well and rng.random() < 0.5:
                    process.schedule.sleep(1 + rng.randrange(300 * MS))
                waits = well or rng.random() < 0.4
                if waits or rng.random() < 0.7:
                    books.acknowledged[outcome.payload] = Issued(process)  # it may be applied even if ack() raises
                    if not waits:
                        outcome.ack()
                    elif outcome.ack_wait(timeout=5):
                        books.done.add(outcome.payload)
                if not well and rng.random() < 0.1:
                    break
        except TimerdError as error:
            if not is_expected(error):
                books.fail(f"{process.name}: outcomes() raises {error!r}")
        process.schedule.sleep(1 + rng.randrange(500 * MS))


ACTS = tuple(name.removeprefix("do_") for name in vars(Worker) if name.startswith("do_"))
GROUP_ACTS = ("call_later", "cancel_call", "reschedule_call", "for_group", "of_group", "fire")
