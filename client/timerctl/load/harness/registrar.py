"""The process that registers: by single calls as a user would, or in bulk all rows that became due since the last call.

Each of its rows is one command, so row i of the plan has the command number `first + i`. Handles are kept, and looked
at when their operations must have settled: a callback for each would cost half as much as its registration. To measure
the latency, every n-th handle has a callback that notes the time. n is so large that CALLBACKS_PER_S are called in a
second at most. In bulk, the last handle of each call has one.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import compress

from timerd_client.link.batch import ThreadedBatch
from timerd_client.link.operation import ThreadedOperation
from timerd_client.mark import Mark
from timerd_client.protocol.state import LinkState
from timerd_client.workload import Rows, key_names, plan, watched_keys
from timerd_shm.declare.errors import TimerdError

from .marks import Marks
from .messages import Registered, Task, Usage
from .outcomes import Outcomes
from .pace import Pace
from .part import STAMP, STAMPED, Meter, Part, Times

CALLBACKS_PER_S = 5_000
TOGETHER = 1_024  # handles that are looked at together
TAKEN_TOGETHER = 64  # deliveries that are taken together; this takes 0.1 ms, in which nothing else of the process runs
LOOK_NS = 20_000_000  # from the timeout to the first look at a handle, and from look to look until it has settled
GRACE_NS = 5_000_000_000  # after the last deadline: an operation without an outcome by then is lost
POLL_S = 0.001


class Registrar(Part):
    """Registers the operations of its plan, each at its planned time, and collects their outcomes."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._rows: Rows = plan(task.workload, task.index)
        rate = task.workload.rate / task.workload.registrars
        self._every = 1 if task.bulk else math.ceil(rate / CALLBACKS_PER_S)
        self._names: list[str] | list[tuple[str, ...]] = []  # the keys of each row
        self._delivered: list[tuple[int, ThreadedOperation]] = []  # filled by the client's thread
        self._together = TAKEN_TOGETHER
        self._look_ns = task.workload.timeout_ns + LOOK_NS
        self._fresh: list[ThreadedOperation] = []  # handles of the last passes, to be looked at together
        self._open: deque[tuple[int, list[ThreadedOperation]]] = deque()  # when to look, and at which handles
        self._batches: deque[tuple[int, ThreadedBatch]] = deque()
        self._outcomes = Outcomes(len(self._rows.due_ns))
        self._numbered = 0  # how many outcome numbers the client has received
        self._sent_ns, self._marked_ns = (Times(len(self._rows.due_ns)) for _ in range(2))
        self._timeout = task.workload.timeout_ns / 1e9
        self._payload = bytes(task.workload.payload)

    def prepare(self) -> None:
        self._names = self._keys()

    def play(self, start_ns: int) -> Registered:
        rows, task, names = self._rows, self.task, self._names
        pace = Pace(rows.due_ns, start_ns, task.bulk)
        first = self.client._protocol.ledger.issued + 1
        send = self._register_many if task.bulk else self._register_each
        marks = Marks(self.purgatory.mark, start_ns)
        row, count = 0, len(rows.due_ns)
        failure = ""
        meter = Meter()
        try:
            while row < count and not self.stopped:
                self._collect()
                marks.read()
                upto = pace.begin(row)
                if upto > row:
                    mark, marked_ns = marks.before(rows.due_ns[row])
                    self._marked_ns.add(STAMP.pack(marked_ns), upto - row)
                    send(names[row:upto], mark)
                    pace.end()
                    row = upto
        except TimerdError as error:
            failure = str(error)
        ended_ns = time.monotonic_ns()
        self._await_outcomes(0 if failure else ended_ns + task.workload.timeout_ns + GRACE_NS)
        return self._answer(first, ended_ns, pace, meter.read(), failure or self._silence())

    def _keys(self) -> list[str] | list[tuple[str, ...]]:
        """The keys of all rows, as they are given to register()."""
        workload, prefix = self.task.workload, self.task.prefix
        registrars = workload.registrars
        numbers = range(self.task.index, len(self._rows.due_ns) * registrars, registrars)
        firsts: Sequence[int] = self._rows.keys if workload.keys else numbers
        if workload.keys_per_op == 1:
            return key_names(prefix, firsts)
        return [tuple(key_names(prefix, watched_keys(workload, first))) for first in firsts]

    def _register_each(self, keys: Sequence[str | tuple[str, ...]], mark: Mark) -> None:
        register, timeout, payload, every = self.purgatory.register, self._timeout, self._payload, self._every
        made = self._fresh
        keep, sent = made.append, self._sent_ns
        first, before = len(sent), len(made)
        for at in range(0, len(keys), STAMPED):
            stamp = STAMP.pack(time.monotonic_ns())
            try:
                for key in keys[at : at + STAMPED]:
                    keep(register(key, timeout=timeout, payload=payload, since=mark))
            finally:
                sent.add(stamp, first + len(made) - before - len(sent))
        seen = slice(before + -first % every, None, every)
        for operation in made[seen]:
            operation.add_done_callback(self._note)
        del made[seen]
        if len(made) >= TOGETHER:
            self._set_aside(time.monotonic_ns() + self._look_ns)

    def _set_aside(self, look_ns: int) -> None:
        """Look at the handles of the last passes at `look_ns`."""
        self._open.append((look_ns, self._fresh))
        self._fresh = []

    def _register_many(self, keys: Sequence[str | tuple[str, ...]], mark: Mark) -> None:
        """Register all rows but the last in one call. The last row is registered alone, so it may have a callback."""
        if len(keys) > 1:
            at_ns = time.monotonic_ns()
            batch = self.purgatory.register_many(keys[:-1], timeout=self._timeout, payloads=self._payload, since=mark)
            self._batches.append((at_ns + self._look_ns, batch))
            self._sent_ns.add(STAMP.pack(at_ns), len(batch))
        self._register_each(keys[-1:], mark)

    def _note(self, operation: ThreadedOperation) -> None:
        self._delivered.append((time.monotonic_ns(), operation))

    def _collect(self) -> None:
        """Take the outcomes of settled operations whose time to look has come."""
        if len(self._delivered) >= self._together:
            deliveries = self._delivered[:]
            del self._delivered[: len(deliveries)]
            self._take([operation for _, operation in deliveries], [at for at, _ in deliveries])
        now_ns = time.monotonic_ns()
        while self._open and self._open[0][0] <= now_ns:
            _, operations = self._open.popleft()
            if self._outcomes.take(operations):
                continue
            settled = [operation.done() for operation in operations]  # asked once: more operations settle meanwhile
            if not all(settled):
                late = [operation for operation, done in zip(operations, settled, strict=True) if not done]
                self._open.append((now_ns + LOOK_NS, late))
            self._take(list(compress(operations, settled)), None)
        while self._batches and self._batches[0][0] <= now_ns:
            _, batch = self._batches.popleft()
            if self._outcomes.take_batch(batch):
                continue
            if batch.done():
                self._outcomes.add(batch.commands(), batch._column(), None)
            else:
                self._batches.append((now_ns + LOOK_NS, batch))

    def _take(self, operations: list[ThreadedOperation], delivered_ns: list[int] | None) -> None:
        """Take the outcomes of operations that have settled."""
        commands = (operation.command for operation in operations)
        self._outcomes.add(commands, [operation._settlement for operation in operations], delivered_ns)

    def _await_outcomes(self, until_ns: int) -> None:
        """Wait until all outcomes have come, or the time is over. Then look into the batches for single outcomes."""
        self._set_aside(time.monotonic_ns() + self._look_ns)
        self._together = 1
        while not self.stopped:
            self._collect()
            if len(self._outcomes) >= len(self._sent_ns) or time.monotonic_ns() > until_ns:
                break
            time.sleep(POLL_S)
        self._numbered = self.client._protocol.incoming.received_outcome  # before the last look, which may find more
        self._open = deque((0, operations) for _, operations in self._open)
        self._collect()
        for _, batch in self._batches:
            for row, command in enumerate(batch.commands()):
                if (settlement := batch.settlement(row)) is not None:
                    self._outcomes.add((command,), (settlement,), None)
        self._batches.clear()

    def _silence(self) -> str:
        """Why outcomes may be missing: the daemon does not answer. Empty if it does."""
        state = self.client.state
        return "" if self.stopped or state is LinkState.LIVE else f"the daemon does not answer ({state.value})"

    def _answer(self, first: int, ended_ns: int, pace: Pace, used: Usage, failure: str) -> Registered:
        """The columns in the order of the plan."""
        found, errors, rows = self._outcomes.columns(), self._outcomes.errors, len(self._rows.due_ns)
        state, deliveries = array("B", bytes(rows)), array("B", bytes(rows))
        settled_ns, deadline_ns, fired_ns, delivered_ns = (array("q", bytes(8 * rows)) for _ in range(4))
        for at, command in enumerate(found.command):
            row = command - first
            if not 0 <= row < rows:
                errors["an outcome of a command that registered nothing"] = 1
                continue
            deliveries[row] = min(deliveries[row] + 1, 255)
            state[row] = found.state[at]
            settled_ns[row] = found.settled_ns[at]
            deadline_ns[row] = found.deadline_ns[at]
            fired_ns[row] = found.fired_ns[at]
            delivered_ns[row] = found.delivered_ns[at]
        return Registered(
            self._rows,
            self._sent_ns.column(),
            self._marked_ns.column(),
            state,
            deliveries,
            settled_ns,
            deadline_ns,
            fired_ns,
            delivered_ns,
            ended_ns,
            self._numbered,
            pace.own_lateness_ns,
            errors,
            used,
            failure,
        )
