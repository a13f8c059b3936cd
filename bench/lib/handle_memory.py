"""Bytes of the client's memory for a handle of `register`: rows for bench/suites/client.py, in processes of their own.

    python bench/lib/handle_memory.py HANDLES     prints JSON

A handle watches one key, a str of 17 characters that nobody else holds. The payload of 100 bytes is one object for all.
The value of the event has 8 bytes. The commands were acknowledged, and the list that holds the handles is not counted.

* *pending*, *settled*, *read* (settled, and `outcome()` was called): the growth of the process for a handle, by
  `tracemalloc` (bytes that were asked for) and by the kernel (resident pages, with what the allocators round up). Where
  the client asks the C library for memory, only the kernel knows it.
* Parts. *object* is the handle itself, with the slots for its callbacks, its id and its reply. *collector's header* is
  what the garbage collector has before the object. *table entry* is its share of the table of pending operations.
  *settlement* is what the handle gained when it settled: the record and the value. *command* is kept until the daemon
  has acknowledged it; it is counted with the room that a list of commands has to grow.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHUNK = 8_192
PER_REPORT = 256
COMMANDS = 32_768
STATES = ("pending", "settled", "read")
WAYS = ("traced", "resident")
PARTS = ("object", "collector's header", "key", "table entry", "settlement", "command")


def resident() -> int:
    """Bytes of this process's memory that are in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def traced() -> int:
    return tracemalloc.get_traced_memory()[0]


def growth(handles: int, used: Callable[[], int]) -> Iterator[tuple[str, float, list[Any]]]:
    """The growth for a handle in each state, and the handles."""
    from bench.suites.client import KEY, PAYLOAD, Rig

    rig = Rig()
    register = rig.purgatory.register

    def play(made: list[Any], settle: bool, read: bool) -> None:
        for start in range(0, len(made), CHUNK):
            upto = min(start + CHUNK, len(made))
            if not settle:
                for number in range(start, upto):
                    made[number] = register(KEY.format(number), timeout=3600.0, payload=PAYLOAD)
                rig.send()
                rig.hear(rig.header())
            elif not read:
                for report in rig.reports([operation.command for operation in made[start:upto]], PER_REPORT):
                    rig.hear(report)
            else:
                for operation in made[start:upto]:
                    assert operation.outcome().value
        others.append(register("another", timeout=3600.0))  # the table shrinks here, when it has become emptier
        rig.send()
        rig.hear(rig.header())

    others: list[Any] = []
    for count in (CHUNK, handles):  # at first for what is made once, which is not counted
        made: list[Any] = [None] * count
        gc.collect()
        before = used()
        for state in STATES:
            play(made, settle=state != "pending", read=state == "read")
            gc.collect()
            if count == handles:
                yield state, (used() - before) / handles, made


def table_entry(handles: int) -> float:
    """By tracemalloc: of a table that has only as many numbers, one after another."""
    from timerd_client.hot import Pending

    pending, waiter, before = Pending(), object(), traced()
    for number in range(handles):
        pending[number + COMMANDS] = waiter  # type: ignore[assignment]
    return (traced() - before) / handles


def command() -> float:
    """By tracemalloc: of a ledger that has only the commands of a full half window."""
    from bench.suites.client import Rig
    from timerd_client.hot import Ledger

    rig = Rig()
    operation = rig.purgatory.register("request/000000000", timeout=1.0, payload=bytes(100))
    bytes_of_it = rig.protocol.ledger.command(operation.command)
    ledger, before = Ledger(2 * COMMANDS), traced()
    for _ in range(COMMANDS):
        ledger.issue(bytes(bytearray(bytes_of_it)))
    return (traced() - before) / COMMANDS


def measure(handles: int) -> dict[str, float]:
    """{what: bytes}"""
    found: dict[str, float] = {}
    for state, grown, _ in growth(handles, resident):
        found[f"{state}, resident"] = grown
    tracemalloc.start()
    for state, grown, made in growth(handles, traced):
        found[f"{state}, traced"] = grown
        if state == "pending":
            found["object"] = made[0].__sizeof__()
            found["collector's header"] = sys.getsizeof(made[0]) - made[0].__sizeof__()
            found["key"] = sys.getsizeof(made[0].keys[0])
    found["table entry"] = table_entry(handles)
    found["settlement"] = found["settled, traced"] - sum(found[part] for part in PARTS[:3])
    found["command"] = command()
    return found


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
