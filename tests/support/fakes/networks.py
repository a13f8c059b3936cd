"""A network in memory for the conductor, and clients that send and receive real frames over it.

world = World()
alice = world.client("alice")                    # has said hello, subscribed, and got WELCOME and a report
alice.send(Register((Key(b"k"),), timeout_ns=5 * MS))
world.run(6 * MS)                                # turns as they fall due, on a clock moved by hand
assert alice.delivered[0].state is Outcome.EXPIRED
"""

from __future__ import annotations

import errno
import os
from typing import Any

import msgpack
from support.rig.commands import Command, KeyAct
from support.rig.frames import encode
from support.rig.harness import START_NS, Rig, S
from support.rig.harness import Client as Talker
from timerd.clients.liveness import Kind, Sign
from timerd.clients.process import Host
from timerd.clock import ManualClock
from timerd.conductor.bounds import RECORDS_PER_STEP
from timerd.testing.manual import ends
from timerd.testing.manual.clock import JumpingClock
from timerd.testing.manual.daemon import attached
from timerd.testing.manual.network import DaemonEnd
from timerd_shm.declare.fields import offset_of, size_of, struct_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import TAKEOVER_MS
from timerd_shm.declare.records import ClientRecord
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, CommandKind, DownKind, ReportHeader, UpKind
from timerd_wire.proof import incarnation_of

PROCESSES: dict[int, int] = {}  # pid -> start ticks, of the processes that exist
STOPPED: set[int] = set()  # pids of stopped processes


def is_running(pid: int, start_ticks: int) -> bool:
    """Whether that process exists and is not stopped."""
    return PROCESSES.get(pid) == start_ticks and pid not in STOPPED


HERE = Host(b"b" * 16, 11, 22, PROCESSES.get, is_running)
NOTHING = bytes(16)
DAEMON_PID = 4711


class Network(DaemonEnd[int]):
    """A Transport whose sockets are lists. Published frames reach the subscribers, unless `drops` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.published: dict[int, list[bytes]] = {}  # subscriber -> frames that were published to it
        self.answers: dict[int, list[bytes]] = {}  # connection -> frames that were sent to it
        self.drops = False

    def publish(self, slot: int, frame: bytes) -> None:
        if slot in self.outlets and not self.drops:
            self.published.setdefault(self.outlets[slot], []).append(frame)

    def leave(self, subscriber: int) -> None:
        """End the connection of a subscriber."""
        self.outlets = {slot: each for slot, each in self.outlets.items() if each != subscriber}

    def send(self, connection: int, frame: bytes) -> None:
        self.answers.setdefault(connection, []).append(frame)


class Lifelines(ends.Lifelines):
    """A Liveness whose connections are numbers and whose processes are PROCESSES.

    `pidfds` = False: the system has no pidfds, so that the daemon reads /proc. `full` = True: no file can be opened.
    """

    def __init__(self, pidfds: bool = True) -> None:
        super().__init__()
        self.pidfds = pidfds
        self.full = False
        self.looks = 0  # how often /proc was read
        self._processes: dict[int, tuple[int, int]] = {}  # watch -> (pid, start ticks)

    def host(self) -> Host:
        """The host as a daemon on this network sees it."""
        return HERE._replace(start_ticks_of=self.start_ticks_of, is_running_of=self.is_running_of)

    def start_ticks_of(self, pid: int) -> int | None:
        self._look()
        return PROCESSES.get(pid)

    def is_running_of(self, pid: int, start_ticks: int) -> bool:
        self._look()
        return is_running(pid, start_ticks)

    def _look(self) -> None:
        self.looks += 1
        if self.full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    @property
    def watched(self) -> list[int]:
        """Pids of the processes that are watched."""
        return sorted(pid for pid, _ in self._processes.values())

    def pending(self) -> bool:
        return super().pending() or any(PROCESSES.get(pid) != start for pid, start in self._processes.values())

    def signs(self, limit: int, now_ns: int) -> list[Sign]:
        ended = [watch for watch, (pid, start) in self._processes.items() if PROCESSES.get(pid) != start]
        for watch in ended:
            del self._processes[watch]
        self.came += [Sign(watch, Kind.ENDED) for watch in ended]
        return super().signs(limit, now_ns)

    def watch(self, pid: int) -> int:
        if not self.pidfds or self.full or pid not in PROCESSES:
            return 0
        self._made += 1
        self._processes[self._made] = pid, PROCESSES[pid]
        return self._made

    def drop(self, watch: int) -> None:
        super().drop(watch)
        self._processes.pop(watch, None)


class Copies:
    """Stands for copies of the arena. None is made, but each takes `take_ns`, and frees its memory `free_ns` after its
    removal.

    `cpu_ns` is the CPU time of one copy; None: all of `take_ns`.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.take_ns = 0
        self.free_ns = 0
        self.cpu_ns: int | None = None
        self.whole = 0
        self.there = 0
        self._ends_ns: int | None = None
        self._free_at_ns = 0

    @property
    def path(self) -> str:
        """The path of the newest copy."""
        return f"/snapshot.{self.whole}"

    @property
    def is_copying(self) -> bool:
        return self._ends_ns is not None

    def begin(self) -> None:
        assert not self.is_copying and not self.there, "two copies at once"
        if not self.is_free:
            raise OSError(errno.EBUSY, "the memory is not free yet")
        self._ends_ns = self._clock.now_ns() + self.take_ns

    def made(self) -> str | None:
        assert self._ends_ns is not None, "no copy was begun"
        if self._clock.now_ns() < self._ends_ns:
            return None
        self._ends_ns = None
        self.whole += 1
        self.there += 1
        return self.path

    def remove(self) -> None:
        self._ends_ns = None
        self.there = 0
        self._free_at_ns = self._clock.now_ns() + self.free_ns

    @property
    def is_free(self) -> bool:
        return self._clock.now_ns() >= self._free_at_ns


