"""Dead letters in an arena, as the books know them."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from support.rig.arenas import Memory
from timerd_client.groups.plan import unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import IdState, OpState
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader


class Letter(NamedTuple):
    """A dead letter in the arena, at the end."""

    number: int
    name: str
    which: object  # the call's payload; for a schedule's call, its point
    reason: str

    def is_of(self, run: tuple[str, object, int]) -> bool:
        """Whether this letter may come from the run (name, payload or point, attempt). Grace may skip some points."""
        if isinstance(self.which, datetime) and isinstance(run[1], datetime):
            return run[0] == self.name and run[1] >= self.which
        return run[:2] == (self.name, self.which)


def letters_of(memory: bytes | bytearray) -> tuple[list[Letter], int]:
    """The dead letters in an arena, and the number of all that were ever made there."""
    found = []
    with ArenaReader(memoryview(memory).toreadonly()) as reader:
        for group in range(len(reader.groups)):
            for index in walk.dead_letters(reader, group):
                op = reader.ops[index]
                planned = unpack(reader.blob(op.payload))
                assert planned is not None, f"dead letter {op.outcome_number} has no plan"
                plan, payload = planned
                which = payload or plan.due
                name = reader.key_name(reader.nodes[next(walk.nodes_of(reader, index))]).decode()
                found.append(Letter(op.outcome_number, name, which, reader.blob(op.value).decode()))
        made = reader.header().newest_letter
    return found, made


def look_for_leaks(arena: Memory) -> None:
    """Assert that at the end the arena holds only the ring and dead letters."""
    in_use = arena.in_use()
    header, events = arena.header, arena.region(Region.EVENTS).count
    blocks = arena.records(Region.BLOCKS)
    reached: set[int] = set()
    letters = [op for op in arena.records(Region.OPS) if op.state == OpState.SETTLED]
    assert len(letters) == len(letters_of(arena.memory)[0]), f"settled operations that are no dead letters: {letters}"
    for op in letters:
        for index in (op.payload, op.value):
            while index:
                reached.add(index)
                index = blocks[index - 1].next
    for sequence in range(header.tail, header.newest + 1):
        event = arena.record(Region.EVENTS, sequence & (events - 1))
        for index in (event.key_blob, event.value):
            while index and index not in reached:
                reached.add(index)
                index = blocks[index - 1].next
    expected = {"OPS": len(letters), "NODES": 0, "ANSWERS": 0, "WATERMARKS": 0, "BLOCKS": len(reached)}
    leaked = {name: in_use[name] for name, count in expected.items() if in_use[name] != count}
    assert not leaked, f"leaked: {leaked}, expected {expected}"
    living = [record for record in arena.records(Region.IDS) if record.state == IdState.LIVE]
    assert not living, f"ids of operations that do not exist any more: {living}"
