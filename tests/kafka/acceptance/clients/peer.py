"""The roles of the process of one client.

produce   sends `count` records, or for `seconds`, or until "stop"; `rate` a second, or as fast as the answers come;
          `in_flight` records have no answer yet, at most
consume   reads `expect` records, and whatever comes just after them; or reads until "stop"
member    reads as a member of a group, and prints its partitions whenever they change
          (member and consume print how many records they have read, each counted once)
commit    commits plan["offsets"];  committed  has the committed offsets as its result
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from clients import peers
from clients.errand import Role, say, stop

AFTER_S = 0.3  # for this time a consumer waits for unexpected records
SIZE = 100  # bytes of a record's value


async def produce(plan: dict[str, Any]) -> dict[str, Any]:
    """Send numbered records to the partitions in turn. The records of a partition are in order."""
    producer = peers.PRODUCERS[plan["client"]](plan)
    await producer.start()
    say(ready=True)
    tag, partitions, count, rate = plan["tag"], plan["partitions"], plan.get("count", 0), plan.get("rate", 0)
    acked: list[tuple[int, int, float]] = []  # number, offset, seconds
    failed: list[tuple[int, str]] = []
    sent = 0

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
    while not stop.is_set() and (sent < count if count else True):
        if rate and (early := begun + sent / rate - time.monotonic()) > 0:
            await (producer.breathe() if early > 0.002 else asyncio.sleep(early))
            continue
        if sent - len(acked) - len(failed) >= plan.get("in_flight", 500):
            await producer.breathe()
            continue
        await producer.send(sent % partitions, f"{tag} {sent} ".ljust(padding, ".").encode(), done_of(sent))
        sent += 1
        if "seconds" in plan and time.monotonic() > begun + plan["seconds"]:
            break
    while sent > len(acked) + len(failed) and time.monotonic() < begun + plan.get("patience", 1e9):
        await producer.breathe()
    took = time.monotonic() - begun
    await producer.close()
    return {"sent": sent, "acked": acked, "failed": failed, "seconds": took, "throttles_ms": producer.throttles_ms}


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
        elif enough is not None and now > last + (AFTER_S if len(rows) >= enough else plan.get("patience", 20)):
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


def in_loop(role: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]) -> Role:
    """Make a role of a coroutine function."""
    return lambda plan: asyncio.run(role(plan))


ROLES = {
    "produce": in_loop(produce),
    "consume": in_loop(consume),
    "member": in_loop(consume),
    "commit": in_loop(commit),
    "committed": in_loop(committed),
}
