"""One point of the article's experiment (see article.py), in both designs: requests arrive at a rate, and are settled.

    requests = draw(LOW, rate=40_000, count=160_000, seed=1)
    point = play_old(requests, 1_000, budget=200 << 20)     # the old purgatory, purged every 1,000
    point = play_timerd(requests, budget=200 << 20)         # timerd's core
    verdict = judge(requests, point)

Both get the same registrations, encoded as on the wire, and the same plan of completions, which is drawn beforehand.
Both look at the clock each millisecond, and handle all that is due by then. A completion never comes before a
registration that was planned earlier. So in a design that falls behind, completions come later, too, as in the original
experiment.

The old design has the three threads of the original: one registers, one completes, and one is the reaper. timerd's core
has one thread, which encodes nothing. It puts a header before the commands that are due. Then it applies them, advances
the wheel, takes the reports and acknowledges them, as the conductor does in a turn. The experiment completes a request
whether or not its keys are satisfied. So the core ends it by CANCEL, as its owner can. This takes the same steps as any
other outcome.
"""

from __future__ import annotations

import mmap
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.rivals.old_purgatory import COMPLETED, EXPIRED, NEVER, PENDING, REFUSED, OldPurgatory
from timerd.arena.format import format_arena
from timerd.arena.plan import ArenaPlan, plan_arena
from timerd.core import APPLIED, EXPECTED, Core
from timerd_client.workload import MARGIN_NS, Workload, check, plan
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS, index_of
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.layout import REGIONS_OFFSET, Region
from timerd_shm.declare.records import RegionRecord
from timerd_shm.declare.states import Condition, KeyKind, Outcome
from timerd_shm.declare.wire import (
    PROTOCOL_VERSION,
    CommandHeader,
    CommandKind,
    OperationCommand,
    OutcomeRecord,
    RegisterCommand,
    RegisterFlag,
    ReportHeader,
    UpKind,
)

MS = 1_000_000
S = 1_000_000_000
TIMEOUT_NS = 200 * MS
PAYLOAD = 100
KEYS = (b"fakeKey17", b"fakeKey42", b"fakeKey80")  # drawn once for a whole run, as in the original
BATCH = 4_096
TURN_COMMANDS = BATCH  # in a turn, at most: the daemon's turns are bounded too (32,768 records)
BUDGET = 1 << 40
PATIENCE = 1.25  # a design that is still behind after this multiple of the planned time stops registering
DRAIN_NS = TIMEOUT_NS + S  # after the last registration: a request that has not settled by then counts as unsettled
HEAD_START_NS = 20 * MS
# Regions with records of an operation.
OPERATION_REGIONS = (Region.OPS, Region.NODES, Region.BLOCKS)


def soon_ns() -> int:
    """A start time: the beginning of a millisecond, and so of a tick, for both designs alike."""
    return (time.monotonic_ns() + HEAD_START_NS) // MS * MS


class Case(NamedTuple):
    """How long a request takes to complete: median and upper quartile of a log-normal distribution."""

    name: str
    p50_ns: int
    p75_ns: int


LOW = Case("low", 20 * MS, 60 * MS)
HIGH = Case("high", 200 * MS, 400 * MS)


class Requests(NamedTuple):
    """The requests of one point. Times are in ns from the start."""

    commands: bytes  # REGISTER commands without gaps
    due_ns: array[int]
    delay_ns: array[int]  # until the request completes; NEVER if its timeout comes first
    completed: array[int]  # numbers of the requests that will complete, in the order of their completions
    completed_due_ns: array[int]

    @property
    def span_ns(self) -> int:
        """From the start to the last planned registration."""
        return self.due_ns[-1]


class Point(NamedTuple):
    """The results of a design at one rate. A column has an entry for each registered request."""

    registered: int
    refused: int
    seconds: float  # from the start until the last request was registered
    drained_seconds: float  # from the last registration until the last request settled
    cpu_seconds: float  # of the whole process, until the last request settled
    memory_bytes: int  # of the records that were ever in use
    states: Sequence[int]  # PENDING, COMPLETED, EXPIRED, REFUSED
    settlings: Sequence[int]
    registered_ns: Sequence[int]
    settled_ns: Sequence[int]
    work: dict[str, int]  # the design's own counters


class Verdict(NamedTuple):
    """How the outcomes differ from the plan."""

    expired: int
    expired_planned: int
    missed: int  # expired, though planned to complete at least MARGIN_NS before the deadline
    unsettled: int  # when the run ended
    wrong: list[str]  # outcomes that must never happen
    late_ns: list[int]  # lateness of each expiry, sorted


