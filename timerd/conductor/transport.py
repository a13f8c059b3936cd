"""The daemon's sockets. What the conductor needs of them is `Transport`; `ZmqTransport` is the real one.

Commands come in by ROUTER and are answered by it. Outcomes go out by an *outlet* for each client: an XPUB of its own,
which drops rather than blocks. libzmq keeps each prefix that a peer subscribes to in a trie of the socket. It fills the
trie before the daemon sees the subscription, and a disconnection walks all of it: 10^6 prefixes of a shared socket
were 800 MB, and one turn of 21.8 s. So a client has a socket of its own, which is closed when it sends anything else
than its one subscription, the empty prefix. libzmq's reaper thread frees what a closed socket had.

A peer of an outlet shows a session in the handshake (PLAIN). libzmq asks the daemon about it over inproc (ZAP), and
makes no pipe for a peer that is refused.

Seen with libzmq 4.3.5 of XPUB: only the application's calls on a socket fill its trie, and one call takes a few more
messages than RCVHWM. RCVHWM is 2: libzmq can count a message of its own as one.

And of ROUTER:

* it numbers its peers from a random number on. A peer may have chosen a routing id instead, also one that looks like
  such a number;
* with ZMQ_ROUTER_HANDOVER such a peer takes over an id that is in use, with all answers to it. So this is off: then a
  peer whose id is in use is not heard;
* libzmq ends the process if the next number is an id in use. No option forbids that. So the first number is a secret:
  a peer would have to try some 2 ** 32 of them.
"""

from __future__ import annotations

import ctypes
import secrets
import select
import socket
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

import zmq

from timerd.host.unix_socket import BACKLOG, bind_guarded, make_directory
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.host.paths import InstancePaths
from timerd_wire.channel import Channel

# libzmq counts frames, not bytes. A frame up may have 4 MiB; a report is 1 MiB at most where values are not large.
QUEUED_FRAMES_MAX = 64  # of one client, to be read; beyond it its sends wait
QUEUED_ANSWERS_MAX = 64  # to one client; beyond it they are dropped, and it asks again
QUEUED_REPORTS_MAX = 1_000  # published to one client; beyond it they are dropped, and it asks for them
QUEUED_SUBSCRIPTIONS_MAX = 2
OUTLET_BACKLOG = 8  # connections of one client that wait to be accepted
HANDSHAKE_SIZE_MAX = 64  # the largest frame that a peer of an outlet sends: 30 bytes, with its session
SOCKETS_MAX = 8_192  # an outlet for each of 4,096 clients
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
MONITOR_ENDPOINT = "inproc://connections"
POLLIN = int(zmq.POLLIN)
LINGER_MS = 100  # what was published last may still leave; it is kept in the arena anyway


class Admission(NamedTuple):
    """A peer that asks to be connected to an outlet: the outlet's slot, the session that it shows, how to answer."""

    slot: int
    session: bytes
    ticket: tuple[bytes, ...] = ()


