"""How the daemon notices for certain that a client has ended: `Liveness` for the sessions, `Watches` on the machine.

A client holds a connection to NAME.live, over which it has shown its session. The connection's end of file is the
client's end, in whatever pid namespace the client runs. While a client holds no connection, a pidfd reports its end,
where the daemon can see its process. The selector reports both, so nothing is polled here, and an idle daemon
sleeps. A process that is stopped has not ended.

The daemon sends nothing over these connections, and takes no more from them than a session. Every process that may open
the socket may misuse it. So there are three bounds: on the connections that have not shown a session, in number and in
time; on all connections (RLIMIT_NOFILE is shared with the other sockets); and on the connections that a turn looks at.
A connection over one of the first two is closed and counted, and its client goes on without such a connection. A
connection that a turn does not look at waits for the next turn.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from enum import Enum
from typing import NamedTuple, Protocol

from timerd.core import NEVER
from timerd.host.accepting import LEFT, accept
from timerd.host.descriptors import NEWCOMERS_MAX
from timerd.host.own_file import File, remove_own
from timerd.host.selector import Selector
from timerd.host.unix_socket import listen_guarded
from timerd_shm.host.paths import InstancePaths

SESSION_SIZE = 16
ACCEPTS_PER_TURN = 128
NEWCOMERS_PER_TURN = 64  # of these, connections whose peer is there
NEWCOMER_NS = 2_000_000_000  # the time in which a new connection has to show its session
FULL_NS = 1_000_000_000  # how long nothing is accepted after the descriptors have run out


class Kind(Enum):
    """The kind of a sign."""

    SHOWN = "shown"  # a new connection has shown a session
    ENDED = "ended"  # the holder of the connection, or the process, has ended
    BROKEN = "broken"  # more than a session came over the connection: it is closed, and no longer watched


class Sign(NamedTuple):
    """Something that was noticed about a watch, which is a number that is never used twice."""

    watch: int
    kind: Kind
    session: bytes = b""


class Liveness(Protocol):
    """The source from which sessions learn that clients have ended. Nothing here blocks."""

    @property
    def due_ns(self) -> int:
        """When to call `signs` even if nothing was noticed.

        A new connection must have shown a session by then, or connections are accepted again from then on.
        """

    def signs(self, limit: int, now_ns: int) -> list[Sign]:
        """The signs since the last call: about `limit` at most. A watch that has ended is dropped."""

    def watch(self, pid: int) -> int:
        """Watch a process. Returns 0 if there is none, or watching failed. The caller checks which process it is."""

    def drop(self, watch: int) -> None:
        """End this watch, unless it was dropped before."""

    def take_refused(self) -> int:
        """How many connections were closed since the last call: they showed no session, or were over a bound."""


class Adopter(Protocol):
    """The calls by which a transport reports its own connections of clients: when one ends, its client has ended."""

    def adopt(self, session: bytes) -> int:
        """A connection of another socket has shown this session. Returns its watch, which is reported as SHOWN."""

    def adopted_ended(self, watch: int, *, is_client: bool) -> None:
        """An adopted connection has ended: reported as ENDED if the client has closed it, else as BROKEN."""


class _Watch:
    """A connection, or a pidfd."""

    __slots__ = ("descriptor", "is_process", "number", "received", "until_ns")

    def __init__(self, number: int, descriptor: int, *, is_process: bool, until_ns: int = NEVER) -> None:
        self.number = number
        self.descriptor = descriptor
        self.is_process = is_process
        self.received = b""
        self.until_ns = until_ns  # for a newcomer

    @property
    def has_shown(self) -> bool:
        return len(self.received) == SESSION_SIZE


class Watches:
    """The socket NAME.live, its connections, and pidfds.

    Like the transport's sockets, it has safe permissions from the moment of bind. Raises ResourceLimitError.
    """

    def __init__(
        self, paths: InstancePaths, selector: Selector, group_id: int | None = None, *, watches_max: int
    ) -> None:
        self._path = paths.liveness
        self._file: File | None = None  # None: it could not be bound
        self._watches_max = watches_max
        self._by_descriptor: dict[int, _Watch] = {}
        self._by_number: dict[int, _Watch] = {}
        self._newcomers: dict[int, _Watch] = {}  # the oldest first
        self._made = 0
        self._of_adopted: list[Sign] = []  # about connections of other sockets
        self._refused = 0
        self._full_until_ns = NEVER  # nothing is accepted until then; NEVER: the socket accepts
        self._noticed: dict[int, None] = {}  # descriptors that the selector has reported
        self._has_newcomers = False
        self._selector = selector
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._file = listen_guarded(self._listener, self._path, group_id)
            self._watch_listener()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def due_ns(self) -> int:
        newcomer = next(iter(self._newcomers.values()), None)
        return self._full_until_ns if newcomer is None else min(self._full_until_ns, newcomer.until_ns)

    def signs(self, limit: int, now_ns: int) -> list[Sign]:
        found, self._of_adopted = self._of_adopted, []
        for _ in range(min(limit, len(self._noticed))):
            self._look(self._by_descriptor[self._noticed.popitem()[0]], found)
        if self._has_newcomers:
            self._accept(found, now_ns)
        if now_ns >= self.due_ns:
            self._expire(now_ns)
        return found

    def watch(self, pid: int) -> int:
        if len(self._by_number) >= self._watches_max:
            return 0
        try:
            watch = self._add(os.pidfd_open(pid), is_process=True)
        except OSError:
            return 0
        return watch.number

    def drop(self, watch: int) -> None:
        if watch in self._by_number:
            self._remove(self._by_number[watch])

    def adopt(self, session: bytes) -> int:
        self._made += 1
        self._of_adopted.append(Sign(self._made, Kind.SHOWN, session))
        return self._made

    def adopted_ended(self, watch: int, *, is_client: bool) -> None:
        self._of_adopted.append(Sign(watch, Kind.ENDED if is_client else Kind.BROKEN))

    def take_refused(self) -> int:
        refused, self._refused = self._refused, 0
        return refused

    def close(self) -> None:
        """Close everything and remove the socket's file. The caller still holds the instance's lock.

        The listener goes first: a client whose connection ends looks whether the daemon has ended (lifeline.py).
        """
        self._selector.forget(self._listener.fileno())
        self._listener.close()
        remove_own(self._path, self._file)
        for watch in list(self._by_number.values()):
            self._remove(watch)

    def _notice(self, descriptor: int, events: int) -> None:
        self._noticed[descriptor] = None

    def _notice_newcomer(self, descriptor: int, events: int) -> None:
        self._has_newcomers = True

    def _watch_listener(self) -> None:
        self._selector.register(self._listener.fileno(), select.EPOLLIN, self._notice_newcomer)

    def _look(self, watch: _Watch, found: list[Sign]) -> None:
        """Something has happened to a watch."""
        if watch.is_process:
            self._remove(watch)
            found.append(Sign(watch.number, Kind.ENDED))
            return
        try:
            data = os.read(watch.descriptor, SESSION_SIZE + 1)
        except BlockingIOError:
            return
        except OSError:  # reset: the client has ended with something unread
            data = b""
        if not data:
            self._remove(watch)
            if watch.has_shown:
                found.append(Sign(watch.number, Kind.ENDED))
            elif watch.received:  # a connection that sent nothing was only a check whether a daemon runs (paths.py)
                self._refused += 1
            return
        had_shown = watch.has_shown
        watch.received += data
        if len(watch.received) > SESSION_SIZE:
            self._remove(watch)
            self._refused += 1
            if had_shown:
                found.append(Sign(watch.number, Kind.BROKEN))
        elif watch.has_shown:
            self._newcomers.pop(watch.number, None)
            found.append(Sign(watch.number, Kind.SHOWN, watch.received))

    def _accept(self, found: list[Sign], now_ns: int) -> None:
        self._has_newcomers = False
        newcomers = 0
        for _ in range(ACCEPTS_PER_TURN):
            if newcomers == NEWCOMERS_PER_TURN:
                return
            try:
                descriptor = accept(self._listener.fileno())
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                # No descriptor is left. The connection waits in the backlog and would wake the daemon again and again.
                self._selector.forget(self._listener.fileno())
                self._full_until_ns = now_ns + FULL_NS
                self._refused += 1
                return
            if descriptor == LEFT:  # it was only a check whether a daemon runs (paths.py)
                continue
            newcomers += 1
            if len(self._by_number) >= self._watches_max:
                os.close(descriptor)
                self._refused += 1
                continue
            try:
                watch = self._add(descriptor, is_process=False, until_ns=now_ns + NEWCOMER_NS)
            except OSError:
                self._refused += 1
                continue
            self._newcomers[watch.number] = watch
            self._look(watch, found)
            while len(self._newcomers) > NEWCOMERS_MAX:
                self._refuse(next(iter(self._newcomers.values())))

    def _expire(self, now_ns: int) -> None:
        while self._newcomers and now_ns >= (oldest := next(iter(self._newcomers.values()))).until_ns:
            self._refuse(oldest)
        if now_ns >= self._full_until_ns:
            self._full_until_ns = NEVER
            self._watch_listener()

    def _refuse(self, watch: _Watch) -> None:
        self._remove(watch)
        self._refused += 1

    def _add(self, descriptor: int, *, is_process: bool, until_ns: int = NEVER) -> _Watch:
        """Watch a descriptor. If the kernel watches no more (fs.epoll.max_user_watches), close it and raise OSError."""
        try:
            self._selector.register(descriptor, select.EPOLLIN, self._notice)
        except OSError:
            os.close(descriptor)
            raise
        self._made += 1
        watch = _Watch(self._made, descriptor, is_process=is_process, until_ns=until_ns)
        self._by_descriptor[descriptor] = self._by_number[watch.number] = watch
        return watch

    def _remove(self, watch: _Watch) -> None:
        del self._by_descriptor[watch.descriptor], self._by_number[watch.number]
        self._newcomers.pop(watch.number, None)
        self._noticed.pop(watch.descriptor, None)
        self._selector.forget(watch.descriptor)
        os.close(watch.descriptor)
