"""A daemon and bare packets: when a client counts as ended, and connections that must not hold the daemon up."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.packetpeer import PacketPeer
from support.real.patience import PATIENCE_S, eventually
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.wire import DownKind, ReportHeader
from timerd_shm.host.paths import read_location
from timerd_shm.read.reader import ArenaReader
from timerd_wire.packets import SUBSCRIBE

# A process that shows the session of its second client over the connection of its first one, and is killed.
TWO_SESSIONS = """
import os, signal
import timerd as td
from timerd_wire.packets import SUBSCRIBE
first, second = (td.connect(transport=transport) for transport in ("unix", "{other}"))
for client in (first, second):
    client.register_wait("k", timeout=600)
first._link.connection.sockets._packets.send(SUBSCRIBE, second._link.protocol.session.secret)
os.kill(os.getpid(), signal.SIGKILL)
"""


def pending(daemon: Daemon) -> int:
    with ArenaReader.from_path(read_location(daemon.paths).path) as reader:
        return int(sum(client.pending for client in reader.clients))


@pytest.mark.long
@pytest.mark.parametrize("other", ["zeromq", "unix"])
def test_a_client_whose_connection_has_shown_another_session_still_ends_with_its_process(
    daemon: Daemon, other: str
) -> None:
    killed = subprocess.run([sys.executable, "-c", TWO_SESSIONS.format(other=other)], check=False, timeout=30)
    assert killed.returncode == -signal.SIGKILL
    eventually(lambda: not pending(daemon), "an operation outlived its client")


@pytest.mark.skipif(
    tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 16), reason="needs SO_PASSRIGHTS (Linux 6.16)"
)
@pytest.mark.parametrize("name", ["packets", "commands", "outcomes", "liveness"])
def test_a_descriptor_whose_close_takes_long_does_not_hold_the_daemon_up(daemon: Daemon, name: str) -> None:
    """The last close() of a TCP socket with SO_LINGER waits for the data to be sent. The daemon must get no copy."""
    kind = socket.SOCK_SEQPACKET if name == "packets" else socket.SOCK_STREAM
    with td.connect(timeout=PATIENCE_S) as client, socket.create_server(("127.0.0.1", 0)) as server:
        with socket.socket(socket.AF_UNIX, kind) as stranger:
            stranger.connect(str(getattr(daemon.paths, name)))
            full = socket.create_connection(server.getsockname())
            full.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while full.send(bytes(1 << 20)):
                    pass
            full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
            with pytest.raises(PermissionError):
                along = array.array("i", [full.fileno()])
                stranger.sendmsg([b"\1x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, along)])
            full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            full.close()
        assert client.fire_wait("nothing") == 0


def test_a_session_that_nobody_has_is_answered_by_hello_first(daemon: Daemon) -> None:
    with PacketPeer(daemon.paths.packets) as stranger:
        stranger.send(SUBSCRIBE, os.urandom(16))
        _, frame = stranger.receive()
        assert ReportHeader._make(struct_of(ReportHeader).unpack_from(frame)).kind == DownKind.HELLO_FIRST


# The steps of connect() fail one after the other: first the first step may open no file, then the second, and so on.
WITHOUT_FILES = """
import gc, os, resource, sys, threading
import timerd as td
td.connect(timeout=15, transport="unix").close()
gc.collect()
before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
most = resource.getrlimit(resource.RLIMIT_NOFILE)
fails = 0
for spare in range(30):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 60, most[1]))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(spare):
        os.close(taken.pop())
    try:
        td.connect(timeout=15, transport="unix").close()
    except td.ResourceLimitError as error:
        assert "files may be open in this process (ulimit -n" in str(error), error
        fails += 1
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    gc.collect()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= before, f"descriptors are left, with {spare} to spare"
assert 3 < fails < 29, fails
"""


def test_connect_without_a_file_left_names_the_limit_at_once_and_leaves_nothing(daemon: Daemon) -> None:
    """In an earlier version, if the client's thread got no file, connect() waited in vain, and blamed the daemon."""
    subprocess.run([sys.executable, "-X", "dev", "-c", WITHOUT_FILES], check=True, timeout=2 * PATIENCE_S)


def test_connect_says_why_it_cannot_reach_a_daemon_that_runs(daemon: Daemon) -> None:
    daemon.paths.packets.unlink()
    with pytest.raises(td.TimerdUnavailableError, match=r"default\.unix: No such file .* try another transport="):
        td.connect(timeout=0.2, transport="unix")
