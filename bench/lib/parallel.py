"""Does work for each of many numbers (seeds of a simulation, worlds of a fuzzer), in one process for each core.

    for number, row in each(range(1_000), lambda seed: {"failure": "", "steps": run(seed)}, processes=2):

If a process dies (for example of a segmentation fault), its number gets a row with a failure, and another process does
the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench.lib.common import Row

END_S = 0.5


@dataclass
class Share:
    """The work of one process: `left`, in order. `pid` is the process, and `pipe` has its output."""

    left: list[int]
    pid: int = 0
    pipe: int = -1
    said: bytes = field(default=b"")


def each(numbers: range, work: Callable[[int], Row], processes: int) -> Iterator[tuple[int, Row]]:
    """The rows of all numbers, as they come. A row has a "failure" if the work raised, or the process died."""
    shares = [Share([*numbers[at::processes]]) for at in range(min(processes, len(numbers)))]
    with selectors.DefaultSelector() as selector:
        try:
            for share in shares:
                _start(share, work, selector)
            while selector.get_map():
                for key, _ in selector.select():
                    yield from _hear(key.data, work, selector)
        finally:
            for share in shares:
                _end(share)


def _start(share: Share, work: Callable[[int], Row], selector: selectors.BaseSelector) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    share.pipe, write = os.pipe()
    share.pid = os.fork()
    if share.pid == 0:
        _work(share.left, work, write)
    os.close(write)
    selector.register(share.pipe, selectors.EVENT_READ, share)


def _work(numbers: list[int], work: Callable[[int], Row], write: int) -> None:
    """In the child: never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        for number in numbers:
            try:
                row = work(number)
            except Exception as error:
                row = {"failure": f"{type(error).__name__}: {error}"[:2_000]}
            os.write(write, json.dumps([number, row]).encode() + b"\n")
    finally:
        os._exit(0)


def _hear(share: Share, work: Callable[[int], Row], selector: selectors.BaseSelector) -> Iterator[tuple[int, Row]]:
    data = os.read(share.pipe, 1 << 16)
    *lines, share.said = (share.said + data).split(b"\n")
    for line in lines:
        number, row = json.loads(line)
        share.left.remove(number)
        yield number, row
    if data:
        return
    selector.unregister(share.pipe)
    os.close(share.pipe)
    _, status = os.waitpid(share.pid, 0)
    share.pid, share.pipe, share.said = 0, -1, b""
    if share.left:
        yield share.left.pop(0), {"failure": f"its process ended with {os.waitstatus_to_exitcode(status)}"}
    if share.left:
        _start(share, work, selector)


def _end(share: Share) -> None:
    if share.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(share.pid, signal.SIGKILL)
        os.waitpid(share.pid, 0)
        os.close(share.pipe)
