"""The client's memory for registrations, for the suite `client`. Each figure comes from a process of its own.

    python -m bench.lib.client_memory register|register_many KEYS HANDLES    # prints JSON
    python -m bench.lib.client_memory handle HANDLES

With `register` or `register_many`, the process registers HANDLES operations with KEYS keys each, and keeps what the
call returned. Every command is sent and applied, and no outcome has come. *without_keys* is the growth of resident
memory since the caller had all its keys. *with_keys* is the growth since before the caller made its keys. The list for
the handles was made earlier.

With `handle`, the figures are the memory of one handle of `register`. The handle watches one key, a str of 17
characters that nobody else holds. The payload of 100 bytes is one object for all. The value of the event has 8 bytes.
The commands were acknowledged, and the list that holds the handles is not counted.

* *pending*, *settled*, *read* (settled, and `outcome()` was called): the growth of the process for a handle, by
  `tracemalloc` (bytes that were asked for) and by the kernel (resident pages, with what the allocators round up). Only
  the kernel's figure has the memory that the client gets from the C library.
* The parts of this memory: *object* is the handle itself, with the slots for its callbacks, its id and its reply.
  *collector's header* is the header of the garbage collector, which lies in front of the object. *key* is the str.
  *table entry* is the handle's share of the table of pending operations. *settlement* is what the handle gained when it
  settled: the record and the value. *command* is kept until the daemon has acknowledged it; its figure includes the
  spare room in the list of commands.
"""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from bench.lib.client_rig import KEY, PAYLOAD, TOGETHER, Rig, keys_of, pieces_of
from bench.lib.memory import resident
from timerd_client.hot import Ledger, Pending
from timerd_client.types import Keys

TIMEOUT_S = 3_600.0
WARM = TOGETHER  # registrations before the first measurement, so that buffers exist and tables have their usual sizes
CHUNK = 8_192
PER_REPORT = 256
COMMANDS = 32_768
STATES = ("pending", "settled", "read")
WAYS = ("traced", "resident")
PARTS = ("object", "collector's header", "key", "table entry", "settlement", "command")


def register(rig: Rig, rows: list[Keys], kept: list[Any]) -> None:
    """Register each row by a call of its own. `kept` has a place for each handle."""
    for at, row in enumerate(rows):
        kept[at] = rig.purgatory.register(row, timeout=TIMEOUT_S, payload=PAYLOAD)
        if at % TOGETHER == 0:
            rig.settle()
    rig.settle()


def register_many(rig: Rig, rows: list[Keys], kept: list[Any]) -> None:
    """Register the rows in bulk calls."""
    for at, piece in enumerate(pieces_of(rows)):
        kept[at] = rig.purgatory.register_many(piece, timeout=TIMEOUT_S, payloads=PAYLOAD)
        rig.settle()


CALLS = {"register": register, "register_many": register_many}


def measure(call: str, keys: int, handles: int) -> dict[str, float]:
    """Bytes for each of `handles` registrations."""
    rig, make = Rig(), CALLS[call]
    warm: list[Any] = [None] * WARM
    kept: list[Any] = [None] * handles
    make(rig, keys_of(handles, WARM, keys), warm)
    bare = resident()
    rows = keys_of(0, handles, keys)
    with_keys = resident()
    make(rig, rows, kept)
    grown = resident()
    return {"without_keys": (grown - with_keys) / handles, "with_keys": (grown - bare) / handles}


def traced() -> int:
    return tracemalloc.get_traced_memory()[0]


def growth(handles: int, used: Callable[[], int]) -> Iterator[tuple[str, float, list[Any]]]:
    """For each state: its name, the growth for a handle, and the handles."""
    rig = Rig()
    register = rig.purgatory.register

    def play(made: list[Any], settle: bool, read: bool) -> None:
        for start in range(0, len(made), CHUNK):
            upto = min(start + CHUNK, len(made))
            if not settle:
                for number in range(start, upto):
                    made[number] = register(KEY.format(number), timeout=3600.0, payload=PAYLOAD)
                rig.send()
                rig.receive(rig.header())
            elif not read:
                for report in rig.reports([operation.command for operation in made[start:upto]], PER_REPORT):
                    rig.receive(report)
            else:
                for operation in made[start:upto]:
                    assert operation.outcome().value
        others.append(register("another", timeout=3600.0))  # a table that has become emptier shrinks at the next insert
        rig.send()
        rig.receive(rig.header())

    others: list[Any] = []
    for count in (CHUNK, handles):  # the first pass is not counted: it allocates what a process allocates only once
        made: list[Any] = [None] * count
        gc.collect()
        before = used()
        for state in STATES:
            play(made, settle=state != "pending", read=state == "read")
            gc.collect()
            if count == handles:
                yield state, (used() - before) / handles, made


def table_entry(handles: int) -> float:
    """Bytes of an entry, by tracemalloc, in a table of `handles` consecutive numbers."""
    pending, waiter, before = Pending(), object(), traced()
    for number in range(handles):
        pending[number + COMMANDS] = waiter  # type: ignore[assignment]
    return (traced() - before) / handles


def command() -> float:
    """Bytes of a command, by tracemalloc, in a ledger that keeps half a window of commands."""
    rig = Rig()
    operation = rig.purgatory.register("request/000000000", timeout=1.0, payload=bytes(100))
    bytes_of_it = rig.protocol.ledger.command(operation.command)
    ledger, before = Ledger(2 * COMMANDS), traced()
    for _ in range(COMMANDS):
        ledger.issue(bytes(bytearray(bytes_of_it)))
    return (traced() - before) / COMMANDS


def measure_handle(handles: int) -> dict[str, float]:
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
    what, *numbers = sys.argv[1:]
    print(json.dumps(measure_handle(*map(int, numbers)) if what == "handle" else measure(what, *map(int, numbers))))
