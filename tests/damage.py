"""An arena in which everything is in use, and a pen to change single fields of it."""

from __future__ import annotations

import struct
from typing import Any

from commands import Key, KeyAct, Register
from harness import MS, Rig, S, fire
from timerd_shm.fields import fields, offset_of
from timerd_shm.layout import REGION_RECORDS, ArenaHeader, ClientState, Condition, Orphans, Region
from timerd_shm.reader import ArenaReader
from timerd_shm.wire import CommandKind

LONG_KEY = b"a key that is longer than what fits into the record of an event, by far"


def busy_rig() -> Rig:
    """A bench on whose arena every region that hands out records has some in use, some free and some never used."""
    rig = Rig(ids_kept_ns=20 * MS)
    alice, bob = rig.client(), rig.client()
    # These leave free records behind, and in the end one id that is remembered.
    for number in range(14):
        key = Key(LONG_KEY + b"%d" % number)
        alice.issue(Register((key,), timeout_ns=MS, id=b"not remembered%02d" % number, payload=b"p", wants_answer=True))
    rig.turn()
    rig.turn(rig.now_ns + 10 * MS)
    rig.acknowledge()
    rig.turn(rig.now_ns + 40 * MS)
    rig.do(alice, Register((Key(b"gone"),), timeout_ns=MS, id=b"settled at first"))
    rig.turn(rig.now_ns + 10 * MS)
    rig.acknowledge()
    for number in range(6):
        alice.issue(
            Register(
                (Key(b"k%d" % (number % 2)), Key(b"offset", target=100 - 7 * number % 20), Key(LONG_KEY)),
                condition=Condition.AT_LEAST,
                needed=3,
                timeout_ns=(number + 1) ** 6 * MS,
                payload=b"p" * 60 * number,
                id=b"0123456789abcde%d" % number,
            )
        )
    bob.issue(Register((Key(b"k0"), Key(b"k2")), condition=Condition.TOTAL, total=100, timeout_ns=50 * MS))
    bob.issue(Register((Key(b"k3"),), timeout_ns=50 * MS, payload=b"with a value", id=b"0123456789abcdef"))
    bob.issue(Register((Key(b"k3"),), timeout_ns=50 * MS, wants_answer=True))
    bob.issue(Register((), timeout_ns=50 * MS))  # refused
    bob.issue(KeyAct(CommandKind.FIRE, b"k3", value=b"v" * 200))
    bob.issue(KeyAct(CommandKind.FIRE, b"k2", amount=2))
    bob.issue(KeyAct(CommandKind.FIRE, LONG_KEY, value=b"w"))
    bob.issue(KeyAct(CommandKind.ADVANCE, b"offset", amount=3))
    bob.issue(KeyAct(CommandKind.FIRE, b"jobs", limit=2, wants_answer=True))
    rig.turn()
    return rig


def grouped_rig() -> Rig:
    """The same, with a group whose member holds outcomes, received and not; one without members, where some wait."""
    rig = busy_rig()
    carol = rig.client(group=b"workers", listens=True)
    for number in range(4):
        carol.issue(Register((Key(b"g%d" % number), Key(LONG_KEY)), timeout_ns=3600 * S, payload=b"p", for_group=True))
    rig.do(carol, fire(b"g0", value=b"v" * 200))
    rig.acknowledge(carol)
    rig.do(carol, fire(b"g1"))
    dave = rig.client(Orphans.GROUP, group=b"nobody-left")
    rig.do(dave, *(Register((Key(b"d%d" % number),), timeout_ns=3600 * S, payload=b"p") for number in range(3)))
    rig.do(dave, fire(b"d0", value=b"v"), fire(b"d1", limit=1))
    rig.close(dave)
    return rig


class Pen:
    """Changes fields of an arena in memory."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory

    def _place(self, record: type, field: str, base: int) -> tuple[str, int]:
        storage = next(each.storage for each in fields(record) if each.name == field)
        return "<" + storage.code, base + offset_of(record, field)

    def get(self, region: Region, index: int, field: str) -> Any:
        with ArenaReader.from_bytes(self.memory) as reader:
            return getattr(reader.record(region, index), field)

    def set(self, region: Region, index: int, field: str, value: Any) -> None:
        with ArenaReader.from_bytes(self.memory) as reader:
            row = reader.region(region)
        code, offset = self._place(REGION_RECORDS[region], field, row.offset + index * row.record_size)
        struct.pack_into(code, self.memory, offset, value)

    def header(self, field: str, value: Any) -> None:
        code, offset = self._place(ArenaHeader, field, 0)
        struct.pack_into(code, self.memory, offset, value)


def slot_in(memory: bytes, state: ClientState, group: int) -> int:
    """The slot of a client in that state and group (index + 1; 0 = none)."""
    with ArenaReader.from_bytes(memory) as reader:
        return next(slot for slot, c in enumerate(reader.clients) if (c.state, c.group) == (state, group))