def register_command() -> bytes:
    """The registration of any request. The timeout begins when it is applied, and no earlier event counts."""
    names = b"".join(bytes((len(key), KeyKind.EVENT)) + key for key in KEYS)
    size = size_of(RegisterCommand) + len(names) + PAYLOAD
    fixed = struct_of(RegisterCommand).pack(
        CommandKind.REGISTER, 0, RegisterFlag.NO_MARK, size, Condition.AT_LEAST, 1, len(KEYS), 0, PAYLOAD,
        0, TIMEOUT_NS, 0, 0, 0,
    )  # fmt: skip
    return fixed + names + bytes(range(PAYLOAD))


def draw(case: Case, rate: int, count: int, seed: int) -> Requests:
    """Draw arrivals and completions from a seed."""
    workload = check(
        Workload(
            rate=rate,
            count=count,
            timeout_ns=TIMEOUT_NS,
            p50_ns=case.p50_ns,
            p75_ns=case.p75_ns,
            payload=PAYLOAD,
            seed=seed,
        )
    )
    rows = plan(workload)
    delay = array("q", (each if each < TIMEOUT_NS else NEVER for each in rows.delay_ns))
    times = {number: rows.due_ns[number] + each for number, each in enumerate(delay) if each != NEVER}
    order = sorted(times, key=times.__getitem__)
    return Requests(
        register_command() * count,
        rows.due_ns,
        delay,
        array("I", order),
        array("q", map(times.__getitem__, order)),
    )


# the old design ------------------------------------------------------------------------------------------------------


def play_old(requests: Requests, purge_interval: int, budget: int) -> Point:
    """Play the requests on the old purgatory. `purge_interval` 0: it is never purged."""
    old = OldPurgatory(
        budget // OldPurgatory.bytes_for(len(KEYS), PAYLOAD),
        keys_per_op=len(KEYS),
        payload_max=PAYLOAD,
        requests=len(requests.due_ns),
        purge_interval=purge_interval,
    )
    start_ns = soon_ns()
    give_up_ns = start_ns + round(PATIENCE * requests.span_ns)
    generator = threading.Thread(
        target=old.generate, args=(requests.commands, requests.due_ns, requests.delay_ns, start_ns, give_up_ns)
    )
    completer = threading.Thread(
        target=old.complete_all, args=(requests.completed, requests.completed_due_ns, start_ns)
    )
    reaper = threading.Thread(target=old.reap_until_stopped)
    cpu = time.process_time()
    try:
        for thread in (reaper, completer, generator):
            thread.start()
        generator.join()
        limit_ns = time.monotonic_ns() + DRAIN_NS
        while old.settled < old.registered - old.refused and time.monotonic_ns() < limit_ns:
            time.sleep(0.002)
        drained_ns = time.monotonic_ns()
        cpu = time.process_time() - cpu
    finally:
        old.stop()
        for thread in (reaper, completer, generator):
            if thread.ident is not None:
                thread.join()
    return Point(
        old.registered,
        old.refused,
        (old.last_ns - start_ns) / S,
        (drained_ns - old.last_ns) / S,
        cpu,
        old.bytes_max,
        old.states(),
        old.settlings(),
        array("q", old.registered_ns()),
        array("q", old.settled_ns()),
        old.counters(),
    )


# timerd's core -------------------------------------------------------------------------------------------------------


class Commands(NamedTuple):
    """Commands in the order in which they are applied."""

    due_ns: array[int]
    offsets: array[int]  # of each command in `data`, and the end of the last command
    data: bytes

    @classmethod
    def of(cls, due_ns: array[int], pieces: Sequence[bytes]) -> Commands:
        offsets = array("q", [0])
        at = 0
        for piece in pieces:
            at += len(piece)
            offsets.append(at)
        return cls(due_ns, offsets, b"".join(pieces))


class Script:
    """Registrations and completions in the order of their times. A command's number is its position, from 1."""

    def __init__(self, requests: Requests) -> None:
        count = len(requests.due_ns)
        times = [*requests.due_ns, *requests.completed_due_ns]
        order = sorted(range(len(times)), key=times.__getitem__)
        register, cancel = register_command(), struct_of(OperationCommand).pack
        size = size_of(OperationCommand)
        self.number_of = array("Q", bytes(8 * count))  # command number of each request
        pieces: list[bytes] = []
        for number, at in enumerate(order, start=1):
            if at < count:
                self.number_of[at] = number
                pieces.append(register)
            else:
                command = self.number_of[requests.completed[at - count]]
                pieces.append(cancel(CommandKind.CANCEL, 0, 0, 0, size, command, 0, 0))
        self._order, self._count, self._pieces, self._requests = order, count, pieces, requests
        self.commands = Commands.of(array("q", map(times.__getitem__, order)), pieces)

    def registered_before(self, position: int) -> int:
        """The number of registrations among the first `position` commands."""
        due = self._requests.due_ns
        if position == len(self._order):
            return self._count
        return bisect_right(due, self.commands.due_ns[position]) - (self._order[position] < self._count)

    def completions_after(self, position: int) -> Commands:
        """The commands after `position` that complete requests registered before `position`."""
        registered = self.registered_before(position)
        rest = [
            at
            for at in range(position, len(self._order))
            if self._order[at] >= self._count and self._requests.completed[self._order[at] - self._count] < registered
        ]
        return Commands.of(array("q", map(self.commands.due_ns.__getitem__, rest)), [self._pieces[at] for at in rest])


