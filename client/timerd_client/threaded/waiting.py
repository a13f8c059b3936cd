"""Waiting for many operations of threaded clients, as `concurrent.futures` does for futures. See aio for coroutines."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timerd_client.link.flows import unsettled
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.polling import monotonic_deadline, seconds_left
from timerd_shm.declare.errors import InvalidValueError

FIRST = "first"
EVERY = "all"


class Waited(NamedTuple):
    """Operations that had settled when `wait` returned, and those that had not. Both keep the order given."""

    done: list[ThreadedOperation]
    pending: list[ThreadedOperation]


def wait(operations: Iterable[ThreadedOperation], timeout: float | None = None, *, until: str = EVERY) -> Waited:
    """Wait until all operations (`until="all"`) or one of them ("first") have settled, `timeout` seconds at most."""
    if until not in (FIRST, EVERY):
        raise InvalidValueError(f"until={until!r}: {FIRST!r} or {EVERY!r}")
    given = list(operations)
    deadline = monotonic_deadline(timeout)
    if until == EVERY:
        for operation in given:
            if not operation.wait(seconds_left(deadline)):
                break
    else:
        for _ in _settling(given, deadline):
            break
    return Waited([one for one in given if one.done()], [one for one in given if not one.done()])


def as_completed(operations: Iterable[ThreadedOperation], timeout: float | None = None) -> Iterator[ThreadedOperation]:
    """The operations as they settle. Raises TimeoutError if some have not settled `timeout` seconds from now."""
    given = list(operations)
    seen = 0
    for operation in _settling(given, monotonic_deadline(timeout)):
        seen += 1
        yield operation
    if seen < len(given):
        raise unsettled(len(given) - seen, len(given), timeout)


def _settling(operations: list[ThreadedOperation], deadline: float | None) -> Iterator[ThreadedOperation]:
    settled: queue.SimpleQueue[ThreadedOperation] = queue.SimpleQueue()
    try:
        for operation in operations:
            if not operation.done():
                operation._link.may_block()
            operation.add_done_callback(settled.put)
        for _ in operations:
            left = seconds_left(deadline)
            try:
                yield settled.get(timeout=left) if left else settled.get(block=left is None)
            except queue.Empty:
                return
    finally:
        for operation in operations:
            operation._remove(settled.put)