class Transport(Protocol):
    """What the conductor needs of a network. Nothing here blocks."""

    def receive(self, limit: int) -> Iterator[tuple[bytes, bytes]]:
        """Up to `limit` frames as (routing id, frame), taken from the network one by one as they are asked for."""

    def sender(self) -> int:
        """Pid of the process that has connected and sent the frame received last, as the kernel says; 0 = not known."""

    def send(self, routing: bytes, frame: bytes) -> None:
        """Send a frame to the client of that routing id; dropped when the client is lost or does not keep up."""

    def open_outlet(self, slot: int) -> None:
        """Make the outlet of a slot, so that its client may connect. Raises ResourceLimitError."""

    def close_outlet(self, slot: int) -> None:
        """End the outlet of a slot, if there is one, and all connections to it."""

    def admissions(self, limit: int) -> Iterator[Admission]:
        """Up to `limit` peers that ask to be connected to an outlet."""

    def admit(self, admission: Admission, *, admitted: bool) -> None:
        """Answer a peer that asks to be connected."""

    def subscriptions(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Up to `limit` messages from peers of outlets, as (slot, message); outlets take turns."""

    def publish(self, slot: int, frame: bytes) -> None:
        """Send a frame to the subscriber of that outlet; dropped if there is none, or if it does not keep up."""


class ZmqTransport:
    """ROUTER, and an XPUB for each client, over ipc, with safe permissions from the moment of bind.

    The sockets are made 0600; with a group they are given to it and opened to it afterwards (0660). Stale socket files
    of a killed daemon are replaced; so the caller holds the instance's lock. Raises ResourceLimitError.
    """

    def __init__(self, paths: InstancePaths, group_id: int | None = None) -> None:
        self._paths = paths
        self._group_id = group_id
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        ctypes.CDLL(None).srand(secrets.randbits(32))  # libzmq takes the ROUTER's first number from rand()
        self._commands = self._context.socket(zmq.ROUTER)
        self._zap = self._context.socket(zmq.ROUTER)
        self._epoll = select.epoll()
        self._outlets: dict[int, _Outlet] = {}
        self._by_descriptor: dict[int, _Outlet] = {}
        self._readable: deque[_Outlet] = deque()
        self._listeners: set[int] = set()
        self._asked = False  # whether a peer may wait for an answer
        self.newcomers = False  # whether somebody has connected to an outlet; the door looks, and says False
        self._commands.setsockopt(zmq.LINGER, LINGER_MS)
        self._commands.setsockopt(zmq.BACKLOG, BACKLOG)
        self._commands.setsockopt(zmq.RCVHWM, QUEUED_FRAMES_MAX)
        self._commands.setsockopt(zmq.SNDHWM, QUEUED_ANSWERS_MAX)
        self._commands.setsockopt(zmq.ROUTER_HANDOVER, 0)
        self._commands.setsockopt(zmq.MAXMSGSIZE, FRAME_SIZE_MAX)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._channel = Channel(self._commands)
        try:
            self._zap.bind(ZAP_ENDPOINT)
            self._epoll.register(_number(self._zap, zmq.FD), select.EPOLLIN)
            bind_guarded(lambda: self._commands.bind(paths.commands_endpoint), paths.commands, group_id)
            paths.remove_outlets()
            make_directory(paths.outcomes, group_id)
        except BaseException:
            self.close()
            raise

    def filenos(self) -> tuple[int, int]:
        """Descriptors that become readable when something may have happened. Edge-triggered: ask has_input() first."""
        return _number(self._commands, zmq.FD), self._epoll.fileno()

    def has_input(self) -> bool:
        """Whether something waits to be received. To be asked after the last send and before waiting on filenos()."""
        # Reading EVENTS re-arms a descriptor. That of the outlets is level-triggered.
        return bool(self._channel.events() & POLLIN or self._readable or self._asked)

    # Commands ---------------------------------------------------------------------------------------------------------

    def receive(self, limit: int) -> Iterator[tuple[bytes, bytes]]:
        # A message of another number of parts is not one of ours; an empty frame is refused as malformed.
        return islice(iter(self._channel.receive_routed, None), limit)

    def sender(self) -> int:
        # "localhost:1000:1000:4711". libzmq takes it from SO_PEERCRED; 0 is a process of another pid namespace.
        pid = self._channel.sender().rpartition(":")[2]
        return int(pid) if pid.isdecimal() else 0

    def send(self, routing: bytes, frame: bytes) -> None:
        # Whether it was sent is ignored: where a queue is full, or the client has ended, a client asks again.
        self._channel.send_routed(routing, frame)

    # Outlets ----------------------------------------------------------------------------------------------------------

    def open_outlet(self, slot: int) -> None:
        outlet = _Outlet(self._context, self._paths, slot, self._group_id)
        self._outlets[slot] = self._by_descriptor[outlet.descriptor] = outlet
        self._epoll.register(outlet.descriptor, select.EPOLLIN)
        self._listeners.add(outlet.listener)
        self._epoll.register(outlet.listener, select.EPOLLIN | select.EPOLLET)  # libzmq accepts; this thread is woken

    def close_outlet(self, slot: int) -> None:
        outlet = self._outlets.pop(slot, None)
        if outlet is not None:
            del self._by_descriptor[outlet.descriptor]
            self._listeners.remove(outlet.listener)
            for descriptor in (outlet.descriptor, outlet.listener):
                self._epoll.unregister(descriptor)
            if outlet in self._readable:
                self._readable.remove(outlet)
            outlet.close()

    def admissions(self, limit: int) -> Iterator[Admission]:
        self._look()
        for _ in range(limit if self._asked else 0):
            try:
                parts = self._zap.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                self._asked = False
                return
            # routing id, delimiter, version, request id, domain, address, identity, mechanism, user name, password
            slot, session = (int(parts[4]), parts[9]) if len(parts) == 10 else (-1, b"")
            yield Admission(slot, session, (*parts[:2], parts[2], parts[3]))

    def admit(self, admission: Admission, *, admitted: bool) -> None:
        status = (b"200", b"OK") if admitted else (b"400", b"no such session here")
        # The user id stays empty: libzmq would send it down the pipe as a message.
        self._zap.send_multipart([*admission.ticket, *status, b"", b""], zmq.DONTWAIT)

    def subscriptions(self, limit: int) -> Iterator[tuple[int, bytes]]:
        self._look()
        for _ in range(limit):
            while self._readable:
                outlet = self._readable[0]
                message = outlet.channel.receive()
                if message is not None:
                    self._readable.rotate(-1)
                    yield outlet.slot, message
                    break
                self._readable.popleft()
            else:
                return

    def publish(self, slot: int, frame: bytes) -> None:
        outlet = self._outlets.get(slot)
        if outlet is not None:
            outlet.channel.send(frame)
            # The send may have used up the edge of something that came in.
            if outlet.channel.events() & POLLIN and outlet not in self._readable:
                self._readable.append(outlet)

    def _look(self) -> None:
        """Note which sockets have something to receive."""
        for descriptor, _ in self._epoll.poll(0):
            outlet = self._by_descriptor.get(descriptor)
            if descriptor in self._listeners:
                self.newcomers = True
            elif outlet is None:
                self._asked = True
            elif outlet not in self._readable:
                self._readable.append(outlet)

    # Connections ------------------------------------------------------------------------------------------------------

    def monitor(self, events: int) -> zmq.Socket[bytes]:
        """Receives the events of the connections for commands. libzmq waits if it is full."""
        self._commands.monitor(MONITOR_ENDPOINT, events)
        monitor = self._context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.RCVHWM, 1)
        monitor.connect(MONITOR_ENDPOINT)
        return monitor

    def unbind(self) -> None:
        """Accept no more connections for commands, from a moment soon after this."""
        self._commands.unbind(self._paths.commands_endpoint)

    def end_monitor(self, monitor: zmq.Socket[bytes]) -> None:
        """Report no more events. The monitor is empty, or libzmq would wait for ever."""
        self._commands.disable_monitor()
        monitor.close(0)

    def close(self) -> None:
        """Close the sockets and remove their files (libzmq 4.3.5 leaves them, older ones do not).

        Before the lock is given up: later they could be the successor's.
        """
        for slot in list(self._outlets):
            self.close_outlet(slot)
        self._epoll.close()
        self._zap.close(0)
        self._channel.close(LINGER_MS)
        self._context.term()
        self._paths.commands.unlink(missing_ok=True)
        self._paths.remove_outlets()


class _Outlet:
    """One client's XPUB."""

    __slots__ = ("_path", "channel", "descriptor", "listener", "slot")

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], paths: InstancePaths, slot: int, group_id: int | None
    ) -> None:
        self.slot = slot
        self._path = paths.outlet(slot)
        made = _socket(context, zmq.XPUB)
        # The listener is our own, so that the file goes when we say so: libzmq's thread would remove it some time
        # after the close, when it may be the next client's.
        listener: socket.socket | None = None
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            made.setsockopt(zmq.RCVHWM, QUEUED_SUBSCRIPTIONS_MAX)
            made.setsockopt(zmq.SNDHWM, QUEUED_REPORTS_MAX)
            made.setsockopt(zmq.MAXMSGSIZE, HANDSHAKE_SIZE_MAX)
            made.setsockopt(zmq.XPUB_VERBOSE, 1)
            made.setsockopt(zmq.PLAIN_SERVER, 1)
            made.setsockopt(zmq.ZAP_DOMAIN, b"%d" % slot)
            self._path.unlink(missing_ok=True)
            bind_guarded(partial(listener.bind, str(self._path)), self._path, group_id)
            listener.listen(OUTLET_BACKLOG)
            made.setsockopt(zmq.USE_FD, listener.fileno())
            made.bind(paths.outlet_endpoint(slot))
            self.listener = listener.detach()  # it is libzmq's now, until the socket is closed
        except (zmq.ZMQError, OSError, ResourceLimitError) as error:
            if listener is not None:
                listener.close()
            made.close(0)
            if isinstance(error, ResourceLimitError):
                raise
            raise ResourceLimitError(f"the socket {self._path} cannot be made: {error.strerror}") from None
        self.descriptor = _number(made, zmq.FD)
        self.channel = Channel(made)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self.channel.close(LINGER_MS)


def _number(socket: zmq.Socket[bytes], option: int) -> int:
    value = socket.getsockopt(option)
    assert isinstance(value, int), f"option {option} is a {type(value).__name__}"
    return value


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    try:
        return context.socket(kind)
    except zmq.ZMQError as error:
        raise ResourceLimitError(f"a socket cannot be made: {error.strerror}") from None
