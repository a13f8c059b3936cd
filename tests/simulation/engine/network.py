"""Sockets in memory between the conductor and the clients, and their faults.

Frames of one direction of one connection keep their order, as in an ipc socket, unless the seed says otherwise.
A publisher drops a frame if too many earlier frames wait for their subscriber (the high-water mark). A connection that
breaks loses its frames.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from support.fakes.networks import Lifelines
from timerd.testing.manual.network import DaemonEnd
from timerd_client.protocol.deadlines import NEVER
from timerd_client.transport.sockets import Held
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.declare.wire import CommandHeader, UpKind
from timerd_shm.read.reader import ArenaReader
from timerd_wire.outlet import UNSUBSCRIBE

from .schedule import Schedule

MS = 1_000_000
STRANGER = -1  # a connection that gets no answers
CONNECTIONS_FROM = 1 << 32  # the numbers of these connections begin here; those of the transport "unix" are smaller
HEADER_KIND_AT = offset_of(CommandHeader, "kind")


class Weather(NamedTuple):
    """The faults of a network: the chance of each fault for a frame, the longest delays in ns, and a queue's size."""

    drop: float = 0.0
    double: float = 0.0
    overtake: float = 0.0
    delay_ns: int = 200_000
    long_delay: float = 0.0
    long_delay_ns: int = 300 * MS
    high_water: int = 1_000  # the most frames that may wait for their subscriber


CALM = Weather()


class Network(DaemonEnd["Sockets"]):
    """The conductor's Transport. `on_input` is called when something has come. In `asking`, a stranger is None."""

    def __init__(self, schedule: Schedule, rng: Random, faults: Counter[str], on_input: Callable[[], None]) -> None:
        super().__init__()
        self.schedule = schedule
        self.weather = CALM
        self.rng = rng
        self.faults = faults
        self.on_input = on_input
        self.is_open = False
        self.holds_back: list[Callable[[], None]] | None = None  # the frames of a turn in which the daemon is killed
        self._by_routing: dict[int, Sockets] = {}
        self._made = CONNECTIONS_FROM

    # the daemon's side --------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Let clients connect: a daemon has started."""
        self.is_open = True

    def unbind(self) -> None:
        """The daemon has ended: every connection breaks, and frames under way are lost."""
        self.is_open = False
        for sockets in list(self._by_routing.values()):
            sockets.disconnected()
        self.up.clear()
        self.asking.clear()
        self.up_subscriptions.clear()
        self.outlets.clear()

    def connect(self, sockets: Sockets) -> None:
        self._made += 1
        sockets.routing = self._made
        self._by_routing[sockets.routing] = sockets
        self.pids[sockets.routing] = sockets.process

    def disconnect(self, sockets: Sockets) -> None:
        self._by_routing.pop(sockets.routing, None)
        self.pids.pop(sockets.routing, None)
        self.leave(sockets)

    def close_outlet(self, slot: int) -> None:
        receiver = self.outlets.get(slot)
        super().close_outlet(slot)
        if receiver is not None:
            receiver.outlet_closed()

    def leave(self, sockets: Sockets) -> None:
        """End a client's connection for outcomes."""
        for slot, receiver in list(self.outlets.items()):
            if receiver is sockets:
                del self.outlets[slot]
                self.up_subscriptions.append((slot, UNSUBSCRIBE))

    def admit(self, connection: int, slot: int) -> None:
        if self._asker in self._by_routing.values():  # else the connection was lost meanwhile
            super().admit(connection, slot)

    def publish(self, slot: int, frame: bytes) -> None:
        sockets = self.outlets.get(slot)
        if sockets is not None:
            self._say(lambda: sockets.carry_down(frame, published=True))

    def send(self, routing: int, frame: bytes) -> None:
        sockets = self._by_routing.get(routing)
        if sockets is not None:
            self._say(lambda: sockets.carry_down(frame, published=False))

    def _say(self, carry: Callable[[], None]) -> None:
        if self.holds_back is None:
            carry()
        else:
            self.holds_back.append(carry)

    # what comes up ------------------------------------------------------------------------------------------------

    def arrive(self, routing: int, frame: bytes) -> None:
        if routing in self._by_routing:
            self.up.append((routing, frame))
            self.on_input()

    def intrude(self, frame: bytes) -> None:
        """Send a frame as a stranger, which is not answered."""
        if self.is_open:
            self.up.append((STRANGER, frame))
            self.asking.append((None, frame))
            self.on_input()

    def arrive_for_outcomes(self, sockets: Sockets, session: bytes) -> None:
        if sockets.routing in self._by_routing:
            self.asking.append((sockets, session))
            self.on_input()

    def carry(
        self, channel: Channel, deliver: Callable[[], None], *, what: str, reliable: bool = False, once: bool = False
    ) -> None:
        """Deliver a frame to the other side some time later; or drop it, or deliver it twice.

        A `reliable` frame is neither dropped nor delivered twice. A frame with `once` is not delivered twice.
        """
        weather, rng = self.weather, self.rng
        if not reliable and rng.random() < weather.drop:
            self.faults[f"dropped {what}"] += 1
            return
        times = 1
        if not (reliable or once) and rng.random() < weather.double:
            self.faults[f"doubled {what}"] += 1
            times = 2
        epoch = channel.epoch
        for _ in range(times):
            delay_ns = rng.randrange(1 + weather.delay_ns)
            if rng.random() < weather.long_delay:
                self.faults[f"delayed {what}"] += 1
                delay_ns = rng.randrange(1 + weather.long_delay_ns)
            at_ns = self.schedule.now_ns + delay_ns
            if not (reliable or once) and rng.random() < weather.overtake:
                self.faults[f"overtook {what}"] += 1
            else:
                at_ns = channel.newest_ns = max(at_ns, channel.newest_ns + 1)
            self.schedule.at(at_ns, lambda: deliver() if channel.epoch == epoch else None)


