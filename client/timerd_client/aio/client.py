"""The client and its purgatories. `timerd_client.aio` says how they are used."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from timerd_client import errors
from timerd_client.arguments import function_of, name_of
from timerd_client.conditions import ALL, ALL_SETTLED, ANY, When, at_least, total
from timerd_client.errors import *  # noqa: F403
from timerd_client.groups.steps import Call
from timerd_client.link import flows
from timerd_client.link.batch import fire_many, register_many
from timerd_client.link.flows import unsettled
from timerd_client.link.polling import POLL_S, RAISE, monotonic_deadline, seconds_left
from timerd_client.link.settings import configure, settings
from timerd_client.link.surface import Surface
from timerd_client.link.use import Use
from timerd_client.mark import Mark
from timerd_client.outcome import Outcome, State
from timerd_client.protocol.session import DEFAULT_PURGATORY
from timerd_client.protocol.state import LinkState
from timerd_client.protocol.statistics import Statistics
from timerd_client.types import Key, Keys, Payload, Timeout
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S, CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S
from timerd_shm.declare.wire import CommandFlag, CommandKind
from timerd_wire.transports import Transport

from .link import LoopLink, drive
from .member import AioGroupOutcome as GroupOutcome
from .member import Member
from .operation import AioBatch, AioOperation, answer_of, settled
from .operation import AioBatch as Batch
from .operation import AioOperation as Operation

__all__ = [
    "ALL",
    "ALL_SETTLED",
    "ANY",
    "Batch",
    "Call",
    "Client",
    "GroupOutcome",
    "Mark",
    "Operation",
    "Outcome",
    "Purgatory",
    "State",
    "When",
    "as_completed",
    "at_least",
    "client",
    "configure",
    "connect",
    "total",
    "wait",
]
__all__ += errors.__all__

Value = TypeVar("Value")


class Purgatory(Surface[AioOperation]):
    """`await client.purgatory(name)`; the client itself is its purgatory "default"."""

    def __init__(self, link: LoopLink, name: str) -> None:
        self._looped = link
        self._use: Use | None = None  # its client's
        super().__init__(link, name, AioOperation)

    async def fire_wait(
        self,
        key: Key,
        *,
        value: Payload = b"",
        amount: int = 1,
        limit: int | None = None,
        wait: float = CLOSE_TIMEOUT_S,
    ) -> int:
        """`fire`, and the number of operations that it completed; raises TimerdUnavailableError after `wait` s.

        0 does not mean that it completes none: it also completes registrations that were called before and reach the
        daemon after it, and these are not counted.
        """
        reply = self._ask(self._fire_command(key, value, amount, limit, CommandFlag.WANTS_ANSWER))
        return int(await answer_of(reply, wait))

    async def cancel_for_key_wait(self, key: Key, *, wait: float = CLOSE_TIMEOUT_S) -> int:
        """`cancel_for_key`, and the number of operations that it cancelled."""
        reply = self._ask(self._key_command(CommandKind.CANCEL_FOR_KEY, key, flags=CommandFlag.WANTS_ANSWER))
        return int(await answer_of(reply, wait))

    async def reschedule(self, id: Key, timeout: Timeout, *, wait: float = CLOSE_TIMEOUT_S) -> bool:
        """Give the operation of that id a new deadline, from any process; raises UnknownOperationError."""
        return bool(await answer_of(self._ask_reschedule(id, timeout), wait))

    async def cancel(self, id: Key, *, wait: float = CLOSE_TIMEOUT_S) -> bool:
        """Cancel the operation of that id, from any process; raises UnknownOperationError."""
        return bool(await answer_of(self._ask(self._cancel_id_command(id), id), wait))

    def register_many(
        self,
        keys: Sequence[Keys],
        *,
        timeout: Timeout | Sequence[Timeout],
        payloads: Sequence[Payload] | Payload = b"",
        when: When = ANY,
        since: Mark | None = None,
    ) -> AioBatch:
        """Register an operation for each member of `keys`; `await` the batch for the outcomes in their order."""
        batch = register_many(self, AioBatch, keys, timeout, payloads, when, since)
        assert isinstance(batch, AioBatch)
        return batch

    def fire_many(
        self, keys: Sequence[Key], *, values: Sequence[Payload] | Payload = b"", amounts: Sequence[int] | int = 1
    ) -> None:
        """Fire each of `keys`, in order; values and amounts are one for each, or one for all."""
        fire_many(self, keys, values, amounts)

    async def wait_for(
        self,
        predicate: Callable[[], Value | Awaitable[Value]],
        keys: Keys,
        timeout: Timeout,
        *,
        when: When = ANY,
        unavailable: str = RAISE,
        poll_interval: float = POLL_S,
    ) -> Value:
        """A condition variable across processes: until the predicate (which may be a coroutine function) is true.

        Arguments and errors as the threaded client's.
        """
        found: Value = await drive(flows.wait_for(self, predicate, keys, timeout, when, unavailable, poll_interval))
        return found

    async def try_complete_else_watch(
        self, try_complete: Callable[[], bool | Awaitable[bool]], keys: Keys, *, timeout: Timeout
    ) -> bool:
        """Kafka's tryCompleteElseWatch: True when `try_complete()` is, tried now and after each event; else False."""
        return bool(await self.wait_for(function_of("try_complete", try_complete), keys, timeout))

    async def check_and_complete(self, key: Key) -> int:
        """Kafka's checkAndComplete: the watchers of `key` look again, in all processes; how many they are."""
        return await self.fire_wait(key)


