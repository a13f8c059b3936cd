"""A daemon as one writes it in an hour: asyncio timers, a dict, ZeroMQ. python broker.py ADDRESS [uvloop]"""

import asyncio
import sys
import time
from collections import defaultdict
from typing import Any

import zmq
import zmq.asyncio

import msgpack


async def main(address: str) -> None:
    """Frames are [owner, [[key, deadline_ns, payload] or [key, fired_ns], ...]]; answers [[key, kind, at_ns], ...]."""
    socket = zmq.asyncio.Context().socket(zmq.ROUTER)
    socket.sndhwm = socket.rcvhwm = 0  # or libzmq would drop answers
    socket.bind(address)
    loop, waiting, outbox = asyncio.get_running_loop(), dict[str, Any](), defaultdict[bytes, list[Any]](list)

    def tell(owner: bytes, key: str, kind: str, at_ns: int) -> None:
        if not outbox:
            loop.call_soon(flush)
        outbox[owner].append((key, kind, at_ns))

    def flush() -> None:
        for owner, answers in outbox.items():
            socket.send_multipart([owner, msgpack.packb(answers)])
        outbox.clear()

    def expire(owner: bytes, key: str) -> None:
        del waiting[key]
        tell(owner, key, "e", time.monotonic_ns())

    while True:
        _, frame = await socket.recv_multipart()
        owner, commands = msgpack.unpackb(frame)
        for key, at_ns, *payload in commands:
            if payload:
                waiting[key] = owner, loop.call_at(at_ns / 1e9, expire, owner, key), payload
            elif key in waiting:
                owner_of, timer, _ = waiting.pop(key)
                timer.cancel()
                tell(owner_of, key, "c", at_ns)
        await asyncio.sleep(0)  # a frame that waits is there at once: without this, timers would never run


if __name__ == "__main__":
    if "uvloop" in sys.argv:
        import uvloop

        uvloop.install()
    asyncio.run(main(sys.argv[1]))
