"""A daemon that one can write in an hour: asyncio timers, a dict, ZeroMQ.

python -m bench.rivals.alternative.broker ADDRESS [uvloop]
"""

import asyncio
import sys
import time
from collections import defaultdict
from typing import Any

import zmq
import zmq.asyncio

import msgpack


async def main(address: str) -> None:
    """Frames are [owner, [[key, deadline_ns, payload] or [key, fired_ns], ...]]. Answers: [[key, kind, at_ns], ...]."""
    socket = zmq.asyncio.Context().socket(zmq.ROUTER)
    socket.sndhwm = socket.rcvhwm = 0  # no limit: beyond a limit libzmq would drop answers
    socket.bind(address)
    loop, pending, outbox = asyncio.get_running_loop(), dict[str, Any](), defaultdict[bytes, list[Any]](list)

    def answer(owner: bytes, key: str, kind: str, at_ns: int) -> None:
        if not outbox:
            loop.call_soon(flush)
        outbox[owner].append((key, kind, at_ns))

    def flush() -> None:
        for owner, answers in outbox.items():
            socket.send_multipart([owner, msgpack.packb(answers)])
        outbox.clear()

    def expire(owner: bytes, key: str) -> None:
        del pending[key]
        answer(owner, key, "e", time.monotonic_ns())

    while True:
        _, frame = await socket.recv_multipart()
        owner, commands = msgpack.unpackb(frame)
        for key, at_ns, *payload in commands:
            if payload:
                pending[key] = owner, loop.call_at(at_ns / 1e9, expire, owner, key), payload
            elif key in pending:
                owner_of, timer, _ = pending.pop(key)
                timer.cancel()
                answer(owner_of, key, "c", at_ns)
        await asyncio.sleep(0)  # recv() does not yield when a frame has arrived: without a yield here no timer runs


if __name__ == "__main__":
    if "uvloop" in sys.argv:
        import uvloop

        uvloop.install()
    asyncio.run(main(sys.argv[1]))
