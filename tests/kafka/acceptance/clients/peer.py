"""The roles of the process of one client.

produce   sends `count` records, or for `seconds`, or until "stop"; `rate` a second, or as fast as the answers come;
          `in_flight` records have no answer yet, at most. With `codec` they are compressed. With `times`, the
          records of each partition have these times in ms, or with `step` times that far apart, from the first one on;
          with `one_batch` they are one batch
consume   reads `expect` records, and whatever comes just after them; or reads until "stop"
member    reads as a member of a group, and prints its partitions whenever they change
          (member and consume print how many records they have read, each counted once)
commit    commits plan["offsets"];  committed  has the committed offsets as its result
ask       deletes the records before plan["delete"], an offset for each partition; then has as its result the offsets of
          the time plan["at"], and for each partition the offset and the time of the record with the largest time (or
          None, if the client has no call for it)
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any

from clients import asks, peers
from clients.errand import Role, say, stop

AFTER_S = 0.3  # for this time a consumer waits for unexpected records
PATIENCE_S = 120.0  # for this time a consumer waits for missing records
SIZE = 100  # bytes of a record's value


async def produce(plan: dict[str, Any]) -> dict[str, Any]:
    """Send numbered records to the partitions in turn. The records of a partition are in order."""
    producer = peers.PRODUCERS[plan["client"]](plan)
    await producer.start()
    say(ready=True)
    tag, partitions, rate, sent = plan["tag"], plan["partitions"], plan.get("rate", 0), 0
    acked: list[tuple[int, int, float]] = []  # number, offset, seconds
    failed: list[tuple[int, str]] = []

    def done_of(number: int) -> peers.Done:
        begun = time.monotonic()

        def done(offset: int, why: str) -> None:
            if why:
                failed.append((number, why))
            else:
                acked.append((number, offset, time.monotonic() - begun))

        return done

    begun = time.monotonic()
    padding = plan.get("size", SIZE)
    while not is_over(plan, sent, begun):
        if rate and (early := begun + sent / rate - time.monotonic()) > 0:
            await (producer.breathe() if early > 0.002 else asyncio.sleep(early))
            continue
        if not plan.get("one_batch") and sent - len(acked) - len(failed) >= plan.get("in_flight", 500):
            await producer.breathe()
            continue
        value = f"{tag} {sent} ".ljust(padding, ".").encode()
        await producer.send(sent % partitions, value, done_of(sent), time_of(plan, sent // partitions))
        sent += 1
    if plan.get("one_batch"):
        await producer.flush()
    while sent > len(acked) + len(failed) and time.monotonic() < begun + plan.get("patience", 1e9):
        await producer.breathe()
    took = time.monotonic() - begun
    await producer.close()
    return {"sent": sent, "acked": acked, "failed": failed, "seconds": took, "throttles_ms": producer.throttles_ms}


def is_over(plan: dict[str, Any], sent: int, begun: float) -> bool:
    """Whether a producer has sent all its records."""
    most, seconds = plan.get("count") or math.inf, plan.get("seconds") or math.inf
    return stop.is_set() or sent >= most or time.monotonic() > begun + seconds


def time_of(plan: dict[str, Any], number: int) -> int | None:
    """The time in ms of a partition's record, or None if the client chooses it."""
    times = plan.get("times")
    if times is None:
        return None
    found: int = times[0] + number * plan["step"] if "step" in plan else times[number]
    return found


async def consume(plan: dict[str, Any]) -> dict[str, Any]:
    """Read until "stop"; with `expect`, until no record came for AFTER_S, or for `patience` if records are missing."""
    assigned: list[int] = []

    def look() -> None:
        nonlocal assigned
        if plan["role"] == "member" and (found := consumer.assigned()) != assigned:
            assigned = found
            say(assigned=assigned)

    consumer = peers.CONSUMERS[plan["client"]](plan, look)
    await consumer.start()
    say(ready=True)
    rows: list[tuple[int, int, str]] = []
    places: set[tuple[int, int]] = set()  # partition and offset
    begun = last = time.monotonic()
    enough = plan.get("expect")
    while not stop.is_set():
        got = await consumer.poll(consumer.POLL_S)
        now = time.monotonic()
        if got:
            rows.extend((partition, offset, value.decode().rstrip(". ")) for partition, offset, value in got)
            places.update((partition, offset) for partition, offset, _ in got)
            last = now
            say(read=len(places))
        elif enough is not None and now > last + (AFTER_S if len(rows) >= enough else plan.get("patience", PATIENCE_S)):
            break
        look()
    say(closing=True)
    await consumer.close()
    say(closed=True)
    return {"rows": rows, "seconds": last - begun}


async def commit(plan: dict[str, Any]) -> dict[str, Any]:
    """Commit offsets without being a member."""
    consumer = peers.CONSUMERS[plan["client"]](plan)
    await consumer.start()
    await consumer.commit({int(number): to for number, to in plan["offsets"].items()})
    await consumer.close()
    return {}


async def committed(plan: dict[str, Any]) -> dict[str, Any]:
    """Read the committed offsets."""
    consumer = peers.CONSUMERS[plan["client"]](plan)
    await consumer.start()
    found = await consumer.committed(plan["partitions"])
    await consumer.close()
    return {"offsets": found}


async def ask(plan: dict[str, Any]) -> dict[str, Any]:
    """Delete records, and then ask for offsets by time."""
    return await asks.ASKS[plan["client"]](plan)


def in_loop(role: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]) -> Role:
    """Make a role of a coroutine function."""
    return lambda plan: asyncio.run(role(plan))


ROLES = {
    "produce": in_loop(produce),
    "consume": in_loop(consume),
    "member": in_loop(consume),
    "commit": in_loop(commit),
    "committed": in_loop(committed),
    "ask": in_loop(ask),
}
