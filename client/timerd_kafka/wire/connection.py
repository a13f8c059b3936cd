"""One connection of a client: frames in, answers out, one request at a time, as in Kafka.

A connection may hold one whole frame and a little of what follows it: see AHEAD. The bytes of all connections together
are bounded, including answers that clients do not read. So hostile clients cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Awaitable, Callable
from typing import cast

from timerd_kafka.wire.codec import BadFrame

AHEAD = 64 << 10  # how many bytes after the current request are read before it is answered
BYTES_MAX = 512 << 20  # of all connections of a broker
CLOSE_S = 5.0  # the longest time for the last answers of a closed connection

log = logging.getLogger("timerd_kafka.connection")

# Takes a frame, and returns the answer's frame, or None if there is no answer (acks=0). Raises BadFrame.
Handle = Callable[["Connection", bytes], Awaitable[bytes | None]]


class Buffers:
    """The bytes that all connections hold."""

    def __init__(self, most: int = BYTES_MAX) -> None:
        self.used, self.most = 0, most


class Connection(asyncio.Protocol):
    """The protocol of one connection."""

    def __init__(self, handle: Handle, open_ones: set[Connection], buffers: Buffers, request_max: int) -> None:
        self._handle, self._open_ones = handle, open_ones
        self._buffers, self._request_max = buffers, request_max
        self._buffer = bytearray()
        self.held = 0  # bytes of the buffer, of the current requests, and of their answers until these are written
        self._making = 0  # those of answers that are being made
        self._task: asyncio.Task[None] | None = None  # the current request
        self._muted = False
        self._paused = False
        self._drained: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.peer = "?"
        self.software = ""  # the name and version of the client, from ApiVersions (KIP-511); empty: not named
        self.behind: Callable[[], object] | None = None  # called when bytes come after the current request; see peek()
        self.closing: list[Callable[[], object]] = []  # called when the connection ends; unmute() clears the list

    # asyncio calls these ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername") or ("?",)
        self.peer = ":".join(str(part) for part in name[:2])
        self._open_ones.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._open_ones.discard(self)
        self._drop_buffer()
        if self._task is not None:
            self._task.cancel()
        self.pause_writing_over()
        for call in self.closing:
            call()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._hold(len(data))
        if self._is_busy and len(self._buffer) > AHEAD:
            self._pause()
        self._next()
        if self.behind is not None:
            self.behind()

    def eof_received(self) -> None:
        """The client has closed its end, as clients with acks=0 do early. Its requests run up to their first wait."""
        loop = asyncio.get_running_loop()
        if self._task is not None:
            loop.call_soon(self._task.cancel)  # later, because the task may not have begun
        while not self.transport.is_closing() and (frame := self._whole_frame()) is not None:
            loop.call_soon(loop.create_task(self._answer(frame)).cancel)  # the task runs up to its first wait

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self.pause_writing_over()

    def pause_writing_over(self) -> None:
        """Note that all written data were sent, or never will be."""
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # requests ---------------------------------------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        return self._task is not None or self._muted

    def _next(self) -> None:
        """Take the next whole frame, if the last frame was answered."""
        if self._is_busy or self.transport.is_closing() or len(self._buffer) < 4:
            return
        frame = self._whole_frame()
        if frame is not None:
            self._task = asyncio.get_running_loop().create_task(self._answer(frame))
        elif not self.transport.is_closing():
            self._resume()

    def _whole_frame(self) -> bytes | None:
        """The next frame, if it has arrived completely. A frame of an impossible size ends the connection."""
        if len(self._buffer) < 4:
            return None
        size = int.from_bytes(self._buffer[:4], signed=True)
        if not 0 < size <= self._request_max:
            self.refuse(f"a frame of {size} bytes: 1 to {self._request_max}")
            return None
        if len(self._buffer) < 4 + size:
            return None
        frame = bytes(memoryview(self._buffer)[4 : 4 + size])
        del self._buffer[: 4 + size]
        return frame

    def peek(self) -> bytes | None:
        """The frame after the current request, if it has arrived completely. It is handled later, in its turn."""
        end = 4 + int.from_bytes(self._buffer[:4], signed=True)
        return bytes(self._buffer[4:end]) if 4 < end <= len(self._buffer) else None

    async def _answer(self, frame: bytes) -> None:
        try:
            answer = await self._handle(self, frame)
        except BadFrame as error:
            answer = None
            self.refuse(str(error))
        except Exception:
            answer = None
            log.exception("a request of %s failed", self.peer)
            self.transport.close()
        finally:
            self._forget(len(frame) + 4 + self._making)
            self._making = 0
        if answer is not None and not self.transport.is_closing():
            self.transport.write(answer)
            if self._drained is not None:
                self._hold(len(answer))
                try:
                    await self._drained
                finally:
                    self._forget(len(answer))
        self._task = None
        self._resume()
        self._next()

    def hold_answer(self, size: int) -> None:
        """Count the bytes of an answer that is being made. They are held until it is written."""
        self._making += size
        self._hold(size)

    def mute(self) -> None:
        """Take no request until unmute(): the client is beyond its quota."""
        self._muted = True

    def unmute(self) -> None:
        """Take requests again."""
        self._muted = False
        self.closing.clear()
        self._resume()
        self._next()

    def look_for_end(self) -> None:
        """Check whether the client has closed its end. Called every LOOK_S: asyncio does not see it without reading."""
        if not self._paused or self.transport.is_closing():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        if poll.poll(0):
            if self._task is not None:
                # Nobody reads the request's answer, so its wait is withdrawn. The task may not have begun.
                asyncio.get_running_loop().call_soon(self._task.cancel)
                self._task = None
            self.unmute()  # read the later requests, up to the end

    def refuse(self, why: str) -> None:
        """Close the connection: its client sent a wrong frame or holds too much, or a fault on demand ends it."""
        log.info("the connection of %s is closed: %s", self.peer, why)  # no warning: hostile clients would fill the log
        self.transport.close()
        self._drop_buffer()
        asyncio.get_running_loop().call_later(CLOSE_S, self.transport.abort)  # if the client reads no answers

    def cut(self, answer: bytes) -> None:
        """Send half of an answer, and close the connection: a fault that was set on demand."""
        self.transport.write(answer[: len(answer) // 2])
        self.refuse("a fault cuts its answer")

    def _pause(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def _drop_buffer(self) -> None:
        self._forget(len(self._buffer))
        self._buffer.clear()

    def _hold(self, size: int) -> None:
        """Note bytes that arrived, or that wait to be sent. Beyond the bound, close the connection that holds most."""
        self.held += size
        self._buffers.used += size
        if self._buffers.used > self._buffers.most:
            there = [one for one in self._open_ones if not one.transport.is_closing()]
            greediest = max(there, key=lambda one: one.held, default=self)
            greediest.refuse(f"the connections of this broker hold {self._buffers.used} bytes")
            greediest.transport.abort()  # do not keep the answers that its client does not read

    def _forget(self, size: int) -> None:
        self.held -= size
        self._buffers.used -= size
