"""A client's packets over a real Unix socket, to a listener that the test controls."""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from timerd_client.protocol.deadlines import NEVER
from timerd_client.transport import unix_sockets
from timerd_client.transport.lifeline import REFUSED_NS
from timerd_client.transport.unix_sockets import RETRY_FIRST_NS, RETRY_LAST_NS, UnixSockets
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.limits import IPC_PATH_MAX, PACKET_SIZE_MAX
from timerd_shm.host.paths import InstancePaths
from timerd_wire import native
from timerd_wire.packets import FRAME, PART, SUBSCRIBE, Packets, cut

SESSION = bytes(range(16))


class Clock:
    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def __call__(self) -> int:
        return self.ns


class Listening:
    """The daemon's side of a socket, which the test controls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._accepted: list[socket.socket] = []

    def accept(self) -> socket.socket:
        self._listener.settimeout(10)
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)
        self._accepted.append(accepted)
        return accepted

    def close(self) -> None:
        for each in (self._listener, *self._accepted):
            each.close()
        self.path.unlink(missing_ok=True)


@pytest.fixture
def paths(runtime_dir: Path) -> InstancePaths:
    return InstancePaths(runtime_dir, "t")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def listening(paths: InstancePaths) -> Iterator[Listening]:
    made = Listening(paths.packets)
    yield made
    made.close()


@pytest.fixture
def sockets(listening: Listening, paths: InstancePaths, clock: Clock) -> Iterator[UnixSockets]:
    made = UnixSockets(paths, clock)
    yield made
    made.lifeline.let_go()
    made.close(linger=False)


def is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def drain(accepted: socket.socket) -> list[tuple[int, bytes]]:
    found = []
    while select.select([accepted], [], [], 0)[0] and (packet := accepted.recv(1 + PACKET_SIZE_MAX)):
        found.append((packet[0], packet[1:]))
    return found


def fill(sockets: UnixSockets) -> int:
    number = 0
    while sockets.send(b"%d" % number):
        number += 1
    return number


def test_frames_go_both_ways(listening: Listening, sockets: UnixSockets) -> None:
    accepted = listening.accept()
    assert sockets.send(b"up") and sockets.send(b"")
    assert drain(accepted) == [(FRAME, b"up"), (FRAME, b"")]
    accepted.send(b"\1down")
    accepted.send(b"\1")
    assert is_readable(sockets.filenos()[0])
    assert (sockets.receive(published=False), sockets.receive(published=True)) == (None, b"down")
    assert (sockets.receive(published=True), sockets.receive(published=True)) == (b"", None)
    assert not is_readable(sockets.filenos()[0])


def test_a_socket_without_room_wakes_once_there_is_some(listening: Listening, sockets: UnixSockets) -> None:
    accepted = listening.accept()
    sent = fill(sockets)
    assert not sockets.has_room() and not is_readable(sockets.filenos()[0])
    assert len(drain(accepted)) == sent
    assert sockets.has_room() and is_readable(sockets.filenos()[0])
    assert sockets.send(b"more") and drain(accepted) == [(FRAME, b"more")]
    assert not is_readable(sockets.filenos()[0]), "the client would be woken again and again"


def test_room_that_nobody_needs_any_more_wakes_once(listening: Listening, sockets: UnixSockets, clock: Clock) -> None:
    accepted = listening.accept()
    fill(sockets)
    drain(accepted)
    assert is_readable(sockets.filenos()[0])
    assert sockets.receive(published=True) is None and sockets.due_ns <= clock()
    sockets.tend(clock())
    assert not is_readable(sockets.filenos()[0]) and sockets.due_ns == NEVER
    fill(sockets)
    drain(accepted)
    assert is_readable(sockets.filenos()[0]), "a later frame without room is waited for again"


def test_a_frame_in_parts_goes_on_where_it_stopped(listening: Listening, sockets: UnixSockets) -> None:
    accepted, frame = listening.accept(), os.urandom(1_000_000)
    got = []
    while not sockets.send(frame):
        assert not sockets.has_room()
        got += drain(accepted)
    assert got + drain(accepted) == list(cut(frame))


def test_a_large_frame_that_was_given_up_is_begun_anew(listening: Listening, sockets: UnixSockets) -> None:
    accepted, first, second = listening.accept(), os.urandom(4_000_000), os.urandom(300_000)
    assert not sockets.send(first)
    got = drain(accepted)
    while not sockets.send(second):
        got += drain(accepted)
    got += drain(accepted)
    assert got[-3:] == list(cut(second)) and len(got) < 3 + 31


def test_parts_are_received_as_one_frame(listening: Listening, sockets: UnixSockets) -> None:
    accepted, frame = listening.accept(), os.urandom(300_000)
    found = []
    for kind, body in [*cut(frame), (PART, (200_000).to_bytes(4, "little") + b"a"), (FRAME, b"x")]:
        accepted.send(bytes((kind,)) + body)
        while (got := sockets.receive(published=True)) is not None:
            found.append(got)
    assert found == [frame, b"x"]


@pytest.mark.parametrize("packet", [b"\3abc", b"\1" + bytes(PACKET_SIZE_MAX + 1), b""], ids=["short", "large", "empty"])
def test_a_packet_that_no_daemon_sends_ends_the_connection_and_another_one_is_made(
    listening: Listening, sockets: UnixSockets, clock: Clock, packet: bytes
) -> None:
    listening.accept().send(packet)
    assert sockets.receive(published=True) is None and sockets.due_ns == clock.ns + RETRY_FIRST_NS
    clock.ns += RETRY_FIRST_NS
    sockets.tend(clock.ns)
    accepted = listening.accept()
    assert sockets.send(b"x") and drain(accepted) == [(FRAME, b"x")]


def test_a_session_is_shown_over_each_connection_before_any_frame(
    listening: Listening, sockets: UnixSockets, clock: Clock
) -> None:
    sockets.subscribe(SESSION)
    first = listening.accept()
    assert drain(first) == [(SUBSCRIBE, SESSION)]
    clock.ns += REFUSED_NS
    first.close()
    assert sockets.receive(published=True) is None
    assert not sockets.send(b"x") and not sockets.has_room()
    clock.ns = sockets.due_ns
    sockets.tend(clock.ns)
    second = listening.accept()
    assert sockets.send(b"x")
    assert drain(second) == [(SUBSCRIBE, SESSION), (FRAME, b"x")] and sockets.due_ns == NEVER


def test_a_session_that_had_no_room_is_shown_before_the_next_frame(listening: Listening, sockets: UnixSockets) -> None:
    accepted = listening.accept()
    sent = fill(sockets)
    sockets.subscribe(SESSION)
    assert not sockets.send(b"x")
    assert len(drain(accepted)) == sent and sockets.has_room()
    assert sockets.send(b"x")
    assert drain(accepted) == [(SUBSCRIBE, SESSION), (FRAME, b"x")]


@pytest.mark.parametrize("after_ns", [0, REFUSED_NS], ids=["soon", "later"])
def test_an_end_soon_after_the_connection_is_a_refusal_and_a_later_one_is_the_end_of_the_daemon(
    listening: Listening, sockets: UnixSockets, clock: Clock, after_ns: int
) -> None:
    accepted = listening.accept()
    sockets.subscribe(SESSION)
    assert sockets.lifeline.hold(SESSION, clock.ns) and sockets.lifeline.is_held(SESSION)
    accepted.send(b"\1last")
    clock.ns += after_ns
    accepted.close()
    assert sockets.receive(published=True) == b"last"
    bell = sockets.lifeline.fileno()
    assert not is_readable(bell)
    assert sockets.receive(published=True) is None
    assert is_readable(bell)
    assert sockets.lifeline.has_ended(clock.ns) == bool(after_ns)
    assert not sockets.lifeline.is_held(SESSION) and not is_readable(bell)


def test_a_connection_that_the_daemon_refuses_is_reported_until_a_session_is_shown(
    listening: Listening, sockets: UnixSockets, clock: Clock
) -> None:
    """The process has all connections that it may have. connect() must not call the daemon stopped or overloaded."""
    for _ in range(3):
        listening.accept().close()
        assert sockets.receive(published=True) is None
        clock.ns = sockets.due_ns
        sockets.tend(clock())
        assert sockets.trouble().endswith("the daemon has closed the connection (`timerctl errors` says why)")
    sockets.subscribe(SESSION)
    assert not sockets.trouble()


def test_a_lost_daemon_is_tried_again_with_growing_pauses(paths: InstancePaths, clock: Clock) -> None:
    sockets, waits = UnixSockets(paths, clock), []
    for _ in range(8):
        waits.append(sockets.due_ns - clock.ns)
        clock.ns = sockets.due_ns
        assert not sockets.send(b"x") and sockets.receive(published=True) is None
        sockets.tend(clock.ns)
    assert waits[0] == RETRY_FIRST_NS and waits == sorted(waits) and waits[-1] == RETRY_LAST_NS
    listening = Listening(paths.packets)
    clock.ns = sockets.due_ns
    sockets.tend(clock.ns)
    assert sockets.send(b"x") and drain(listening.accept()) == [(FRAME, b"x")]
    sockets.close(linger=False)
    listening.close()


@pytest.mark.parametrize("frame", [b"x", bytes(400_000)], ids=["packet", "parts"])
@pytest.mark.parametrize("fills", [False, True], ids=["room", "full"])
def test_an_end_that_another_thread_finds_in_the_midst_of_a_send_is_no_error(
    listening: Listening,
    paths: InstancePaths,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    frame: bytes,
    fills: bool,
) -> None:
    """A waiting caller receives without the link's lock. Meanwhile another thread, which has this lock, may send."""
    ended = False

    class Interrupted(Packets):
        def send(self, kind: int, body: bytes) -> bool:
            nonlocal ended
            sent = super().send(kind, body)
            if not ended and sent != fills:
                ended = True
                accepted.close()
                sockets.receive(published=True)
            return sent

    monkeypatch.setattr(unix_sockets, "Packets", Interrupted)
    sockets = UnixSockets(paths, clock)
    accepted = listening.accept()
    while sockets.send(frame) and not ended:
        pass
    assert ended and not sockets.send(frame) and not sockets.has_room()
    clock.ns = sockets.due_ns
    sockets.tend(clock.ns)
    assert sockets.has_room() and sockets.send(b"y")
    assert drain(listening.accept()) == [(FRAME, b"y")]
    sockets.close(linger=False)


