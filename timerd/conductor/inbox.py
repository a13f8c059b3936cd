"""The frames of clients: they are read within a turn's bounds, and each goes to the part that deals with it.

    HELLO               the greeter
    COMMANDS            the core, in order; they are deferred behind a long event
    ACK, ASK, QUERY     at once, also while commands are deferred
    BYE                 at once, or behind the client's deferred commands

A *long event* is applied over several turns. Until it is done commands are deferred. A frame that needs more than its
share of a turn is deferred as well. Deferred frames of all processes share the core fairly (deferred.py).
"""

from __future__ import annotations

import logging

from timerd.clients.messages import HEADER_SIZE
from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.core import APPLIED, EXPECTED, MALFORMED, UNFINISHED, Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import MalformedError, UnsupportedVersionError
from timerd_shm.declare.fields import offset_of, struct_of
from timerd_shm.declare.limits import ANNOUNCE_FIRST_NS, COMMANDS_PER_FRAME_MAX
from timerd_shm.declare.wire import (
    PROTOCOL_VERSION,
    CommandHeader,
    DownFlag,
    DownKind,
    FrameFlag,
    ReportHeader,
    UpKind,
)

from .bounds import Bounds
from .deferred import Deferred
from .gap import Gap
from .hello import Greeter
from .outbox import Outbox
from .queries import Queries
from .transport import Transport

# A frame may take a share of the turn that depends on the number of its commands. A frame that needs more is deferred.
RECORDS_PER_FRAME = 512
RECORDS_PER_COMMAND = 8
RECORDS_PER_HELLO = 2_048  # accepted or not, it takes up to 100 us: to unpack, to search all slots, a look into /proc
BYTES_PER_RECORD = 64  # of a frame, up or down: copying them takes at most as long as touching a record
BYTES_PER_ITEM = 2  # of a map: unpacking two bytes and looking up their value takes as long as touching a record

FRAMES_IN = index_of(DAEMON_COUNTERS, "frames_in")
FRAMES_UNKNOWN_SESSION = index_of(DAEMON_COUNTERS, "frames_unknown_session")
ASKED_AGAIN = index_of(DAEMON_COUNTERS, "asked_again")

HEADER = struct_of(CommandHeader)
LEAVING = int(FrameFlag.LEAVING)
FLAGS_AT = offset_of(ReportHeader, "flags")
ASKED = int(DownFlag.ASKED).to_bytes(2, "little")

log = logging.getLogger("timerd")


