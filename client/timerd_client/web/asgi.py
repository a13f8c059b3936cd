"""Middleware for ASGI: the outermost layer, around the application that the server calls. It needs asyncio.

    application = ASGI(application)

A server reports that the peer has gone only to a task that receives. So a task receives during each request, and keeps
one message ahead for the application. SIGTERM drains: uvicorn ends the lifespan only after all answers were sent.
(For WSGI, disconnects.py notices that a peer has gone.)
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeAlias

from timerd_client.aio.client import Client as AioClient
from timerd_client.aio.link import LoopLink, drive
from timerd_client.aio.operation import settled
from timerd_client.errors import RequestEnded, TimerdError
from timerd_client.link.flows import flush
from timerd_client.link.link import links
from timerd_client.link.process_end import GOODBYE_S, LIFESPAN_ENDS, PATIENCE_S, as_leaving, lost, process_end, say
from timerd_client.link.questions import query
from timerd_client.scope import Scope
from timerd_client.threaded.client import Client

from .answers import OF_THE_BODY, Answer, answer_to, instead_of_500, unserved
from .failures import listen
from .requests import DISCONNECT, begin, drain_at, finish

Message: TypeAlias = Any  # a mapping; each framework has its own type for messages
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

SERVICE_RESTART: Final = 1012  # the close code of a WebSocket whose server ends
logger = logging.getLogger("timerd_client.web")


class ASGI:
    """The application, wrapped: each request has a scope. If a `client` is given, it is closed at the end."""

    def __init__(self, application: Application, client: Client | AioClient | None = None) -> None:
        listen()
        self.application = application
        self._client = client
        self._drains = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if not self._drains:
            self._drain_at_signals()
        match scope["type"]:
            case "http":
                await self._serve(scope, receive, send)
            case "websocket":
                await self._serve_websocket(scope, receive, send)
            case "lifespan":
                await self._live(scope, receive, send)
            case _:
                await self.application(scope, receive, send)

    def _drain_at_signals(self) -> None:
        """Drain at signals. The server has already set its own handlers, which are called after the drain."""
        self._drains = True
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                drain_at(number)

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        exchange = _Exchange(receive, send)
        listening = asyncio.ensure_future(exchange.listen())
        try:
            with exchange.request.entered():
                await self.application(scope, exchange.receive, exchange.send)
        except BaseException as error:
            why, instead = unserved(error), exchange.instead
            if why is not None and instead is not None and isinstance(error, Exception):
                logger.warning("%s is answered %s: %r", scope.get("path"), instead.line, error)
                return
            if why is None or not await exchange.answer(why):
                raise
            if why is not error and isinstance(error, Exception):
                logger.warning("%s is answered in place of %r", scope.get("path"), error)
        finally:
            listening.cancel()
            finish(exchange.request)

    async def _serve_websocket(self, scope: Any, receive: Receive, send: Send) -> None:
        request = begin()
        try:
            with request.entered():
                await self.application(scope, receive, send)
        except BaseException as error:
            if not isinstance(unserved(error), RequestEnded):
                raise
            await send({"type": "websocket.close", "code": SERVICE_RESTART})
        finally:
            finish(request)

    async def _live(self, scope: Any, receive: Receive, send: Send) -> None:
        lifespan = _Lifespan(receive, send, self._end)
        try:
            await self.application(scope, lifespan.receive, lifespan.send)
        except Exception:
            if lifespan.received:
                await lifespan.failed()
                raise
        await lifespan.serve_rest()

    async def _end(self) -> None:
        await self._close()
        await _flush_all()

    async def _close(self) -> None:
        if self._client is None:
            return
        try:
            if isinstance(self._client, Client):
                await _in_own_thread(self._client.close)
            else:
                await self._client.close()
        except TimerdError as error:
            logger.warning("the client of the application was closed: %s", error)


async def _in_own_thread(call: Callable[[], None]) -> None:
    """Like asyncio.to_thread(), whose threads may all stand in blocking calls of the application."""
    thread = ThreadPoolExecutor(1, "timerd-lifespan")
    try:
        await asyncio.get_running_loop().run_in_executor(thread, call)
    finally:
        thread.shutdown(wait=False)


async def _flush_all() -> None:
    """Flush all clients of this process. uvicorn raises SIGTERM again when it has ended, so no handler of atexit runs.

    The clients stay open. A running loop flushes its own clients. A loop that does not run cannot.
    """
    here = asyncio.get_running_loop()
    open_links = [link for link in links if not (link.closed or link.is_outlived())]
    of_loops = [link for link in open_links if isinstance(link, LoopLink) and link.loop.is_running()]
    flushes = [_flush(link) if link.loop is here else _flush_in_its_loop(link) for link in of_loops]
    if threaded := [link for link in open_links if not isinstance(link, LoopLink)]:
        flushes.append(_in_own_thread(partial(process_end.flush_before_a_signal, threaded)))
    for failed in await asyncio.gather(*flushes, return_exceptions=True):
        if failed is not None:
            logger.warning("%s, and a client was not flushed: %r", LIFESPAN_ENDS, failed)


async def _flush(link: LoopLink) -> None:
    """Flush a client of the running loop, and say goodbye for it."""
    try:
        await drive(flush(link, PATIENCE_S if link.connection.may_answer() else 0.0))
        with as_leaving(link):
            await settled(query(link, {"query": "ping"}), GOODBYE_S)
    except TimerdError as error:
        say(link, f"{LIFESPAN_ENDS}: {error}")


async def _flush_in_its_loop(link: LoopLink) -> None:
    """Flush a client of another loop, which runs in another thread, and may be held up there."""
    flushing = _flush(link)
    try:
        flushed = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(flushing, link.loop))
    except RuntimeError:  # the loop was closed meanwhile
        flushing.close()
        return
    await asyncio.wait({flushed}, timeout=PATIENCE_S + 2 * GOODBYE_S)
    if flushed.done():
        flushed.result()
    else:
        flushed.cancel()
        say(link, lost(f"{LIFESPAN_ENDS} while its event loop is held up in another thread", link))


class _Lifespan:
    """A lifespan. If the application refuses it, as Django does, or serves a part of it, the rest is served here.

    Otherwise the server would end without a message, and `end` would not be called.
    """

    def __init__(self, receive: Receive, send: Send, end: Callable[[], Awaitable[None]]) -> None:
        self._receive = receive
        self._send = send
        self._end = end
        self.received = ""  # the type of the newest message from the server
        self._answered = ""  # the type of the newest answer

    async def receive(self) -> Message:
        """The `receive` that the application gets."""
        message = await self._receive()
        self.received = message["type"]
        return message

    async def send(self, message: Message) -> None:
        """The `send` that the application gets."""
        if message["type"].startswith("lifespan.shutdown."):
            await self._end()
        self._answered = message["type"]
        await self._send(message)

    async def failed(self) -> None:
        """The application has raised an error. If it was ending, and has not answered, do the work of the end now."""
        if self.received == "lifespan.shutdown" and not self._answered.startswith("lifespan.shutdown."):
            await self._end()

    async def serve_rest(self) -> None:
        """The application has refused the lifespan, or has returned."""
        if self._answered == "lifespan.startup.failed":
            return
        if not self.received:
            await self.receive()
        if not self._answered:
            await self.send({"type": "lifespan.startup.complete"})
        if self.received == "lifespan.startup":
            await self.receive()
        if not self._answered.startswith("lifespan.shutdown."):
            await self.send({"type": "lifespan.shutdown.complete"})


class _Exchange:
    """A request, the messages that were received for it, and the state of its answer."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.request: Scope = begin()
        self._receive = receive
        self._send = send
        self._received: asyncio.Queue[Message] = asyncio.Queue(1)
        self._disconnect: Message | None = None
        self._is_begun = self._is_complete = False
        self.instead: Answer | None = None  # the answer in place of a framework's 500

    async def listen(self) -> None:
        """Receive, one message ahead of the application, until the peer has gone."""
        while self._disconnect is None:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._disconnect = message
                if not self._is_complete:  # servers send "http.disconnect" after a complete answer, too
                    self.request.end(DISCONNECT)
            await self._received.put(message)

    async def receive(self) -> Message:
        """The `receive` that the application gets."""
        if self._disconnect is not None and self._received.empty():
            return self._disconnect
        return await self._received.get()

    async def send(self, message: Message) -> None:
        """The `send` that the application gets."""
        if message["type"] == "http.response.start":
            self._is_begun = True
            self.instead = instead_of_500(self.request) if message["status"] == 500 else None
            if self.instead is not None:
                await self._send_instead(self.instead, message)
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        if self.instead is None:
            await self._send(message)

    async def _send_instead(self, answer: Answer, message: Message) -> None:
        """Answer in place of a framework's 500 that begins with this message. Headers about its body are dropped."""
        own = _encoded(answer.all_headers())
        names = {name for name, _ in own} | {name.encode() for name in OF_THE_BODY}
        others = [(name, value) for name, value in message.get("headers", ()) if bytes(name).lower() not in names]
        await self._send({**message, "status": answer.status, "headers": [*others, *own]})
        await self._send({"type": "http.response.body", "body": answer.body})

    async def answer(self, error: BaseException) -> bool:
        """Answer in place of the view, which raised `error`. If the view's answer has begun, it only ends there.

        Returns False if the answer has begun and the error is not RequestEnded: the caller raises the error again.
        """
        if self._is_begun:
            if not isinstance(error, RequestEnded):
                return False
            if not self._is_complete:
                await self.send({"type": "http.response.body", "body": b""})  # a stream that was begun ends
            return True
        answer = answer_to(error, self.request)
        start = {"type": "http.response.start", "status": answer.status, "headers": _encoded(answer.all_headers())}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": answer.body})
        return True


def _encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers]
