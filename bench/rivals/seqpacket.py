"""A hub over SOCK_SEQPACKET without threads for the transport: callers block in recv(), the hub in epoll.

The hub only passes frames on, or it applies them to a real core. With a core, clients send timerd's frames to the hub,
and the hub sends the core's reports. This shows the least cost of timerd over a transport without threads. The hub has
no sessions, heartbeats or checks of senders. The owner connects first, then the process that fires.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from pathlib import Path

from timerd.core import APPLIED
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, ReportHeader, UpKind

FRAME_MAX = 1 << 16
HEADER, REPORT = struct_of(CommandHeader), struct_of(ReportHeader)
BUDGET = 1 << 40
CAPACITY = 20_000
PATIENCE_S = 10.0
TIMEVAL = int(PATIENCE_S).to_bytes(8, "little") + bytes(8)  # struct timeval


def address_of(directory: Path) -> str:
    return str(directory / "hub")


def dial(directory: Path, who: bytes) -> socket.socket:
    """A socket to the hub. `who` is b"owner" or b"firer"."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        found.settimeout(PATIENCE_S)
        found.connect(address_of(directory))
        found.send(who)
        found.recv(1)  # the hub has accepted this socket
        # SO_RCVTIMEO keeps the socket blocking: recv() is then one system call, without a poll() before it.
        found.settimeout(None)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL)
    except BaseException:
        found.close()
        raise
    return found


def frame(command: bytes, number: int, acknowledged: int = 0) -> bytes:
    """A frame to the hub, with one command."""
    return HEADER.pack(PROTOCOL_VERSION, UpKind.COMMANDS, 0, 1, 1, bytes(16), number, acknowledged, 0) + command


def serve(listener: socket.socket, with_core: bool) -> None:
    """Run the hub until this process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if with_core:
        from bench.lib.core_rig import Rig

        core = Rig(CAPACITY, now_ns=time.monotonic_ns()).core
    poll, peers, slots = select.epoll(), {}, {}
    owner = listener
    poll.register(listener, select.EPOLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                peer, _ = listener.accept()
                peers[peer.fileno()] = peer
                if peer.recv(16) == b"owner":
                    owner = peer
                if with_core:
                    name = bytes((len(peers),)) * 16
                    slots[peer.fileno()] = core.open_client(name, name, now_ns=time.monotonic_ns())
                poll.register(peer, select.EPOLLIN)
                peer.send(b"!")
            elif not (data := peers[descriptor].recv(FRAME_MAX)):
                poll.unregister(descriptor)
            elif with_core:
                slot, now_ns = slots[descriptor], time.monotonic_ns()
                head = HEADER.unpack_from(data)
                core.acknowledge(slot, head[-2], 0, BUDGET)
                assert core.apply(slot, data, now_ns, BUDGET) == APPLIED
                while core.has_reports():
                    for _, report in core.reports(now_ns):
                        if REPORT.unpack_from(report)[5]:  # an answer: only a refused command has one here
                            raise RuntimeError("the core has refused a command")
                        if REPORT.unpack_from(report)[4]:
                            owner.send(report)
            else:
                owner.send(data)
