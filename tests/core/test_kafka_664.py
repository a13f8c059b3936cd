"""KAFKA-664: expired requests of quiet topics stayed on the watcher lists. Here, they leave nothing."""

from __future__ import annotations

import pytest

from support.rig.harness import BUDGET, MS, Client, Rig, fire
from timerd.core import NEVER
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.wire import CommandHeader, CommandKind, RegisterCommand, RegisterFlag, ReportHeader

BATCH, FRAME = 50_000, 12_500


def unfired(client: Client, rig: Rig, first: int) -> bytes:
    """A frame of registrations. Each has its own key, which is never fired."""
    size = size_of(RegisterCommand) + 2 + 12
    register = struct_of(RegisterCommand).pack(
        *RegisterCommand(
            kind=CommandKind.REGISTER,
            purgatory=0,
            flags=RegisterFlag.NO_MARK,
            length=size,
            condition=0,
            needed=1,
            keys=1,
            orphans=0,
            payload_length=0,
            registered_ns=0,
            timeout_ns=200 * MS,
            mark_sequence=0,
            mark_command=0,
            total=0,
        )
    ) + bytes((12, 0))
    header = unpack(CommandHeader, memoryview(client.frame([(first, fire(b"k"))])))._replace(count=FRAME)
    keys = (b"%012d" % number for number in range(first, first + FRAME))
    return struct_of(CommandHeader).pack(*header) + b"".join(register + key for key in keys)


@pytest.mark.parametrize("batches", [3, pytest.param(20, marks=pytest.mark.long)])
def test_KAFKA_664_operations_on_keys_without_events_leave_no_records(batches: int) -> None:
    rig = Rig(capacity=131_072, nodes=131_072, blocks=1024)
    client = rig.client()
    empty, expired = rig.arena.in_use(), 0
    for _ in range(batches):
        for _ in range(BATCH // FRAME):
            rig.core.begin_turn(rig.now_ns)
            frame = unfired(client, rig, rig.core.last_command(client.slot) + 1)
            assert rig.apply(client, frame) == rig.module.APPLIED
            rig.core.end_turn(rig.now_ns)
        assert rig.gauges() == (BATCH, BATCH)
        assert rig.arena.keys_in_use() == BATCH
        rig.now_ns += 200 * MS
        rig.core.begin_turn(rig.now_ns)
        assert not rig.core.advance(rig.now_ns, BUDGET)
        delivered = [unpack(ReportHeader, memoryview(frame)) for _, frame in rig.core.reports(rig.now_ns, BATCH)]
        expired += sum(header.outcomes for header in delivered)
        rig.core.acknowledge(client.slot, expired, 0, BUDGET)
        while rig.core.resume(rig.now_ns, BUDGET):
            pass
        rig.core.end_turn(rig.now_ns)
        assert rig.gauges() == (0, 0)
        assert rig.arena.in_use() == empty
    assert expired == batches * BATCH == rig.arena.count("expired", 0)
    assert rig.core.next_wake_ns() == NEVER
