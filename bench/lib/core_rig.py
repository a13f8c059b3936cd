"""A core without a daemon. Frames of encoded commands are applied, and `measure()` is one run of the suite `core`."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Sequence

from bench.lib.memory import huge_share, make_memory
from timerd.arena.format import format_arena
from timerd.arena.plan import plan_arena
from timerd.core import APPLIED, Core
from timerd_shm.declare.counters import PURGATORY_COUNTERS, index_of
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.layout import PURGATORY_COUNTERS_MAX, REGIONS_OFFSET, Region
from timerd_shm.declare.limits import RING_EVENTS_DEFAULT
from timerd_shm.declare.records import RegionRecord
from timerd_shm.declare.states import Condition, KeyKind
from timerd_shm.declare.wire import (
    PROTOCOL_VERSION,
    CommandHeader,
    CommandKind,
    KeyCommand,
    OperationCommand,
    RegisterCommand,
    RegisterFlag,
    ReportHeader,
    UpKind,
)

MS = 1_000_000
S = 1_000_000_000
BATCH = 4_096
BUDGET = 1 << 40
SPREAD_NS = 60 * S
COUNTERS = {
    "fill": "registered",
    "refill": "registered",
    "insert": "registered",
    "reschedule": "rescheduled",
    "cancel": "cancelled",
    "complete": "completed",
}
SETTLING = ("cancelled", "completed")
BYTES = {"fill": "bytes_per_op", "insert_full_ns": "bytes_per_op_full"}  # steps that also give a figure of bytes
BLOCKS = 4_096  # payloads in a step
HOT_REGIONS = (Region.OPS, Region.NODES)
TABLES = (Region.KEY_TABLE, Region.HANDLES)
PAYLOAD = bytes(100)
VALUE = bytes(8)
SEED = b"a bench's hashes"


class Rig:
    """A core on anonymous memory, with one client, and a clock that begins at `now_ns` and is moved by hand."""

    def __init__(self, capacity: int, huge: bool = False, keys: int = 1, now_ns: int = 1_000 * S) -> None:
        self.keys = keys  # of each operation
        self.plan = plan_arena(
            capacity,
            nodes=max((keys - 1) * capacity, 1),
            blocks=RING_EVENTS_DEFAULT + BLOCKS,
            ids=1_024,
            purgatories=1,
            clients=4,
            quota_operations=capacity,
            quota_outcomes=capacity,
            quota_nodes=max((keys - 1) * capacity, 1),
        )
        self.memory = make_memory(self.plan.size, huge)
        with memoryview(self.memory) as view:
            format_arena(view, self.plan, instance="bench", incarnation=1)
        self.now_ns = now_ns
        self.core = Core(self.memory, self.now_ns, SEED)
        self.slot = self.core.open_client(b"i" * 16, b"s" * 16, now_ns=self.now_ns)
        self.number = 1

    def frames(self, commands: Iterable[bytes]) -> list[bytes]:
        """Pack commands into frames of BATCH commands. Their numbers continue those of earlier frames."""
        header, out, batch = struct_of(CommandHeader), [], list(commands)
        for start in range(0, len(batch), BATCH):
            piece = batch[start : start + BATCH]
            head = header.pack(PROTOCOL_VERSION, UpKind.COMMANDS, 0, len(piece), 1, bytes(16), self.number, 0, 0)
            out.append(head + b"".join(piece))
            self.number += len(piece)
        return out

    def apply(self, frames: Sequence[bytes]) -> float:
        """Apply the frames. Returns the seconds that the core took."""
        began = time.perf_counter()
        for frame in frames:
            assert self.core.apply(self.slot, frame, self.now_ns, BUDGET) == APPLIED
        return time.perf_counter() - began

    def acknowledge(self) -> tuple[int, float]:
        """Take and acknowledge all reports. Returns the number of outcomes, and the seconds that the core took."""
        outcomes, spent, header = 0, 0.0, struct_of(ReportHeader)
        while self.core.has_reports():
            began = time.perf_counter()
            frames = self.core.reports(self.now_ns)
            spent += time.perf_counter() - began
            for _, frame in frames:
                report = ReportHeader(*header.unpack_from(frame))
                outcomes += report.outcomes
                began = time.perf_counter()
                self.core.acknowledge(self.slot, report.outcome_last, self.number, BUDGET)
                spent += time.perf_counter() - began
        return outcomes, spent

    def count(self, name: str) -> int:
        offset = self.region(Region.PURGATORY_COUNTERS).offset + 8 * index_of(PURGATORY_COUNTERS, name)
        assert index_of(PURGATORY_COUNTERS, name) < PURGATORY_COUNTERS_MAX
        return int.from_bytes(self.memory[offset : offset + 8], "little")

    def region(self, region: Region) -> RegionRecord:
        with memoryview(self.memory) as view:
            return unpack(RegionRecord, view, REGIONS_OFFSET + region * size_of(RegionRecord))

    def in_use(self) -> dict[Region, RegionRecord]:
        """The regions that have records of pending operations, as they are now."""
        return {region: self.region(region) for region in (*HOT_REGIONS, Region.BLOCKS)}

    def bytes_per_op(self, before: dict[Region, RegionRecord], made: int) -> float:
        """Arena bytes for each of the `made` operations since `before`: its records, and its share of the tables."""
        now = self.in_use()
        grown = {region: row.in_use - before[region].in_use for region, row in now.items()}
        assert (grown[Region.OPS], grown[Region.NODES]) == (made, (self.keys - 1) * made), (grown, made)
        records = sum(count * now[region].record_size for region, count in grown.items())
        tables = sum(self.region(region).count * self.region(region).record_size for region in TABLES)
        return records / made + tables / self.plan.capacity

    def close(self) -> None:
        self.core.release()
        self.memory.close()


def key(number: int, which: int = 0) -> bytes:
    return b"key%d%08x" % (which, number)


def register(number: int, now_ns: int, timeout_ns: int, payload: bytes = b"", keys: int = 1) -> bytes:
    names = b"".join(bytes((len(name), KeyKind.EVENT)) + name for name in (key(number, which) for which in range(keys)))
    size = size_of(RegisterCommand) + len(names) + len(payload)
    fixed = struct_of(RegisterCommand).pack(
        CommandKind.REGISTER, 0, RegisterFlag.NO_MARK, size, Condition.AT_LEAST, 1, keys, 0, len(payload), now_ns,
        timeout_ns, 0, 0, 0,
    )  # fmt: skip
    return fixed + names + payload


def fire(number: int, value: bytes = b"") -> bytes:
    name = key(number)
    size = size_of(KeyCommand) + len(name) + len(value)
    return struct_of(KeyCommand).pack(CommandKind.FIRE, 0, 0, len(name), size, 1, len(value), 0) + name + value


def operation(kind: CommandKind, command: int, now_ns: int, timeout_ns: int) -> bytes:
    return struct_of(OperationCommand).pack(kind, 0, 0, 0, size_of(OperationCommand), command, now_ns, timeout_ns)


def measure(pending: int, seed: int, huge: bool = False, keys: int = 1) -> dict[str, float]:
    """One run: fill, measure each kind of work beside `pending` operations, let all expire. Returns {figure: value}."""
    rng = random.Random(seed)
    work = 20_000
    rounds = 5
    rig = Rig(pending + 2 * work, huge, keys)
    live: list[int] = []

    def timeout() -> int:
        return rng.randrange(S, SPREAD_NS)

    def fresh(count: int) -> list[bytes]:
        """Frames that register `count` operations. The key of an operation is its command number."""
        first = rig.number
        live.extend(range(first, first + count))
        numbers = range(first, first + count)
        return rig.frames(register(number, rig.now_ns, timeout(), keys=keys) for number in numbers)

    def remove(choice: list[int]) -> list[int]:
        removed = set(choice)
        live[:] = [number for number in live if number not in removed]
        return choice

    def each(name: str, numbers: list[int]) -> None:
        """Encode a step on these operations. The first word of `name` is the kind of work."""
        now_ns = rig.now_ns
        if name.startswith("complete"):
            frames = rig.frames(fire(number) for number in numbers)
        elif name.startswith("cancel"):
            frames = rig.frames(operation(CommandKind.CANCEL, number, now_ns, 0) for number in numbers)
        else:
            frames = rig.frames(operation(CommandKind.RESCHEDULE, number, now_ns, timeout()) for number in numbers)
        steps.append((name, len(numbers), frames))

    def full() -> None:
        """Encode steps like the load test's: operations are registered with a payload, and completed with a value."""
        numbers = range(rig.number, rig.number + BLOCKS)
        frames = rig.frames(register(number, rig.now_ns, timeout(), PAYLOAD, keys) for number in numbers)
        steps.append(("insert_full_ns", BLOCKS, frames))
        steps.append(("complete_full_ns", BLOCKS, rig.frames(fire(number, VALUE) for number in numbers)))

    # All steps are encoded before the first is measured. Otherwise encoding would empty the caches before each step.
    steps: list[tuple[str, int, list[bytes]]] = [("fill", pending, fresh(pending))]
    for _ in range(rounds):
        steps.append(("insert_ns", work, fresh(work)))
        recent = rng.sample(live[-work:], work)
        each("reschedule_ns", recent)
        each("cancel_ns", remove(recent[: work // 2]))
        each("complete_ns", remove(recent[work // 2 :]))
    for _ in range(rounds):
        each("reschedule_any_ns", rng.sample(live, work // 2))
        each("cancel_any_ns", remove(rng.sample(live, work // 4)))
        each("complete_any_ns", remove(rng.sample(live, work // 4)))
        steps.append(("refill", work // 2, fresh(work // 2)))
    for _ in range(rounds):
        full()
    spent: dict[str, list[float]] = {}
    found = {"huge_share": huge_share(rig.plan.size)}
    for name, count, frames in steps:
        counter = COUNTERS[name.split("_")[0]]
        before, used = rig.count(counter), rig.in_use()
        spent.setdefault(name, []).append(rig.apply(frames) / count * 1e9)
        assert rig.count(counter) - before == count, (name, rig.count(counter) - before, count)
        outcomes, took = rig.acknowledge()
        assert outcomes == (count if counter in SETTLING else 0), (name, outcomes)
        if outcomes:
            spent.setdefault("tell_full_ns" if "full" in name else "tell_ns", []).append(took / outcomes * 1e9)
        if name in BYTES:
            found[BYTES[name]] = rig.bytes_per_op(used, count)
    found.update({name: statistics.median(values) for name, values in spent.items() if name.endswith("_ns")})
    left, total, worst = len(live), 0.0, 0.0
    assert rig.count("pending") == left, (rig.count("pending"), left)
    while rig.count("pending"):
        rig.now_ns = rig.core.next_wake_ns()  # as the daemon does: it skips the ticks in which nothing is due
        began = time.perf_counter()
        rig.core.begin_turn(rig.now_ns)
        rig.core.advance(rig.now_ns, BUDGET)
        took = time.perf_counter() - began
        total, worst = total + took, max(worst, took)
        rig.core.end_turn(rig.now_ns)
        rig.acknowledge()
    found["expire_ns"] = total / left * 1e9
    found["worst_tick_ms"] = worst * 1e3
    assert rig.count("expired") == left, rig.count("expired")
    assert all(rig.region(region).in_use == 0 for region in HOT_REGIONS)
    rig.close()
    return found
