"""A network in memory between a conductor and clients: frames arrive at once, in their order, and none is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from timerd.conductor.transport import NOT_ADMITTED, OutletMessage
from timerd_client.link.link import Link
from timerd_client.protocol.deadlines import NEVER
from timerd_client.protocol.state import LIVE
from timerd_client.transport.sockets import Held
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.limits import FRAME_SIZE_MAX, UID_UNKNOWN
from timerd_shm.read.reader import ArenaReader
from timerd_wire.outlet import SUBSCRIBE, UNSUBSCRIBE

from .ends import Lifeline

Subscriber = TypeVar("Subscriber")


class DaemonEnd(Generic[Subscriber]):
    """The daemon's side of a network in memory: the frames of clients in their order, and the outlets of clients."""

    def __init__(self) -> None:
        self.up: deque[tuple[int, bytes]] = deque()
        self.asking: deque[tuple[Subscriber | None, bytes]] = deque()  # (who asks to be admitted, its session)
        self.up_subscriptions: deque[tuple[int, bytes]] = deque()  # (slot, message)
        self.outlets: dict[int, Subscriber] = {}  # slot -> the subscriber that gets its outcomes
        self.pids: dict[int, int] = {}  # connection -> the process that has opened it, as the kernel says
        self.uids: dict[int, int] = {}  # connection -> the user of that process
        self.held: set[int] = set()  # processes whose frames are not read
        self._asker: Subscriber | None = None

    def has_input(self) -> bool:
        return bool(self.up or self.asking or self.up_subscriptions)

    def receive(self, limit: int) -> Iterator[tuple[int, bytes]]:
        passed: list[tuple[int, bytes]] = []  # frames of held processes
        try:
            while limit > 0 and self.up:
                connection, frame = self.up.popleft()
                if self.held and self.sender(connection) in self.held:
                    passed.append((connection, frame))
                else:
                    limit -= 1
                    yield connection, frame
        finally:
            self.up.extendleft(reversed(passed))

    def is_dry(self) -> bool:
        return not self.up

    def sender(self, connection: int) -> int:
        return self.pids.get(connection, 0)

    def user(self, connection: int) -> int:
        return self.uids.get(connection, UID_UNKNOWN)

    def hold(self, process: int, is_held: bool) -> None:
        if is_held:
            self.held.add(process)
        else:
            self.held.discard(process)

    def defer(self, process: int, size: int) -> bool:
        return True

    def on_shed(self, drop: Callable[[int], None]) -> None:
        """Nothing to do: nobody needs the memory of these frames."""

    def renew(self, now_ns: int) -> None:
        """Nothing to do: each connection has shown its session."""

    def tend(self, now_ns: int) -> None:
        """Nothing to do: no connection shows its session late, and no memory is counted."""

    @property
    def due_ns(self) -> int:
        return NEVER

    def outlet_messages(self, limit: int) -> Iterator[OutletMessage]:
        for _ in range(limit):
            if self.asking:
                self._asker, session = self.asking.popleft()
                yield OutletMessage(0, NOT_ADMITTED, session)
            elif self.up_subscriptions:
                yield OutletMessage(0, *self.up_subscriptions.popleft())
            else:
                return

    def admit(self, connection: int, slot: int) -> None:
        assert self._asker is not None, "an unknown secret was taken for a client's"
        if self.outlets.get(slot) is not self._asker:
            self.close_outlet(slot)
        self.outlets[slot] = self._asker
        self.up_subscriptions.append((slot, SUBSCRIBE))

    def close_outlet(self, slot: int) -> None:
        self.outlets.pop(slot, None)
        self.up_subscriptions = deque(each for each in self.up_subscriptions if each[0] != slot)

    def complaints(self) -> list[tuple[int, TimerdError]]:
        return []