def test_a_connection_whose_copy_lives_in_another_process_wakes_nobody_after_its_end(
    listening: Listening, sockets: UnixSockets
) -> None:
    """Between its fork and its exec, a child has a copy. The epoll would go on reporting the connection."""
    accepted = listening.accept()
    copy = os.dup(sockets._descriptor)
    accepted.close()
    assert sockets.receive(published=True) is None
    assert not is_readable(sockets.filenos()[0])
    os.close(copy)


def test_a_forked_child_closes_its_copy_and_disturbs_nothing(listening: Listening, sockets: UnixSockets) -> None:
    accepted = listening.accept()
    own = {sockets._descriptor, *sockets.filenos(), sockets._end._bell.fileno()}
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            sockets.forked()
            status = sum(os.path.exists(f"/proc/self/fd/{each}") for each in own)
        finally:
            os._exit(status)
    assert len(own) == 3, "connection, epoll, bell"
    assert os.waitpid(pid, 0)[1] == 0
    accepted.send(b"\1x")
    assert is_readable(sockets.filenos()[0]), "the child has changed the parent's epoll"
    assert sockets.receive(published=True) == b"x"


def test_an_exec_does_not_keep_the_connection(listening: Listening, sockets: UnixSockets) -> None:
    listening.accept()
    sockets.lifeline.hold(SESSION, 0)
    descriptors = (sockets._descriptor, *sockets.filenos(), sockets.lifeline.fileno())
    assert not any(os.get_inheritable(each) for each in descriptors)


