"""The client of asyncio, and how one is made. `timerd_client.aio` says how it is used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from timerd_client.arguments import name_of, patience_s
from timerd_client.declared import CLIENT, ClientArguments
from timerd_client.discovery.target import Target, target_of
from timerd_client.link import flows
from timerd_client.link.lazy import CommonClient, Lazy
from timerd_client.link.questions import name_purgatory, query
from timerd_client.protocol.session import DEFAULT_PURGATORY
from timerd_client.types import Key, OrphanPolicy, Patience, Payload
from timerd_shm.declare.errors import ClosedError, TimerdError
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S, CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S

from .link import LoopLink, drive
from .member import Member
from .operation import AioOperation, answer_of
from .purgatory import Purgatory


class LoopLazy(Lazy[LoopLink]):
    """The link of an asyncio client. It belongs to the loop of its first use. After the end of this loop, the next use
    makes another link.
    """

    def link(self) -> LoopLink:
        link = self._link
        if link is not None and not link.is_outlived() and not link.closed:
            return link
        if asyncio._get_running_loop() is not None:
            return super().link()
        if link is not None:
            raise ClosedError(f"this client is closed here: {link.why_closed}; use it in a coroutine of another loop")
        raise RuntimeError(
            "an asyncio client connects at its first use in a coroutine, and no event loop runs here: use it in what "
            "asyncio.run() runs, or take td.Client()"
        )

    def is_free_for(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this client may be used in `loop`: it has no link, or one of this loop or of an ended loop."""
        link = self._link
        return link is None or link.loop is loop or link.is_outlived()


class Client(CommonClient[LoopLink], Purgatory, Member):
    """A client of one instance's daemon, for one event loop at a time; also its purgatory "default".

    Making a client needs neither a daemon nor a loop: the client connects at its first use, in the loop that runs then.
    When that loop has ended, the next use connects again, in the loop that runs then. The arguments are those of
    `timerd_client.Client`. Methods that return at once may be called in any thread; awaitables belong to the client's
    loop. A forked child connects anew. A client cannot be pickled. A client to which nobody refers ends when it has no
    pending operation, and warns.
    """

    @staticmethod
    def _lazy_to(target: Target, link: LoopLink | None = None) -> LoopLazy:
        return LoopLazy(target, LoopLink, link)

    _lazy: LoopLazy

    def _take(self, lazy: LoopLazy) -> None:
        self._purgatories: dict[str, Purgatory] = {}  # without "default": the client would refer to itself
        Purgatory.__init__(self, lazy, DEFAULT_PURGATORY, AioOperation)

    def _bind(self, link: LoopLink) -> LoopLink:
        self._join(link)
        return super()._bind(link)

    async def ready(self, *, timeout: Patience = CONNECT_TIMEOUT_S) -> None:
        await drive(flows.ready(self._live(), timeout))

    async def purgatory(self, name: str, *, timeout: Patience = CONNECT_TIMEOUT_S) -> Purgatory:
        if name_of("purgatory", name) == DEFAULT_PURGATORY:
            return self
        patience_s(timeout)
        known = self._purgatories.get(name)
        if known is None:
            reply = name_purgatory(self._live(), name)
            if reply is not None:
                await answer_of(reply, timeout)
            self._lazy.purgatories.append(name)
            known = self._purgatories.setdefault(name, Purgatory(self._lazy, name, AioOperation))
        return known

    async def ping(self, *, timeout: Patience = CONNECT_TIMEOUT_S) -> float:
        start = time.monotonic()
        await answer_of(query(self._live(), {"query": "ping"}), timeout)
        return time.monotonic() - start

    async def room(self, commands: int = 1, *, timeout: Patience = BACKPRESSURE_TIMEOUT_S) -> int:
        """Wait until the window has room for `commands` commands. Returns the number for which it has room.

        Raises BackpressureError after `timeout` s, and InvalidValueError for more than a window holds (65,536).
        """
        return await self._live().sender.room(commands, timeout)

    async def fire_together_wait(
        self, events: Sequence[tuple[Purgatory, Key, Payload]], *, timeout: Patience = CLOSE_TIMEOUT_S
    ) -> list[int]:
        return await drive(flows.fire_together(self._live(), events, timeout))

    async def set_orphans(self, policy: OrphanPolicy) -> None:
        await drive(flows.set_orphans(self._live(), policy))

    async def flush(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> None:
        await drive(flows.flush(self._live(), timeout))

    async def close(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> None:
        await drive(flows.close(self._lazy, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except TimerdError as failure:
            self._close_has_raised(failure, error)


class Connecting:
    """The result of `connect()`: `await connect(...)`, or `async with connect(...) as client`."""

    def __init__(self, client: Client, timeout: Patience) -> None:
        self._client = client
        self._timeout = timeout

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connected().__await__()

    async def __aenter__(self) -> Client:
        return await self._connected()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def _connected(self) -> Client:
        self._client._bind(await drive(flows.connect(self._client._lazy, self._timeout)))
        return self._client


@CLIENT.shown
def connect(
    instance: str | None = None, *, timeout: Patience = None, **arguments: Unpack[ClientArguments]
) -> Connecting:
    """A client that the daemon has accepted: `await` it, or `async with` it. As `timerd_client.connect`."""
    return Connecting(Client._over(None, target_of("connect", instance, arguments)), timeout)