class Channel:
    """One direction of a connection. Its newest frame arrives at `newest_ns`. A new `epoch` drops frames under way."""

    def __init__(self) -> None:
        self.newest_ns = 0
        self.epoch = 0


class Sockets:
    """A client's Sockets. They connect again by themselves, some time after the daemon's start."""

    frame_size_max: int = FRAME_SIZE_MAX
    wake_ns: int = 130_000
    due_ns: int = NEVER

    def __init__(
        self, network: Network, lifeline: Held, memory: Callable[[], bytearray | None], *, process: int
    ) -> None:
        """`process`: the pid as the daemon sees it. It is negative, as that of a process in another pid namespace."""
        self.process = process
        self.lifeline: Held = lifeline
        self.routing = 0
        self.on_input: Callable[[], None] = lambda: None
        self.is_open = True
        self._network = network
        self._memory = memory
        self._up = Channel()
        self._down = Channel()
        self._published = Channel()
        self._outcomes: deque[bytes] = deque()
        self._answers: deque[bytes] = deque()
        self._under_way = 0  # published frames that have not been taken
        self._session: bytes | None = None  # the session that it shows for outcomes
        self._is_connected = False
        self._connect_soon()

    def _connect_soon(self) -> None:
        self._network.schedule.after(self._network.rng.randrange(1, 100 * MS), self._connect)

    def _connect(self) -> None:
        if not self.is_open or self._is_connected:
            return
        if not self._network.is_open:
            self._connect_soon()
            return
        self._is_connected = True
        self._network.connect(self)
        self._connect_outlet()  # an XSUB connects again
        self.on_input()

    def disconnected(self) -> None:
        """The connection is broken: frames under way are lost."""
        if not self._is_connected:
            return
        self._is_connected = False
        self._network.disconnect(self)
        for channel in (self._up, self._down, self._published):
            channel.epoch += 1
        self._under_way = len(self._outcomes)
        if self.is_open:
            self._connect_soon()
            self.on_input()  # so that the client looks at its lifeline as well

    def carry_down(self, frame: bytes, *, published: bool) -> None:
        """The daemon sends a frame."""
        network = self._network
        if published:
            if self._under_way >= network.weather.high_water:
                network.faults["dropped at the high-water mark"] += 1
                return
            self._under_way += 1
        channel = self._published if published else self._down
        what = "published" if published else "answers"
        network.carry(channel, lambda: self._arrive(frame, published=published), what=what)

    def _arrive(self, frame: bytes, *, published: bool) -> None:
        (self._outcomes if published else self._answers).append(frame)
        self.on_input()

    # the client's side --------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> bool:
        if not self._is_connected:
            return False
        network, routing = self._network, self.routing
        # A hello is delivered once: no socket delivers a hello again after a client has sent more.
        once = frame[HEADER_KIND_AT] == UpKind.HELLO
        network.carry(self._up, lambda: network.arrive(routing, frame), what="commands", once=once)
        return True

    def subscribe(self, session: bytes) -> None:
        self._network.leave(self)
        self._session = session
        if self._is_connected:
            self._connect_outlet()

    def _connect_outlet(self) -> None:
        network, session = self._network, self._session
        if session is not None:
            network.carry(
                self._up, lambda: network.arrive_for_outcomes(self, session), what="subscriptions", reliable=True
            )

    def outlet_closed(self) -> None:
        """The daemon has closed its connection: frames under way are lost, and an XSUB connects again."""
        self._published.epoch += 1
        self._under_way = len(self._outcomes)
        session = self._session

        def connect() -> None:
            if self.is_open and self._is_connected and self._session == session:
                self._connect_outlet()

        self._network.schedule.after(self._network.rng.randrange(1, 100 * MS), connect)

    def receive(self, *, published: bool) -> bytes | None:
        frames = self._outcomes if published else self._answers
        if not frames:
            return None
        if published:
            self._under_way = max(0, self._under_way - 1)
        return frames.popleft()

    def trouble(self) -> str:
        return ""

    def has_answer(self) -> bool:
        return bool(self._answers)

    def has_room(self) -> bool:
        return self._is_connected

    def filenos(self) -> list[int]:
        return []

    def sources(self, descriptor: int) -> tuple[bool, ...]:
        raise AssertionError("nobody waits for descriptors")

    def map_arena(self) -> ArenaReader:
        memory = self._memory()
        if memory is None:
            raise OSError("there is no arena to map")
        return ArenaReader(memoryview(memory).toreadonly())

    def tend(self, now_ns: int) -> bool:
        return False

    def lost(self, now_ns: int) -> bool:
        return False

    def passed(self) -> None:
        """Nothing to do: after a pass nothing is left."""

    def forked(self) -> None:
        """Nothing to do."""

    def close(self, *, linger: bool) -> None:
        """Close the sockets. With `linger`, frames that were sent still arrive."""
        self.is_open = False
        if linger and self._is_connected:
            self._network.schedule.after(500 * MS, self.disconnected)
            self._network.leave(self)
        else:
            self.disconnected()


