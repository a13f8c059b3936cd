"""The daemon's two sockets. What the conductor needs of them is `Transport`; `ZmqTransport` is the real one.

Commands come in by ROUTER and are answered by it; outcomes go out by XPUB, which drops rather than blocks. XPUB's
subscriptions are manual: a client subscribes with its session, and the daemon subscribes it to the topic that belongs
to that session. So no client can listen to another's outcomes (a plain SUB of b"" receives nothing).

Seen with libzmq 4.3.5, under ZMQ_XPUB_MANUAL:

* a ZMQ_SUBSCRIBE concerns the peer whose message was received last, also when messages of several are waiting;
* every message is delivered to the application, repeated ones too;
* a peer's unsubscription and its end come as messages with a leading 0, and its end drops its topics;
* a peer's own subscription takes no effect by itself.

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
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import zmq

from timerd.host.unix_socket import BACKLOG, bind_guarded
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.host.paths import InstancePaths
from timerd_wire.channel import Channel

# libzmq counts frames, not bytes. A frame up may have 4 MiB; a report is 1 MiB at most where values are not large.
QUEUED_FRAMES_MAX = 64  # of one client, to be read; beyond it its sends wait
QUEUED_ANSWERS_MAX = 64  # to one client; beyond it they are dropped, and it asks again
QUEUED_REPORTS_MAX = 1_000  # published to one client; beyond it they are dropped, and it asks for them
SUBSCRIPTION_SIZE_MAX = 64  # one byte and a session are 17
POLLIN = int(zmq.POLLIN)
LINGER_MS = 100  # what was published last may still leave; it is kept in the arena anyway


class Transport(Protocol):
    """What the conductor needs of a network. Nothing here blocks."""

    def receive(self, limit: int) -> Iterator[tuple[bytes, bytes]]:
        """Up to `limit` frames as (routing id, frame), taken from the network one by one as they are asked for."""

    def sender(self) -> int:
        """Pid of the process that has connected and sent the frame received last, as the kernel says; 0 = not known."""

    def subscriptions(self, limit: int) -> Iterator[bytes]:
        """Up to `limit` messages of subscribers. Until the next one is asked for, `subscribe` concerns its sender."""

    def subscribe(self, topic: bytes) -> None:
        """Subscribe the sender of the newest subscription message to frames that begin with `topic`."""

    def publish(self, frame: bytes) -> None:
        """Send a frame to the subscribers whose topic it begins with; dropped for those that do not keep up."""

    def send(self, routing: bytes, frame: bytes) -> None:
        """Send a frame to the client of that routing id; dropped when the client is lost or does not keep up."""


class ZmqTransport:
    """ROUTER and XPUB over ipc, with safe permissions from the moment of bind.

    The sockets are made 0600; with a group they are given to it and opened to it afterwards (0660). Stale socket files
    of a killed daemon are replaced by libzmq; so the caller holds the instance's lock. Raises ResourceLimitError.
    """

    def __init__(self, paths: InstancePaths, group_id: int | None = None) -> None:
        self._files = (paths.commands, paths.outcomes)
        self._endpoints = (paths.commands_endpoint, paths.outcomes_endpoint)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 64)
        ctypes.CDLL(None).srand(secrets.randbits(32))  # libzmq takes the ROUTER's first number from rand()
        self._commands = self._context.socket(zmq.ROUTER)
        self._outcomes = self._context.socket(zmq.XPUB)
        for socket in (self._commands, self._outcomes):
            socket.setsockopt(zmq.LINGER, LINGER_MS)
            socket.setsockopt(zmq.BACKLOG, BACKLOG)
            socket.setsockopt(zmq.RCVHWM, QUEUED_FRAMES_MAX)
        self._commands.setsockopt(zmq.SNDHWM, QUEUED_ANSWERS_MAX)
        self._outcomes.setsockopt(zmq.SNDHWM, QUEUED_REPORTS_MAX)
        self._commands.setsockopt(zmq.ROUTER_HANDOVER, 0)
        self._commands.setsockopt(zmq.MAXMSGSIZE, FRAME_SIZE_MAX)
        self._outcomes.setsockopt(zmq.XPUB_MANUAL, 1)
        self._outcomes.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_SIZE_MAX)
        self._channels = Channel(self._commands), Channel(self._outcomes)
        try:
            bind_guarded(lambda: self._commands.bind(paths.commands_endpoint), paths.commands, group_id)
            bind_guarded(lambda: self._outcomes.bind(paths.outcomes_endpoint), paths.outcomes, group_id)
        except BaseException:
            self.close()
            raise

    def filenos(self) -> tuple[int, int]:
        """Descriptors that become readable when something may have happened. Edge-triggered: ask has_input() first."""
        return _number(self._commands, zmq.FD), _number(self._outcomes, zmq.FD)

    def has_input(self) -> bool:
        """Whether something waits to be received. To be asked after the last send and before waiting on filenos()."""
        # Always both: reading EVENTS re-arms a descriptor.
        commands, outcomes = self._channels
        return bool((commands.events() | outcomes.events()) & POLLIN)

    def receive(self, limit: int) -> Iterator[tuple[bytes, bytes]]:
        # A message of another number of parts is not one of ours; an empty frame is refused as malformed.
        return islice(iter(self._channels[0].receive_routed, None), limit)

    def sender(self) -> int:
        # "localhost:1000:1000:4711". libzmq takes it from SO_PEERCRED; 0 is a process of another pid namespace.
        pid = self._channels[0].sender().rpartition(":")[2]
        return int(pid) if pid.isdecimal() else 0

    def subscriptions(self, limit: int) -> Iterator[bytes]:
        return islice(iter(self._channels[1].receive, None), limit)

    def subscribe(self, topic: bytes) -> None:
        self._outcomes.setsockopt(zmq.SUBSCRIBE, topic)

    def publish(self, frame: bytes) -> None:
        self._channels[1].send(frame)

    def send(self, routing: bytes, frame: bytes) -> None:
        # Whether it was sent is ignored: where a queue is full, or the client has ended, a client asks again.
        self._channels[0].send_routed(routing, frame)

    def monitors(self, events: int) -> list[zmq.Socket[bytes]]:
        """For each socket, one from which the events of its connections are received. libzmq waits if it is full."""
        monitors = []
        for number, socket in enumerate((self._commands, self._outcomes)):
            socket.monitor(f"inproc://{number}", events)
            monitor = self._context.socket(zmq.PAIR)
            monitor.setsockopt(zmq.RCVHWM, 1)
            monitor.connect(f"inproc://{number}")
            monitors.append(monitor)
        return monitors

    def unbind(self) -> None:
        """Accept no more connections, from a moment soon after this."""
        for socket, endpoint in zip((self._commands, self._outcomes), self._endpoints, strict=True):
            socket.unbind(endpoint)

    def end_monitors(self, monitors: list[zmq.Socket[bytes]]) -> None:
        """Report no more events. The monitors are empty, or libzmq would wait for ever."""
        for socket, monitor in zip((self._commands, self._outcomes), monitors, strict=True):
            socket.disable_monitor()
            monitor.close(0)

    def close(self) -> None:
        """Close both sockets and remove their files (libzmq 4.3.5 leaves them, older ones do not).

        Before the lock is given up: later they could be the successor's.
        """
        for channel in self._channels:
            channel.close(LINGER_MS)
        self._context.term()
        for file in self._files:
            file.unlink(missing_ok=True)


def _number(socket: zmq.Socket[bytes], option: int) -> int:
    value = socket.getsockopt(option)
    assert isinstance(value, int), f"option {option} is a {type(value).__name__}"
    return value
