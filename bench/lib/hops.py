"""How long frames take between processes, over sockets of libzmq at both ends, when the processes do nothing else.

    two hops    sender --DEALER--> ROUTER hub XPUB --SUB--> owner    an event, and the outcome that it causes
    one hop                               hub XPUB --SUB--> owner    the outcome of an expiry

The hub only passes frames on. Each frame carries the time at which it was sent, and the owner reads the clock when it
receives the frame. So this is the latency of a timer service over libzmq that itself takes no time at all.
"""

from __future__ import annotations

import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import zmq

from bench.lib.common import Failed

FRAMES_PER_S = 4_000  # as many as a client sends, and the daemon publishes, at 100,000 operations a second
FRAME_SIZE = 1_024
PATIENCE_MS = 10_000
STAMP = struct.Struct("<q")  # of CLOCK_MONOTONIC
FORK = get_context("fork")  # safe, because this process has one thread; and a fork takes nearly no time


def hops(count: int, seconds: float) -> list[int]:
    """How long each frame took over one hop or two, in ns. Raises Failed when a frame is lost."""
    frames = max(round(FRAMES_PER_S * seconds), 1)
    with tempfile.TemporaryDirectory(prefix="td-hops-") as directory:
        results, answers = FORK.Pipe(duplex=False)
        plays = [partial(_owner, directory, frames, answers), partial(hub, directory, frames, count == 2)]
        if count == 2:
            plays.append(partial(_send, directory, frames))
        parts = [FORK.Process(target=_part, args=(play,), daemon=True) for play in plays]
        try:
            for part in parts:
                part.start()
            answers.close()  # in this process: when the owner ends, recv() raises EOFError
            took: list[int] = results.recv()
        except EOFError:
            raise Failed(f"one of {frames:,} frames over {count} hops did not come within {PATIENCE_MS:,} ms") from None
        finally:
            for part in parts:
                part.kill()
                part.join()
    return took


def _part(play: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench itself handles Ctrl-C
    play()


def _send(directory: str, frames: int) -> None:
    with open_socket(zmq.DEALER) as socket:
        socket.connect(f"ipc://{directory}/up")
        socket.send(b"")
        socket.recv()  # the owner has subscribed
        for frame in _frames(frames):
            socket.send(frame)
        socket.recv()  # no frame comes: waits until this process is killed


def hub(directory: str, frames: int, relays: bool) -> None:
    with open_socket(zmq.ROUTER) as commands, open_socket(zmq.XPUB) as outcomes:
        commands.bind(f"ipc://{directory}/up")
        outcomes.bind(f"ipc://{directory}/down")
        outcomes.recv()
        if relays:
            commands.send_multipart([commands.recv_multipart()[0], b""])
            for _ in range(frames):
                outcomes.send(commands.recv_multipart()[1])
        else:
            for frame in _frames(frames):
                outcomes.send(frame)
        commands.recv()  # no frame comes: waits until this process is killed


def _owner(directory: str, frames: int, answers: Connection) -> None:
    took: list[int] = []
    with open_socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        socket.subscribe(b"")
        socket.connect(f"ipc://{directory}/down")
        for _ in range(frames):
            (sent_ns,) = STAMP.unpack_from(socket.recv())
            took.append(time.monotonic_ns() - sent_ns)
    answers.send(took)


def _frames(count: int) -> Iterator[bytes]:
    """Gives each frame when it is due. The frame carries the time at which it was given."""
    rest = bytes(FRAME_SIZE - STAMP.size)
    due_ns = time.monotonic_ns()
    for _ in range(count):
        due_ns += 1_000_000_000 // FRAMES_PER_S
        time.sleep(max(due_ns - time.monotonic_ns(), 0) / 1e9)
        yield STAMP.pack(time.monotonic_ns()) + rest


@contextmanager
def open_socket(kind: int) -> Iterator[zmq.Socket[Any]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        yield socket