def test_a_path_that_is_too_long_is_an_error_that_names_both_lengths_and_leaves_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ResourceLimitError, match=rf"{IPC_PATH_MAX}: choose another directory \(TIMERD_RUNTIME_DIR"):
        UnixSockets(InstancePaths(tmp_path / ("d" * 120), "t"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_system_whose_buffers_are_smaller_than_a_packet_is_named_with_the_remedy(
    listening: Listening, paths: InstancePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this error the client would try to send a large frame for ever."""
    monkeypatch.setattr(unix_sockets, "BUFFER", 10_000)
    sockets = UnixSockets(paths)
    assert re.search(r"needs a buffer of 131105 bytes, and the system gives 20000: raise net\.core", sockets.trouble())
    sockets.close(linger=False)


class Tended(UnixSockets):
    """Sockets with a connection whose end another thread finds as soon as tend() has seen the connection."""

    accepted: socket.socket | None = None

    @property
    def due_ns(self) -> int:
        return self._due_ns

    @due_ns.setter
    def due_ns(self, at_ns: int) -> None:
        if at_ns == NEVER and self.accepted is not None:
            self.accepted.close()
            self.accepted = None
            self.other = threading.Thread(target=lambda: self.receive(published=True))
            self.other.start()
            self.other.join(0.2)  # seconds; the thread waits until tend() is done
        self._due_ns = at_ns


def test_an_end_that_another_thread_finds_while_this_one_tends_is_followed_by_a_connection(
    listening: Listening, paths: InstancePaths, clock: Clock
) -> None:
    """Without a lock, the other thread set the time to connect again, and tend() overwrote this time with NEVER."""
    sockets = Tended(paths, clock)
    accepted = listening.accept()
    fill(sockets)
    drain(accepted)
    assert sockets.receive(published=True) is None and sockets.due_ns <= clock()
    sockets.accepted = accepted
    sockets.tend(clock())
    sockets.other.join()
    assert clock() < sockets.due_ns < NEVER, "the client never connects again"
    clock.ns = sockets.due_ns
    sockets.tend(clock())
    assert sockets.send(b"x") and drain(listening.accept()) == [(FRAME, b"x")]
    sockets.close(linger=False)


@pytest.mark.parametrize("refused", ["socket", "watch"])
def test_a_connection_for_which_the_system_has_nothing_left_is_tried_again(
    listening: Listening, paths: InstancePaths, clock: Clock, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """In an earlier version EMFILE ended the client's thread, and all pending operations failed."""
    clients_end = listening.accept if refused == "watch" else lambda: None
    before = len(os.listdir("/proc/self/fd"))

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def register(self, descriptor: int, events: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def socket(self, *given: int) -> socket.socket:
            raise OSError(errno.EMFILE, "Too many open files")

    sockets = UnixSockets(paths, clock)
    listening.accept().close()
    sockets.receive(published=True)
    with monkeypatch.context() as patched:
        clock.ns = sockets.due_ns
        real = sockets._epoll if refused == "watch" else socket
        if refused == "watch":
            patched.setattr(sockets, "_epoll", Refusing())
        else:
            patched.setattr(native, "unix_socket", Refusing().socket)
        sockets.tend(clock())
        clients_end()
    assert sockets.trouble().startswith(f"{paths.packets}: ") and not sockets.send(b"x")
    clock.ns = sockets.due_ns
    sockets.tend(clock())
    assert sockets.send(b"x") and drain(listening.accept()) == [(FRAME, b"x")] and not sockets.trouble()
    sockets.close(linger=False)
    listening.close()
    assert len(os.listdir("/proc/self/fd")) < before


def test_closed_sockets_leave_no_descriptor(listening: Listening, paths: InstancePaths) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for holds in (False, True):
        sockets = UnixSockets(paths)
        listening.accept().close()
        if holds:
            sockets.lifeline.hold(SESSION, time.monotonic_ns())
        assert sockets.receive(published=True) is None
        sockets.close(linger=True)
        sockets.lifeline.let_go()
        sockets.close(linger=False)
    assert len(os.listdir("/proc/self/fd")) == before
