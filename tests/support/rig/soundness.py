"""Runs a daemon on an arena that may be damaged. The arena lies between two pages that cannot be touched."""

from __future__ import annotations

import ctypes
import mmap

from support.rig.damage import LONG_KEY, busy_rig
from support.rig.harness import MS, S, fire
from timerd_shm.declare.errors import QuotaExceededError

LIBC = ctypes.CDLL(None)
BUSY = busy_rig()
MEMORY = bytes(BUSY.memory)


def fenced(memory: bytes) -> memoryview:
    """A copy between two pages that cannot be touched: an access before or after the copy raises SIGSEGV."""
    assert len(memory) % mmap.PAGESIZE == 0, f"{len(memory)} bytes end within a page"
    mapped = mmap.mmap(-1, len(memory) + 2 * mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    for fence in (first, first + len(mapped) - mmap.PAGESIZE):
        assert LIBC.mprotect(ctypes.c_void_p(fence), mmap.PAGESIZE, 0) == 0
    copy = memoryview(mapped)[mmap.PAGESIZE : -mmap.PAGESIZE]
    copy[:] = memory
    return copy


def live_on(memory: bytes) -> None:
    """A daemon's life on an arena: attach, serve a client, let time pass, close the clients that the arena has."""
    rig = BUSY.clone(memory)
    rig.budget = 1_000
    try:
        client = rig.client()
    except QuotaExceededError:  # the share in the header was changed: a daemon with that share admits nobody
        return
    for step_ns in (MS, 70 * MS, 5 * S, 4_000 * S):
        for key in (b"k0", b"offset", LONG_KEY):
            client.issue(fire(key, value=b"v" * 200))
        rig.now_ns += step_ns
        rig.core.begin_turn(rig.now_ns)
        rig.core.apply(client.slot, client.frame(), rig.now_ns, 1_000)
        rig.core.resume(rig.now_ns, 1_000)
        rig.core.advance(rig.now_ns, 1_000)
        rig.core.reports(rig.now_ns)
        rig.core.end_turn(rig.now_ns)
    for slot in rig.core.live_slots():
        rig.core.close_client(slot, rig.now_ns, goodbye=False)
    for _ in range(3):
        rig.now_ns += 2 * 3_600 * S
        rig.core.begin_turn(rig.now_ns)
        for _ in range(100):  # a damaged arena that is not refused may keep the core busy for ever
            if not rig.core.resume(rig.now_ns, 1_000):
                break
        rig.core.advance(rig.now_ns)
        rig.core.end_turn(rig.now_ns)


BUSY.copied = fenced  # type: ignore[method-assign]
