"""Dead letters in an arena, as the books know them."""

from __future__ import annotations

from typing import NamedTuple

from timerd_client.groups.plan import unpack
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader


class Letter(NamedTuple):
    """A dead letter in the arena, at the end."""

    number: int
    name: str
    which: object  # its payload; of a schedule, its point
    reason: str


def letters_of(memory: bytearray) -> tuple[list[Letter], int]:
    """The dead letters in an arena, and how many were ever made there."""
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