class Inbox:
    """Reads frames and deals with them. Nothing that a client sends makes it raise."""

    def __init__(
        self,
        core: Core,
        transport: Transport,
        sessions: Sessions,
        greeter: Greeter,
        queries: Queries,
        outbox: Outbox,
        deferred: Deferred,
        gap: Gap,
        bounds: Bounds,
    ) -> None:
        self._core = core
        self._transport = transport
        self._sessions = sessions
        self._greeter = greeter
        self._queries = queries
        self._outbox = outbox
        self._deferred = deferred
        self._gap = gap
        self._bounds = bounds
        self._incarnation = core.incarnation

    def read(self, now_ns: int) -> int:
        """Read the socket's frames, then apply deferred ones, up to the turn's bounds. Returns their number.

        Half of the turn is for deferred frames, if there are any. So a flood of frames that need not be deferred does
        not keep the core from them.
        """
        deferred, bounds = self._deferred, self._bounds
        budget = bounds.records // 2 if deferred.frames else bounds.records
        received = 0
        for routing, frame in self._transport.receive(bounds.records):
            received += 1
            budget -= self._take(routing, frame, now_ns) + len(frame) // BYTES_PER_RECORD
            if budget <= 0:
                bounds.cut()
                break
        else:
            if self._transport.is_dry():
                self._gap.read_dry(now_ns)
            else:
                bounds.cut()
        if received:
            self._core.count(FRAMES_IN, received)
        return received + self._serve(max(budget, bounds.records // 2), now_ns) if deferred.frames else received

    def charge_event(self, records: int) -> None:
        """The long event under way has taken records: its process is charged for them."""
        self._deferred.charge(records)

    def _serve(self, budget: int, now_ns: int) -> int:
        """Apply deferred frames within a budget of records. Returns how many were done."""
        core, deferred = self._core, self._deferred
        frames = 0
        while deferred.frames and budget > 0 and not core.is_delivering:
            session, frame = deferred.first()
            _, kind, _, count, *_ = HEADER.unpack_from(frame)
            touched = core.touched
            done = self._apply_deferred(session, frame, kind, count, now_ns)
            deferred.charge(core.touched - touched + RECORDS_PER_FRAME)
            deferred.pass_on(done=done)
            budget -= self._share(count)
            frames += done
        if deferred.frames:
            self._bounds.cut()
        return frames

    # Bounds -----------------------------------------------------------------------------------------------------------

    def _share(self, commands: int) -> int:
        """Records that a frame with `commands` commands may touch in this turn."""
        return min(RECORDS_PER_FRAME + RECORDS_PER_COMMAND * commands, self._bounds.records)

    def _share_of_map(self, frame: bytes) -> int:
        """Records that a frame with a map takes: a hello may list many operations that its client waits for."""
        return RECORDS_PER_FRAME + len(frame) // BYTES_PER_ITEM

    # One frame --------------------------------------------------------------------------------------------------------

    def _take(self, routing: int, frame: bytes, now_ns: int) -> int:
        """Deal with one frame. Returns how many records of the turn's budget it takes."""
        count: int
        if len(frame) < HEADER_SIZE:
            short = MalformedError(f"a frame has {len(frame)} bytes, and its header {HEADER_SIZE}")
            self._outbox.refuse(routing, short, now_ns)
            return RECORDS_PER_FRAME
        version, kind, flags, count, incarnation, secret, _, outcome, answer = HEADER.unpack_from(frame)
        if version != PROTOCOL_VERSION:
            other = UnsupportedVersionError(f"a frame of protocol {version}; this daemon has {PROTOCOL_VERSION}")
            self._outbox.refuse(routing, other, now_ns)
            return RECORDS_PER_FRAME
        if kind == UpKind.HELLO:
            if self._greeter.rests(routing, secret, frame, now_ns):
                return RECORDS_PER_FRAME
            pid, uid = max(self._transport.sender(routing), 0), self._transport.user(routing)
            self._greeter.greet(routing, secret, frame, pid, uid, now_ns)
            return RECORDS_PER_HELLO + self._share_of_map(frame)
        session = self._sessions.by_secret.get(secret)
        if session is None or incarnation != self._incarnation:
            session = self._sessions.find(secret) if incarnation == self._incarnation else None
            if session is None:
                self._core.count(FRAMES_UNKNOWN_SESSION)
                self._outbox.send(routing, self._outbox.header(DownKind.HELLO_FIRST, now_ns))
                return RECORDS_PER_FRAME
        session.routing = routing
        session.is_leaving = flags & LEAVING != 0
        self._sessions.silence.came(session, now_ns)
        go_on = session.held and answer > session.received[1]
        if (outcome, answer) != session.received:
            self._sessions.reminders.acknowledged(session, (outcome, answer), now_ns)
        if kind == UpKind.COMMANDS:
            return self._take_commands(session, frame, count, outcome, answer, now_ns)
        self._core.acknowledge(session.slot, outcome, answer, RECORDS_PER_FRAME)
        if go_on:
            self._send_expected(session, now_ns)
        if kind == UpKind.BYE and self._deferred.has(session):
            self._defer(session, frame)
        elif kind == UpKind.ASK:
            return self._report_again(session, outcome, answer, now_ns)
        elif kind == UpKind.QUERY:
            self._queries.answer(session, frame, now_ns)
            return self._share_of_map(frame)
        elif kind == UpKind.BYE:
            self._take_leave(session, now_ns)
        elif kind == UpKind.ACK:
            if flags & FrameFlag.CONFIRM:
                self._core.confirm(session.slot)
        else:
            unknown = MalformedError(f"a frame is of unknown kind {kind}")
            self._outbox.refuse(routing, unknown, now_ns, session)
        return RECORDS_PER_FRAME

    def _report_again(self, session: Session, outcome: int, answer: int, now_ns: int) -> int:
        """Answer a client that asks for missing outcomes, once in a turn. Returns the records that this takes."""
        core = self._core
        core.count(ASKED_AGAIN)
        if session.asked_turn == self._bounds.turns:
            return RECORDS_PER_FRAME  # the answer to its first request is on its way, and would be the same
        session.asked_turn = self._bounds.turns
        touched = core.touched
        core.send_looks_again(session.slot)
        report = core.report(session.slot, outcome, answer, now_ns)
        self._outbox.send(session.routing, report[:FLAGS_AT] + ASKED + report[FLAGS_AT + len(ASKED) :])
        return RECORDS_PER_FRAME + len(report) // BYTES_PER_RECORD + core.touched - touched

    def _take_commands(self, session: Session, frame: bytes, count: int, outcome: int, answer: int, now_ns: int) -> int:
        """Apply a frame of commands, or defer it. Returns how many records of the turn's budget it takes."""
        if count > COMMANDS_PER_FRAME_MAX:
            error = MalformedError(f"a frame says {count} commands; at most {COMMANDS_PER_FRAME_MAX} fit")
            self._outbox.refuse(session.routing, error, now_ns, session)
            return RECORDS_PER_FRAME
        core = self._core
        if self._deferred.frames or core.is_delivering:
            core.acknowledge(session.slot, outcome, answer, RECORDS_PER_FRAME)
            self._defer(session, frame)
            return RECORDS_PER_FRAME
        touched = core.touched
        if not self._apply(session, frame, count, now_ns):
            process = self._transport.sender(session.routing)
            self._deferred.add_begun(session, process, frame, core.touched - touched + RECORDS_PER_FRAME)
        return self._share(count)

    def _apply(self, session: Session, frame: bytes, count: int, now_ns: int) -> bool:
        """Apply a frame of commands; False if it has to be deferred: it began a long event, or used up its share."""
        status = self._core.apply(session.slot, frame, now_ns, self._share(count))
        if status == APPLIED:
            session.held = False
            return True
        if status == UNFINISHED:
            self._bounds.cut()
            return False
        if status == EXPECTED:
            # A frame with the next command is held back until answers are acknowledged. A later frame came too early.
            session.held |= HEADER.unpack_from(frame)[6] <= self._core.last_command(session.slot) + 1
            self._send_expected(session, now_ns)
        else:
            assert status == MALFORMED, f"status={status}"
            error = MalformedError("a command has a wrong length, or names something that does not exist")
            self._outbox.refuse(session.routing, error, now_ns, session)
        return True

    def _send_expected(self, session: Session, now_ns: int) -> None:
        """Name the command that is expected next: once for all frames that were in flight after a lost one."""
        expected = self._core.last_command(session.slot), session.received[1]
        if expected != session.expected or now_ns - session.expected_ns >= ANNOUNCE_FIRST_NS:
            session.expected, session.expected_ns = expected, now_ns
            self._outbox.send(session.routing, self._outbox.empty_report(session, now_ns, DownKind.EXPECTED))

    def _take_leave(self, session: Session, now_ns: int) -> None:
        log.debug("client %d says goodbye", session.slot)
        self._sessions.close(session, now_ns, goodbye=True)

    # Deferred frames --------------------------------------------------------------------------------------------------

    def _defer(self, session: Session, frame: bytes) -> None:
        self._deferred.add(session, self._transport.sender(session.routing), frame)
        self._bounds.cut()

    def _apply_deferred(self, session: Session, frame: bytes, kind: int, count: int, now_ns: int) -> bool:
        """Apply a deferred frame; False if it stays deferred."""
        if self._sessions.at(session.slot) is not session:
            return True  # its client has ended meanwhile
        if kind == UpKind.BYE:
            self._take_leave(session, now_ns)
            return True
        return self._apply(session, frame, count, now_ns)
