"""The frames to a client. They go by two connections.

By its outlet: reports, announcements and heartbeats. A report carries outcomes, and answers to commands. An
*announcement* is a report without any of these: it holds the newest numbers only. From these numbers the client sees
that a report was lost, and asks for it. A *heartbeat* is a frame like an announcement, for a client that has got no
other frame for a while.

By its connection for commands: replies to its frames (to a hello, a query, a request for lost reports, or a frame that
is refused).
"""

from __future__ import annotations

from timerd.clients.messages import bare_header, message_frame
from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.core import NEVER, Core
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import MalformedError, TimerdError, UnsupportedVersionError
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.wire import DownKind, ReportHeader

from .bounds import Bounds
from .error_log import ErrorLog
from .transport import Transport

REPORT_BYTES_PER_TURN = 1 << 20  # of all clients together; the last report of a turn may go beyond it
OUTCOMES_PER_REPORT = 2_048  # 200 KB, and some 0.4 ms of the processor
CONFIRM_NS = 100_000_000  # how long a confirmation may wait for an outcome to go with; 0 if its client asks

FRAMES_MALFORMED = index_of(DAEMON_COUNTERS, "frames_malformed")
ANNOUNCEMENTS = index_of(DAEMON_COUNTERS, "announcements")

REPORT = struct_of(ReportHeader)


class Outbox:
    """Makes the frames to clients, and sends them. `frames` counts those that went out in this turn."""

    def __init__(self, core: Core, transport: Transport, sessions: Sessions, errors: ErrorLog, bounds: Bounds) -> None:
        self._core = core
        self._transport = transport
        self._sessions = sessions
        self._errors = errors
        self._bounds = bounds
        self._incarnation = core.incarnation
        self.frames = 0

    # To one client ----------------------------------------------------------------------------------------------------

    def publish(self, session: Session, frame: bytes, now_ns: int) -> None:
        """Publish a report to a client that has subscribed."""
        self._transport.publish(session.slot, frame)
        self._sessions.reminders.published(session, now_ns)
        self.frames += 1

    def announce(self, session: Session, now_ns: int) -> None:
        """Publish the newest numbers, without an outcome or answer."""
        self.publish(session, self.empty_report(session, now_ns), now_ns)

    def send(self, routing: int, frame: bytes) -> None:
        """Reply to the sender of a frame."""
        self._transport.send(routing, frame)
        self.frames += 1

    def refuse(
        self, routing: int, error: TimerdError, now_ns: int, session: Session | None = None, number: int | None = None
    ) -> None:
        """Reply with the error's code and message, and count it. `number`: the query's, if the frame was a query."""
        if isinstance(error, MalformedError | UnsupportedVersionError):
            self._core.count(FRAMES_MALFORMED)
        if session is None:
            self._errors.note(error, max(self._transport.sender(routing), 0))
        else:
            self._errors.note(error, session.maker_pid, self._sessions.named(session))
        answer = {"code": int(error.code), "message": str(error), "id": number}
        self.send(routing, message_frame(self.header(DownKind.ERROR, now_ns, session), answer))

    # To all -----------------------------------------------------------------------------------------------------------

    def publish_reports(self, now_ns: int) -> None:
        """Publish outcomes, answers and the numbers of applied commands to each client that has new ones.

        If the two bounds do not allow all of it, the rest follows in the next turn.
        """
        core = self._core
        due = core.reports(now_ns, OUTCOMES_PER_REPORT, REPORT_BYTES_PER_TURN, CONFIRM_NS)
        for slot, frame in due:
            session = self._sessions.at(slot)
            # A client that has not subscribed yet gets the newest numbers when it subscribes, and asks then.
            if session is not None and session.subscribed:
                self.publish(session, frame, now_ns)
        if core.reports_due_ns <= now_ns:
            self._bounds.cut()

    def announce_unacknowledged(self, now_ns: int) -> None:
        """Remind the clients that have not acknowledged their reports."""
        for session in self._sessions.reminders.take(now_ns):
            self._core.count(ANNOUNCEMENTS)
            self._core.send_looks_again(session.slot)
            self.announce(session, now_ns)

    def beat(self, now_ns: int) -> bool:
        """On the beat: a heartbeat to each client that got no frame since the last beat. False between beats."""
        quiet = self._sessions.beat(now_ns)
        if quiet is None:
            return False
        for session in quiet:
            self.announce(session, now_ns)
        return True

    # Frames -----------------------------------------------------------------------------------------------------------

    def header(self, kind: DownKind, now_ns: int, session: Session | None = None) -> bytes:
        """The header of a frame that carries a map, or no body."""
        applied = self._core.last_command(session.slot) if session else 0
        topic = session.topic if session else 0
        return bare_header(kind, self._incarnation, self._core.newest, now_ns, topic, applied)

    def empty_report(self, session: Session, now_ns: int, kind: DownKind = DownKind.REPORT) -> bytes:
        """A report without outcomes and answers: it holds the newest numbers."""
        report = ReportHeader._make(REPORT.unpack_from(self._core.report(session.slot, NEVER, NEVER, now_ns, kind)))
        newest = report.outcome_newest
        return REPORT.pack(*report._replace(outcome_first=newest + 1, outcome_last=newest, answer_previous=0))