class World:
    """A conductor on a manual clock, with the real core and a network in memory."""

    def __init__(
        self, records_per_step: int = RECORDS_PER_STEP, *, lease_ns: int = 15 * S, pidfds: bool = True, **knobs: Any
    ) -> None:
        self.rig = Rig(**knobs)
        self.records_per_step = records_per_step
        self.lease_ns = lease_ns
        self.pidfds = pidfds
        self.clock = JumpingClock(START_NS, 1_800_000_000 * S)
        self.network = Network()
        self.copies = Copies(self.clock)
        self.attach()

    def attach(self) -> None:
        """Make a conductor for the present core: when the world is made, and after each restart."""
        self.core = self.rig.core
        self.lifelines = Lifelines(self.pidfds)
        self.sessions, self.conductor = attached(
            self.core,
            self.network,
            self.clock,
            self.lifelines,
            self.client_record,
            self.lifelines.host(),
            lease_ns=self.lease_ns,
            pid=DAEMON_PID,
            records_per_step=self.records_per_step,
            copies=self.copies,
        )

    def restart(self) -> None:
        """Another daemon on a copy of the arena, as after SIGKILL: connections and subscriptions are lost."""
        self.rig.restart()
        self.network.outlets.clear()
        self.attach()

    def client_record(self, slot: int) -> ClientRecord:
        record: ClientRecord = self.rig.arena.record(Region.CLIENTS, slot)
        return record

    @property
    def wall_ahead_ns(self) -> int:
        """How far the wall clock is ahead of the monotonic clock; a test may set it."""
        return self.clock.wall_ns() - self.clock.now_ns()

    @wall_ahead_ns.setter
    def wall_ahead_ns(self, ahead_ns: int) -> None:
        self.clock.jump(ahead_ns - self.wall_ahead_ns)

    def wall_ns(self) -> int:
        """The wall clock."""
        return self.clock.wall_ns()

    def turn(self, by_ns: int = 0) -> int:
        """Move the clock, and make one turn."""
        return self.conductor.do_work(self.clock.move(by_ns))

    def settle(self) -> None:
        """Make turns, without moving the clock, until none is due. Their number is bounded."""
        for _ in range(10_000):
            self.turn()
            busy = self.network.has_input() or self.lifelines.pending()
            if self.conductor.due_ns > self.clock.now_ns() and not busy:
                return
        raise AssertionError("the conductor never comes to rest")

    def run(self, for_ns: int) -> int:
        """Let `for_ns` pass, and make turns when they are due. Returns how often turns were due."""
        end_ns = self.clock.now_ns() + for_ns
        turns = 0
        while True:
            self.settle()
            turns += 1
            due_ns = self.conductor.due_ns
            if due_ns > end_ns:
                self.clock.move(end_ns - self.clock.now_ns())
                return turns
            self.clock.move(max(0, due_ns - self.clock.now_ns()))

    def until_quiet(self) -> World:
        """Run until the gap after the daemon's start is over. Returns this world."""
        self.run(20_000_000)
        return self

    def client(self, name: str = "client", **said: Any) -> Peer:
        """A client that has said hello and is subscribed."""
        return Peer(self, name).connect(**said)

    def counter(self, name: str) -> int:
        return self.rig.arena.count(name)


