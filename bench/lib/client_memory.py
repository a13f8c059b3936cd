"""What pending registrations keep in the client's memory: the growth of a process that does nothing else.

    python bench/lib/client_memory.py register|register_many KEYS HANDLES    # prints JSON

The process registers HANDLES operations with so many keys each, and keeps what register() returned. Every command is
sent and applied, and no outcome has come. *without_keys* is the growth of resident memory since the caller had all its
keys. *with_keys* is that since before it made them. The list that the caller keeps handles in was there before.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import psutil

from bench.suites.client import PAYLOAD, TOGETHER, Rig, keys_of, pieces_of
from timerd_client.types import Keys

TIMEOUT_S = 3_600.0
WARM = TOGETHER  # registrations before the first look: buffers, and tables of their usual sizes


def resident() -> int:
    """Bytes of memory that this process has, without garbage."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def register(rig: Rig, rows: list[Keys], kept: list[Any]) -> None:
    """Register each by itself. `kept` has a place for each handle."""
    for at, row in enumerate(rows):
        kept[at] = rig.purgatory.register(row, timeout=TIMEOUT_S, payload=PAYLOAD)
        if at % TOGETHER == 0:
            rig.settle()
    rig.settle()


def register_many(rig: Rig, rows: list[Keys], kept: list[Any]) -> None:
    """Register them in bulk calls."""
    for at, piece in enumerate(pieces_of(rows)):
        kept[at] = rig.purgatory.register_many(piece, timeout=TIMEOUT_S, payloads=PAYLOAD)
        rig.settle()


WAYS = {"register": register, "register_many": register_many}


def measure(call: str, keys: int, handles: int) -> dict[str, float]:
    """Bytes for each of so many registrations."""
    rig, make = Rig(), WAYS[call]
    warm: list[Any] = [None] * WARM
    kept: list[Any] = [None] * handles
    make(rig, keys_of(handles, WARM, keys), warm)
    bare = resident()
    rows = keys_of(0, handles, keys)
    with_keys = resident()
    make(rig, rows, kept)
    grown = resident()
    return {"without_keys": (grown - with_keys) / handles, "with_keys": (grown - bare) / handles}


if __name__ == "__main__":
    _, name, keys_each, how_many = sys.argv
    print(json.dumps(measure(name, int(keys_each), int(how_many))))
