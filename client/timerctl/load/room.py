"""Checks, before a run begins, that the machine and the instance have room for it."""

from __future__ import annotations

import psutil

from timerctl.show.text import size
from timerd_client.workload import NS, Workload, mean_wait_ns
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import CAPACITY_MAX
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.read.reader import ArenaReader

from .own_daemon import blocks_of, capacity_of

BYTES_PER_OPERATION = 950  # in all processes of the harness together: plan, columns, answers, judging
BYTES_PER_PENDING = 400
ROOM = 1.2  # more than the mean: for operations that are settled and not acknowledged yet, and for random peaks


def check_machine(workload: Workload, pending: int, own: bool) -> None:
    """Raises ResourceLimitError if no arena can hold the run, or the harness would need more memory than is free."""
    if own and (capacity := capacity_of(workload, pending)) > CAPACITY_MAX:
        raise ResourceLimitError(
            f"{capacity:,} operations would be held at once (rate x timeout, and {pending:,} pending ones), "
            f"and an arena holds {CAPACITY_MAX:,}: ask for less"
        )
    needed = workload.count * BYTES_PER_OPERATION + pending * BYTES_PER_PENDING
    available = psutil.virtual_memory().available
    if needed > available:
        raise ResourceLimitError(
            f"{workload.count:,} operations and {pending:,} pending ones need {size(needed)} in the harness, and "
            f"{size(available)} are available: ask for a shorter run"
        )


def check_instance(reader: ArenaReader, instance: str, workload: Workload, pending: int) -> None:
    """Raises ResourceLimitError if the run would hold more at once than the free records or a quota allow."""
    header = reader.header()
    at_once = min(round(workload.rate * mean_wait_ns(workload) / NS * ROOM) + 1, workload.count)
    each = -(-at_once // workload.registrars)
    blocks = blocks_of(workload.payload)
    free = {region: reader.region(region).count - reader.region(region).in_use for region in Region}
    for what, need, limit in (
        ("operations", at_once + pending, free[Region.OPS]),
        ("watch nodes", at_once * (workload.keys_per_op - 1), free[Region.NODES]),
        # All blocks count as free: the event ring frees the blocks of old values when they are needed.
        ("payload blocks", at_once * blocks, reader.region(Region.BLOCKS).count),
        ("operations of one client (quota)", max(each, pending), header.quota_operations),
        ("bytes of one client (quota)", each * blocks * BLOCK_DATA, header.quota_bytes),
    ):
        if need > limit:
            raise ResourceLimitError(
                f"the run holds some {need:,} {what} at once, and instance {instance!r} has {limit:,} left: ask for "
                f"less, start it with more (`timerd --help`), or give --own for a daemon of this run alone"
            )