class Client(Purgatory, Member):
    """A connection to a daemon, from `await connect()`; also its purgatory "default"."""

    def __init__(self, link: LoopLink) -> None:
        super().__init__(link, DEFAULT_PURGATORY)
        self._use = link.use()
        self._join(link)
        self._purgatories: dict[str, Purgatory] = {DEFAULT_PURGATORY: self}

    async def wait_ready(self, timeout: float = CONNECT_TIMEOUT_S) -> None:
        """Wait until the daemon has accepted this client. Raises its refusal, or TimerdUnavailableError."""
        await drive(flows.ready(self._link, timeout))

    @property
    def state(self) -> LinkState:
        """CONNECTING, HELLO, LIVE, LOST or CLOSED."""
        return self._protocol.state

    @property
    def connected(self) -> bool:
        """Whether the daemon is there: False before its first frame, after 3 s without one, and 2 s after its end."""
        return self._protocol.state is LinkState.LIVE

    def stats(self) -> Statistics:
        """The counters of this client: pending operations, operations given up, late outcomes, and more."""
        with self._link.lock:
            return self._protocol.statistics()

    @property
    def closed(self) -> bool:
        """Whether close() was called, or this process is a fork of the one that made the client."""
        return self._link.sealed

    async def purgatory(self, name: str, *, timeout: float = CONNECT_TIMEOUT_S) -> Purgatory:
        """The purgatory of a name ([a-z0-9_-]{1,32}), made if it is new. Raises InvalidNameError, ArenaFullError."""
        known = self._purgatories.get(name_of("purgatory", name))
        if known is not None:
            return known
        await answer_of(self._link.ask_purgatory(name), timeout)
        made = self._purgatories.setdefault(name, Purgatory(self._looped, name))
        made._use = self._use
        return made

    async def ping(self, timeout: float = CONNECT_TIMEOUT_S) -> float:
        """Ask the daemon, and return how many seconds it took. Raises TimerdUnavailableError."""
        start = time.monotonic()
        await answer_of(self._link.query({"query": "ping"}), timeout)
        return time.monotonic() - start

    async def room(self, timeout: float = BACKPRESSURE_TIMEOUT_S) -> int:
        """Wait until the window has room; for how many commands. Raises BackpressureError after `timeout` s."""
        return await self._looped.room(timeout)

    async def set_orphans(self, policy: str) -> int:
        """Set what becomes of the pending operations when this client ends, as the threaded client does."""
        return await drive(flows.set_orphans(self._link, policy))

    async def flush(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until everything issued so far has been applied, as the threaded client does; errors as there."""
        await drive(flows.flush(self._link, timeout))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until everything is acknowledged, `timeout` seconds at most, and end; as the threaded client does."""
        if self.closed:
            return
        await drive(flows.close(self._link, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except TimerdError as failure:
            if error is None:
                raise
            self._link.complain_of_close(failure, error)

    def __repr__(self) -> str:
        return f"<Client of {self._link.paths.instance!r} {self.state.value}>"


async def connect(
    instance: str | None = None,
    *,
    autostart: bool = False,
    timeout: float | None = None,
    group: str | None = None,
    orphans: str = "cancel",
    name: str = "",
    runtime_dir: str | None = None,
    transport: Transport | None = None,
) -> Client:
    """A client of the instance in the running loop; arguments and errors as `timerd_client.connect`."""
    search = flows.connect(LoopLink, instance, autostart, timeout, group, orphans, name, runtime_dir, transport)
    return Client(await drive(search))


_clients: dict[asyncio.AbstractEventLoop, asyncio.Task[Client]] = {}
os.register_at_fork(after_in_child=_clients.clear)


async def client() -> Client:
    """The client of this process and the running loop: made on first use, and again after a fork or its close().

    It has the settings of `timerd_client.configure`. Without these its instance is $TIMERD_INSTANCE, else "default",
    and it is in no group. Raises TimerdUnavailableError. Clients of loops that have closed are freed at the next call.
    """
    loop = asyncio.get_running_loop()
    for ended in [one for one in _clients if one.is_closed()]:
        if old := _made(_clients.pop(ended)):
            old._looped.stop()
    making = _clients.get(loop)
    if making is None or (making.done() and _made(making) is None):
        making = _clients[loop] = loop.create_task(connect(**settings))
    return await asyncio.shield(making)  # other tasks may wait for the same client


def _made(making: asyncio.Task[Client]) -> Client | None:
    """The client, if it was made and is not closed."""
    if not making.done() or making.cancelled() or making.exception() is not None:
        return None
    made = making.result()
    return None if made.closed else made


class Waited(NamedTuple):
    """Operations that had settled when `wait` returned, and those that had not. Both keep the order given."""

    done: list[AioOperation]
    pending: list[AioOperation]


async def wait(operations: Iterable[AioOperation], timeout: float | None = None) -> Waited:
    """Wait until all operations have settled, `timeout` seconds at most; none is cancelled."""
    given = list(operations)
    deadline = monotonic_deadline(timeout)
    for operation in given:
        try:
            await settled(operation, seconds_left(deadline))
        except TimeoutError:
            break
    return Waited([one for one in given if one.done()], [one for one in given if not one.done()])


async def as_completed(operations: Iterable[AioOperation], timeout: float | None = None) -> AsyncIterator[AioOperation]:
    """The operations as they settle. Raises TimeoutError if some have not settled `timeout` seconds from now."""
    given = list(operations)
    settled: asyncio.Queue[AioOperation] = asyncio.Queue()
    for one in given:
        one.add_done_callback(settled.put_nowait)
    deadline = monotonic_deadline(timeout)
    try:
        for left in range(len(given), 0, -1):
            if not settled.empty():  # it has settled, so it counts, also after the timeout
                yield settled.get_nowait()
                continue
            try:
                operation = await asyncio.wait_for(settled.get(), seconds_left(deadline))
            except TimeoutError:
                raise unsettled(left, len(given), timeout) from None
            yield operation
    finally:
        for one in given:
            one._remove(settled.put_nowait)