class Lifeline:
    """A client's liveness connection: each side learns by it that the other has ended."""

    def __init__(
        self, schedule: Schedule, lifelines: Callable[[], Lifelines | None], on_sign: Callable[[], None]
    ) -> None:
        self.on_end: Callable[[], None] = lambda: None
        self._schedule = schedule
        self._lifelines = lifelines
        self._on_sign = on_sign
        self._held: Lifelines | None = None
        self._connection = 0
        self._session = b""
        self._held_ns = self._retry_ns = 0

    def fileno(self) -> int:
        return self._connection or -1

    def is_held(self, session: bytes) -> bool:
        return self._session == session

    def hold(self, session: bytes, now_ns: int) -> bool:
        self.let_go()
        lifelines = self._lifelines()
        if lifelines is None or now_ns < self._retry_ns:
            self._retry_ns = max(self._retry_ns, now_ns + 50 * MS)
            return False
        self._held, self._session, self._held_ns = lifelines, session, now_ns
        self._connection = lifelines.connect(session)
        self._on_sign()
        return True

    def look(self) -> None:
        """Call `on_end` if the daemon has ended, or has closed the connection."""
        if self._held is not None and (
            self._held is not self._lifelines() or self._connection not in self._held.connections
        ):
            self.on_end()

    def has_ended(self, now_ns: int) -> bool:
        held_ns = self._held_ns
        self.let_go()
        if now_ns - held_ns < 1_000 * MS:
            self._retry_ns = now_ns + 50 * MS
            return False
        return True

    def let_go(self) -> None:
        if self._held is not None:
            self._held.cut(self._connection)
            self._held = None
            self._on_sign()
        self._connection, self._session = 0, b""
