"""Waiting for many operations of threaded clients, as `concurrent.futures` does for futures. See aio for coroutines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from queue import Empty
from typing import Generic, NamedTuple, TypeVar

from timerd_client.arguments import until_of
from timerd_client.link.batch import ThreadedBatch
from timerd_client.link.flows import unsettled
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import promises_of, withdrawing
from timerd_client.scope import current_scope
from timerd_client.types import Patience, Until
from timerd_client.waits.aside import Aside
from timerd_client.waits.polling import monotonic_deadline, seconds_left

Waitable = TypeVar("Waitable", bound=ThreadedOperation | ThreadedBatch)
KINDS = (ThreadedOperation, ThreadedBatch)
OTHER = "of an asyncio client: await it, or give it to td.aio.wait() or td.aio.as_completed()"


class Waited(NamedTuple, Generic[Waitable]):
    """Operations that had settled when `wait` returned, and those that had not. Both keep the order given."""

    done: list[Waitable]
    pending: list[Waitable]


def wait(operations: Iterable[Waitable], timeout: Patience = None, *, until: Until = "all") -> Waited[Waitable]:
    """Wait until all operations (`until="all"`) or one of them ("first") have settled, `timeout` seconds at most.

    A whole batch counts as one.
    """
    waits_for_all = until_of(until) == "all"
    given = promises_of(operations, KINDS, OTHER)
    deadline = monotonic_deadline(timeout)
    if waits_for_all:
        with withdrawing(given):
            for operation in given:
                if not operation._wait(seconds_left(deadline)):
                    break
    else:
        for _ in _settling(given, deadline):
            break
    return Waited([one for one in given if one.done()], [one for one in given if not one.done()])


def as_completed(operations: Iterable[Waitable], timeout: Patience = None) -> Iterator[Waitable]:
    """The operations, or whole batches, as they settle. Raises TimeoutError if some have not after `timeout` s."""
    given = promises_of(operations, KINDS, OTHER)
    seen = 0
    for operation in _settling(given, monotonic_deadline(timeout)):
        seen += 1
        yield operation
    if seen < len(given):
        raise unsettled(len(given) - seen, len(given), timeout)


def _settling(operations: list[Waitable], deadline: float | None) -> Iterator[Waitable]:
    if not operations:
        return
    waiters = operations[0]._link.waiters
    settled = waiters.queue()
    scope = current_scope()
    if scope is not None:
        wake = waiters.callback(settled.put)  # with gevent it runs in the hub, whichever thread ends the scope

    def end() -> None:
        wake(None)

    try:
        for operation in operations:
            if not operation._has_settled():
                operation._link.waiters.may_block()
            operation._call_aside(settled.put)
        with withdrawing(operations):
            if scope is not None and not scope.add(end):
                raise scope.error()
            for _ in operations:
                left = seconds_left(deadline)
                try:
                    found = settled.get(timeout=left) if left else settled.get(block=left is None)
                except Empty:
                    return
                if found is None:
                    assert scope is not None, "only end() puts None there"
                    raise scope.error()
                found.done()  # this counts as a look at the outcome
                yield found
    finally:
        if scope is not None:
            scope.remove(end)
        for operation in operations:
            operation._remove(Aside(settled.put))
