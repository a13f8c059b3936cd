"""The promises of an arena, without the positions of records: arenas with equal truth have made the same promises.

Everything is named by what it means (client and command number, key, id), so that records may lie elsewhere. Links,
counts and other derived fields are left out, because `check()` compares them with the records.
"""

from __future__ import annotations

from typing import Any

from support.rig.arenas import Memory
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import EventRecord, OpRecord
from timerd_shm.declare.states import ClientState, IdState, OpFlag, OpState

Truth = dict[str, Any]


def truth(memory: bytes | bytearray) -> Truth:
    """The arena's promises."""
    return TruthReader(Memory(memory)).read()


class TruthReader:
    """One walk over the records of an arena."""

    def __init__(self, memory: Memory) -> None:
        self.ops = memory.records(Region.OPS)
        self.nodes = dict(memory.table(Region.NODES).numbered())
        self.blocks = memory.records(Region.BLOCKS)
        self.memory = memory

    def read(self) -> Truth:
        header, memory = self.memory.header, self.memory
        ring = [
            memory.record(Region.EVENTS, sequence & (memory.region(Region.EVENTS).count - 1))
            for sequence in range(header.tail, header.newest + 1)
        ]
        pending = sorted((op for op in self.ops if op.state == OpState.PENDING), key=lambda op: op.registration)
        return {
            "header": (header.newest, header.tail, header.ids_floor_ns, header.newest_letter, header.redo_count),
            "groups": [
                (group.name[: group.name_length], group.empty_since_ns)
                for group in memory.all_records(Region.GROUPS)
                if group.state
            ],
            "pending, by registration": [self.name(op) for op in pending],
            "operations": {
                self.name(op): self.operation(index, op)
                for index, op in enumerate(self.ops)
                if op.state != OpState.FREE
            },
            "watermarks": {
                (each.purgatory, self.key_name(each)): (each.watermark, each.setter, each.setter_generation)
                for each in memory.records(Region.WATERMARKS)
                if each.used
            },
            "ring": [self.event(event) for event in ring],
            "slots": [slot.newest for slot in memory.all_records(Region.SLOTS)],
            "clients": {
                slot: (
                    client.state,
                    client.generation,
                    client.incarnation_low,
                    client.incarnation_high,
                    client.session_low,
                    client.session_high,
                    client.orphans,
                    client.flags,
                    client.group,
                    client.died_ns,
                    (client.pid, client.start_ticks, client.pid_namespace, client.connected_wall_ns, client.lease_ns),
                    client.last_command,
                    client.next_outcome,
                    client.acknowledged,
                    client.answers_acknowledged,
                )
                for slot, client in enumerate(memory.all_records(Region.CLIENTS))
                if client.state != ClientState.FREE
            },
            "ids": {
                (record.purgatory, record.hash_low, record.hash_high): (
                    IdState(record.state),
                    record.outcome,
                    record.settled_ns if record.state == IdState.SETTLED else 0,
                    self.name(self.ops[record.op - 1]) if record.state == IdState.LIVE else None,
                    *(self.name(self.ops[call - 1]) if call else None for call in (record.call, record.running)),
                )
                for record in memory.records(Region.IDS)
                if record.state != IdState.FREE
            },
            "answers": {
                (answer.client, answer.command): (answer.code, answer.value)
                for answer in memory.records(Region.ANSWERS)
                if answer.used
            },
            "purgatories": [
                (record.state, record.name[: record.name_length]) for record in memory.all_records(Region.PURGATORIES)
            ],
        }

    @staticmethod
    def name(op: OpRecord) -> tuple[int, int]:
        """The operation's registration and command number. The client is left out: it may be dead, or not the owner."""
        return (op.registration, op.command)

    def operation(self, index: int, op: OpRecord) -> dict[str, Any]:
        settled = op.state == OpState.SETTLED
        said: dict[str, Any] = {
            "state": OpState(op.state),
            "outcome": op.outcome,
            "settled_key": op.settled_key,
            "deadline_ns": op.deadline_ns,
            "registered_ns": op.registered_ns,
            "progress": op.progress,
            "failed": op.failed,
            "condition": (op.condition, op.keys, op.needed),
            "purgatory": op.purgatory,
            "orphans": op.orphans,
            "group": op.group,
            "delivered to": (op.client, op.client_generation),
            "flags": OpFlag(op.flags),
            "deliveries": op.deliveries,
            "account": self.nodes[index].account,
        }
        if settled:
            if op.flags & OpFlag.KEYS_KEPT:
                said |= {"nodes": self.watched(index), "payload": self.blob(op.payload)}
            said |= {
                "seen": op.seen,
                "settled_ns": op.settled_ns,
                "outcome_number": op.outcome_number,
                "error": op.error,
                "value": self.blob(op.value),
            }
        else:
            said |= {"nodes": self.watched(index), "payload": self.blob(op.payload)}
        return said

    def watched(self, operation: int) -> list[tuple[int, int, int, bytes]]:
        found, number = [], operation + 1
        while number:
            node = self.nodes[number - 1]
            found.append((node.ordinal, node.kind, node.target, self.key_name(node)))
            number = node.next_of_op
        return sorted(found)

    def event(self, event: EventRecord) -> tuple[Any, ...]:
        key = self.blob(event.key_blob) if event.key_blob else event.key[: event.key_length]
        return (
            event.sequence,
            event.kind,
            event.purgatory,
            key,
            event.amount,
            self.blob(event.value),
            event.flags,
            event.left,
            event.completed,
            event.effective_ns,
            event.previous,
            (event.client, event.client_generation, event.command),
        )

    def key_name(self, key: Any) -> bytes:
        return self.blob(key.name_blob) if key.name_blob else bytes(key.name[: key.name_length])

    def blob(self, index: int) -> bytes:
        if not index:
            return b""
        length, data = self.blocks[index - 1].length, b""
        while index:
            data += self.blocks[index - 1].data
            index = self.blocks[index - 1].next
        return data[:length]