class Network(DaemonEnd["ManualSockets"]):
    """A Transport whose connections are objects."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False
        self._connections: dict[int, ManualSockets] = {}
        self._all: list[ManualSockets] = []  # also those that are not connected
        self._made = 0

    def open(self) -> None:
        """A daemon serves: connect all sockets that wait for one."""
        self.is_open = True
        for sockets in self._all:
            self.connect(sockets)

    def shut(self) -> None:
        """The daemon has ended: frames on their way to it are lost."""
        self.is_open = False
        self._connections.clear()
        self.outlets.clear()
        for queue in (self.up, self.asking, self.up_subscriptions):
            queue.clear()
        for sockets in self._all:
            sockets.routing = 0
            sockets.arrived()

    def add(self, sockets: ManualSockets) -> None:
        self._all.append(sockets)
        if self.is_open:
            self.connect(sockets)

    def connect(self, sockets: ManualSockets) -> None:
        self._made += 1
        sockets.routing = self._made
        self._connections[self._made] = sockets
        sockets.connected()

    def remove(self, sockets: ManualSockets) -> None:
        self._all.remove(sockets)
        self.cut(sockets)

    def cut(self, sockets: ManualSockets) -> None:
        """A connection has ended on the client's side."""
        self._connections.pop(sockets.routing, None)
        sockets.routing = 0
        self.leave(sockets)

    def leave(self, sockets: ManualSockets) -> None:
        """These sockets are no longer an outlet."""
        for slot in [slot for slot, heard_by in self.outlets.items() if heard_by is sockets]:
            del self.outlets[slot]
            self.up_subscriptions.append((slot, UNSUBSCRIBE))

    def publish(self, slot: int, frame: bytes) -> None:
        if slot in self.outlets:
            self.outlets[slot].arrive(frame, published=True)

    def send(self, connection: int, frame: bytes) -> None:
        if connection in self._connections:
            self._connections[connection].arrive(frame, published=False)


class ManualSockets:
    """The sockets of a client. `arrived` is called when there is something to receive, or a connection has changed."""

    frame_size_max: int = FRAME_SIZE_MAX
    wake_ns: int = 0
    due_ns: int = NEVER

    def __init__(self, network: Network, lifeline: Lifeline, map_arena: Callable[[], ArenaReader]) -> None:
        self.lifeline: Held = lifeline
        self._held = lifeline
        self.map_arena = map_arena
        self.routing = 0  # 0: there is no daemon
        self.arrived: Callable[[], None] = lambda: None
        self._network = network
        self._published: deque[bytes] = deque()
        self._answers: deque[bytes] = deque()
        self._session: bytes | None = None  # the session that it shows for outcomes
        network.add(self)

    def connected(self) -> None:
        """A daemon serves: show it the session, as a real connection for outcomes does when it is made again."""
        if self._session is not None:
            self._network.asking.append((self, self._session))
        self.arrived()

    def arrive(self, frame: bytes, *, published: bool) -> None:
        (self._published if published else self._answers).append(frame)
        self.arrived()

    # the client's side --------------------------------------------------------------------------------------------

    def tend(self, now_ns: int) -> bool:
        return False

    def lost(self, now_ns: int) -> bool:
        return False

    def trouble(self) -> str:
        return "" if self.routing else "the daemon of this test is stopped: timerd_manual.start()"

    def send(self, frame: bytes) -> bool:
        if self.routing:
            self._network.up.append((self.routing, frame))
        return bool(self.routing)

    def has_answer(self) -> bool:
        return bool(self._answers)

    def subscribe(self, session: bytes) -> None:
        self._network.leave(self)
        self._session = session
        if self.routing:
            self._network.asking.append((self, session))

    def receive(self, *, published: bool) -> bytes | None:
        frames = self._published if published else self._answers
        return frames.popleft() if frames else None

    def has_room(self) -> bool:
        return bool(self.routing)

    def filenos(self) -> list[int]:
        return []

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        return ()

    def forked(self) -> None:
        """Nothing to do: it has no descriptor."""

    def cut(self) -> None:
        """End as if the process was killed: the daemon sees the end of the lifeline, and no goodbye."""
        self._network.cut(self)
        self._held.end()

    def close(self, *, linger: bool) -> None:
        self._network.remove(self)


def is_at_rest(link: Link) -> bool:
    """Whether a link only exchanges heartbeats with its daemon. Both would do that until one has something to say."""
    protocol = link.protocol
    return (
        protocol.state is LIVE
        and not protocol.wants_to_send()
        and link.connection.unsent is None
        and not protocol.outgoing.in_flight
        and not protocol.incoming.queries
        and protocol.acknowledge_at == NEVER
    )
