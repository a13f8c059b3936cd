"""Deferred frames: they wait for a later turn, behind a long event, or because they were applied in part.

Processes share the core by weighted fair queueing with equal weights (Demers, Keshav and Shenker, 1989). For example,
processes A to H fire all the time on a key with 120,000 watchers, and P sends a small command while A's event is under
way. P's command is next when that event is done:

    now         the records that a process would have taken if it had waited all the time: while n processes wait,
                `now` advances by one for n records
    start       the records that a process has taken; at least `now`, so that it saves nothing up while it is away
    expected    the records of its next frame, by its last ones: the largest counts, and is forgotten step by step
    light       a process is light if its expected records are few; a process that is not known is not light
    next        the light process with the least start, if that is not above `now`: it has taken less than its share.
                Else the process with the least start + expected

So a light process within its share waits for one event at most. A process that has caused a long event waits until
`now` has come to its start. Time alone brings that about, also if new processes keep arriving: each of them starts at
`now`, which advances. A process is overdue if `now` has passed its start + expected. A process that was light
may send a long event, and so may a second and a third one after it. So after such an event no light process goes before
overdue ones, until none is overdue.

When no frame is left, all debts are forgiven.

Within a process its clients take turns, a frame each. The frames of one client stay in order. When too many frames of a
process are deferred, its connections are not read until half of them are done. They are not read either while the
process is over its share of the memory for frames, and that memory is nearly spent (host/budget.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from timerd.clients.session import Session

FRAMES_MAX = 128  # deferred frames of a process; beyond it its connections are held
BYTES_MAX = 2 << 20
FRAME_COST = 1_024  # bytes that a deferred frame may take beside its own: with the first of a client comes a queue
LINES_KEPT = 512  # processes without deferred frames; beyond it those with the least start are forgotten
EXPECTED_FIRST = 4_096  # records of the first frame of a process that is not known; a light process expects fewer


class Line:
    """The deferred frames of a process."""

    __slots__ = ("bytes", "clients", "expected", "frames", "is_held", "is_waiting", "process", "start", "taken")

    def __init__(self, process: int, start: int) -> None:
        self.process = process
        self.start = start  # records
        self.expected = EXPECTED_FIRST  # records
        self.taken = 0  # records, since it has the core
        self.frames = 0
        self.bytes = 0
        self.is_held = False
        self.is_waiting = False  # whether it is in a heap
        self.clients: dict[Session, deque[bytes]] = {}  # the client whose turn it is comes first

    @property
    def is_light(self) -> bool:
        return self.expected < EXPECTED_FIRST


class Deferred:
    """The deferred frames of all processes; `frames` is the number of them.

    `hold` is called with a process and True when its connections are not to be read, and with False when they are.
    `charge` is called with a process and the memory that it takes, or gives back (negative). `charge` returns False
    when the connections of the process are not to be read.
    """

    def __init__(self, hold: Callable[[int, bool], None], charge: Callable[[int, int], bool]) -> None:
        self.frames = 0
        self._hold = hold
        self._charge = charge
        self._lines: dict[int, Line] = {}  # by process
        self._by_client: dict[Session, Line] = {}
        # Heaps of the lines with frames, except the one that has the core: by start, and by start + expected.
        self._light: list[tuple[int, int, Line]] = []
        self._heavy: list[tuple[int, int, Line]] = []
        self._served: Line | None = None  # it has the core: its frame is applied, or its long event is under way
        self._applied: Session | None = None  # between first() and pass_on(): the client whose frame is applied
        self._now = 0  # records
        self._rest = 0  # records that were taken since `now` last advanced, fewer than the processes that wait
        self._is_misled = False  # a light process had a long event, and another process is overdue
        self._order = 0

    def slots(self) -> set[int]:
        """Slots of the clients that have deferred frames."""
        return {session.slot for session in self._by_client}

    def has(self, session: Session) -> bool:
        """Whether a frame of this client is deferred."""
        return session in self._by_client

    def add(self, session: Session, process: int, frame: bytes) -> None:
        """Defer a frame of a client of this process, behind the client's others."""
        line = self._by_client.get(session) or self._line_of(process)
        if not line.is_waiting and line is not self._served:
            line.start = max(line.start, self._now)
            self._wait(line)
        line.clients.setdefault(session, deque()).append(frame)
        self._by_client[session] = line
        line.frames += 1
        line.bytes += len(frame)
        self.frames += 1
        may_go_on = self._charge(line.process, len(frame) + FRAME_COST)
        if line.frames and not line.is_held and (line.frames >= FRAMES_MAX or line.bytes >= BYTES_MAX or not may_go_on):
            line.is_held = True
            self._hold(line.process, True)

    def add_begun(self, session: Session, process: int, frame: bytes, records: int) -> None:
        """Defer a frame that took `records` and was applied in part. No other one waits: its process gets the core."""
        line = self._line_of(process)
        line.start = max(line.start, self._now)
        self._give(line)
        self.charge(records)
        self.add(session, process, frame)

    def first(self) -> tuple[Session, bytes]:
        """Give the core to the next process. Returns the client whose turn it is there, and its oldest frame."""
        self._put_back()
        line = self._next()
        while not line.frames:  # its frames were dropped
            line = self._next()
        self._give(line)
        session, queue = next(iter(line.clients.items()))
        self._applied = session
        return session, queue[0]

    def charge(self, records: int) -> None:
        """The process that has the core has taken more records."""
        if self._served is not None:
            self._served.taken += records
            advance, self._rest = divmod(self._rest + records, len(self._light) + len(self._heavy) + 1)
            self._now += advance

    def pass_on(self, *, done: bool) -> None:
        """After first(): let the next client of the process come first. `done`: nothing of the frame is left."""
        line = self._served
        assert line is not None, "no process has the core"
        session, queue = next(iter(line.clients.items()))
        del line.clients[session]
        self._applied = None
        if done:
            self._forget(line, queue.popleft())
        if queue:
            line.clients[session] = queue
        else:
            del self._by_client[session]
        self._go_on(line)

    def drop(self, process: int) -> None:
        """Drop the frames of a process, except the one that is applied now. Their clients send them again."""
        line = self._lines.get(process)
        if line is None:
            return
        for session, queue in list(line.clients.items()):
            while len(queue) > (session is self._applied):
                self._forget(line, queue.pop())
            if not queue:
                del line.clients[session], self._by_client[session]
        self._go_on(line)

    def _forget(self, line: Line, frame: bytes) -> None:
        self.frames -= 1
        line.frames -= 1
        line.bytes -= len(frame)
        self._charge(line.process, -len(frame) - FRAME_COST)

    def _go_on(self, line: Line) -> None:
        """Frames of a process are done. If few are left, read its connections again; if none is, forgive all debts."""
        if line.is_held and line.frames <= FRAMES_MAX // 2 and line.bytes <= BYTES_MAX // 2:
            line.is_held = False
            self._hold(line.process, False)
        if not self.frames:
            self._put_back()
            self._now = max(each.start for each in self._lines.values())

    def _line_of(self, process: int) -> Line:
        line = self._lines.get(process)
        if line is None:
            if len(self._lines) - len(self._light) - len(self._heavy) > LINES_KEPT:
                self._forget_lines()
            line = self._lines[process] = Line(process, self._now)
        return line

    def _forget_lines(self) -> None:
        """Forget half of the processes without deferred frames: those that owe the least, or were served long ago.

        A process that was forgotten comes back like a new one. So it gains no more than by a fork.
        """
        idle = [each for each in self._lines.values() if not each.frames and each is not self._served]
        idle.sort(key=_start_of)
        for each in idle[: -LINES_KEPT // 2]:
            del self._lines[each.process]

    def _next(self) -> Line:
        light, heavy, now = self._light, self._heavy, self._now
        chosen = light or heavy
        if light and heavy:
            due = heavy[0][0]
            self._is_misled = self._is_misled and due <= now
            first = light[0][2]
            may_precede = first.start <= now and not self._is_misled
            chosen = light if may_precede or first.start + first.expected <= due else heavy
        line = heappop(chosen)[2]
        line.is_waiting = False
        return line

    def _give(self, line: Line) -> None:
        """Give the core to a process."""
        line.taken = 0
        self._served = line

    def _put_back(self) -> None:
        """Take the core back, and charge its process with the records that it has taken."""
        line = self._served
        if line is not None:
            was_light = line.is_light
            line.start += line.taken
            line.expected = max(line.taken, line.expected - line.expected // 8)
            self._is_misled = self._is_misled or (was_light and not line.is_light)
            self._served = None
            if line.frames:
                self._wait(line)

    def _wait(self, line: Line) -> None:
        self._order += 1
        line.is_waiting = True
        if line.is_light:
            heappush(self._light, (line.start, self._order, line))
        else:
            heappush(self._heavy, (line.start + line.expected, self._order, line))


def _start_of(line: Line) -> int:
    return line.start