def plan_within(budget: int) -> ArenaPlan:
    """The plan of the largest arena that has `budget` bytes at most, for requests of the experiment."""
    capacity = budget // OldPurgatory.bytes_for(len(KEYS), PAYLOAD)
    while True:
        nodes = (len(KEYS) - 1) * capacity
        sizes = {"nodes": nodes, "quota_nodes": nodes, "blocks": capacity, "quota_outcomes": capacity}
        found = plan_arena(
            capacity, watermarks=1, ids=1_024, clients=4, quota_operations=capacity, quota_bytes=budget, **sizes
        )
        if found.size <= budget:
            return found
        capacity = capacity * 49 // 50


class Conductor:
    """A core in an arena of its own, and the turns of a conductor that has neither sockets nor sessions."""

    def __init__(self, budget: int) -> None:
        self.plan = plan_within(budget)
        self.memory = mmap.mmap(-1, self.plan.size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        with memoryview(self.memory) as view:
            format_arena(view, self.plan, instance="bench", incarnation=1)
        now_ns = time.monotonic_ns()
        self.core = Core(self.memory, now_ns, bytes(16))
        self.slot = self.core.open_client(b"i" * 16, b"s" * 16, now_ns=now_ns)
        self.number = 1
        self.reports: list[bytes] = []
        self.empty_wakeups = 0
        self.wheel_wakeups = 0
        self._words = memoryview(self.memory).cast("Q")

    def turn(self, commands: Commands, first: int, last: int) -> None:
        """Apply these commands, advance the wheel, and take the reports."""
        core, now_ns = self.core, time.monotonic_ns()
        woken = core.next_wake_ns() <= now_ns
        core.begin_turn(now_ns)
        header = struct_of(CommandHeader)
        while first < last:
            count = min(BATCH, last - first)
            head = header.pack(PROTOCOL_VERSION, UpKind.COMMANDS, 0, count, 1, bytes(16), self.number, 0, 0)
            frame = head + commands.data[commands.offsets[first] : commands.offsets[first + count]]
            while (status := core.apply(self.slot, frame, now_ns, BUDGET)) == EXPECTED:
                self._take_reports(now_ns)  # the core's room for refusals is full until some are acknowledged
            assert status == APPLIED, status
            self.number += count
            first += count
        before = self._moved() if woken else 0
        core.advance(now_ns, BUDGET)
        if woken:
            self.wheel_wakeups += 1
            self.empty_wakeups += self._moved() == before
        self._take_reports(now_ns)
        core.end_turn(now_ns)

    def _take_reports(self, now_ns: int) -> None:
        """Keep all reports, and acknowledge their outcomes."""
        header = struct_of(ReportHeader)
        while self.core.has_reports():
            for _, frame in self.core.reports(now_ns):
                self.reports.append(frame)
                report = ReportHeader(*header.unpack_from(frame))
                self.core.acknowledge(self.slot, report.outcome_last, report.applied, BUDGET)

    def _moved(self) -> int:
        return self.count("expired") + self.count_daemon("cascaded")

    def count(self, name: str) -> int:
        return self._words[self._region(Region.PURGATORY_COUNTERS).offset // 8 + index_of(PURGATORY_COUNTERS, name)]

    def count_daemon(self, name: str) -> int:
        return self._words[self._region(Region.DAEMON_COUNTERS).offset // 8 + index_of(DAEMON_COUNTERS, name)]

    def _region(self, region: Region) -> RegionRecord:
        return self.plan.regions[region]

    def bytes_max(self) -> int:
        """Bytes of the records that were ever in use, and of as many entries in the table of handles."""
        with memoryview(self.memory) as view:
            rows = {
                region: unpack(RegionRecord, view, REGIONS_OFFSET + region * size_of(RegionRecord))
                for region in OPERATION_REGIONS
            }
        handles = self._region(Region.HANDLES)
        entries = handles.count * handles.record_size * rows[Region.OPS].high_water // self.plan.capacity
        return entries + sum(row.high_water * row.record_size for row in rows.values())

    def close(self) -> None:
        self._words.release()
        self.core.release()
        self.memory.close()


def play_timerd(requests: Requests, budget: int) -> Point:
    """Play the requests on timerd's core."""
    script = Script(requests)
    conductor = Conductor(budget)
    try:
        commands, position = script.commands, 0
        start_ns = soon_ns()
        give_up_ns = start_ns + round(PATIENCE * requests.span_ns)
        registered, last_ns = len(requests.due_ns), 0
        cpu = time.process_time()
        while True:
            now_ns = time.monotonic_ns()
            if not last_ns and now_ns >= give_up_ns:
                registered, last_ns = script.registered_before(position), now_ns
                commands, position = script.completions_after(position), 0
                if not commands.due_ns and not conductor.count("pending"):
                    break
            due = bisect_right(commands.due_ns, now_ns - start_ns, position)
            due = min(due, position + TURN_COMMANDS)
            conductor.turn(commands, position, due)
            position = due
            if not last_ns and due and requests.due_ns[-1] <= commands.due_ns[due - 1]:
                last_ns = time.monotonic_ns()
            finished = position == len(commands.due_ns)
            if finished and not conductor.count("pending"):
                break
            wake_ns = conductor.core.next_wake_ns()
            if not finished:
                wake_ns = min(wake_ns, start_ns + (commands.due_ns[position] // MS + 1) * MS)
            pause_ns = wake_ns - time.monotonic_ns()
            if pause_ns > 0:
                time.sleep(pause_ns / S)
        cpu = time.process_time() - cpu
        drained_ns = time.monotonic_ns()
        return Point(
            registered,
            conductor.count("rejected"),
            (last_ns - start_ns) / S,
            (drained_ns - last_ns) / S,
            cpu,
            conductor.bytes_max(),
            *outcomes_of(script, registered, conductor.reports),
            {
                "bucket_visits": conductor.count_daemon("bucket_visits"),
                "cascaded": conductor.count_daemon("cascaded"),
                "wheel_wakeups": conductor.wheel_wakeups,
                "empty_wakeups": conductor.empty_wakeups,
            },
        )
    finally:
        conductor.close()


def outcomes(reports: Sequence[bytes]) -> Iterator[OutcomeRecord]:
    """All outcomes in these reports."""
    header, record = struct_of(ReportHeader), struct_of(OutcomeRecord)
    for report in reports:
        count = ReportHeader(*header.unpack_from(report)).outcomes
        with memoryview(report) as view:
            yield from map(
                OutcomeRecord._make, record.iter_unpack(view[header.size : header.size + count * record.size])
            )


def outcomes_of(
    script: Script, registered: int, reports: Sequence[bytes]
) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    """States, settlings, registered_ns and settled_ns, by request. A request without an outcome counts as refused."""
    request_of = {number: request for request, number in enumerate(script.number_of[:registered])}
    states, settlings = bytearray([REFUSED]) * registered, bytearray(registered)
    began, ended = array("q", bytes(8 * registered)), array("q", bytes(8 * registered))
    known = {Outcome.CANCELLED: COMPLETED, Outcome.EXPIRED: EXPIRED}
    for outcome in outcomes(reports):
        request = request_of[outcome.command]
        states[request] = known[Outcome(outcome.state)]
        settlings[request] += 1
        began[request], ended[request] = outcome.registered_ns, outcome.settled_ns
    return states, settlings, began, ended


# the verdict ---------------------------------------------------------------------------------------------------------


def judge(requests: Requests, point: Point) -> Verdict:
    """Check that each accepted request settled once, as planned, and not early."""
    wrong: list[str] = []
    states, late = point.states, []
    planned = missed = unsettled = 0
    for number in range(point.registered):
        delay, state = requests.delay_ns[number], states[number]
        if state == REFUSED:
            continue
        planned += delay == NEVER
        if state == PENDING and point.settlings[number] == 0:
            unsettled += 1
        elif state == PENDING or point.settlings[number] != 1:
            wrong.append(f"request {number} settled {point.settlings[number]} times")
        elif state == COMPLETED and delay == NEVER:
            wrong.append(f"request {number} completed, though its plan has no completion")
        elif state == EXPIRED:
            late.append(point.settled_ns[number] - point.registered_ns[number] - TIMEOUT_NS)
            missed += delay <= TIMEOUT_NS - MARGIN_NS
            if late[-1] < 0:
                wrong.append(f"request {number} expired {-late[-1]} ns early")
    refused = states.count(REFUSED)
    if refused != point.refused:
        wrong.append(f"{refused} requests have no outcome, and {point.refused} were refused")
    return Verdict(len(late), planned, missed, unsettled, wrong, sorted(late))
