"""The conductor: everything the daemon does, as a function of (state, now, messages).

A turn takes the time once and does, in this order, a bounded amount of each:

    subscriptions, commands     an event read in a turn wins over a deadline in it
    ends                        connections of clients, and processes, that have ended
    resume                      long deliveries, acknowledgements and orphans that a bound has cut
    wheel                       expiries, sweeps; not during a gap (below)
    reports, duties             outcomes out; heartbeats, reminders, silence

A *long event* is delivered over several turns. Until it is done the core answers UNFINISHED to commands, which then
wait here in order; acknowledgements, questions and hellos go on. The same goes for a frame that needs more than its
share of a turn. Those who have frames waiting take turns, a frame each. When enough of them wait, the command socket is
not read any more, until they drain.

A *gap* is a turn that starts a second late, or the first one: the process was stopped, or starved, and what happened
meanwhile stands in the sockets. They are read until dry, 100 ms at most, before the wheel moves and before the end of a
client is acted upon; every lease is whole after it.

One thread calls this. Time, network, core and snapshots are passed in; nothing here blocks, and nothing that comes from
a client makes do_work() raise.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from timerd.clients.liveness import Kind, Liveness
from timerd.clients.messages import (
    HEADER_SIZE,
    Query,
    bare_header,
    message_frame,
    purgatory_name,
    read_hello,
    read_query,
)
from timerd.clients.sessions import NO_SESSION, Session, Sessions
from timerd.clock import Clock
from timerd.core import APPLIED, EXPECTED, MALFORMED, NEVER, UNFINISHED, Core
from timerd.journal.writer import Journal
from timerd.snapshots import Files, Snapshots
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.declare.errors import (
    MalformedError,
    NotSupportedError,
    ResourceLimitError,
    SessionGoneError,
    TimerdError,
    UnsupportedVersionError,
)
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.limits import (
    ANNOUNCE_FIRST_NS,
    COMMANDS_PER_FRAME_MAX,
    GAP_NS,
    GROUP_HELD_MAX,
    HANDLED_NAMES_MAX,
    HEARTBEAT_NS,
    HELD_QUERY_MAX,
    HELLO_FIRST_SIZE_MAX,
)
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, DownKind, ReportHeader, UpKind
from timerd_wire.refusals import Subject, refusal

from .transport import Transport

# A turn is bounded in records touched (operations, watchers, buckets). Reading, resuming and the wheel may each touch
# RECORDS_PER_STEP of them. A frame is granted its share by what it says it holds; one that needs more waits its turn.
RECORDS_PER_STEP = 65_536
RECORDS_PER_FRAME = 512
RECORDS_PER_COMMAND = 8
BYTES_PER_RECORD = 64  # of a frame, up or down: to copy so many takes as long as to touch a record, at most
BYTES_PER_ITEM = 2  # of a map: to unpack and to look up what two bytes say takes as long as to touch a record
SUBSCRIPTIONS_PER_TURN = 64
WAITING_FRAMES_MAX = 256  # commands behind a long event; beyond it the socket is not read
WAITING_BYTES_MAX = 16 << 20
SIGNS_PER_TURN = 128
GAP_READ_NS = 100_000_000  # the longest that the wheel waits after a gap
DRY_NS = 5_000_000  # the sockets are dry when nothing came for so long: libzmq's thread was stopped as well
LOGGED_ERRORS_MAX = 64
A_CLIENT = Subject(client="a client")
JOURNAL_AGAIN_NS = 5_000_000  # when the journal has more to tell than its buffer takes at once
HELLO_SIZE_EASY = 262_144  # a larger one names what the client waits for, which is looked up one by one:
HELLO_REST_NS = 100_000_000  # it is welcomed once in that time
REPORT_BYTES_PER_TURN = 8 << 20
CONFIRM_NS = 1_000_000  # between reports that say nothing but which commands were applied

GAPS = index_of(DAEMON_COUNTERS, "gaps")
FRAMES_IN = index_of(DAEMON_COUNTERS, "frames_in")
FRAMES_OUT = index_of(DAEMON_COUNTERS, "frames_out")
FRAMES_MALFORMED = index_of(DAEMON_COUNTERS, "frames_malformed")
FRAMES_UNKNOWN_SESSION = index_of(DAEMON_COUNTERS, "frames_unknown_session")
EMPTY_WAKEUPS = index_of(DAEMON_COUNTERS, "empty_wakeups")
TURNS_CUT = index_of(DAEMON_COUNTERS, "turns_cut")
TURN_NS_MAX = index_of(DAEMON_COUNTERS, "turn_ns_max")
BUSY_NS = index_of(DAEMON_COUNTERS, "busy_ns")
ANNOUNCEMENTS = index_of(DAEMON_COUNTERS, "announcements")
ASKED_AGAIN = index_of(DAEMON_COUNTERS, "asked_again")
CLIENTS_SILENCED = index_of(DAEMON_COUNTERS, "clients_silenced")
CLIENTS_DIED = index_of(DAEMON_COUNTERS, "clients_died")
LIVENESS_REFUSED = index_of(DAEMON_COUNTERS, "liveness_refused")

HEADER = struct_of(CommandHeader)
REPORT = struct_of(ReportHeader)

log = logging.getLogger("timerd")


class Conductor:
    """See the module. `copies` writes copies of the arena, and removes them."""

    def __init__(
        self,
        core: Core,
        transport: Transport,
        clock: Clock,
        sessions: Sessions,
        liveness: Liveness,
        *,
        copies: Files,
        pid: int,
        now_ns: int,
        records_per_step: int = RECORDS_PER_STEP,
        journal: Journal | None = None,
    ) -> None:
        self._core = core
        self._transport = transport
        self._clock = clock
        self._sessions = sessions
        self._liveness = liveness
        self._snapshots = Snapshots(copies, sessions, clock)
        self._journal = journal
        self._journal_due_ns = NEVER
        self._records = records_per_step
        self._welcome = {"heartbeat_ns": HEARTBEAT_NS, "daemon_pid": pid}
        self._incarnation = core.incarnation
        self._waiting: dict[Session, deque[bytes]] = {}  # frames behind a long event, or applied in part; in turn
        self._waiting_frames = self._waiting_bytes = 0
        self._frames_out = 0
        self._errors: set[tuple[int, str]] = set()
        self._cut = False  # a bound was reached, or something is left: the next turn follows at once
        # The first turn is a gap: clients may have sent while no daemon was there.
        self._gap_until_ns = now_ns + GAP_READ_NS
        self._heard_ns = now_ns
        self._dry_ns = 0  # the last turn that had read all there was
        self.due_ns = now_ns

    @property
    def in_gap(self) -> bool:
        """Whether the wheel still waits for the sockets to be dry."""
        return self._gap_until_ns != NEVER

    def do_work(self, now_ns: int) -> int:
        """One turn. Returns the amount of work (frames and records); `due_ns` says when the next one is due."""
        core = self._core
        due_ns, self.due_ns = self.due_ns, NEVER
        if due_ns != NEVER and now_ns - due_ns >= GAP_NS:
            core.count(GAPS)
            log.warning("gap: a turn began %d ms late; reading the sockets first", (now_ns - due_ns) // 1_000_000)
            self._gap_until_ns = now_ns + GAP_READ_NS
            self._heard_ns = now_ns
            self._sessions.make_leases_whole(now_ns)
        self._frames_out = 0
        self._cut = False
        core.begin_turn(now_ns)
        work = self._accept_subscriptions(now_ns)
        frames = self._read_commands(now_ns)
        if frames:
            self._heard_ns = now_ns
        self._end_gap(now_ns)
        work += self._take_signs(now_ns)
        if not self.in_gap:
            work += self._act_upon_ends(now_ns)
        if core.resume(now_ns, self._records):
            self._cut = True
        if not self.in_gap and core.advance(now_ns, self._records):
            self._cut = True
        self._publish_reports(now_ns)
        self._do_duties(now_ns)
        if self._journal is not None:
            self._journal_due_ns = now_ns + JOURNAL_AGAIN_NS if self._journal.tend(now_ns) else NEVER
        work += frames + self._frames_out + core.end_turn(now_ns)
        for session, number, answer in self._snapshots.tend(now_ns):
            self._tell_snapshot(session, number, answer, now_ns)
        self._close_turn(now_ns, due_ns, work)
        return work

    # Commands ---------------------------------------------------------------------------------------------------------

    def _read_commands(self, now_ns: int) -> int:
        """Apply what waits, then what the socket has, up to a turn's bounds; the frames dealt with."""
        budget = self._records
        frames = 0
        while self._waiting and budget > 0:
            session, queue = next(iter(self._waiting.items()))
            frame = queue[0]
            done = self._apply_waiting(session, frame, now_ns)
            del self._waiting[session]
            if done:
                queue.popleft()
                self._waiting_frames -= 1
                self._waiting_bytes -= len(frame)
            if queue:
                self._waiting[session] = queue  # it is the others' turn
            if not done:
                self._cut = True
                break
            budget -= self._share(HEADER.unpack_from(frame)[3])
            frames += 1
        if budget <= 0 or self._is_full():
            self._cut = True
            return frames
        received = 0
        for routing, frame in self._transport.receive(self._records):
            received += 1
            budget -= self._take_frame(routing, frame, now_ns) + len(frame) // BYTES_PER_RECORD
            if budget <= 0 or self._is_full():
                self._cut = True
                break
        else:
            if not self.in_gap:
                self._dry_ns = now_ns
        if received:
            self._core.count(FRAMES_IN, received)
        return frames + received

    def _share(self, commands: int) -> int:
        """Records that a frame with so many commands may touch in this turn."""
        return min(RECORDS_PER_FRAME + RECORDS_PER_COMMAND * commands, self._records)

    def _share_of_map(self, frame: bytes) -> int:
        """What a frame with a map takes: a hello may list very much that is waited for."""
        return RECORDS_PER_FRAME + len(frame) // BYTES_PER_ITEM

    def _is_full(self) -> bool:
        return self._waiting_frames >= WAITING_FRAMES_MAX or self._waiting_bytes >= WAITING_BYTES_MAX

    def _take_frame(self, routing: bytes, frame: bytes, now_ns: int) -> int:
        """Deal with one frame; what it takes off the turn's budget of records."""
        count: int
        if len(frame) < HEADER_SIZE:
            short = MalformedError(f"a frame has {len(frame)} bytes, and its header {HEADER_SIZE}")
            self._refuse(routing, short, now_ns)
            return RECORDS_PER_FRAME
        version, kind, _, count, incarnation, secret, _, outcome, answer = HEADER.unpack_from(frame)
        if version != PROTOCOL_VERSION:
            other = UnsupportedVersionError(f"a frame of protocol {version}; this daemon has {PROTOCOL_VERSION}")
            self._refuse(routing, other, now_ns)
            return RECORDS_PER_FRAME
        if kind == UpKind.HELLO:
            known = self._sessions.by_secret.get(secret) if len(frame) > HELLO_SIZE_EASY else None
            if known is not None and known.routing == routing and now_ns < known.greeted_ns + HELLO_REST_NS:
                return RECORDS_PER_FRAME  # a client that was not welcomed says it again after 250 ms
            self._greet(routing, secret, frame, now_ns)
            return self._share_of_map(frame)
        session = self._sessions.by_secret.get(secret)
        if session is None or incarnation != self._incarnation:
            session = self._sessions.find(secret) if incarnation == self._incarnation else None
            if session is None:
                self._core.count(FRAMES_UNKNOWN_SESSION)
                self._send(routing, self._header(DownKind.HELLO_FIRST, now_ns))
                return RECORDS_PER_FRAME
        session.routing = routing
        self._sessions.came(session, now_ns)
        go_on = session.held and answer > session.received[1]
        if (outcome, answer) != session.received:
            self._sessions.heard(session, (outcome, answer), now_ns)
        if kind == UpKind.COMMANDS:
            if count > COMMANDS_PER_FRAME_MAX:
                error = MalformedError(f"a frame says {count} commands; at most {COMMANDS_PER_FRAME_MAX} fit")
                self._refuse(routing, error, now_ns, session)
                return RECORDS_PER_FRAME
            if self._waiting:
                self._core.acknowledge(session.slot, outcome, answer, RECORDS_PER_FRAME)
                self._let_wait(session, frame)
            elif not self._apply(session, frame, count, now_ns):
                self._let_wait(session, frame)
            return self._share(count)
        self._core.acknowledge(session.slot, outcome, answer, RECORDS_PER_FRAME)
        if go_on:
            self._tell_expected(session, now_ns)
        if kind == UpKind.BYE and self._waiting:
            self._let_wait(session, frame)
        elif kind == UpKind.ASK:
            self._core.count(ASKED_AGAIN)
            report = self._core.report(session.slot, outcome, answer, now_ns)
            self._send(routing, report)
            return RECORDS_PER_FRAME + len(report) // BYTES_PER_RECORD
        elif kind == UpKind.QUERY:
            self._answer(session, frame, now_ns)
            return self._share_of_map(frame)
        elif kind == UpKind.BYE:
            self._end(session, now_ns)
        elif kind != UpKind.ACK:
            self._refuse(routing, MalformedError(f"a frame is of kind {kind}, which there is not"), now_ns, session)
        return RECORDS_PER_FRAME

    def _apply_waiting(self, session: Session, frame: bytes, now_ns: int) -> bool:
        """A frame that has waited; False if it has to wait on."""
        if self._sessions.at(session.slot) is not session:
            return True  # its client has ended meanwhile
        _, kind, _, count, *_ = HEADER.unpack_from(frame)
        if kind == UpKind.BYE:
            self._end(session, now_ns)
            return True
        return self._apply(session, frame, count, now_ns)

    def _apply(self, session: Session, frame: bytes, count: int, now_ns: int) -> bool:
        """Apply a frame of commands; False if it has to wait: a long event is delivered, or its share is used up."""
        status = self._core.apply(session.slot, frame, now_ns, self._share(count))
        if status == APPLIED:
            session.held = False
            return True
        if status == UNFINISHED:
            self._cut = True
            return False
        if status == EXPECTED:
            # The next one is held back until answers are acknowledged; a later one was sent too early.
            session.held |= HEADER.unpack_from(frame)[6] <= self._core.last_command(session.slot) + 1
            self._tell_expected(session, now_ns)
        else:
            assert status == MALFORMED, f"status={status}"
            error = MalformedError("a command ends where it should not, or names what there is not")
            self._refuse(session.routing, error, now_ns, session)
        return True

    def _end(self, session: Session, now_ns: int) -> None:
        log.debug("client %d says goodbye", session.slot)
        self._sessions.close(session, now_ns, goodbye=True)

    def _let_wait(self, session: Session, frame: bytes) -> None:
        self._waiting.setdefault(session, deque()).append(frame)
        self._waiting_frames += 1
        self._waiting_bytes += len(frame)
        self._cut = True

    def _tell_expected(self, session: Session, now_ns: int) -> None:
        """Say which command is the next one: once for the many that were in flight behind a lost one."""
        told = self._core.last_command(session.slot), session.received[1]
        if told != session.told or now_ns - session.told_ns >= ANNOUNCE_FIRST_NS:
            session.told, session.told_ns = told, now_ns
            self._send(session.routing, self._empty_report(session, now_ns, DownKind.EXPECTED))

    # Hellos and questions ---------------------------------------------------------------------------------------------

    def _greet(self, routing: bytes, shown: bytes, frame: bytes, now_ns: int) -> None:
        """A hello: WELCOME, SESSION_GONE or ERROR. Nothing is half done: what can be refused is refused first."""
        core, sessions = self._core, self._sessions
        try:
            if len(frame) > HELLO_FIRST_SIZE_MAX and not sessions.knows(shown):
                # Not looked into: who has no session here waits for nothing here.
                if shown != NO_SESSION:
                    raise SessionGoneError("that session is not known any more: connect as a new incarnation")
                raise MalformedError(f"a first hello has {len(frame)} bytes; at most {HELLO_FIRST_SIZE_MAX} are taken")
            hello = read_hello(frame)
            purgatories = {name: core.purgatory(name.encode()) for name in hello.purgatories}
            session = sessions.hello(hello, shown, now_ns=now_ns, wall_ns=self._clock.wall_ns())
        except SessionGoneError:
            self._send(routing, self._header(DownKind.SESSION_GONE, now_ns))
            return
        except TimerdError as error:
            self._refuse(routing, error, now_ns)
            return
        if session is None:
            return
        session.routing, session.greeted_ns = routing, now_ns
        log.debug("client %d: %s (pid %d) says hello", session.slot, hello.name.decode(), session.process.pid)
        header = self._header(DownKind.WELCOME, now_ns, session)
        message = {
            "incarnation": hello.incarnation,
            "session": session.secret,
            "slot": session.slot,
            "topic": session.topic,
            "applied": core.last_command(session.slot),
            "shared_clock": sessions.shares_clock(hello),
            "purgatories": purgatories,
            "unknown": core.unknown_waits(session.slot, hello.waits),
            "gone": session.gone,
            "newest": core.newest,
            "now_ns": now_ns,
            "lease_ns": session.lease_ns,
            **self._welcome,
        }
        self._send(routing, message_frame(header, message))

    def _answer(self, session: Session, frame: bytes, now_ns: int) -> None:
        number: int | None = None
        try:
            query = read_query(frame)
            number = query.number
            if query.query == "snapshot":
                answer = self._snapshots.ask(session, number)
                if answer is not None:
                    self._tell_snapshot(session, number, answer, now_ns)
                return
            result = {"id": number, **self._result(session, query, now_ns)}
        except TimerdError as error:
            self._refuse(session.routing, error, now_ns, session, number)
            return
        self._send(session.routing, message_frame(self._header(DownKind.RESULT, now_ns, session), result))

    def _result(self, session: Session, query: Query, now_ns: int) -> dict[str, Any]:
        core = self._core
        match query.query:
            case "purgatory":
                return {"index": core.purgatory(purgatory_name(query.text("name")).encode())}
            case "mark":
                return {"newest": core.newest}
            case "ping":
                return {"now_ns": now_ns}
            case "listen":
                return {"on": core.set_listening(session.slot, query.flag("on"), now_ns)}
            case "handle":
                most, names = query.amount("most", GROUP_HELD_MAX), query.texts("names", HANDLED_NAMES_MAX)
                purgatory = core.purgatory(purgatory_name(query.text("purgatory")).encode())
                return {"most": core.set_calls(session.slot, most, purgatory, [n.encode() for n in names], now_ns)}
            case "held":
                return {"held": core.held(session.slot, query.numbers("operations", HELD_QUERY_MAX))}
        raise NotSupportedError(
            "a query that this daemon does not know; it knows purgatory, mark, ping, listen, handle, held and snapshot"
        )

    def _tell_snapshot(self, session: Session, number: int, answer: str | ResourceLimitError, now_ns: int) -> None:
        if isinstance(answer, ResourceLimitError):
            self._refuse(session.routing, answer, now_ns, session, number)
        else:
            header = self._header(DownKind.RESULT, now_ns, session)
            self._send(session.routing, message_frame(header, {"id": number, "path": answer}))

    # Ends and silence -------------------------------------------------------------------------------------------------

    def _take_signs(self, now_ns: int) -> int:
        """Connections that show a session, connections and processes that have ended; the signs dealt with."""
        sessions, liveness = self._sessions, self._liveness
        signs = liveness.signs(SIGNS_PER_TURN, now_ns)
        for watch, kind, secret in signs:
            if kind is Kind.ENDED:
                sessions.ended(watch, now_ns)
            elif kind is Kind.BROKEN:
                sessions.broken(watch, now_ns)
            elif not sessions.hold(watch, secret):
                liveness.drop(watch)
                self._core.count(LIVENESS_REFUSED)
        if refused := liveness.take_refused():
            self._core.count(LIVENESS_REFUSED, refused)
        return len(signs) + refused

    def _act_upon_ends(self, now_ns: int) -> int:
        """Close the sessions of those that have ended and have nothing left to be applied; how many were looked at."""
        sessions = self._sessions
        if now_ns < sessions.due_ns:
            return 0
        ended = sessions.take_ended(now_ns)
        unfinished = {session.slot for session in self._waiting}
        for session in ended:
            if session.slot in unfinished:
                sessions.put_off(session, now_ns)
            else:
                self._bury(session, "has ended", now_ns)
        return len(ended)

    def _count_silence(self, now_ns: int) -> None:
        silent, dead = self._sessions.count_silence(self._dry_ns, now_ns)
        for session in silent:
            log.info("client %d (pid %d) is silent", session.slot, session.process.pid)
        if silent:
            self._core.count(CLIENTS_SILENCED, len(silent))
        for session in dead:
            self._bury(session, f"has been silent for {session.silent_ns // 1_000_000_000} s", now_ns)

    def _bury(self, session: Session, why: str, now_ns: int) -> None:
        log.info("client %d (pid %d) %s", session.slot, session.process.pid, why)
        self._core.count(CLIENTS_DIED)
        self._sessions.close(session, now_ns, goodbye=False)
        self._cut = True

    # What goes out ----------------------------------------------------------------------------------------------------

    def _accept_subscriptions(self, now_ns: int) -> int:
        """Give each subscriber that shows a session the topic of its client. Anything else is ignored, and counted."""
        taken = 0
        for message in self._transport.subscriptions(SUBSCRIPTIONS_PER_TURN):
            taken += 1
            if message[:1] != b"\x01":
                continue  # an unsubscription, or the end of a subscriber
            session = self._sessions.find(message[1:])
            if session is None:
                self._core.count(FRAMES_UNKNOWN_SESSION)
                continue
            self._transport.subscribe(session.topic.to_bytes(8, "little"))
            session.subscribed = True
            self._publish(session, self._empty_report(session, now_ns), now_ns)
        if taken == SUBSCRIPTIONS_PER_TURN:
            self._cut = True
        return taken

    def _publish_reports(self, now_ns: int) -> None:
        core = self._core
        for slot, frame in core.reports(now_ns, bytes_max=REPORT_BYTES_PER_TURN, confirm_ns=CONFIRM_NS):
            session = self._sessions.at(slot)
            # Who has not subscribed yet hears the newest number when it does, and asks.
            if session is not None and session.subscribed:
                self._publish(session, frame, now_ns)
        if core.reports_due_ns <= now_ns:
            self._cut = True

    def _do_duties(self, now_ns: int) -> None:
        sessions = self._sessions
        if now_ns < sessions.due_ns:
            return
        for session in sessions.unacknowledged(now_ns):
            self._core.count(ANNOUNCEMENTS)
            self._publish(session, self._empty_report(session, now_ns), now_ns)
        quiet = sessions.beat(now_ns)
        if quiet is not None:
            for session in quiet:
                self._publish(session, self._empty_report(session, now_ns), now_ns)
            self._count_silence(now_ns)

    def _publish(self, session: Session, frame: bytes, now_ns: int) -> None:
        self._transport.publish(frame)
        self._sessions.published(session, now_ns)
        self._frames_out += 1

    def _send(self, routing: bytes, frame: bytes) -> None:
        self._transport.send(routing, frame)
        self._frames_out += 1

    def _refuse(
        self, routing: bytes, error: TimerdError, now_ns: int, session: Session | None = None, number: int | None = None
    ) -> None:
        """Answer with the error's code, count it and note it. Its message holds no payload and no session."""
        message = str(error)
        if isinstance(error, MalformedError | UnsupportedVersionError):
            self._core.count(FRAMES_MALFORMED)
        self._note(error)
        answer = {"code": int(error.code), "message": message, "id": number}
        self._send(routing, message_frame(self._header(DownKind.ERROR, now_ns, session), answer))

    def _note(self, error: TimerdError, count: int = 1) -> None:
        """Count it in the arena's log of errors; the daemon's own log has the first of its kind."""
        message = str(error)
        self._core.log_error(error.code, message.encode(), self._clock.wall_ns(), count)
        if (error.code, message) not in self._errors and len(self._errors) < LOGGED_ERRORS_MAX:
            self._errors.add((error.code, message))
            log.warning("refused: %s: %s", type(error).__name__, message)

    def _header(self, kind: DownKind, now_ns: int, session: Session | None = None) -> bytes:
        applied = self._core.last_command(session.slot) if session else 0
        topic = session.topic if session else 0
        return bare_header(kind, self._incarnation, self._core.newest, now_ns, topic, applied)

    def _empty_report(self, session: Session, now_ns: int, kind: DownKind = DownKind.REPORT) -> bytes:
        """A report that covers nothing, but says what is newest."""
        report = ReportHeader._make(REPORT.unpack_from(self._core.report(session.slot, NEVER, NEVER, now_ns, kind)))
        newest = report.outcome_newest
        return REPORT.pack(*report._replace(outcome_first=newest + 1, outcome_last=newest, answer_previous=0))

    # The turn itself --------------------------------------------------------------------------------------------------

    def _end_gap(self, now_ns: int) -> None:
        if self.in_gap and (now_ns >= self._gap_until_ns or now_ns - self._heard_ns >= DRY_NS):
            self._gap_until_ns = NEVER

    def _close_turn(self, now_ns: int, due_ns: int, work: int) -> None:
        """Count the turn, and say when the next one is due."""
        core = self._core
        for code, value, count in core.take_refusals():
            self._note(refusal(code, value, A_CLIENT), count)
        if self._frames_out:
            core.count(FRAMES_OUT, self._frames_out)
        if self._cut:
            core.count(TURNS_CUT)
            self.due_ns = now_ns
        elif self.in_gap:
            self.due_ns = min(self._gap_until_ns, self._heard_ns + DRY_NS)
        else:
            self.due_ns = min(core.next_wake_ns(), self._sessions.due_ns, self._liveness.due_ns, self._journal_due_ns)
        self.due_ns = min(self.due_ns, core.reports_due_ns, self._snapshots.due_ns)
        if not work and now_ns >= due_ns:
            core.count(EMPTY_WAKEUPS)
        took_ns = self._clock.now_ns() - now_ns
        core.count(BUSY_NS, took_ns)
        core.count_max(TURN_NS_MAX, took_ns)