class Peer(Talker):
    """A client on the network. It receives published frames as harness.Client does, and keeps answers."""

    made = 0

    def __init__(self, world: World, name: str) -> None:
        Peer.made += 1
        self.proof = b"client %09d" % Peer.made
        super().__init__(world.rig, incarnation_of(self.proof), NOTHING, -1)
        self.world = world
        self.name = name
        self.routing = self.subscriber = Peer.made
        self.arena_incarnation = 0
        self.welcomes: list[dict[str, Any]] = []

    def hello(self, **said: object) -> dict[str, object]:
        """The map of a HELLO, with the fields of `said` in place of its own."""
        return {
            "protocol": PROTOCOL_VERSION,
            "proof": self.proof,
            "name": self.name,
            "pid": 0,
            "start_ticks": 0,
            "pid_namespace": HERE.pid_namespace,
            "time_namespace": HERE.time_namespace,
            "boot_id": HERE.boot_id,
            "now_ns": 0,
            "orphans": 0,
            "group": None,
            "listens": False,
            "takeover_ms": TAKEOVER_MS,
            "waits": [],
            "purgatories": [],
        } | said

    def header(self, kind: int, count: int = 0, first: int | None = None, **changed: Any) -> bytes:
        header = CommandHeader(
            version=PROTOCOL_VERSION,
            kind=kind,
            flags=0,
            count=count,
            incarnation=self.arena_incarnation,
            session=self.session,
            first_command=self.issued + 1 if first is None else first,
            acknowledged_outcome=self.acknowledged_outcome,
            acknowledged_answer=self.acknowledged_answer,
        )
        return struct_of(CommandHeader).pack(*header._replace(**changed))

    def put(self, frame: bytes) -> None:
        """Send a frame."""
        self.world.network.up.append((self.routing, frame))

    def say(self, kind: int, message: object = None, **changed: Any) -> None:
        """Send a frame of any kind, with a map."""
        self.put(self.header(kind, **changed) + (b"" if message is None else bytes(msgpack.packb(message))))

    def send(self, *commands: Command, flags: int = 0) -> int:
        """Number commands and send them in one frame. Returns the number of the first command."""
        first = self.issued + 1
        for command in commands:
            self.issue(command)
        self.put(self.header(UpKind.COMMANDS, len(commands), first, flags=flags) + b"".join(map(encode, commands)))
        return first

    def connect(self, **said: object) -> Peer:
        """Say hello, take the WELCOME, subscribe, and take the first report."""
        self.say(UpKind.HELLO, self.hello(**said))
        self.world.settle()
        kind, welcome = self.take_answers()[-1]
        assert kind is DownKind.WELCOME, f"{kind}: {welcome}"
        self.welcomed(welcome)
        self.subscribe()
        self.world.settle()
        assert self.take_published(), "nothing was published to the subscriber"
        return self

    def welcomed(self, welcome: dict[str, Any]) -> None:
        self.welcomes.append(welcome)
        self.session, self.slot = welcome["session"], welcome["slot"]
        self.arena_incarnation = self.world.core.incarnation

    def subscribe(self, secret: bytes | None = None) -> None:
        """Connect for outcomes, and show `secret`; None: the client's session."""
        self.world.network.asking.append((self.subscriber, self.session if secret is None else secret))

    def hold(self) -> int:
        """Hold a liveness connection, as a real client does after its WELCOME. Returns the connection's number."""
        connection = self.world.lifelines.connect(self.session)
        self.world.settle()
        return connection

    def acknowledge(self) -> None:
        """Take in what was published, and acknowledge it in a frame without commands."""
        self.take_published()
        super().acknowledge()
        self.say(UpKind.ACK)

    def take_published(self) -> list[ReportHeader]:
        """Take in the reports that were published to this client. Returns their headers."""
        frames = self.world.network.published.pop(self.subscriber, [])
        for frame in frames:
            self.receive(frame)
        return [unpack(ReportHeader, frame) for frame in frames]

    def take_answers(self) -> list[tuple[DownKind, Any]]:
        """The frames that the daemon's ROUTER has sent: (kind, map) or (kind, header). Reports are also taken in."""
        found: list[tuple[DownKind, Any]] = []
        for frame in self.world.network.answers.pop(self.routing, []):
            header = unpack(ReportHeader, frame)
            kind = DownKind(header.kind)
            if kind is DownKind.REPORT:
                self.receive(frame)
            mapped = kind in (DownKind.WELCOME, DownKind.RESULT, DownKind.ERROR)
            found.append((kind, msgpack.unpackb(frame[size_of(ReportHeader) :]) if mapped else header))
        return found

    def ask(self, message: dict[str, object]) -> tuple[DownKind, Any]:
        """Send a query. Returns the answer."""
        self.say(UpKind.QUERY, message)
        self.world.settle()
        return self.take_answers()[-1]


def fire(key: bytes = b"k", **more: Any) -> KeyAct:
    """A fire on a key."""
    return KeyAct(CommandKind.FIRE, key, **more)


def patched(frame: bytes, field: str, value: bytes) -> bytes:
    """A client's frame with some bytes of its header changed."""
    at = offset_of(CommandHeader, field)
    return frame[:at] + value + frame[at + len(value) :]
